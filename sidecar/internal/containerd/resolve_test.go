package containerd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// blobs is a content store in memory; a nil blob fails for the moment.
type blobs map[digest.Digest][]byte

type blobReader struct{ *bytes.Reader }

func (blobReader) Close() error { return nil }

func (b blobs) ReaderAt(_ context.Context, d ocispec.Descriptor) (content.ReaderAt, error) {
	data, ok := b[d.Digest]
	if !ok {
		return nil, fmt.Errorf("blob %s: %w", d.Digest, errdefs.ErrNotFound)
	}
	if data == nil {
		return nil, errTransient
	}
	return blobReader{bytes.NewReader(data)}, nil
}

var errTransient = errors.New("connection lost")

func (b blobs) put(mediaType string, v any) ocispec.Descriptor {
	data, raw := v.([]byte)
	if !raw {
		data, _ = json.Marshal(v) //nolint:errchkjson // plain structs of the test
	}
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	b[d.Digest] = data
	return d
}

var built = time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)

func (b blobs) config(os, arch, variant string) ocispec.Descriptor {
	return b.put(ocispec.MediaTypeImageConfig, ocispec.Image{
		Created: &built, Platform: ocispec.Platform{OS: os, Architecture: arch, Variant: variant},
		RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromString("layer")}},
	})
}

func (b blobs) manifest(config ocispec.Descriptor) ocispec.Descriptor {
	layer := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: digest.FromString("layer"), Size: 1000}
	return b.put(ocispec.MediaTypeImageManifest, ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Config: config, Layers: []ocispec.Descriptor{layer}})
}

func on(d ocispec.Descriptor, os, arch string) ocispec.Descriptor {
	d.Platform = &ocispec.Platform{OS: os, Architecture: arch}
	return d
}

func (b blobs) index(entries ...ocispec.Descriptor) ocispec.Descriptor {
	return b.put(ocispec.MediaTypeImageIndex, ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: entries})
}

func TestResolve(t *testing.T) {
	const os, arch = "linux", runtime.GOARCH
	other := "arm64"
	if arch == other {
		other = "amd64"
	}
	cases := map[string]struct {
		make     func(b blobs) (record, config ocispec.Descriptor)
		kind     policy.Kind
		platform string
		err      error
	}{
		"manifest": {make: func(b blobs) (ocispec.Descriptor, ocispec.Descriptor) {
			c := b.config(os, arch, "")
			return b.manifest(c), c
		}, kind: policy.KindImage, platform: os + "/" + arch},
		"manifest of another platform": {make: func(b blobs) (ocispec.Descriptor, ocispec.Descriptor) {
			c := b.config(os, "s390x", "")
			return b.manifest(c), c
		}, kind: policy.KindImage, platform: "linux/s390x"},
		"index": {make: func(b blobs) (ocispec.Descriptor, ocispec.Descriptor) {
			c := b.config(os, arch, "")
			return b.index(on(b.manifest(b.config(os, other, "")), os, other), on(b.manifest(c), os, arch)), c
		}, kind: policy.KindImage, platform: os + "/" + arch},
		"nested index": {make: func(b blobs) (ocispec.Descriptor, ocispec.Descriptor) {
			c := b.config(os, arch, "")
			return b.index(b.index(b.index(on(b.manifest(c), os, arch)))), c
		}, kind: policy.KindImage, platform: os + "/" + arch},
		"entry without platform": {make: func(b blobs) (ocispec.Descriptor, ocispec.Descriptor) {
			c := b.config(os, arch, "")
			return b.index(b.manifest(b.config(os, other, "")), b.manifest(c)), c
		}, kind: policy.KindImage, platform: os + "/" + arch},
		"index without this platform": {make: func(b blobs) (ocispec.Descriptor, ocispec.Descriptor) {
			d := b.index(on(b.manifest(b.config(os, other, "")), os, other))
			return d, d
		}, kind: policy.KindForeign},
		"index too deep": {make: func(b blobs) (ocispec.Descriptor, ocispec.Descriptor) {
			d := on(b.manifest(b.config(os, arch, "")), os, arch)
			for range 64 {
				d = b.index(d)
			}
			return d, d
		}, kind: policy.KindForeign},
		"index of nothing": {make: func(b blobs) (ocispec.Descriptor, ocispec.Descriptor) { d := b.index(); return d, d }, kind: policy.KindForeign},
		"best entry's blob is absent": {make: func(b blobs) (ocispec.Descriptor, ocispec.Descriptor) {
			d := b.manifest(b.config(os, arch, ""))
			i := b.index(on(d, os, arch))
			delete(b, d.Digest)
			return i, i
		}, err: errdefs.ErrNotFound},
		"artifact": {make: func(b blobs) (ocispec.Descriptor, ocispec.Descriptor) {
			d := b.manifest(b.put("application/vnd.example+json", []byte("{}")))
			return d, d
		}, kind: policy.KindArtifact},
		"empty config": {make: func(b blobs) (ocispec.Descriptor, ocispec.Descriptor) {
			d := b.manifest(b.put(ocispec.MediaTypeEmptyJSON, []byte("{}")))
			return d, d
		}, kind: policy.KindArtifact},
		"config that says nothing": {make: func(b blobs) (ocispec.Descriptor, ocispec.Descriptor) {
			d := b.manifest(b.put(ocispec.MediaTypeImageConfig, []byte("{}")))
			return d, d
		}, kind: policy.KindArtifact},
		"some other media type": {make: func(b blobs) (ocispec.Descriptor, ocispec.Descriptor) {
			d := b.put("text/plain", []byte("hello"))
			return d, d
		}, kind: policy.KindArtifact},
		"truncated manifest": {make: func(b blobs) (ocispec.Descriptor, ocispec.Descriptor) {
			d := b.put(ocispec.MediaTypeImageManifest, []byte(`{"config":`))
			return d, d
		}, kind: policy.KindForeign},
		"manifest too large": {make: func(b blobs) (ocispec.Descriptor, ocispec.Descriptor) {
			d := b.put(ocispec.MediaTypeImageManifest, bytes.Repeat([]byte(" "), maxBlobSize+1))
			return d, d
		}, kind: policy.KindForeign},
		"config with a digest that is none": {make: func(b blobs) (ocispec.Descriptor, ocispec.Descriptor) {
			d := b.manifest(ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: "sha256:../../etc"})
			return d, d
		}, kind: policy.KindForeign},
		"platform that is none": {make: func(b blobs) (ocispec.Descriptor, ocispec.Descriptor) {
			d := b.manifest(b.config("li/nux", "a\x00md64", ""))
			return d, d
		}, kind: policy.KindForeign},
		"config absent": {make: func(b blobs) (ocispec.Descriptor, ocispec.Descriptor) {
			c := b.config(os, arch, "")
			d := b.manifest(c)
			delete(b, c.Digest)
			return d, d
		}, err: errdefs.ErrNotFound},
		"a read that fails": {make: func(b blobs) (ocispec.Descriptor, ocispec.Descriptor) {
			c := b.config(os, arch, "")
			d := b.index(on(b.manifest(c), os, arch))
			b[c.Digest] = nil
			return d, d
		}, err: errTransient},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			b := blobs{}
			record, config := c.make(b)
			r, err := resolve(t.Context(), b, record)
			if !errors.Is(err, c.err) {
				t.Fatalf("err = %v, want %v", err, c.err)
			}
			if err != nil {
				return
			}
			if r.kind != c.kind || r.id != config.Digest.String() || r.platform != c.platform {
				t.Errorf("resolved %s %s %q, want %s %s %q", r.kind, r.id, r.platform, c.kind, config.Digest, c.platform)
			}
			if c.kind == policy.KindImage {
				if !slices.Contains(r.blobs, blob{digest: config.Digest.String()}) || len(r.chains) != 1 || !r.built.Equal(built) {
					t.Errorf("blobs %v, layers %v, built %v", r.blobs, r.chains, r.built)
				}
			}
		})
	}
}

// Whatever lies in the content store, resolving it ends, without a panic, in a
// kind and an ID.
func FuzzResolve(f *testing.F) {
	f.Add([]byte(`{"manifests":[{"digest":"sha256:x"}]}`), []byte(`{}`), true)
	f.Add([]byte(`{"config":{"mediaType":"application/vnd.oci.image.config.v1+json"}}`), []byte(`{"os":"linux","architecture":"amd64"}`), false)
	f.Add([]byte(`{"layers":[{"size":-1}]}`), []byte(`{"os":"linux"}`), false)
	f.Fuzz(func(t *testing.T, top, config []byte, index bool) {
		b := blobs{}
		b.put(ocispec.MediaTypeImageConfig, config)
		mediaType := ocispec.MediaTypeImageManifest
		if index {
			mediaType = ocispec.MediaTypeImageIndex
		}
		d := b.put(mediaType, bytes.ReplaceAll(top, []byte("CONFIG"), []byte(digest.FromBytes(config))))
		r, err := resolve(t.Context(), b, d)
		if err == nil && (r.kind == "" || r.id == "") {
			t.Errorf("resolved to %+v", r)
		}
		if err != nil && !errdefs.IsNotFound(err) {
			t.Errorf("err = %v", err)
		}
	})
}
