package containerd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// Errors by which Remove says that an image is as it was before.
var (
	// ErrClaimed: somebody claimed the image meanwhile.
	ErrClaimed = errors.New("claimed meanwhile")
	// ErrChanged: its records are not those that were decided about.
	ErrChanged = errors.New("its records changed meanwhile")
	// ErrNotRestored: records were removed and could not be put back. The lease
	// still keeps their content.
	ErrNotRestored = errors.New("not restored")
	// ErrContentGone: the content behind a record is no longer there.
	ErrContentGone = errors.New("content is gone")
)

const (
	holdLabel = "image-custodian.io/hold"
	// holdExpiry only bounds a leak, if nobody ever releases the lease.
	holdExpiry = 24 * time.Hour
)

// Hold keeps the content of images, by a lease in each containerd namespace,
// while their records are removed. Until Release every removal can be undone.
type Hold struct {
	c      *Client
	leases map[string]leases.Lease // by containerd namespace
	images map[policy.Key]*held
	order  []policy.Key
}

// held is one image of a hold.
type held struct {
	image   policy.Image
	parts   []part
	records []policy.Record
	removed []images.Image // records as they were, in the order of their removal
	gone    bool           // Remove has done its work
}

// Hold makes the leases. Nothing of the images can be collected from here on.
func (c *Client) Hold(ctx context.Context, list []policy.Image) (*Hold, error) {
	h := &Hold{c: c, leases: map[string]leases.Lease{}, images: map[policy.Key]*held{}}
	for _, img := range list {
		if err := h.add(ctx, img); err != nil {
			_, releaseErr := h.Release(context.WithoutCancel(ctx))
			return nil, errors.Join(err, releaseErr)
		}
	}
	return h, nil
}

func (h *Hold) add(ctx context.Context, img policy.Image) error {
	ns := img.Key.ContainerdNamespace
	ctx = in(ctx, ns)
	manager := h.c.client.LeasesService()
	lease, ok := h.leases[ns]
	if !ok {
		var err error
		lease, err = manager.Create(ctx, leases.WithID("image-custodian-"+rand.Text()),
			leases.WithLabel(holdLabel, "removal"), leases.WithExpiration(holdExpiry))
		if err != nil {
			return fmt.Errorf("lease in %s: %w", ns, err)
		}
		h.leases[ns] = lease
	}
	targets := map[string]bool{}
	for _, n := range img.Names {
		if targets[n.Target] {
			continue
		}
		targets[n.Target] = true
		if err := manager.AddResource(ctx, lease, leases.Resource{Type: "content", ID: n.Target}); err != nil {
			return fmt.Errorf("lease on image %s: %w", img.Key.ID, err)
		}
	}
	list, err := h.c.client.ImageService().List(ctx, targetFilters(img)...)
	if err != nil {
		return fmt.Errorf("records of image %s: %w", img.Key.ID, err)
	}
	entry := &held{image: img, parts: h.c.parts(ctx, img)}
	for _, i := range list {
		entry.records = append(entry.records, policy.Record{
			Name: i.Name, Labels: i.Labels, MediaType: i.Target.MediaType,
			Digest: i.Target.Digest.String(), Size: i.Target.Size, Annotations: i.Target.Annotations,
		})
	}
	h.images[img.Key] = entry
	h.order = append(h.order, img.Key)
	return nil
}

// Records are the records of a held image, for an intent that can undo.
func (h *Hold) Records(key policy.Key) []policy.Record { return h.images[key].records }

// Remove deletes every record of the image, each only if it still points where
// it did: the record under the image ID first, then digests, tags last, since
// the CRI resolves an image by what sorts first. claimed is asked before each
// and after the last; if it says yes, the records are put back and the error is
// ErrClaimed. A record that moved, or that is new, has all put back: ErrChanged.
// A record that somebody else has removed is no error.
func (h *Hold) Remove(ctx context.Context, key policy.Key, claimed func() bool) error {
	img := h.images[key]
	if img == nil {
		return fmt.Errorf("image %s: is not held", key.ID)
	}
	ctx = in(ctx, key.ContainerdNamespace)
	err := h.removeRecords(ctx, img, claimed)
	if err != nil {
		return errors.Join(err, h.Restore(context.WithoutCancel(ctx), key))
	}
	img.gone = true
	return nil
}

func (h *Hold) removeRecords(ctx context.Context, img *held, claimed func() bool) error {
	records, err := h.records(ctx, img.image)
	if err != nil {
		return err
	}
	store := h.c.client.ImageService()
	for _, record := range records {
		if claimed() {
			return ErrClaimed
		}
		// Noted first: a deletion that fails may have taken effect all the same.
		img.removed = append(img.removed, record)
		err := store.Delete(ctx, record.Name, images.DeleteTarget(&record.Target))
		if errdefs.IsNotFound(err) {
			img.removed = img.removed[:len(img.removed)-1]
			if err := stillThere(ctx, store, record); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("record %q: %w", record.Name, err)
		}
	}
	if claimed() {
		return ErrClaimed
	}
	again, err := store.List(ctx, targetFilters(img.image)...)
	switch {
	case err != nil:
		return fmt.Errorf("records of image %s: %w", img.image.Key.ID, err)
	case len(again) > 0: // somebody pulled it meanwhile
		return fmt.Errorf("record %q: %w", again[0].Name, ErrChanged)
	}
	return nil
}

// targetFilters find every record that points where a name of the image does.
func targetFilters(img policy.Image) []string {
	seen := map[string]bool{}
	var filters []string
	for _, n := range img.Names {
		if !seen[n.Target] {
			seen[n.Target] = true
			filters = append(filters, "target.digest=="+n.Target)
		}
	}
	return filters
}

// records reads the records of an image again, whole, in the order of their
// removal.
func (h *Hold) records(ctx context.Context, img policy.Image) ([]images.Image, error) {
	records, err := h.c.client.ImageService().List(ctx, targetFilters(img)...)
	if err != nil {
		return nil, fmt.Errorf("records of image %s: %w", img.Key.ID, err)
	}
	for _, r := range records {
		if !slices.ContainsFunc(img.Names, func(n policy.Name) bool {
			return n.Name == r.Name && n.Target == r.Target.Digest.String() && n.Updated.Equal(r.UpdatedAt)
		}) {
			return nil, fmt.Errorf("record %q: %w", r.Name, ErrChanged)
		}
	}
	slices.SortStableFunc(records, func(a, b images.Image) int { return rank(a.Name) - rank(b.Name) })
	return records, nil
}

// stillThere tells a record that moved from one that somebody else removed.
func stillThere(ctx context.Context, store images.Store, record images.Image) error {
	_, err := store.Get(ctx, record.Name)
	switch {
	case errdefs.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("record %q: %w", record.Name, err)
	}
	return fmt.Errorf("record %q: %w", record.Name, ErrChanged)
}

func rank(name string) int {
	_, err := digest.Parse(name)
	switch {
	case err == nil:
		return 0
	case strings.Contains(name, "@"):
		return 1
	}
	return 2
}

// Restore puts back the records that this hold removed from the image, with
// their labels, the record under the image ID first. A name that is taken by
// now stays with whoever took it. What cannot be put back now is tried again by
// Release; the error then wraps ErrNotRestored.
func (h *Hold) Restore(ctx context.Context, key policy.Key) error {
	img := h.images[key]
	if img == nil {
		return fmt.Errorf("image %s: is not held", key.ID)
	}
	img.gone = false
	var errs []error
	var left []images.Image
	for _, record := range img.removed {
		if err := h.c.recreate(in(ctx, key.ContainerdNamespace), record); err != nil {
			left = append(left, record)
			errs = append(errs, fmt.Errorf("%w: %w", ErrNotRestored, err))
		}
	}
	img.removed = left
	return errors.Join(errs...)
}

// Recreate puts back records that a run which ended in the middle has removed.
// The error wraps ErrContentGone if there is nothing left to point at.
func (c *Client) Recreate(ctx context.Context, containerdNamespace string, records []policy.Record) error {
	ctx = in(ctx, containerdNamespace)
	var errs []error
	for _, r := range records {
		err := c.recreate(ctx, images.Image{Name: r.Name, Labels: r.Labels, Target: ocispec.Descriptor{
			MediaType: r.MediaType, Digest: digest.Digest(r.Digest), Size: r.Size, Annotations: r.Annotations,
		}})
		if errdefs.IsNotFound(err) {
			err = fmt.Errorf("%w: %w", ErrContentGone, err)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// recreate puts back a record whose content is there.
func (c *Client) recreate(ctx context.Context, record images.Image) error {
	if _, err := c.client.ContentStore().Info(ctx, record.Target.Digest); err != nil {
		return fmt.Errorf("record %q: %w", record.Name, err)
	}
	_, err := c.client.ImageService().Create(ctx, images.Image{Name: record.Name, Labels: record.Labels, Target: record.Target})
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("record %q: %w", record.Name, err)
	}
	return nil
}

// Release gives the leases back, with one collection, and returns for each
// image that Remove removed how many bytes are really gone: of blobs that no
// containerd namespace has any more, and of snapshots. What two removed images
// shared counts for the first. A lease that keeps an image which could not be
// restored stays.
func (h *Hold) Release(ctx context.Context) (map[policy.Key]int64, error) {
	var errs []error
	owing := map[string]bool{}
	for _, key := range h.order {
		if img := h.images[key]; !img.gone && len(img.removed) > 0 {
			if err := h.Restore(ctx, key); err != nil {
				owing[key.ContainerdNamespace] = true
				errs = append(errs, err)
			}
		}
	}
	manager := h.c.client.LeasesService()
	for ns, lease := range h.leases {
		if owing[ns] {
			continue
		}
		// Each is deleted synchronously: a collection that has nothing more to
		// do is cheap, and there is seldom more than one namespace.
		if err := manager.Delete(in(ctx, ns), lease, leases.SynchronousDelete); err != nil && !errdefs.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("lease %s: %w", lease.ID, err))
		}
	}
	h.c.remeasure()
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return h.freed(ctx)
}

// DropStaleHolds deletes the leases that a run which ended in the middle has
// left.
func (c *Client) DropStaleHolds(ctx context.Context) error {
	var errs []error
	for _, ns := range c.cfg.Namespaces {
		ctx := in(ctx, ns)
		stale, err := c.client.LeasesService().List(ctx, fmt.Sprintf("labels.%q", holdLabel))
		if err != nil {
			errs = append(errs, fmt.Errorf("leases of %s: %w", ns, err))
			continue
		}
		for _, lease := range stale {
			if err := c.client.LeasesService().Delete(ctx, lease); err != nil && !errdefs.IsNotFound(err) {
				errs = append(errs, fmt.Errorf("lease %s: %w", lease.ID, err))
			}
		}
	}
	return errors.Join(errs...)
}
