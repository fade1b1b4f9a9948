package node

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Env is the caller's environment, changed so that ctr, crictl and runc are
// found first and talk to this node.
func (n *Node) Env() []string {
	endpoint := "unix://" + n.ContainerdAddress
	return overlay(os.Environ(),
		"PATH="+filepath.Join(n.Dir, "bin")+":"+os.Getenv("PATH"),
		"CONTAINERD_ADDRESS="+n.ContainerdAddress,
		"CONTAINERD_NAMESPACE=k8s.io",
		"CONTAINER_RUNTIME_ENDPOINT="+endpoint,
		"IMAGE_SERVICE_ENDPOINT="+endpoint,
		// Keeps crictl away from /etc/crictl.yaml.
		"CRI_CONFIG_FILE="+filepath.Join(n.Dir, "crictl.yaml"),
	)
}

// Command prepares name, a program of the node or of the host, to run with
// the node's Env. It must have ended before Stop, which counts it as left
// behind otherwise.
func (n *Node) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	if own := filepath.Join(n.Dir, "bin", name); !strings.Contains(name, "/") && exists(own) {
		name = own
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = n.Env()
	return cmd
}

// overlay returns environ with the given settings in place of its own ones.
func overlay(environ []string, settings ...string) []string {
	set := make(map[string]bool, len(settings))
	for _, s := range settings {
		key, _, _ := strings.Cut(s, "=")
		set[key] = true
	}
	kept := slices.DeleteFunc(slices.Clone(environ), func(s string) bool {
		key, _, _ := strings.Cut(s, "=")
		return set[key]
	})
	return append(kept, settings...)
}
