package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/image-custodian/custodian/hack/node"
)

// prepare puts the load on the node.
func (b *bench) prepare(ctx context.Context) (err error) {
	if b.image, err = b.node.PushImage(ctx, "bench:1", node.ImageOptions{}); err != nil {
		return err
	}
	if _, err := b.node.Pull(ctx, b.image); err != nil {
		return err
	}
	if err := b.addImages(ctx); err != nil {
		return err
	}
	if b.pod, err = b.node.RunPod(ctx, node.PodOptions{Name: "bench"}); err != nil {
		return err
	}
	for i := range b.load.containers {
		if _, err := b.node.CreateContainer(ctx, b.pod, node.ContainerOptions{Name: "load" + strconv.Itoa(i), Image: b.image}); err != nil {
			return err
		}
	}
	return nil
}

// addImages writes images that are real but for their size straight into
// containerd: a registry would only make it slower.
func (b *bench) addImages(ctx context.Context) (err error) {
	client, err := containerd.New(b.node.ContainerdAddress)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	ctx, done, err := client.WithLease(namespaces.WithNamespace(ctx, "k8s.io"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done(ctx)) }()
	for i := range b.load.images {
		if err := addImage(ctx, client, fmt.Sprintf("bench.example/load:%d", i)); err != nil {
			return fmt.Errorf("image %d: %w", i, err)
		}
	}
	return nil
}

func addImage(ctx context.Context, client *containerd.Client, name string) error {
	layer, err := write(ctx, client, ocispec.MediaTypeImageLayer, []byte("layer of "+name), nil)
	if err != nil {
		return err
	}
	config, err := write(ctx, client, ocispec.MediaTypeImageConfig, ocispec.Image{
		Platform: platforms.DefaultSpec(), Config: ocispec.ImageConfig{Labels: map[string]string{"name": name}},
		RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{layer.Digest}},
	}, nil)
	if err != nil {
		return err
	}
	manifest, err := write(ctx, client, ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: config, Layers: []ocispec.Descriptor{layer},
	}, map[string]string{
		"containerd.io/gc.ref.content.config": config.Digest.String(),
		"containerd.io/gc.ref.content.l.0":    layer.Digest.String(),
	})
	if err != nil {
		return err
	}
	_, err = client.ImageService().Create(ctx, images.Image{Name: name, Target: manifest})
	return err
}

// write stores a blob: bytes as they are, anything else as JSON.
func write(ctx context.Context, client *containerd.Client, mediaType string, v any, labels map[string]string) (ocispec.Descriptor, error) {
	data, raw := v.([]byte)
	if !raw {
		var err error
		if data, err = json.Marshal(v); err != nil {
			return ocispec.Descriptor{}, err
		}
	}
	desc := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	return desc, content.WriteBlob(ctx, client.ContentStore(), desc.Digest.String(), bytes.NewReader(data), desc, content.WithLabels(labels))
}
