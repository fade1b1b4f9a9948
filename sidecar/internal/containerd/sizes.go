package containerd

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// sizesAge is how long a measurement holds although no image came or went:
// layers can be unpacked later, and what else fills the disk changes.
const sizesAge = 10 * time.Minute

// Sizes are what images take on the node, and what else does.
type Sizes struct {
	// Parts are what policy.Image.Parts point at; nil = not measured.
	Parts []policy.Part
	// WritableLayers are the bytes that containers have written; -1 = not known.
	WritableLayers int64
	// OtherNamespaces is what only other containerd namespaces hold, and Others
	// are their names.
	OtherNamespaces int64
	Others          []string
	// Orphans are blobs and unpacked layers that no image of the namespaces
	// looked after names.
	Orphans int64
}

// measured is a measurement with what it was about.
type measured struct {
	Sizes
	generation uint64
	at         time.Time
	images     map[policy.Key]measuredImage
}

type measuredImage struct {
	content, snapshots int64
	parts              []int32
	fromRegistry       bool
}

// measure fills the sizes of an observation: those of the last measurement if
// the images are still the same. What cannot be measured is no doubt about a
// use; the sizes are missing then, and nothing goes for lack of space.
func (c *Client) measure(ctx context.Context, o *Observation) {
	generation := generationOf(o.Images)
	c.mu.Lock()
	m := c.measured
	c.mu.Unlock()
	if m == nil || m.generation != generation || time.Since(m.at) > sizesAge {
		survey := &survey{c: c, m: &measured{generation: generation, at: time.Now(), images: map[policy.Key]measuredImage{}}}
		if err := survey.run(ctx, o.Images); err != nil {
			c.log.Warn("the images cannot be measured", "err", err)
			return
		}
		m = survey.m
		c.mu.Lock()
		c.measured = m
		c.mu.Unlock()
	}
	o.Sizes = m.Sizes
	for i := range o.Images {
		img := m.images[o.Images[i].Key]
		o.Images[i].ContentBytes, o.Images[i].SnapshotBytes, o.Images[i].Parts = img.content, img.snapshots, img.parts
		o.Images[i].FromRegistry = o.Images[i].FromRegistry || img.fromRegistry
	}
	policy.CountUnique(o.Images, m.Parts)
}

// remeasure drops the last measurement: what was removed may have been on the disk
// still when it was made.
func (c *Client) remeasure() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.measured = nil
}

// generationOf changes when an image comes, goes or is pulled anew.
func generationOf(images []policy.Image) uint64 {
	h := fnv.New64a()
	for _, img := range images {
		fmt.Fprintf(h, "%s\x00%s", img.Key.ContainerdNamespace, img.Key.ID)
		for _, n := range img.Names {
			fmt.Fprintf(h, "\x00%s\x00%s\x00%d", n.Name, n.Target, n.Updated.UnixNano())
		}
	}
	return h.Sum64()
}

// survey is one measurement.
type survey struct {
	c *Client
	m *measured

	blobs  map[string]int32   // by digest; containerd namespaces share them
	pulled map[target]bool    // a registry is known to hold the blob
	layers map[snapshot]int32 // committed snapshots of the namespaces looked after
	there  map[snapshot]bool  // committed snapshots of all
	named  []bool             // by part: an image names it
}

func (s *survey) run(ctx context.Context, images []policy.Image) error {
	s.blobs, s.layers, s.there, s.pulled = map[string]int32{}, map[snapshot]int32{}, map[snapshot]bool{}, map[target]bool{}
	spaces, err := s.c.client.NamespaceService().List(ctx)
	if err != nil {
		return fmt.Errorf("containerd namespaces: %w", err)
	}
	snapshotters, err := s.c.snapshotters(ctx)
	if err != nil {
		return err
	}
	// Ours first, so that a blob is only "other" if none of ours has it.
	slices.SortStableFunc(spaces, func(a, b string) int { return s.rank(a) - s.rank(b) })
	present := map[policy.Key]bool{} // blobs by containerd namespace and digest
	for _, ns := range spaces {
		if err := s.content(in(ctx, ns), ns, present); err != nil {
			return err
		}
		for _, name := range snapshotters {
			if err := s.unpacked(in(ctx, ns), ns, name); err != nil {
				return err
			}
		}
		if s.rank(ns) == 1 {
			s.m.Others = append(s.m.Others, ns)
		}
	}
	s.writable(ctx)
	s.named = make([]bool, len(s.m.Parts))
	for _, img := range images {
		s.image(img, present, snapshotters)
	}
	s.forget()
	for part, named := range s.named {
		if !named && s.m.Parts[part].Bytes > 0 {
			s.m.Orphans += s.m.Parts[part].Bytes
		}
	}
	return nil
}

// elsewhere stands for the part of a blob that only other containerd namespaces
// have.
const elsewhere = -1

// rank is 0 for a containerd namespace that is looked after.
func (s *survey) rank(ns string) int {
	if slices.Contains(s.c.cfg.Namespaces, ns) {
		return 0
	}
	return 1
}

func (s *survey) content(ctx context.Context, ns string, present map[policy.Key]bool) error {
	err := s.c.client.ContentStore().Walk(ctx, func(info content.Info) error {
		digest := info.Digest.String()
		part, known := s.blobs[digest]
		switch {
		case s.rank(ns) == 1 && known:
			if part != elsewhere {
				s.m.Parts[part].Held = true
			}
		case s.rank(ns) == 1:
			s.blobs[digest] = elsewhere
			s.m.OtherNamespaces += info.Size
		case !known:
			s.blobs[digest] = int32(len(s.m.Parts))
			s.m.Parts = append(s.m.Parts, policy.Part{Bytes: info.Size})
		}
		if s.rank(ns) == 0 {
			if hasSource(info.Labels) {
				s.pulled[target{ns, digest}] = true
			}
			present[policy.Key{ContainerdNamespace: ns, ID: digest}] = true
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("content of %s: %w", ns, err)
	}
	return nil
}

// unpacked measures the snapshots of one snapshotter: committed ones once for
// ever, since they never change. Active ones are walked on disk by containerd,
// so they are only asked for where the CRI does not know their size.
func (s *survey) unpacked(ctx context.Context, ns, name string) error {
	service := s.c.client.SnapshotService(name)
	var committed, active []string
	err := service.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if info.Kind == snapshots.KindCommitted {
			committed = append(committed, info.Name)
		} else if info.Kind == snapshots.KindActive && ns != CRINamespace {
			active = append(active, info.Name)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("snapshots of %s in %s: %w", ns, name, err)
	}
	var mu sync.Mutex // guards usage
	usage := map[string]int64{}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for _, key := range slices.Concat(committed, active) {
		group.Go(func() error {
			bytes, err := s.c.usage(ctx, service, snapshot{ns, name, key}, slices.Contains(active, key))
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			usage[key] = bytes
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, key := range committed {
		s.there[snapshot{ns, name, key}] = true
		if s.rank(ns) == 1 {
			s.m.OtherNamespaces += usage[key]
			continue
		}
		s.layers[snapshot{ns, name, key}] = int32(len(s.m.Parts))
		s.m.Parts = append(s.m.Parts, policy.Part{Bytes: usage[key], Snapshot: true})
	}
	for _, key := range active {
		if s.rank(ns) == 1 {
			s.m.OtherNamespaces += usage[key]
		} else {
			s.m.WritableLayers += usage[key]
		}
	}
	return nil
}

// usage asks how large a snapshot is; 0 for one that has gone.
func (c *Client) usage(ctx context.Context, service snapshots.Snapshotter, s snapshot, active bool) (int64, error) {
	c.mu.Lock()
	bytes, known := c.used[s]
	c.mu.Unlock()
	if known && !active {
		return bytes, nil
	}
	usage, err := service.Usage(ctx, s.key)
	if errdefs.IsNotFound(err) || err != nil && active {
		return 0, nil // gone, or changing under the eyes of who walks it
	}
	if err != nil {
		return 0, fmt.Errorf("size of snapshot %s in %s: %w", s.key, s.snapshotter, err)
	}
	if !active {
		c.mu.Lock()
		c.used[s] = usage.Size
		c.mu.Unlock()
	}
	return usage.Size, nil
}

// writable adds what the CRI knows of the containers' own layers: it keeps count
// of them, so that nobody has to walk the disk.
func (s *survey) writable(ctx context.Context) {
	if !s.c.hasCRI() {
		return
	}
	stats, err := s.c.runtime.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{}, grpc.MaxCallRecvMsgSize(maxMessage))
	if err != nil {
		s.c.log.Warn("what containers have written cannot be measured", "err", err)
		s.m.WritableLayers = -1
		return
	}
	for _, c := range stats.GetStats() {
		s.m.WritableLayers += int64(c.GetWritableLayer().GetUsedBytes().GetValue())
	}
}

func (s *survey) image(img policy.Image, present map[policy.Key]bool, snapshotters []string) {
	var out measuredImage
	ns := img.Key.ContainerdNamespace
	add := func(part int32) bool {
		if slices.Contains(out.parts, part) {
			return false
		}
		out.parts = append(out.parts, part)
		s.named[part] = true
		return true
	}
	for _, n := range img.Names {
		for _, b := range s.c.blobs(ns, n.Target) {
			if present[policy.Key{ContainerdNamespace: ns, ID: b.digest}] && add(s.blobs[b.digest]) {
				out.content += s.m.Parts[s.blobs[b.digest]].Bytes
			}
		}
	}
	for _, chain := range s.c.chains(img) {
		for _, name := range snapshotters {
			if part, ok := s.layers[snapshot{ns, name, chain}]; ok && add(part) {
				out.snapshots += s.m.Parts[part].Bytes
			}
		}
	}
	for _, n := range img.Names {
		out.fromRegistry = out.fromRegistry || s.pulled[target{ns, n.Target}]
	}
	s.m.images[img.Key] = out
}

// forget drops what is remembered of snapshots that are no longer there.
func (s *survey) forget() {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	gone := func(k snapshot) bool { return !s.there[k] }
	maps.DeleteFunc(s.c.used, func(k snapshot, _ int64) bool { return gone(k) })
	maps.DeleteFunc(s.c.parents, func(k snapshot, _ string) bool { return gone(k) })
}
