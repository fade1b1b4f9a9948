package node

import (
	"bytes"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
)

func TestPinned(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for _, p := range pinned() {
		if seen[p.name] {
			t.Errorf("program %s is pinned twice", p.name)
		}
		seen[p.name] = true
		// go install names the executable after the package.
		if filepath.Base(p.pkg) != p.name {
			t.Errorf("program %s: package %s builds another name", p.name, p.pkg)
		}
		if !strings.HasPrefix(p.version, "v") {
			t.Errorf("program %s: version %q", p.name, p.version)
		}
	}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr", "crictl", "runc"} {
		if !seen[name] {
			t.Errorf("program %s is not pinned", name)
		}
	}
}

func TestProgramBuild(t *testing.T) {
	t.Parallel()
	p := program{name: "runc", pkg: "example.com/runc", version: "v1.2.3", cgo: true}
	if got, want := p.dir("/cache", "go1.26 X:y"), "/cache/runc-v1.2.3-go1.26_X:y"; got != want {
		t.Errorf("dir = %q, want %q", got, want)
	}
	if got, want := runcWithSeccomp().dir("/cache", "go1.26"), "-seccomp-go1.26"; !strings.HasSuffix(got, want) {
		t.Errorf("dir = %q, want one of its own, %q", got, want)
	}
	env := p.buildEnv([]string{"GOFLAGS=-mod=mod", "HOME=/root", "CGO_ENABLED=0"}, "/bin")
	for _, want := range []string{"HOME=/root", "GOFLAGS=", "CGO_ENABLED=1", "GOBIN=/bin"} {
		if !slices.Contains(env, want) {
			t.Errorf("build environment %v lacks %q", env, want)
		}
	}
	if slices.Contains(env, "CGO_ENABLED=0") || slices.Contains(env, "GOFLAGS=-mod=mod") {
		t.Errorf("build environment %v keeps the caller's build settings", env)
	}
}

func TestRequirePackages(t *testing.T) {
	t.Setenv("DEPS", "")
	t.Setenv("CI", "")
	there := debianPackage{"there", func() bool { return true }}
	gone := debianPackage{"gone", func() bool { return false }}
	var log bytes.Buffer
	if err := requirePackages(t.Context(), &log, []debianPackage{there}); err != nil {
		t.Error(err)
	}
	err := requirePackages(t.Context(), &log, []debianPackage{there, gone})
	if !errors.Is(err, ErrPackagesMissing) || !strings.Contains(err.Error(), "apt-get install -y --no-install-recommends gone\n") {
		t.Errorf("requirePackages = %v, want the line to type for gone alone", err)
	}
	if log.Len() > 0 {
		t.Errorf("ran %q unasked", log.String())
	}
}

func TestEnv(t *testing.T) {
	t.Setenv("PATH", "/usr/bin")
	t.Setenv("CONTAINERD_ADDRESS", "/run/containerd/containerd.sock")
	env := newNode("icn-1", "/tmp/icn-1").Env()
	for _, want := range []string{
		"PATH=/tmp/icn-1/bin:/usr/bin",
		"CONTAINERD_ADDRESS=/tmp/icn-1/containerd.sock",
		"CONTAINERD_NAMESPACE=k8s.io",
		"CONTAINER_RUNTIME_ENDPOINT=unix:///tmp/icn-1/containerd.sock",
		"IMAGE_SERVICE_ENDPOINT=unix:///tmp/icn-1/containerd.sock",
	} {
		key, _, _ := strings.Cut(want, "=")
		got := slices.DeleteFunc(slices.Clone(env), func(s string) bool { return !strings.HasPrefix(s, key+"=") })
		if !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %q, want %q alone", key, got, want)
		}
	}
}

func TestContainerdConfig(t *testing.T) {
	t.Parallel()
	n := newNode("icn-1", "/tmp/icn-1")
	n.Pause = "127.0.0.1:1/pause:1"
	n.options.ContainerdConfig = `
[plugins."io.containerd.nri.v1.nri"]
plugin_request_timeout = "3s"
[plugins."io.containerd.nri.v1.nri".default_validator]
enable = true
[plugins."io.containerd.cri.v1.images"]
use_local_image_pull = true
`
	text, err := n.containerdConfig()
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Root    string
		Plugins map[string]map[string]any
	}
	if err := toml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	if config.Root != "/tmp/icn-1/root" {
		t.Errorf("root = %q", config.Root)
	}
	nri := config.Plugins["io.containerd.nri.v1.nri"]
	if nri["socket_path"] != "/tmp/icn-1/nri/nri.sock" || nri["plugin_request_timeout"] != "3s" || nri["default_validator"] == nil {
		t.Errorf("nri = %v, want the node's and the caller's settings", nri)
	}
	images := config.Plugins["io.containerd.cri.v1.images"]
	if images["use_local_image_pull"] != true || images["pinned_images"] == nil {
		t.Errorf("images = %v, want the node's and the caller's settings", images)
	}
	n.options.ContainerdConfig = "version ="
	if _, err := n.containerdConfig(); err == nil {
		t.Error("faulty TOML of the caller was accepted")
	}
}

func TestMentions(t *testing.T) {
	t.Parallel()
	tests := map[string]bool{
		"/tmp/icn-1":                      true,
		"-address\x00/tmp/icn-1/c.sock":   true,
		"A=/tmp/icn-12":                   false,
		"A=/tmp/icn-12:/tmp/icn-1:/other": true,
		"8:pids:/tmp/icn-1\n":             true,
		"":                                false,
	}
	for text, want := range tests {
		if got := mentions([]byte(text), "/tmp/icn-1"); got != want {
			t.Errorf("mentions(%q) = %v, want %v", text, got, want)
		}
	}
}

func TestForeignCgroups(t *testing.T) {
	t.Parallel()
	own := "9:name=systemd:/\n4:memory:/session/1\n0::/\n"
	container := "9:name=systemd:/default/c\n4:memory:/session/1\n1:cpu:/default/c\n0::/\n"
	if got, want := foreignCgroups([]byte(container), []byte(own)), []string{"/default/c"}; !slices.Equal(got, want) {
		t.Errorf("foreignCgroups = %v, want %v", got, want)
	}
}

func TestBuildImage(t *testing.T) {
	t.Parallel()
	n := &Node{base: busyboxLayer}
	digest := func(o ImageOptions) string {
		t.Helper()
		image, err := n.BuildImage(o)
		if err != nil {
			t.Fatal(err)
		}
		d, err := image.Digest()
		if err != nil {
			t.Fatal(err)
		}
		return d.String()
	}
	seeded := digest(ImageOptions{Seed: "a", Layers: 2})
	if digest(ImageOptions{Seed: "a", Layers: 2}) != seeded {
		t.Error("the same seed gave another image")
	}
	first, second := digest(ImageOptions{}), digest(ImageOptions{})
	if digest(ImageOptions{Seed: "b", Layers: 2}) == seeded || first == second {
		t.Error("another seed, or none, gave the same image")
	}

	image, err := n.BuildImage(ImageOptions{Platform: "linux/arm64/v8", Layers: 3, Labels: map[string]string{"a": "b"}})
	if err != nil {
		t.Fatal(err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if file.Architecture != "arm64" || file.Variant != "v8" || len(file.RootFS.DiffIDs) != 4 || file.Config.Labels["a"] != "b" {
		t.Errorf("config = %+v", file)
	}
}
