package node

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/template"

	"github.com/pelletier/go-toml/v2"
)

//go:embed containerd.toml
var containerdTemplate string

// writeFiles fills the node's directory with what containerd reads.
func (n *Node) writeFiles(bin map[string]string) error {
	config, err := n.containerdConfig()
	if err != nil {
		return err
	}
	network, err := n.networkConfig()
	if err != nil {
		return err
	}
	files := map[string][]byte{
		"containerd.toml":                       config,
		"cni/net.d/10-" + n.Name + ".conflist":  network,
		"certs.d/" + n.Registry + "/hosts.toml": fmt.Appendf(nil, "server = %q\n", "http://"+n.Registry),
		"crictl.yaml":                           fmt.Appendf(nil, "runtime-endpoint: unix://%[1]s\nimage-endpoint: unix://%[1]s\ntimeout: 60\n", n.ContainerdAddress),
	}
	for name, text := range n.options.NRIPluginConfig {
		files["nri/conf.d/"+name] = []byte(text)
	}
	for name, data := range files {
		path := filepath.Join(n.Dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
	}
	for _, dir := range []string{"bin", "logs", "nri/plugins", "nri/conf.d"} {
		if err := os.MkdirAll(filepath.Join(n.Dir, dir), 0o755); err != nil {
			return err
		}
	}
	for name, path := range bin {
		if err := n.linkProgram(name, path); err != nil {
			return err
		}
	}
	for name, from := range n.options.NRIPlugins {
		if err := copyProgram(filepath.Join(n.Dir, "nri", "plugins", name), from); err != nil {
			return fmt.Errorf("NRI plugin %s: %w", name, err)
		}
	}
	return nil
}

// linkProgram makes path the node's program of that name, from its next call on.
func (n *Node) linkProgram(name, path string) error {
	link := filepath.Join(n.Dir, "bin", name)
	if err := os.Symlink(path, link+".new"); err != nil {
		return fmt.Errorf("program %s: %w", name, err)
	}
	return os.Rename(link+".new", link)
}

// containerdConfig is the template with Options.ContainerdConfig merged over.
func (n *Node) containerdConfig() ([]byte, error) {
	t, err := template.New("containerd.toml").Parse(containerdTemplate)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	if err := t.Execute(&text, n); err != nil {
		return nil, err
	}
	var config, extra map[string]any
	if err := toml.Unmarshal(text.Bytes(), &config); err != nil {
		return nil, fmt.Errorf("generated containerd configuration: %w", err)
	}
	if err := toml.Unmarshal([]byte(n.options.ContainerdConfig), &extra); err != nil {
		return nil, fmt.Errorf("Options.ContainerdConfig: %w", err)
	}
	merge(config, extra)
	return toml.Marshal(config)
}

// merge puts the values of from into into, table by table.
func merge(into, from map[string]any) {
	for key, value := range from {
		table, isTable := value.(map[string]any)
		old, wasTable := into[key].(map[string]any)
		if isTable && wasTable {
			merge(old, table)
			continue
		}
		into[key] = value
	}
}

// networkConfig gives pods an address on a bridge that leads nowhere: not
// even to the host, so nothing of the host's network changes and all nodes
// can use the same addresses.
func (n *Node) networkConfig() ([]byte, error) {
	return json.MarshalIndent(map[string]any{
		"cniVersion": "1.0.0",
		"name":       n.Name,
		"plugins": []any{map[string]any{
			"type":   "bridge",
			"bridge": n.Name,
			"ipam": map[string]any{
				"type":    "host-local",
				"dataDir": filepath.Join(n.Dir, "cni", "ipam"),
				"ranges":  []any{[]any{map[string]any{"subnet": "10.88.0.0/16"}}},
			},
		}},
	}, "", "  ")
}

func copyProgram(to, from string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.Copy(out, in)
	return err
}
