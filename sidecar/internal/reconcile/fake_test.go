package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/image-custodian/custodian/sidecar/internal/containerd"
	"github.com/image-custodian/custodian/sidecar/internal/policy"
	"github.com/image-custodian/custodian/sidecar/internal/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeNode is a runtime in memory. Its hooks run without its lock held.
type fakeNode struct {
	mu     sync.Mutex
	images map[policy.Key]policy.Image
	uses   map[string]policy.Use
	fail   error // of every list

	onUses   func() // before each Uses
	onRemove func(policy.Key)
	removed  []policy.Key
	restored []policy.Key
	holds    int

	dropped     int // calls of DropStaleHolds
	recreated   []string
	recreateErr error
	restoreErr  error
}

func newFakeNode() *fakeNode {
	return &fakeNode{images: map[policy.Key]policy.Image{}, uses: map[string]policy.Use{}}
}

func (n *fakeNode) addImage(id string) policy.Image {
	img := policy.Image{
		Key: policy.Key{ContainerdNamespace: CRINamespace, ID: "sha256:" + id}, Kind: policy.KindImage, FromRegistry: true,
		ContentBytes: 100, Names: []policy.Name{{Name: "reg/" + id + ":1", Target: "sha256:t" + id}},
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.images[img.Key] = img
	return img
}

func (n *fakeNode) addUse(container string, img policy.Image) policy.Use {
	u := policy.Use{
		ContainerdNamespace: CRINamespace, ContainerID: container, ImageID: img.Key.ID, Kind: policy.UseRoot,
		State: policy.StateRunning, Pod: policy.Pod{ID: "pod-" + container, Name: container, Namespace: "ns"},
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.uses[container] = u
	return u
}

func (n *fakeNode) dropUse(container string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.uses, container)
}

func (n *fakeNode) has(k policy.Key) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, ok := n.images[k]
	return ok
}

func (n *fakeNode) listUses() []policy.Use {
	n.mu.Lock()
	defer n.mu.Unlock()
	var uses []policy.Use
	for _, u := range n.uses {
		uses = append(uses, u)
	}
	return uses
}

func (n *fakeNode) Observe(context.Context) containerd.Observation {
	obs := containerd.Observation{Sources: []containerd.Source{{Name: SourceContainerd}, {Name: SourceCRI, Err: n.fail}}}
	obs.Uses = n.listUses()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, img := range n.images {
		obs.Images = append(obs.Images, img)
	}
	slices.SortFunc(obs.Images, func(a, b policy.Image) int { return slices.Compare([]string{a.Key.ID}, []string{b.Key.ID}) })
	return obs
}

func (n *fakeNode) Reread(ctx context.Context) containerd.Observation {
	if n.onUses != nil {
		n.onUses()
	}
	return n.Observe(ctx)
}

func (n *fakeNode) Uses(context.Context) ([]policy.Use, error) {
	if n.onUses != nil {
		n.onUses()
	}
	return n.listUses(), n.fail
}

func (n *fakeNode) Resolve(_ context.Context, u policy.Use) policy.Use {
	u.Platform = "linux/amd64"
	return u
}

func (n *fakeNode) Watch(ctx context.Context, _ func()) { <-ctx.Done() }

func (n *fakeNode) DropStaleHolds(context.Context) error {
	n.dropped++
	return nil
}

func (n *fakeNode) Recreate(_ context.Context, ns string, records []policy.Record) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.recreateErr != nil {
		return n.recreateErr
	}
	for _, r := range records {
		k := policy.Key{ContainerdNamespace: ns, ID: "sha256:" + strings.TrimPrefix(r.Digest, "sha256:t")}
		img := n.images[k]
		img.Key, img.Kind = k, policy.KindImage
		img.Names = append(img.Names, policy.Name{Name: r.Name, Target: r.Digest})
		n.images[k] = img
		n.recreated = append(n.recreated, r.Name)
	}
	return nil
}

func (n *fakeNode) Hold(context.Context, []policy.Image) (hold, error) {
	n.holds++
	return &fakeHold{node: n, gone: map[policy.Key]policy.Image{}}, nil
}

type fakeHold struct {
	node *fakeNode
	gone map[policy.Key]policy.Image
}

func (h *fakeHold) Remove(_ context.Context, k policy.Key, claimed func() bool) error {
	if h.node.onRemove != nil {
		h.node.onRemove(k)
	}
	if claimed() {
		return containerd.ErrClaimed
	}
	h.node.mu.Lock()
	defer h.node.mu.Unlock()
	h.gone[k] = h.node.images[k]
	delete(h.node.images, k)
	h.node.removed = append(h.node.removed, k)
	return nil
}

func (h *fakeHold) Records(k policy.Key) (records []policy.Record) {
	h.node.mu.Lock()
	defer h.node.mu.Unlock()
	for _, n := range h.node.images[k].Names {
		records = append(records, policy.Record{Name: n.Name, Digest: n.Target})
	}
	return records
}

func (h *fakeHold) Restore(_ context.Context, k policy.Key) error {
	if h.node.restoreErr != nil {
		return h.node.restoreErr
	}
	h.node.mu.Lock()
	defer h.node.mu.Unlock()
	h.node.images[k] = h.gone[k]
	delete(h.gone, k)
	h.node.restored = append(h.node.restored, k)
	return nil
}

func (h *fakeHold) Release(context.Context) (map[policy.Key]int64, error) {
	h.node.holds--
	freed := map[policy.Key]int64{}
	for k, img := range h.gone {
		freed[k] = img.ContentBytes
	}
	return freed, nil
}

// bench is a reconciler over a fake node and a real state.
type bench struct {
	*testing.T
	node  *fakeNode
	store *state.Store
	dir   string
	rec   *Reconciler
	cfg   Config
}

func newBench(t *testing.T) *bench {
	b := &bench{T: t, node: newFakeNode(), dir: t.TempDir(), cfg: Config{
		Settings: Settings{Mode: policy.ModeAuto, Rules: policy.Rules{UnusedFor: 1}}, Interval: time.Minute, PluginSilence: time.Minute,
		Wall: time.Now, CompareAndDelete: func() bool { return true },
	}}
	b.start()
	t.Cleanup(func() {
		b.stop()
		if b.node.holds != 0 {
			t.Errorf("%d leases are left", b.node.holds)
		}
	})
	return b
}

func (b *bench) start() {
	b.Helper()
	store, err := state.Open(state.Options{Dir: b.dir})
	if err != nil {
		b.Fatal(err)
	}
	b.store = store
	if b.rec, err = newReconciler(b.cfg, b.node, store, slog.New(slog.DiscardHandler)); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) stop() {
	b.Helper()
	if err := errors.Join(b.store.Check(), b.store.Close()); err != nil {
		b.Error(err)
	}
}

func (b *bench) sync(session string, number uint64, uses ...policy.Use) {
	b.Helper()
	if err := b.rec.Sync(b.Context(), Synced{Session: session, Number: number, Uses: uses}); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) report(session string, events ...Event) (wanted bool) {
	b.Helper()
	wanted, err := b.rec.Report(b.Context(), Report{Session: session, Events: events})
	if err != nil {
		b.Fatal(err)
	}
	return wanted
}

func (b *bench) look() *Look {
	b.Helper()
	look, err := b.rec.Look(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	return look
}

func (b *bench) pass() {
	b.Helper()
	if _, _, err := b.rec.pass(b.Context()); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) memory(k policy.Key) policy.Memory {
	b.Helper()
	images, err := b.store.Images()
	if err != nil {
		b.Fatal(err)
	}
	return images[k]
}

func (b *bench) liveUses() map[state.UseKey]policy.Use {
	b.Helper()
	uses, err := b.store.Uses()
	if err != nil {
		b.Fatal(err)
	}
	return uses
}

func (b *bench) events(kind state.EventKind) []state.Event {
	b.Helper()
	events, err := b.store.Events(100)
	if err != nil {
		b.Fatal(err)
	}
	return slices.DeleteFunc(events, func(e state.Event) bool { return e.Kind != kind })
}
