//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/image-custodian/custodian/hack/node"
)

// bin holds the programs as they are shipped, faultsBin those with the tag.
var bin, faultsBin string

func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	if os.Geteuid() != 0 {
		return 1, errors.New("the end-to-end tests need root")
	}
	dir, err := os.MkdirTemp("", "custodian-bin-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	bin, faultsBin = dir+"/shipped", dir+"/faults"
	ctx := context.Background()
	if err := errors.Join(node.BuildCustodian(ctx, bin), node.BuildCustodian(ctx, faultsBin, "faults")); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// world is a node with an image-custodian on it, for the time of a test.
type world struct {
	t *testing.T
	*node.Node
	custodian *node.Custodian
	client    *containerd.Client
	ctx       context.Context // in containerd namespace k8s.io
}

// quick are times for tests: images go 4 s after their last use.
const quick = "[clean]\nunused_for = \"4s\"\nmin_age = \"0\"\nstart_grace = \"1s\"\n"

// newNode starts a node without image-custodian. Its end is part of the test:
// whatever is left then fails it.
func newNode(t *testing.T, o node.Options) *node.Node {
	t.Helper()
	o.Log = os.Stderr
	n, err := node.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return n
}

// newWorld starts a node, and on it a sidecar with the given configuration over
// the defaults, and a plugin.
func newWorld(t *testing.T, config string) *world {
	t.Helper()
	w := newIdleWorld(t, node.Options{}, node.CustodianOptions{Bin: bin, Config: config})
	w.must(w.custodian.Start(w.ctx))
	return w
}

// newIdleWorld starts only the node.
func newIdleWorld(t *testing.T, o node.Options, c node.CustodianOptions) *world {
	t.Helper()
	n := newNode(t, o)
	w := &world{t: t, Node: n, ctx: namespaces.WithNamespace(t.Context(), "k8s.io")}
	var err error
	w.custodian, err = n.NewCustodian(c)
	w.must(err)
	w.client, err = containerd.New(n.ContainerdAddress)
	w.must(err)
	t.Cleanup(func() {
		if err := errors.Join(w.custodian.Stop(), w.client.Close()); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			for _, file := range []string{w.custodian.SidecarLog, w.custodian.PluginLog} {
				if log, err := os.ReadFile(file); err == nil {
					t.Logf("%s:\n%s", file, log[max(0, len(log)-6000):])
				}
			}
		}
	})
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// eventually waits for a condition of the real node.
func (w *world) eventually(limit time.Duration, what string, check func() bool) {
	w.t.Helper()
	end := time.Now().Add(limit)
	for !check() {
		if time.Now().After(end) {
			w.t.Fatalf("not within %v: %s", limit, what)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// stays watches that a condition holds for a while.
func (w *world) stays(d time.Duration, what string, check func() bool) {
	w.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if !check() {
			w.t.Fatalf("no longer holds: %s", what)
		}
	}
}

// push makes an image in the registry and pulls it through the CRI.
func (w *world) push(name string) (ref, id string) {
	w.t.Helper()
	ref, err := w.PushImage(w.ctx, name, node.ImageOptions{Layers: 2})
	w.must(err)
	id, err = w.Pull(w.ctx, ref)
	w.must(err)
	return ref, id
}

// criImages are the IDs that the CRI lists.
func (w *world) criImages() []string {
	w.t.Helper()
	r, err := w.Images().ListImages(w.ctx, &runtimeapi.ListImagesRequest{})
	w.must(err)
	var ids []string
	for _, i := range r.GetImages() {
		ids = append(ids, i.GetId())
	}
	return ids
}

func (w *world) hasImage(id string) bool {
	w.t.Helper()
	return slices.Contains(w.criImages(), id)
}

// records are the names in containerd's image store that point at a target.
func (w *world) records(target string) []string {
	w.t.Helper()
	list, err := w.client.ImageService().List(w.ctx)
	w.must(err)
	var names []string
	for _, i := range list {
		if target == "" || i.Target.Digest.String() == target {
			names = append(names, i.Name)
		}
	}
	return names
}

// target is what a name points at.
func (w *world) target(name string) images.Image {
	w.t.Helper()
	i, err := w.client.ImageService().Get(w.ctx, name)
	w.must(err)
	return i
}

// stored is the size of all blobs and all committed snapshots.
func (w *world) stored() (bytes int64) {
	w.t.Helper()
	w.must(w.client.ContentStore().Walk(w.ctx, func(i content.Info) error {
		bytes += i.Size
		return nil
	}))
	s := w.client.SnapshotService("overlayfs")
	w.must(s.Walk(w.ctx, func(ctx context.Context, i snapshots.Info) error {
		if i.Kind != snapshots.KindCommitted {
			return nil
		}
		u, err := s.Usage(ctx, i.Name)
		bytes += u.Size
		return err
	}))
	return bytes
}

// image is an image as custodianctl tells it.
type image struct {
	ID           string   `json:"id"`
	Names        []string `json:"names"`
	Platform     string   `json:"platform"`
	InUse        bool     `json:"in_use"`
	Pinned       bool     `json:"pinned"`
	Decision     string   `json:"decision"`
	Reason       string   `json:"reason"`
	Rule         string   `json:"rule"`
	Runtimes     []string `json:"runtimes"`
	ContentBytes int64    `json:"content_bytes"`
	Uses         []use    `json:"uses"`
	ExpiresAt    string   `json:"expires_at"`
	LastUsed     string   `json:"last_used"`
}

type use struct {
	ContainerID    string `json:"container_id"`
	ContainerName  string `json:"container_name"`
	Pod            string `json:"pod"`
	Namespace      string `json:"namespace"`
	ImageID        string `json:"image_id"`
	Image          string `json:"image"`
	RuntimeHandler string `json:"runtime_handler"`
	RuntimeType    string `json:"runtime_type"`
	Platform       string `json:"platform"`
	State          string `json:"state"`
	Kind           string `json:"kind"`
}

type event struct {
	Kind       string   `json:"kind"`
	Names      []string `json:"names"`
	Reason     string   `json:"reason"`
	FreedBytes int64    `json:"freed_bytes"`
}

type nodeStatus struct {
	Events []event `json:"events"`
	Holds  []struct {
		Reason      string `json:"reason"`
		Detail      string `json:"detail"`
		NeedsPerson bool   `json:"needs_person"`
	} `json:"holds"`
	Sources []struct {
		Name  string `json:"name"`
		OK    bool   `json:"ok"`
		Error string `json:"error"`
	} `json:"sources"`
}

// ctl runs custodianctl and decodes its JSON.
func (w *world) ctl(into any, args ...string) {
	w.t.Helper()
	stdout, stderr, code, err := w.custodian.Ctl(w.ctx, append(args, "-o", "json")...)
	w.must(err)
	if code != 0 && args[0] != "status" {
		w.t.Fatalf("custodianctl %s: exit %d\n%s", strings.Join(args, " "), code, stderr)
	}
	if err := json.Unmarshal([]byte(stdout), into); err != nil {
		w.t.Fatalf("custodianctl %s: %v\n%s", strings.Join(args, " "), err, stdout)
	}
}

func (w *world) listed(id string) (image, bool) {
	w.t.Helper()
	var list struct{ Images []image }
	w.ctl(&list, "images", "--filter", "id="+id)
	if len(list.Images) == 0 {
		return image{}, false
	}
	return list.Images[0], true
}

func (w *world) uses() []use {
	w.t.Helper()
	var list struct{ Uses []use }
	w.ctl(&list, "uses")
	return list.Uses
}

func (w *world) status() (s nodeStatus) {
	w.t.Helper()
	w.ctl(&s, "status")
	return s
}

// removals are the events of removed images, by their first name.
func (w *world) removals() map[string]event {
	w.t.Helper()
	removed := map[string]event{}
	for _, e := range w.status().Events {
		if e.Kind == "removed" {
			for _, name := range e.Names {
				removed[name] = e
			}
		}
	}
	return removed
}

// end stops and removes a container and its pod.
func (w *world) end(pod string) {
	w.t.Helper()
	w.must(w.StopPod(w.ctx, pod))
	w.must(w.RemovePod(w.ctx, pod))
}
