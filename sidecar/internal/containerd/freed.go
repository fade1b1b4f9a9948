package containerd

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// part is a blob, or a committed snapshot, that an image has on the node.
type part struct {
	namespace   string // containerd namespace; empty for a blob, which all share
	snapshotter string // empty for a blob
	key         string // digest, or chain ID
	bytes       int64
}

// parts lists what of an image is there: blobs of its targets, and the
// snapshots of its chain in every snapshotter. What cannot be measured does not
// count: a snapshotter that is down stops no removal.
func (c *Client) parts(ctx context.Context, img policy.Image) []part {
	var parts []part
	unknown := func(err error) {
		if !errdefs.IsNotFound(err) {
			c.log.Warn("a part of an image cannot be measured", "image", img.Key.ID, "err", err)
		}
	}
	seen := map[string]bool{}
	for _, n := range img.Names {
		for _, b := range c.blobs(img.Key.ContainerdNamespace, n.Target) {
			if seen[b.digest] {
				continue
			}
			seen[b.digest] = true
			info, err := c.client.ContentStore().Info(ctx, digest.Digest(b.digest))
			if err != nil {
				unknown(fmt.Errorf("blob %s: %w", b.digest, err))
				continue
			}
			parts = append(parts, part{key: b.digest, bytes: info.Size})
		}
	}
	snapshotters, err := c.snapshotters(ctx)
	if err != nil {
		unknown(err)
	}
	for _, name := range snapshotters {
		for _, chain := range c.chains(img) {
			usage, err := c.client.SnapshotService(name).Usage(ctx, chain)
			if err != nil {
				unknown(fmt.Errorf("snapshot %s in %s: %w", chain, name, err))
				continue
			}
			parts = append(parts, part{namespace: img.Key.ContainerdNamespace, snapshotter: name, key: chain, bytes: usage.Size})
		}
	}
	return parts
}

// freed adds up the parts of removed images that are no longer there.
func (h *Hold) freed(ctx context.Context) (map[policy.Key]int64, error) {
	freed := map[policy.Key]int64{}
	counted := map[part]bool{}
	for _, key := range h.order {
		img := h.images[key]
		if !img.gone {
			continue
		}
		freed[key] = 0
		for _, p := range img.parts {
			id := p
			id.bytes = 0
			if counted[id] {
				continue
			}
			there, err := h.c.there(in(ctx, key.ContainerdNamespace), p)
			if err != nil {
				return freed, fmt.Errorf("measure what image %s freed: %w", key.ID, err)
			}
			if !there {
				counted[id] = true
				freed[key] += p.bytes
			}
		}
	}
	return freed, nil
}

// there says whether a part still takes space. A blob is shared by all
// containerd namespaces that know it; a snapshot belongs to one.
func (c *Client) there(ctx context.Context, p part) (bool, error) {
	if p.snapshotter != "" {
		_, err := c.client.SnapshotService(p.snapshotter).Stat(ctx, p.key)
		return found(err)
	}
	spaces, err := c.client.NamespaceService().List(ctx)
	if err != nil {
		return false, err
	}
	for _, ns := range spaces {
		_, err := c.client.ContentStore().Info(in(ctx, ns), digest.Digest(p.key))
		if there, err := found(err); there || err != nil {
			return there, err
		}
	}
	return false, nil
}

func found(err error) (bool, error) {
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}
