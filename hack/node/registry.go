package node

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// serveRegistry starts the node's registry and puts the sandbox image there.
func (n *Node) serveRegistry(ctx context.Context) error {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("node %s: registry: %w", n.Name, err)
	}
	n.Registry = listener.Addr().String()
	n.base = sync.OnceValues(busyboxLayer)
	n.pushes = &http.Transport{}
	n.registry = &http.Server{
		Handler:           registry.New(registry.Logger(log.New(io.Discard, "", 0))),
		ReadHeaderTimeout: time.Minute,
	}
	go n.registry.Serve(listener) //nolint:errcheck // ends with Close, and a registry that is gone fails every pull
	n.Pause, err = n.PushImage(ctx, "pause:1", ImageOptions{Layers: -1, Command: []string{"/bin/sleep", "2147483647"}})
	return err
}

// PushImage builds an image and pushes it to the node's registry under name
// ("app", "team/app:v1"). It returns the full reference to pull.
func (n *Node) PushImage(ctx context.Context, name string, o ImageOptions) (ref string, err error) {
	image, err := n.BuildImage(o)
	if err != nil {
		return "", fmt.Errorf("image %q: %w", name, err)
	}
	return n.Push(ctx, name, image)
}

// Push pushes an image or an index of any make to the node's registry.
func (n *Node) Push(ctx context.Context, name string, image remote.Taggable) (ref string, err error) {
	tag, err := n.tag(name)
	if err != nil {
		return "", err
	}
	options := []remote.Option{remote.WithContext(ctx), remote.WithTransport(n.pushes)}
	switch image := image.(type) {
	case v1.Image:
		err = remote.Write(tag, image, options...)
	case v1.ImageIndex:
		err = remote.WriteIndex(tag, image, options...)
	default:
		err = remote.Put(tag, image, options...)
	}
	if err != nil {
		return "", fmt.Errorf("push %q: %w", name, err)
	}
	return tag.Name(), nil
}

// Tag gives the image that ref means in the node's registry a second name
// there, and returns the full reference. Both have the same digest.
func (n *Node) Tag(ctx context.Context, ref, newName string) (string, error) {
	old, err := name.ParseReference(ref, name.Insecure)
	if err != nil {
		return "", fmt.Errorf("tag: %w", err)
	}
	descriptor, err := remote.Get(old, remote.WithContext(ctx), remote.WithTransport(n.pushes))
	if err != nil {
		return "", fmt.Errorf("tag %q: %w", ref, err)
	}
	if descriptor.MediaType.IsIndex() {
		index, err := descriptor.ImageIndex()
		if err != nil {
			return "", fmt.Errorf("tag %q: %w", ref, err)
		}
		return n.Push(ctx, newName, index)
	}
	image, err := descriptor.Image()
	if err != nil {
		return "", fmt.Errorf("tag %q: %w", ref, err)
	}
	return n.Push(ctx, newName, image)
}

func (n *Node) tag(short string) (name.Tag, error) {
	return name.NewTag(n.Registry+"/"+short, name.Insecure)
}
