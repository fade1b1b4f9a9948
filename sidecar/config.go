package main

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/image-custodian/custodian/sidecar/internal/reconcile"
)

// Config is the sidecar's configuration file. conf/sidecar.toml shows every key
// with its default and its meaning.
type Config struct {
	Containerd struct {
		Address    string   `toml:"address"`
		Namespaces []string `toml:"namespaces"`
	} `toml:"containerd"`
	Node struct {
		Socket string `toml:"socket"`
	} `toml:"node"`
	Clean struct {
		Mode           reconcile.Mode `toml:"mode"`
		UnusedFor      Duration       `toml:"unused_for"`
		MinAge         Duration       `toml:"min_age"`
		StartGrace     Duration       `toml:"start_grace"`
		KeepUnpullable bool           `toml:"keep_unpullable"`
	} `toml:"clean"`
	Guard struct {
		AdmitTimeout Duration `toml:"admit_timeout"`
	} `toml:"guard"`
	History struct {
		Events int `toml:"events"`
	} `toml:"history"`
	State struct {
		Dir string `toml:"dir"`
	} `toml:"state"`
	Control struct {
		Socket      string `toml:"socket"`
		ReaderGroup string `toml:"reader_group"`
	} `toml:"control"`
	Log struct {
		Level  slog.Level `toml:"level"`
		Format string     `toml:"format"`
	} `toml:"log"`
}

// DefaultConfig is what an empty file means.
func DefaultConfig() Config {
	var c Config
	c.Containerd.Namespaces = []string{reconcile.CRINamespace}
	c.Node.Socket = "/run/image-custodian/node/node.sock"
	c.Clean.Mode = reconcile.ModeAuto
	c.Clean.UnusedFor = Duration(31 * day)
	c.Clean.MinAge = Duration(time.Hour)
	c.Clean.StartGrace = Duration(15 * time.Minute)
	c.Clean.KeepUnpullable = true
	c.Guard.AdmitTimeout = Duration(250 * time.Millisecond)
	c.History.Events = 10000
	c.State.Dir = "/var/lib/image-custodian"
	c.Control.Socket = "/run/image-custodian/control.sock"
	c.Log.Format = "text"
	return c
}

// defaultConfigFile may be absent: then the defaults hold.
const defaultConfigFile = "/etc/image-custodian/sidecar.toml"

// LoadConfig reads a configuration file over the defaults and returns every
// fault of it, with file and line. An empty path means the default file.
func LoadConfig(path string) (Config, error) {
	c := DefaultConfig()
	named := path != ""
	if !named {
		path = defaultConfigFile
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) && !named {
		return c, nil
	}
	if err != nil {
		return c, fmt.Errorf("configuration: %w", err)
	}
	if err := decode(data, &c); err != nil {
		return c, fmt.Errorf("configuration %s: %w", path, err)
	}
	if err := c.Validate(); err != nil {
		return c, fmt.Errorf("configuration %s: %w", path, err)
	}
	return c, nil
}

func decode(data []byte, c *Config) error {
	err := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields().Decode(c)
	if strict, ok := errors.AsType[*toml.StrictMissingError](err); ok {
		var faults []string
		for _, e := range strict.Errors {
			line, _ := e.Position()
			faults = append(faults, fmt.Sprintf("line %d: unknown key %q", line, strings.Join(e.Key(), ".")))
		}
		return errors.New(strings.Join(faults, "; "))
	}
	if e, ok := errors.AsType[*toml.DecodeError](err); ok {
		line, _ := e.Position()
		return fmt.Errorf("line %d: %w", line, err)
	}
	return err
}

// Validate returns every fault of the values, joined in one line.
func (c Config) Validate() error {
	var faults []string
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	check(len(c.Containerd.Namespaces) > 0, "containerd.namespaces: name at least one")
	for _, ns := range c.Containerd.Namespaces {
		check(ns != "" && !strings.ContainsAny(ns, "/\x00"), "containerd.namespaces: %q is no containerd namespace", ns)
	}
	for name, path := range map[string]string{"node.socket": c.Node.Socket, "control.socket": c.Control.Socket, "state.dir": c.State.Dir} {
		check(filepath.IsAbs(path), "%s: %q is not an absolute path", name, path)
	}
	check(filepath.Dir(c.Node.Socket) != filepath.Dir(c.Control.Socket), "node.socket: needs a directory of its own, which only root may enter")
	switch c.Clean.Mode {
	case reconcile.ModeAuto, reconcile.ModePlan, reconcile.ModeOff:
	default:
		check(false, "clean.mode: %q is none of auto, plan, off", c.Clean.Mode)
	}
	check(c.Clean.UnusedFor >= 0, "clean.unused_for: is negative")
	check(c.Clean.MinAge >= 0, "clean.min_age: is negative")
	check(c.Clean.StartGrace >= 0, "clean.start_grace: is negative")
	check(c.Guard.AdmitTimeout > 0 && time.Duration(c.Guard.AdmitTimeout) <= 5*time.Second, "guard.admit_timeout: want more than 0 and at most 5s")
	check(c.History.Events > 0, "history.events: want at least 1")
	check(c.Log.Format == "text" || c.Log.Format == "json", "log.format: %q is none of text, json", c.Log.Format)
	if len(faults) > 0 {
		return errors.New(strings.Join(faults, "; "))
	}
	return nil
}

const day = 24 * time.Hour

// Duration is a time.Duration that is also written in days and weeks: 90s, 15m,
// 31d, 2w. "" is 0, off.
type Duration time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	s := string(text)
	if s == "" || s == "0" {
		*d = 0
		return nil
	}
	for suffix, unit := range map[string]time.Duration{"d": day, "w": 7 * day} {
		n, err := strconv.ParseFloat(strings.TrimSuffix(s, suffix), 64)
		if strings.HasSuffix(s, suffix) && err == nil && n < 1e5 && n > -1e5 {
			*d = Duration(n * float64(unit))
			return nil
		}
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("%q is no duration like 90s, 15m, 12h, 31d", s)
	}
	*d = Duration(v)
	return nil
}
