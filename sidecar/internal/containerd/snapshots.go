package containerd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// snapshot names a snapshot on the node.
type snapshot struct {
	namespace   string // containerd namespace
	snapshotter string
	key         string // chain ID of an unpacked layer, else free text
}

// basis is what is mounted on the images of a node: for each snapshot that can
// be written or is a view, the images that it lies directly upon.
type basis map[snapshot][]policy.Key

// observeSnapshots lists the active snapshots of all snapshotters, with one call
// per snapshotter and containerd namespace, and finds the images below them: the
// first that is met on the way down. An image further down only shares layers.
func (c *Client) observeSnapshots(ctx context.Context, images []policy.Image) (basis, error) {
	snapshotters, err := c.snapshotters(ctx)
	if err != nil {
		return nil, err
	}
	tops := c.topChains(images)
	found := basis{}
	var errs []error
	for _, ns := range c.cfg.Namespaces {
		for _, name := range snapshotters {
			service := c.client.SnapshotService(name)
			var active []snapshots.Info
			err := service.Walk(in(ctx, ns), func(_ context.Context, info snapshots.Info) error {
				active = append(active, info)
				return nil
			}, "kind==active", "kind==view")
			for _, info := range active {
				if err != nil {
					break
				}
				var keys []policy.Key
				keys, err = c.below(in(ctx, ns), service, snapshot{ns, name, info.Parent}, tops)
				found[snapshot{ns, name, info.Name}] = keys
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("snapshotter %q does not list the snapshots of %s: %w", name, ns, err))
			}
		}
	}
	return found, errors.Join(errs...)
}

// topChains finds images by the chain of all their layers, in one containerd
// namespace.
func (c *Client) topChains(images []policy.Image) map[policy.Key][]policy.Key {
	tops := map[policy.Key][]policy.Key{}
	for _, img := range images {
		if chains := c.chains(img); len(chains) > 0 {
			top := policy.Key{ContainerdNamespace: img.Key.ContainerdNamespace, ID: chains[len(chains)-1]}
			tops[top] = append(tops[top], img.Key)
		}
	}
	return tops
}

// below goes down from a snapshot to the first that is the top of an image. The
// parent of a chain never changes, so each is asked for once.
func (c *Client) below(ctx context.Context, service snapshots.Snapshotter, s snapshot, tops map[policy.Key][]policy.Key) ([]policy.Key, error) {
	for s.key != "" {
		if keys := tops[policy.Key{ContainerdNamespace: s.namespace, ID: s.key}]; keys != nil {
			return keys, nil
		}
		c.mu.Lock()
		parent, known := c.parents[s]
		c.mu.Unlock()
		if !known {
			info, err := service.Stat(ctx, s.key)
			if errdefs.IsNotFound(err) {
				return nil, nil // it went meanwhile, and what lay upon it
			}
			if err != nil {
				return nil, err
			}
			parent = info.Parent
			if strings.HasPrefix(s.key, "sha256:") { // a chain; another name can be used again
				c.mu.Lock()
				c.parents[s] = parent
				c.mu.Unlock()
			}
		}
		s.key = parent
	}
	return nil, nil
}

// chains are the chain IDs of an image, from the lowest layer up. It may share
// its result.
func (c *Client) chains(img policy.Image) []string {
	if len(img.Names) == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.resolved[target{img.Key.ContainerdNamespace, img.Names[0].Target}].chains
}

// chainIDs are the chain IDs of diff IDs, from the lowest up.
func chainIDs(diffIDs []digest.Digest) []string {
	var chains []string
	for _, id := range identity.ChainIDs(slices.Clone(diffIDs)) {
		chains = append(chains, id.String())
	}
	return chains
}

// snapshotters are those that containerd has loaded.
func (c *Client) snapshotters(ctx context.Context) ([]string, error) {
	plugins, err := c.client.IntrospectionService().Plugins(ctx, "type==io.containerd.snapshotter.v1")
	if err != nil {
		return nil, fmt.Errorf("snapshotters: %w", err)
	}
	var names []string
	for _, p := range plugins.GetPlugins() {
		if p.GetInitErr() == nil {
			names = append(names, p.GetID())
		}
	}
	return names, nil
}
