package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/image-custodian/custodian/api/v1/node"
)

func TestShippedConfigIsTheDefault(t *testing.T) {
	got, err := loadConfig(filepath.Join("..", "conf", "plugin.toml"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(defaultConfig(), got, cmp.AllowUnexported(config{})); diff != "" {
		t.Error(diff)
	}
}

func TestConfigFaults(t *testing.T) {
	for text, want := range map[string]string{
		"node_sokcet = \"/x\"":                    `line 1: unknown key "node_sokcet"`,
		"\n[log]\nlvl = 1":                        `line 3: unknown key "log.lvl"`,
		"node_socket = \"x\"\nnri_socket = \"y\"": `node_socket: "x" is not an absolute path; nri_socket: "y"`,
		"[log]\nlevel = \"loud\"":                 "line 2: log.level: ",
		"node_socket":                             "line 1",
		"a = 1\nb = 2":                            `"a"; line 2: unknown key "b"`,
	} {
		path := filepath.Join(t.TempDir(), "plugin.toml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := loadConfig(path)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := loadConfig("/nowhere/plugin.toml"); err == nil {
		t.Error("a named file that is not there is no error")
	}
}

func TestSubscription(t *testing.T) {
	for version, last := range map[string]api.Event{
		"1.7.35": api.Event_REMOVE_CONTAINER, "v2.0.14": api.Event_REMOVE_CONTAINER, "v2.2.1": api.Event_LAST, "2.4.2": api.Event_LAST, "devel": api.Event_LAST,
	} {
		mask := subscription("containerd", version)
		if !mask.IsSet(api.Event_CREATE_CONTAINER) || !mask.IsSet(api.Event_REMOVE_CONTAINER) {
			t.Errorf("%s: %s", version, mask.PrettyString())
		}
		for e := last + 1; e < api.Event_LAST; e++ {
			if mask.IsSet(e) {
				t.Errorf("%s: subscribes to %v, which it does not know", version, e)
			}
		}
	}
}

func TestUseOfOldRuntime(t *testing.T) {
	u := useOf(&api.PodSandbox{Id: "p"}, &api.Container{Id: "c", Annotations: map[string]string{annotationImageName: "nginx"}}, 1)
	if u.GetImage().GetUserName() != "nginx" || u.GetImage().GetId() != "" {
		t.Errorf("use = %v", u)
	}
	if u := useOf(nil, &api.Container{Id: "c", PodSandboxId: "p"}, 1); u.GetPod().GetId() != "p" {
		t.Errorf("use without a pod = %v", u)
	}
}

func TestCanonicalRuntime(t *testing.T) {
	for name, want := range map[string]string{
		"io.containerd.runtime.v1.linux": "io.containerd.runc.v2", "io.containerd.runc.v1": "io.containerd.runc.v2",
		"io.containerd.runc.v2": "io.containerd.runc.v2", "io.containerd.kata.v2": "io.containerd.kata.v2", "": "",
	} {
		if got := canonicalRuntime(name); got != want {
			t.Errorf("%q = %q, want %q", name, got, want)
		}
	}
}

// Whatever the author of a pod writes, what is forwarded is bounded and can be
// sent.
func FuzzUseOf(f *testing.F) {
	f.Add("c1", "nginx", "/run/image-volumes/x/y", int32(3))
	f.Add("\xff\xfe", strings.Repeat("é", 3000), "/image-volumes/"+strings.Repeat("x", 5000), int32(-1))
	f.Fuzz(func(t *testing.T, id, image, mount string, state int32) {
		mounts := make([]*api.Mount, 200)
		for i := range mounts {
			mounts[i] = &api.Mount{Source: mount}
		}
		u := useOf(&api.PodSandbox{Id: id, Name: image, RuntimeHandler: mount}, &api.Container{
			Id: id, State: api.ContainerState(state), Mounts: mounts, Annotations: map[string]string{annotationImageName: image},
		}, 1)
		data, err := proto.Marshal(&node.SyncRequest{Uses: []*node.Use{u}})
		if err != nil || len(data) > 80<<10 {
			t.Errorf("%d bytes, %v", len(data), err)
		}
		if !utf8.ValidString(u.GetContainerId()) || u.GetState() == node.UseState_USE_STATE_UNSPECIFIED {
			t.Errorf("use = %v", u)
		}
	})
}
