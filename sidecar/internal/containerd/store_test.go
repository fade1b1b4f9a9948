package containerd

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	introspectionapi "github.com/containerd/containerd/api/services/introspection/v1"
	namespacesapi "github.com/containerd/containerd/api/services/namespaces/v1"
	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/introspection"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.etcd.io/bbolt"
	"google.golang.org/grpc"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// noPlugins is a containerd without snapshotters.
type noPlugins struct{ introspection.Service }

func (noPlugins) Plugins(context.Context, ...string) (*introspectionapi.PluginsResponse, error) {
	return &introspectionapi.PluginsResponse{}, nil
}

// oneNamespace is a containerd with the namespace of the test.
type oneNamespace struct{ namespacesapi.NamespacesClient }

func (oneNamespace) List(context.Context, *namespacesapi.ListNamespacesRequest, ...grpc.CallOption) (*namespacesapi.ListNamespacesResponse, error) {
	return &namespacesapi.ListNamespacesResponse{Namespaces: []*namespacesapi.Namespace{{Name: "ns"}}}, nil
}

// store is a client over containerd's own metadata and content store, in a
// directory of the test.
type store struct {
	*testing.T
	*Client
	ctx    context.Context
	target ocispec.Descriptor
	id     string
	faults *faultyStore
}

// faultyStore is an image store whose answers get lost, as told.
type faultyStore struct {
	images.Store
	lostDeletes int // so many deletions take effect and fail
	badCreates  int // so many creations fail
}

var errLost = errors.New("connection lost")

func (f *faultyStore) Delete(ctx context.Context, name string, opts ...images.DeleteOpt) error {
	err := f.Store.Delete(ctx, name, opts...)
	if f.lostDeletes > 0 {
		f.lostDeletes--
		return errLost
	}
	return err
}

func (f *faultyStore) Create(ctx context.Context, i images.Image) (images.Image, error) {
	if f.badCreates > 0 {
		f.badCreates--
		return images.Image{}, errLost
	}
	return f.Store.Create(ctx, i)
}

func newStore(t *testing.T) *store {
	t.Helper()
	dir := t.TempDir()
	blobStore, err := local.NewStore(filepath.Join(dir, "content"))
	if err != nil {
		t.Fatal(err)
	}
	bolt, err := bbolt.Open(filepath.Join(dir, "meta.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bolt.Close(); err != nil {
			t.Error(err)
		}
	})
	db := metadata.NewDB(bolt, blobStore, nil)
	if err := db.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	faults := &faultyStore{Store: metadata.NewImageStore(db)}
	inner, err := client.New("", client.WithServices(
		client.WithImageStore(faults), client.WithContentStore(db.ContentStore()),
		client.WithLeasesService(metadata.NewLeaseManager(db)), client.WithIntrospectionService(noPlugins{}),
		client.WithNamespaceClient(oneNamespace{}),
	))
	if err != nil {
		t.Fatal(err)
	}
	s := &store{T: t, faults: faults, ctx: namespaces.WithNamespace(t.Context(), "ns"), Client: &Client{
		cfg: Config{Namespaces: []string{"ns"}}, client: inner, log: slog.New(slog.DiscardHandler), resolved: map[target]resolved{},
	}}
	memory := blobs{}
	config := memory.config("linux", "amd64", "")
	s.target = memory.manifest(config)
	s.id = config.Digest.String()
	for d, data := range memory {
		desc := ocispec.Descriptor{Digest: d, Size: int64(len(data))}
		if err := content.WriteBlob(s.ctx, db.ContentStore(), d.String(), strings.NewReader(string(data)), desc); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"reg/app:1", "reg/app:2", "reg/app@" + s.target.Digest.String(), s.id} {
		s.create(name, s.target)
	}
	return s
}

func (s *store) create(name string, d ocispec.Descriptor) {
	s.Helper()
	if _, err := s.client.ImageService().Create(s.ctx, images.Image{Name: name, Target: d, Labels: map[string]string{"of": name}}); err != nil {
		s.Fatal(err)
	}
}

func (s *store) names() []string {
	s.Helper()
	list, err := s.client.ImageService().List(s.ctx)
	if err != nil {
		s.Fatal(err)
	}
	var names []string
	for _, i := range list {
		if i.Labels["of"] != i.Name {
			s.Errorf("labels of %s are %v", i.Name, i.Labels)
		}
		names = append(names, i.Name)
	}
	slices.Sort(names)
	return names
}

func (s *store) image() policy.Image {
	s.Helper()
	list, err := s.observeImages(s.ctx)
	if err != nil || len(list) != 1 {
		s.Fatalf("images = %v, %v; want one", list, err)
	}
	return list[0]
}

func (s *store) hold(img policy.Image) *Hold {
	s.Helper()
	h, err := s.Hold(s.ctx, []policy.Image{img})
	if err != nil {
		s.Fatal(err)
	}
	return h
}

// leftLeases also shows that DropStaleHolds finds them.
func (s *store) leftLeases() int {
	s.Helper()
	list, err := s.client.LeasesService().List(s.ctx)
	if err != nil {
		s.Fatal(err)
	}
	return len(list)
}
