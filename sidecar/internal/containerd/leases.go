package containerd

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// lease names a lease on the node.
type lease struct{ namespace, id string }

// observeLeases finds the images that the leases of others name: by a record, by
// a digest of manifest or config, or by the snapshot of all their layers. A
// layer alone names no image, since images share layers. Containers' and
// sandboxes' own leases bear their IDs and are uses already.
//
// What a lease holds is asked once, or anew if fresh: containerd has no call
// that tells it of all, and one per sandbox would be too many.
func (c *Client) observeLeases(ctx context.Context, images []policy.Image, uses []policy.Use, fresh bool) (map[policy.Key]policy.Holding, error) {
	own := map[lease]bool{}
	for _, u := range uses {
		own[lease{u.ContainerdNamespace, u.ContainerID}] = true
	}
	var foreign []lease
	for _, ns := range c.cfg.Namespaces {
		list, err := c.client.LeasesService().List(in(ctx, ns))
		if err != nil {
			return nil, fmt.Errorf("leases of %s: %w", ns, err)
		}
		for _, l := range list {
			if _, ours := l.Labels[holdLabel]; !ours && !own[lease{ns, l.ID}] {
				foreign = append(foreign, lease{ns, l.ID})
			}
		}
	}
	resources, err := c.leaseResources(ctx, foreign, fresh)
	if err != nil {
		return nil, err
	}
	held := map[policy.Key]policy.Holding{}
	if len(resources) == 0 {
		return held, nil
	}
	find := c.leaseIndex(images)
	for l, list := range resources {
		for _, r := range list {
			for _, key := range find[resource{l.namespace, kindOf(r.Type), r.ID}] {
				held[key] = policy.Holding{Reason: policy.Leased, By: "lease " + l.id}
			}
		}
	}
	return held, nil
}

func (c *Client) leaseResources(ctx context.Context, foreign []lease, fresh bool) (map[lease][]leases.Resource, error) {
	c.mu.Lock()
	known := c.leased
	c.mu.Unlock()
	found := map[lease][]leases.Resource{}
	var mu sync.Mutex // guards found
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for _, l := range foreign {
		if list, ok := known[l]; ok && !fresh {
			found[l] = list
			continue
		}
		group.Go(func() error {
			list, err := c.client.LeasesService().ListResources(in(ctx, l.namespace), leases.Lease{ID: l.id})
			if errdefs.IsNotFound(err) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("lease %s of %s: %w", l.id, l.namespace, err)
			}
			mu.Lock()
			defer mu.Unlock()
			found[l] = list
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.leased = maps.Clone(found)
	c.mu.Unlock()
	return found, nil
}

// resource is what a lease can name of an image.
type resource struct{ namespace, kind, id string }

// kindOf leaves out the snapshotter: a chain is the same in each.
func kindOf(resourceType string) string {
	kind, _, _ := strings.Cut(resourceType, "/")
	return kind
}

func (c *Client) leaseIndex(images []policy.Image) map[resource][]policy.Key {
	index := map[resource][]policy.Key{}
	add := func(kind, id string, key policy.Key) {
		r := resource{key.ContainerdNamespace, kind, id}
		index[r] = append(index[r], key)
	}
	for _, img := range images {
		if chains := c.chains(img); len(chains) > 0 {
			add("snapshots", chains[len(chains)-1], img.Key)
		}
		for _, n := range img.Names {
			add("images", n.Name, img.Key)
			add("content", n.Target, img.Key)
			for _, b := range c.blobs(img.Key.ContainerdNamespace, n.Target) {
				if !b.layer {
					add("content", b.digest, img.Key)
				}
			}
		}
	}
	return index
}

// blobs are those behind a target. The result is shared.
func (c *Client) blobs(containerdNamespace, digest string) []blob {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.resolved[target{containerdNamespace, digest}].blobs
}
