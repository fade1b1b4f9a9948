//go:build e2e

package e2e

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/snapshots/native"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/image-spec/identity"
	"google.golang.org/grpc"

	"github.com/image-custodian/custodian/hack/node"
)

// reason waits until an image is kept for a reason.
func (w *world) reason(id, want string) {
	w.t.Helper()
	var got image
	end := time.Now().Add(20 * time.Second)
	for got.Reason != want {
		if time.Now().After(end) {
			w.t.Fatalf("image %s: %s %s, want keep %s", id, got.Decision, got.Reason, want)
		}
		got, _ = w.listed(id)
		time.Sleep(50 * time.Millisecond)
	}
	if got.Decision != "keep" {
		w.t.Errorf("image %s: %s %s", id, got.Decision, got.Reason)
	}
}

func (w *world) gone(id, what string) {
	w.t.Helper()
	w.eventually(30*time.Second, what+" goes", func() bool { return !w.hasImage(id) })
}

// A container that has exited holds its image, and so does one that mounts an
// image as a volume, until the containers are removed.
func TestCase11ExitedAndImageVolume(t *testing.T) {
	w := newWorld(t, quick)
	root, rootID := w.push("root:1")
	volume, volumeID := w.push("volume:1")
	pod, container, err := w.Run(w.ctx, node.PodOptions{Name: "job"}, node.ContainerOptions{
		Image: root, ImageVolumes: map[string]string{"/model": volume},
	})
	w.must(err)
	w.must(w.StopContainer(w.ctx, container, time.Second))
	w.stays(8*time.Second, "both images", func() bool { return w.hasImage(rootID) && w.hasImage(volumeID) })
	w.reason(rootID, "in-use")
	w.reason(volumeID, "image-volume")
	w.end(pod)
	w.gone(rootID, "the image of the exited container")
	w.gone(volumeID, "the image volume")
}

// brokenSnapshotter is a snapshotter of which the list can be made to fail.
type brokenSnapshotter struct {
	snapshots.Snapshotter
	broken atomic.Bool
}

func (s *brokenSnapshotter) Walk(ctx context.Context, fn snapshots.WalkFunc, filters ...string) error {
	if s.broken.Load() {
		return errors.New("the disk is on holiday")
	}
	return s.Snapshotter.Walk(ctx, fn, filters...)
}

func (s *brokenSnapshotter) Stat(ctx context.Context, key string) (snapshots.Info, error) {
	if s.broken.Load() {
		return snapshots.Info{}, errors.New("the disk is on holiday")
	}
	return s.Snapshotter.Stat(ctx, key)
}

func serveSnapshotter(t *testing.T) (s *brokenSnapshotter, socket string) {
	dir := t.TempDir()
	inner, err := native.NewSnapshotter(filepath.Join(dir, "root"))
	if err != nil {
		t.Fatal(err)
	}
	s = &brokenSnapshotter{Snapshotter: inner}
	socket = filepath.Join(dir, "s.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	snapshotsapi.RegisterSnapshotsServer(server, snapshotservice.FromSnapshotter(s))
	go func() { _ = server.Serve(l) }() // Stop makes it return
	t.Cleanup(server.Stop)
	return s, socket
}

// What goes in one containerd namespace stays in another. While a snapshotter
// does not list, nothing goes at all, and status says which and what to do.
func TestCase12OneNamespaceAndABrokenStore(t *testing.T) {
	snapshotter, socket := serveSnapshotter(t)
	w := newIdleWorld(t, node.Options{
		ContainerdConfig: "[proxy_plugins.broken]\ntype = \"snapshot\"\naddress = \"" + socket + "\"\n",
	}, node.CustodianOptions{Bin: bin, Config: quick})
	w.must(w.custodian.Start(w.ctx))
	ref, id := w.push("shared:1")
	other := namespaces.WithNamespace(t.Context(), "default")
	img, err := w.client.Pull(other, ref, containerd.WithPullUnpack, w.plainHTTP())
	w.must(err)
	container, err := w.client.NewContainer(other, "user", containerd.WithNewSnapshot("user", img))
	w.must(err)
	w.gone(id, "the image of k8s.io")
	if _, err := w.client.GetImage(other, ref); err != nil {
		t.Errorf("the image of default: %v", err)
	}
	if _, err := w.client.SnapshotService("overlayfs").Stat(other, "user"); err != nil {
		t.Errorf("the snapshot of default: %v", err)
	}
	w.must(container.Delete(other, containerd.WithSnapshotCleanup))

	// The broken snapshotter knows a snapshot in k8s.io, so that it is asked.
	_, err = w.client.SnapshotService("broken").Prepare(w.ctx, "own", "", snapshots.WithLabels(map[string]string{"containerd.io/gc.root": "1"}))
	w.must(err)
	_, kept := w.push("kept:1")
	w.reason(kept, "not-expired")
	snapshotter.broken.Store(true)
	w.stays(10*time.Second, "the image while a snapshotter does not list", func() bool { return w.hasImage(kept) })
	stdout, _, code, err := w.custodian.Ctl(w.ctx, "status")
	w.must(err)
	if code != 1 || !strings.Contains(stdout, `"broken"`) || !strings.Contains(stdout, "on holiday") || !strings.Contains(stdout, "view-incomplete") {
		t.Errorf("status: exit %d\n%s", code, stdout)
	}
	w.reason(kept, "view-incomplete")
	snapshotter.broken.Store(false)
	w.gone(kept, "the image when the snapshotter lists again")
}

// artifact is an OCI artifact with the empty configuration, as all of them have.
func artifact(t *testing.T, text string) v1.Image {
	t.Helper()
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), "application/vnd.oci.empty.v1+json")
	img, err := mutate.Append(img, mutate.Addendum{Layer: static.NewLayer([]byte(text), "application/vnd.corp.chart.v1")})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// Artifacts are told apart although all have the same configuration: of two, the
// one that a rule names goes, alone.
func TestCase32Artifacts(t *testing.T) {
	w := newWorld(t, quick+"[[rule]]\nname = \"charts\"\nimages = [\"*/charts/old\"]\nunused_for = \"2s\"\n[[rule]]\nname = \"all\"\nimages = [\"**\"]\nunused_for = \"2s\"\n")
	refs := map[string]string{}
	for _, name := range []string{"charts/old:1", "charts/new:1"} {
		ref, err := w.Push(w.ctx, name, artifact(t, name))
		w.must(err)
		_, err = w.client.Fetch(w.ctx, ref, w.plainHTTP())
		w.must(err)
		refs[name] = ref
	}
	w.eventually(20*time.Second, "the named artifact goes", func() bool { return !slices.Contains(w.records(""), refs["charts/old:1"]) })
	w.stays(5*time.Second, "the other artifact", func() bool { return slices.Contains(w.records(""), refs["charts/new:1"]) })
	var list struct{ Images []image }
	w.ctl(&list, "images", "--filter", "image="+refs["charts/new:1"])
	if len(list.Images) != 1 || list.Images[0].Reason != "not-an-image" || list.Images[0].ID != w.target(refs["charts/new:1"]).Target.Digest.String() {
		t.Errorf("%+v", list.Images)
	}
}

// An image stays while something is mounted on it or somebody's lease names it;
// a base image does not stay because an image above it is used.
func TestSnapshotsAndLeasesKeep(t *testing.T) {
	w := newWorld(t, quick)
	base, err := w.BuildImage(node.ImageOptions{Layers: 2})
	w.must(err)
	more, err := w.BuildImage(node.ImageOptions{Layers: 1})
	w.must(err)
	layers, err := more.Layers()
	w.must(err)
	child, err := mutate.AppendLayers(base, layers[len(layers)-1])
	w.must(err)
	baseRef, err := w.Push(w.ctx, "base:1", base)
	w.must(err)
	childRef, err := w.Push(w.ctx, "child:1", child)
	w.must(err)
	baseID, err := w.Pull(w.ctx, baseRef)
	w.must(err)
	_, _, err = w.Run(w.ctx, node.PodOptions{Name: "user"}, node.ContainerOptions{Image: childRef})
	w.must(err)
	mounted, mountedID := w.push("mounted:1")
	leased, leasedID := w.push("leased:1")

	overlay := w.client.SnapshotService("overlayfs")
	_, err = overlay.Prepare(w.ctx, "by-hand", w.chain(mounted), snapshots.WithLabels(map[string]string{"containerd.io/gc.root": "1"}))
	w.must(err)
	manager := w.client.LeasesService()
	lease, err := manager.Create(w.ctx, leases.WithID("build-7"))
	w.must(err)
	w.must(manager.AddResource(w.ctx, lease, leases.Resource{Type: "content", ID: w.target(leased).Target.Digest.String()}))

	w.gone(baseID, "the base image")
	w.stays(5*time.Second, "both images", func() bool { return w.hasImage(mountedID) && w.hasImage(leasedID) })
	w.reason(mountedID, "snapshot")
	w.reason(leasedID, "leased")
	w.must(overlay.Remove(w.ctx, "by-hand"))
	w.must(manager.Delete(w.ctx, lease))
	w.push("next:1") // of leases there are no events: the next look finds it
	w.gone(mountedID, "what was mounted")
	w.gone(leasedID, "what was leased")
}

// chain is the chain ID of all layers of an image.
func (w *world) chain(ref string) string {
	w.t.Helper()
	img, err := w.client.GetImage(w.ctx, ref)
	w.must(err)
	ids, err := img.RootFS(w.ctx)
	w.must(err)
	return identity.ChainID(ids).String()
}

// A container outside the CRI is known by its snapshot, although the name that
// it was made from means another image by now.
func TestAMovedNameOfAPlainContainer(t *testing.T) {
	w := newIdleWorld(t, node.Options{}, node.CustodianOptions{Bin: bin, Config: quick})
	first, id := w.push("moving:1")
	img, err := w.client.GetImage(w.ctx, first)
	w.must(err)
	container, err := w.client.NewContainer(w.ctx, "plain", containerd.WithImage(img), containerd.WithNewSnapshot("plain", img))
	w.must(err)
	second, err := w.PushImage(w.ctx, "moving:1", node.ImageOptions{Layers: 2})
	w.must(err)
	secondID, err := w.Pull(w.ctx, second)
	w.must(err)
	if second != first || secondID == id {
		t.Fatalf("%s is %s, %s is %s", first, id, second, secondID)
	}
	w.must(w.custodian.Start(w.ctx))
	w.reason(id, "in-use")
	w.gone(secondID, "the image that only has the name")
	w.must(container.Delete(w.ctx, containerd.WithSnapshotCleanup))
	w.gone(id, "the image of the container that is gone")
}

// Rules are read again when a file changes. One that is wrong holds removals, and
// status says where the fault is.
func TestRulesAreReadAgain(t *testing.T) {
	w := newWorld(t, strings.Replace(quick, "4s", "1h", 1))
	dir := filepath.Join(filepath.Dir(w.custodian.SidecarConfig), "rules.d")
	w.must(os.MkdirAll(dir, 0o755))
	install := func(name, text string) { w.must(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)) }
	_, ci := w.push("ci/app:1")
	_, release := w.push("release/app:1")
	w.reason(ci, "not-expired")

	install("20-release.toml", "[[rule]]\nname = \"release\"\nimages = [\"*/release/*\"]\nkeep = true\n")
	w.reason(release, "kept")
	install("10-ci.toml", "[[rule]]\nname = \"ci\"\nimages = [\"*/ci/*\"]\nunused_fro = \"1s\"\nunused_for = 5\n")
	w.eventually(10*time.Second, "status tells where the fault is", func() bool {
		stdout, _, code, err := w.custodian.Ctl(w.ctx, "status")
		w.must(err)
		return code == 1 && strings.Contains(stdout, "10-ci.toml:4: unknown key") && strings.Contains(stdout, "10-ci.toml:5:") && strings.Contains(stdout, "check-config")
	})
	w.reason(release, "kept") // the old configuration stays in force
	_, stderr, code, err := w.custodian.Run(w.ctx, "image-custodian-sidecar", "check-config", dir)
	w.must(err)
	if code != 1 || !strings.Contains(stderr, "10-ci.toml:4:") || !strings.Contains(stderr, "10-ci.toml:5:") {
		t.Errorf("check-config: exit %d, %s", code, stderr)
	}
	install("10-ci.toml", "[[rule]]\nname = \"ci\"\nimages = [\"*/ci/*\"]\nunused_for = \"1s\"\n")
	w.must(w.custodian.Signal(syscall.SIGHUP))
	w.gone(ci, "what the mended rule lets go")
	w.eventually(10*time.Second, "the removal is told", func() bool { return len(w.removals()) > 0 })
	w.stays(3*time.Second, "what is kept", func() bool { return w.hasImage(release) })
}

// What an image alone holds is what the node gains without it.
func TestSizes(t *testing.T) {
	w := newWorld(t, strings.Replace(quick, "4s", "15s", 1)+"[[rule]]\nimages = [\"*/next\", \"*/last\"]\nkeep = true\n")
	used, _ := w.push("used:1") // shares its base layer
	_, _, err := w.Run(w.ctx, node.PodOptions{Name: "user"}, node.ContainerOptions{Image: used})
	w.must(err)
	ref, err := w.PushImage(w.ctx, "big:1", node.ImageOptions{Layers: 2, LayerSize: 1 << 20})
	w.must(err)
	id, err := w.Pull(w.ctx, ref)
	w.must(err)
	var seen sized
	w.eventually(10*time.Second, "it is measured", func() bool {
		seen, _ = w.sized(id)
		return seen.UniqueBytes > 0
	})
	// What another containerd namespace has, too, is not gained.
	other := namespaces.WithNamespace(t.Context(), "default")
	_, err = w.client.Pull(other, ref, w.plainHTTP())
	w.must(err)
	w.push("next:1") // images are measured anew when one comes
	w.eventually(10*time.Second, "the blobs are held elsewhere", func() bool {
		shared, _ := w.sized(id)
		return shared.UniqueBytes > 2<<20 && shared.UniqueBytes < seen.UniqueBytes-2<<20
	})
	w.must(w.client.ImageService().Delete(other, ref, images.SynchronousDelete()))
	w.push("last:1")
	w.eventually(10*time.Second, "nor are they any more", func() bool {
		alone, _ := w.sized(id)
		return alone == seen
	})
	before := w.stored()
	if seen.UniqueBytes < 4<<20 || seen.ContentBytes+seen.SnapshotBytes <= seen.UniqueBytes {
		t.Errorf("%+v: two layers of 1 MiB, as blobs and unpacked, and a base that is shared", seen)
	}
	w.gone(id, "the big image")
	w.eventually(10*time.Second, "the removal is told", func() bool { return w.removals()[ref].FreedBytes > 0 })
	lost := before - w.stored()
	if freed := w.removals()[ref].FreedBytes; freed != lost || seen.UniqueBytes != lost {
		t.Errorf("unique %d, freed %d, the store lost %d", seen.UniqueBytes, freed, lost)
	}
}

type sized struct {
	ContentBytes  int64 `json:"content_bytes"`
	SnapshotBytes int64 `json:"snapshot_bytes"`
	UniqueBytes   int64 `json:"unique_bytes"`
}

func (w *world) sized(id string) (sized, bool) {
	w.t.Helper()
	var list struct{ Images []sized }
	w.ctl(&list, "images", "--filter", "id="+id)
	if len(list.Images) == 0 {
		return sized{}, false
	}
	return list.Images[0], true
}

// At most so many go in an hour as is configured.
func TestMaxPerHour(t *testing.T) {
	w := newWorld(t, quick+"max_per_hour = 2\n")
	var ids []string
	for _, name := range []string{"a:1", "b:1", "c:1", "d:1"} {
		_, id := w.push(name)
		ids = append(ids, id)
	}
	left := func() (n int) {
		for _, id := range ids {
			if w.hasImage(id) {
				n++
			}
		}
		return n
	}
	w.eventually(30*time.Second, "two images go", func() bool { return left() == 2 })
	w.must(w.custodian.KillSidecar())
	w.must(w.custodian.StartSidecar(w.ctx))
	w.stays(8*time.Second, "the other two, also after a restart", func() bool { return left() == 2 })
	var list struct{ Images []image }
	w.ctl(&list, "images", "--filter", "reason=max-per-hour")
	if len(list.Images) != 2 {
		t.Errorf("%d images wait for the next hour", len(list.Images))
	}
}

// plainHTTP lets the client pull from the node's own registry.
func (w *world) plainHTTP() containerd.RemoteOpt {
	return containerd.WithResolver(docker.NewResolver(docker.ResolverOptions{
		Hosts: docker.ConfigureDefaultRegistries(docker.WithPlainHTTP(docker.MatchLocalhost)),
	}))
}
