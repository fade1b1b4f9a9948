package containerd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// pinLabel is the label by which the CRI keeps an image for ever.
const pinLabel = "io.cri-containerd.pinned"

// sourceLabel begins the labels that a pull leaves on the blobs that it fetched.
const sourceLabel = "containerd.io/distribution.source."

// observeTimeout bounds one look. The first look of a node reads the manifest
// and config of every image, later ones only what is new.
const observeTimeout = 2 * time.Minute

// Observation is the node as it was during one look.
type Observation struct {
	Images []policy.Image
	Uses   []policy.Use
	// Holdings are what else needs an image: snapshots and leases.
	Holdings map[policy.Key]policy.Holding
	Sizes    Sizes
	Disk     policy.Disk // zero if it cannot be asked
	Sources  []Source
}

// Source is a part of the node that was asked; Err says why it gave no answer.
type Source struct {
	Name string // "containerd", "cri" or "snapshotter"
	Err  error
}

// Err joins what failed; nil = the observation is complete.
func (o Observation) Err() error {
	var errs []error
	for _, s := range o.Sources {
		if s.Err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.Name, s.Err))
		}
	}
	return errors.Join(errs...)
}

// Observe looks at the node once, with a number of calls that does not grow
// with what is known already. What failed is in Sources; the rest is still told.
func (c *Client) Observe(ctx context.Context) Observation { return c.look(ctx, false) }

// Reread is an observation in which nothing is from memory that can have changed.
func (c *Client) Reread(ctx context.Context) Observation { return c.look(ctx, true) }

func (c *Client) look(ctx context.Context, fresh bool) Observation {
	ctx, cancel := context.WithTimeout(ctx, observeTimeout)
	defer cancel()
	o := c.observe(ctx, fresh)
	c.measure(ctx, &o)
	disk, err := c.Disk(ctx)
	if err != nil {
		c.log.Warn("the use of the disk is not known", "err", err)
	}
	o.Disk = policy.Disk{SizeBytes: int64(disk.SizeBytes), UsedBytes: int64(disk.UsedBytes)}
	return o
}

func (c *Client) observe(ctx context.Context, fresh bool) Observation {
	images, err := c.observeImages(ctx)
	o := Observation{Images: images}
	upon, snapshotErr := c.observeSnapshots(ctx, images)
	if snapshotErr != nil {
		upon = nil
	}
	uses, usesErr, criErr := c.observeUses(ctx, images, upon)
	o.Uses = uses
	held, leaseErr := c.observeLeases(ctx, images, uses, fresh)
	o.Holdings = held
	for s, keys := range upon {
		for _, key := range keys {
			if o.Holdings == nil {
				o.Holdings = map[policy.Key]policy.Holding{}
			}
			o.Holdings[key] = policy.Holding{Reason: policy.Snapshot, By: "snapshot " + s.key + " in " + s.snapshotter}
		}
	}
	o.Sources = append(o.Sources, Source{"containerd", errors.Join(err, usesErr, leaseErr)}, Source{"snapshotter", snapshotErr})
	if c.hasCRI() {
		o.Sources = append(o.Sources, Source{"cri", criErr})
	}
	return o
}

// Uses is only the uses of an observation, all of them or an error.
func (c *Client) Uses(ctx context.Context) ([]policy.Use, error) {
	ctx, cancel := context.WithTimeout(ctx, observeTimeout)
	defer cancel()
	images, err := c.observeImages(ctx)
	upon, snapshotErr := c.observeSnapshots(ctx, images)
	if snapshotErr != nil {
		c.log.Warn("the uses are told without their snapshots", "err", snapshotErr)
		upon = nil
	}
	uses, usesErr, criErr := c.observeUses(ctx, images, upon)
	return uses, errors.Join(err, usesErr, criErr)
}

// observeImages groups the records of all namespaces by image.
func (c *Client) observeImages(ctx context.Context) ([]policy.Image, error) {
	var all []policy.Image
	var errs []error
	seen := map[target]bool{}
	names, platforms := map[policy.Key]string{}, map[policy.Key]string{}
	for _, ns := range c.cfg.Namespaces {
		records, err := c.client.ImageService().List(in(ctx, ns))
		if err != nil {
			errs = append(errs, fmt.Errorf("images of %s: %w", ns, err))
			continue
		}
		known, err := c.resolveAll(in(ctx, ns), ns, records)
		if err != nil {
			errs = append(errs, fmt.Errorf("images of %s: %w", ns, err))
			continue
		}
		byID := map[string]*policy.Image{}
		for _, record := range records {
			t := target{ns, record.Target.Digest.String()}
			seen[t] = true
			names[policy.Key{ContainerdNamespace: ns, ID: record.Name}] = known[t].id
			addRecord(byID, ns, record, known[t])
		}
		for _, img := range byID {
			slices.SortFunc(img.Names, func(a, b policy.Name) int { return cmp.Compare(a.Name, b.Name) })
			all = append(all, *img)
			platforms[img.Key] = img.Platform
		}
	}
	slices.SortFunc(all, func(a, b policy.Image) int {
		return cmp.Or(cmp.Compare(a.Key.ContainerdNamespace, b.Key.ContainerdNamespace), cmp.Compare(a.Key.ID, b.Key.ID))
	})
	err := errors.Join(errs...)
	if err == nil {
		c.remember(seen, names, platforms)
	}
	return all, err
}

// remember keeps what Resolve needs, and drops what no record points at any more.
func (c *Client) remember(seen map[target]bool, names, platforms map[policy.Key]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names, c.platforms = names, platforms
	for t := range c.resolved {
		if !seen[t] {
			delete(c.resolved, t)
		}
	}
}

func addRecord(byID map[string]*policy.Image, ns string, record images.Image, r resolved) {
	img, ok := byID[r.id]
	if !ok {
		img = &policy.Image{
			Key: policy.Key{ContainerdNamespace: ns, ID: r.id}, Kind: r.kind,
			Platform: r.platform, BuiltAt: r.built, Labels: r.labels,
		}
		byID[r.id] = img
	}
	img.FromRegistry = img.FromRegistry || r.fromRegistry
	for _, t := range []time.Time{record.CreatedAt, record.UpdatedAt} {
		if t.After(img.PulledAt) {
			img.PulledAt = t
		}
	}
	img.Names = append(img.Names, policy.Name{
		Name: record.Name, Target: record.Target.Digest.String(),
		Pinned: record.Labels[pinLabel] == "pinned", Updated: record.UpdatedAt,
	})
}

// resolveAll resolves the targets of records, those not yet known in parallel.
func (c *Client) resolveAll(ctx context.Context, ns string, records []images.Image) (map[target]resolved, error) {
	begun := map[target]bool{}
	known := map[target]resolved{}
	var mu sync.Mutex // guards known
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for _, record := range records {
		t := target{ns, record.Target.Digest.String()}
		if begun[t] {
			continue
		}
		begun[t] = true
		group.Go(func() error {
			r, err := c.resolveOne(ctx, t, record)
			if err != nil {
				return fmt.Errorf("image %q: %w", record.Name, err)
			}
			mu.Lock()
			defer mu.Unlock()
			known[t] = r
			return nil
		})
	}
	err := group.Wait()
	return known, err
}

// hasSource reports whether a pull has left its label on a blob.
func hasSource(labels map[string]string) bool {
	for label := range labels {
		if strings.HasPrefix(label, sourceLabel) {
			return true
		}
	}
	return false
}

func (c *Client) resolveOne(ctx context.Context, t target, record images.Image) (resolved, error) {
	c.mu.Lock()
	r, known := c.resolved[t]
	c.mu.Unlock()
	if known {
		return r, nil
	}
	r, err := resolve(ctx, c.client.ContentStore(), record.Target)
	if errdefs.IsNotFound(err) {
		// A blob is not there now: no image, and nothing to remember.
		return resolved{kind: policy.KindForeign, id: t.digest}, nil
	}
	if err != nil {
		return resolved{}, err
	}
	info, err := c.client.ContentStore().Info(ctx, record.Target.Digest)
	if err != nil && !errdefs.IsNotFound(err) {
		return resolved{}, err
	}
	r.fromRegistry = hasSource(info.Labels)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resolved[t] = r
	return r, nil
}
