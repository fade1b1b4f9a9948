package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// target is what a record points at, in one containerd namespace.
type target struct {
	namespace string
	digest    string
}

// resolved is what the blobs behind a target say. Blobs never change, so it
// holds as long as the target is there.
type resolved struct {
	kind     policy.Kind
	id       string // config digest; the target's own for what is no image
	platform string
	built    time.Time
	labels   map[string]string
	chains   []string // of the layers, from the lowest up
	blobs    []blob
	// fromRegistry is what was known at first; a measurement sees a label that
	// comes later, with a pull.
	fromRegistry bool
}

// blob is one behind a target.
type blob struct {
	digest string
	// layer tells a layer from what names one image: index, manifest, config.
	layer bool
}

// Bounds on what is read of an image, far above what is real.
const (
	maxBlobSize   = 8 << 20
	maxIndexDepth = 8
	maxUnknown    = 32 // entries of an index without a platform that are tried
)

// errUnreadable marks a blob that will never be readable: it is malformed or
// beyond the bounds. A blob that is absent is another matter: it may come.
var errUnreadable = errors.New("unreadable")

// resolve finds the image behind a descriptor. An error is one of the moment;
// what will stay so is a kind of its own.
func resolve(ctx context.Context, blobs content.Provider, desc ocispec.Descriptor) (resolved, error) {
	r := resolved{kind: policy.KindForeign, id: desc.Digest.String()}
	err := r.walk(ctx, blobs, desc, 0)
	switch {
	case errors.Is(err, errUnreadable):
		return resolved{kind: policy.KindForeign, id: desc.Digest.String(), blobs: r.blobs}, nil
	case err != nil:
		return resolved{}, err
	}
	return r, nil
}

func (r *resolved) walk(ctx context.Context, blobs content.Provider, desc ocispec.Descriptor, depth int) error {
	if depth > maxIndexDepth {
		return fmt.Errorf("index %d deep: %w", depth, errUnreadable)
	}
	data, err := readBlob(ctx, blobs, desc)
	if err != nil {
		return err
	}
	r.blobs = append(r.blobs, blob{digest: desc.Digest.String()})
	switch {
	case images.IsIndexType(desc.MediaType):
		return r.index(ctx, blobs, data, depth)
	case images.IsManifestType(desc.MediaType):
		return r.manifest(ctx, blobs, data)
	default:
		r.kind = policy.KindArtifact
		return nil
	}
}

// index goes into the entry that containerd would choose for this node: the
// best match among those that name a platform, else the first entry without one
// that turns out to fit.
func (r *resolved) index(ctx context.Context, blobs content.Provider, data []byte, depth int) error {
	var index ocispec.Index
	if err := json.Unmarshal(data, &index); err != nil {
		return fmt.Errorf("index: %w: %w", err, errUnreadable)
	}
	match := platforms.Default()
	var named, unknown []ocispec.Descriptor
	for _, d := range index.Manifests {
		switch {
		case d.Platform == nil && len(unknown) < maxUnknown:
			unknown = append(unknown, d)
		case d.Platform != nil && match.Match(*d.Platform):
			named = append(named, d)
		}
	}
	slices.SortStableFunc(named, func(a, b ocispec.Descriptor) int {
		switch {
		case match.Less(*a.Platform, *b.Platform):
			return -1
		case match.Less(*b.Platform, *a.Platform):
			return 1
		}
		return 0
	})
	own := r.blobs
	var absent error
	for _, d := range append(named, unknown...) {
		try := resolved{kind: policy.KindForeign, id: r.id, blobs: slices.Clip(own)}
		err := try.walk(ctx, blobs, d, depth+1)
		if errdefs.IsNotFound(err) {
			absent = err
			continue
		}
		if errors.Is(err, errUnreadable) {
			continue
		}
		if err != nil {
			return err
		}
		if try.kind == policy.KindImage && (d.Platform != nil || match.Match(platforms.MustParse(try.platform))) {
			*r = try
			return nil
		}
	}
	return absent // it may come: nothing to remember
}

func (r *resolved) manifest(ctx context.Context, blobs content.Provider, data []byte) error {
	var manifest ocispec.Manifest
	if err := json.Unmarshal(data, &manifest); err != nil {
		return fmt.Errorf("manifest: %w: %w", err, errUnreadable)
	}
	r.blobs = append(r.blobs, blob{digest: manifest.Config.Digest.String()})
	for _, d := range manifest.Layers {
		r.blobs = append(r.blobs, blob{digest: d.Digest.String(), layer: true})
	}
	if !images.IsConfigType(manifest.Config.MediaType) {
		r.kind = policy.KindArtifact
		return nil
	}
	data, err := readBlob(ctx, blobs, manifest.Config)
	if err != nil {
		return err
	}
	var config ocispec.Image
	if err := json.Unmarshal(data, &config); err != nil {
		return fmt.Errorf("config: %w: %w", err, errUnreadable)
	}
	if config.OS == "" || config.Architecture == "" {
		r.kind = policy.KindArtifact
		return nil
	}
	platform := platforms.Format(platforms.Normalize(config.Platform))
	if _, err := platforms.Parse(platform); err != nil {
		return fmt.Errorf("config: %w: %w", err, errUnreadable)
	}
	r.kind, r.id, r.platform = policy.KindImage, manifest.Config.Digest.String(), platform
	r.labels, r.chains = config.Config.Labels, chainIDs(config.RootFS.DiffIDs)
	if config.Created != nil {
		r.built = *config.Created
	}
	return nil
}

func readBlob(ctx context.Context, blobs content.Provider, desc ocispec.Descriptor) (data []byte, err error) {
	if err := desc.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("digest %q: %w: %w", desc.Digest, err, errUnreadable)
	}
	reader, err := blobs.ReaderAt(ctx, desc)
	if err != nil {
		return nil, fmt.Errorf("blob %s: %w", desc.Digest, err)
	}
	defer func() { err = errors.Join(err, reader.Close()) }()
	if reader.Size() > maxBlobSize {
		return nil, fmt.Errorf("blob %s: %d bytes: %w", desc.Digest, reader.Size(), errUnreadable)
	}
	data = make([]byte, reader.Size())
	if _, err := io.ReadFull(io.NewSectionReader(reader, 0, reader.Size()), data); err != nil {
		return nil, fmt.Errorf("blob %s: %w", desc.Digest, err)
	}
	return data, nil
}
