package main

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// config is the plugin's configuration, the same text whether it comes from a
// file or from containerd. conf/plugin.toml shows every key.
type config struct {
	NodeSocket string `toml:"node_socket"`
	NRISocket  string `toml:"nri_socket"`
	Log        struct {
		Level slog.Level `toml:"level"`
	} `toml:"log"`
}

func defaultConfig() config {
	return config{
		NodeSocket: "/run/image-custodian/node/node.sock",
		NRISocket:  "/var/run/nri/nri.sock",
	}
}

const defaultConfigFile = "/etc/image-custodian/plugin.toml"

// loadConfig reads a file over the defaults. An empty path means the default
// file, which may be absent.
func loadConfig(path string) (config, error) {
	named := path != ""
	if !named {
		path = defaultConfigFile
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) && !named {
		return defaultConfig(), nil
	}
	if err != nil {
		return config{}, fmt.Errorf("configuration: %w", err)
	}
	c, err := parseConfig(data)
	if err != nil {
		return config{}, fmt.Errorf("configuration %s: %w", path, err)
	}
	return c, nil
}

// parseConfig lays a text over the defaults and returns all its faults.
func parseConfig(data []byte) (config, error) {
	c := defaultConfig()
	err := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields().Decode(&c)
	if strict, ok := errors.AsType[*toml.StrictMissingError](err); ok {
		var faults []string
		for _, e := range strict.Errors {
			line, _ := e.Position()
			faults = append(faults, fmt.Sprintf("line %d: unknown key %q", line, strings.Join(e.Key(), ".")))
		}
		return c, errors.New(strings.Join(faults, "; "))
	}
	if e, ok := errors.AsType[*toml.DecodeError](err); ok {
		line, _ := e.Position()
		if key := strings.Join(e.Key(), "."); key != "" {
			return c, fmt.Errorf("line %d: %s: %w", line, key, err)
		}
		return c, fmt.Errorf("line %d: %w", line, err)
	}
	if err != nil {
		return c, err
	}
	var faults []string
	for _, key := range []struct{ name, path string }{{"node_socket", c.NodeSocket}, {"nri_socket", c.NRISocket}} {
		if !filepath.IsAbs(key.path) {
			faults = append(faults, fmt.Sprintf("%s: %q is not an absolute path", key.name, key.path))
		}
	}
	if len(faults) > 0 {
		return c, errors.New(strings.Join(faults, "; "))
	}
	return c, nil
}
