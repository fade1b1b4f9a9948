// Package containerd is the only code that talks to containerd and to its CRI:
// it tells what images and uses a node has, and removes image records so that
// nothing is lost by a mistake of the moment.
package containerd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// CRINamespace is the containerd namespace in which the CRI works.
const CRINamespace = "k8s.io"

// Config says which containerd, and what of it.
type Config struct {
	// Address is the socket; empty = the first of the usual places that exists.
	Address string
	// Namespaces are the containerd namespaces to look after.
	Namespaces []string
}

// usualAddresses are those of containerd, and of k3s and RKE2.
var usualAddresses = []string{"/run/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock"}

// Client is a connection to one containerd. It survives restarts of containerd.
type Client struct {
	cfg     Config
	log     *slog.Logger
	client  *client.Client
	conn    grpc.ClientConnInterface
	runtime runtimeapi.RuntimeServiceClient

	// mu guards what the looks have learned.
	mu        sync.Mutex
	versions  Versions
	resolved  map[target]resolved
	handlers  *handlers
	names     map[policy.Key]string // image ID by containerd namespace and name
	platforms map[policy.Key]string
	parents   map[snapshot]string // of committed snapshots
	used      map[snapshot]int64  // bytes of committed snapshots
	leased    map[lease][]leases.Resource
	measured  *measured
}

// Versions are those of the runtime.
type Versions struct {
	Runtime        string // "containerd"
	RuntimeVersion string
	CRIVersion     string // empty where the CRI is not looked at
}

// Connect connects and asks containerd who it is. The error is one line that
// names the address and says what to do.
func Connect(ctx context.Context, cfg Config, log *slog.Logger) (*Client, error) {
	if cfg.Address == "" {
		i := slices.IndexFunc(usualAddresses, func(a string) bool { _, err := os.Stat(a); return err == nil })
		if i < 0 {
			return nil, fmt.Errorf("containerd: no socket at %s: is containerd running? If it is elsewhere, set [containerd] address", strings.Join(usualAddresses, " or "))
		}
		cfg.Address = usualAddresses[i]
	}
	cfg.Address = strings.TrimPrefix(cfg.Address, "unix://")
	info, err := os.Stat(cfg.Address)
	switch {
	case !filepath.IsAbs(cfg.Address):
		return nil, fmt.Errorf("containerd: address %q is not an absolute path", cfg.Address)
	case err != nil:
		return nil, fmt.Errorf("containerd at %s: %w: is it running, and is [containerd] address right?", cfg.Address, errors.Unwrap(err))
	case info.Mode().Type() != os.ModeSocket:
		return nil, fmt.Errorf("containerd at %s: this is no socket", cfg.Address)
	}
	inner, err := client.New(cfg.Address)
	if err != nil {
		return nil, fmt.Errorf("containerd at %s: %w", cfg.Address, err)
	}
	conn, ok := inner.Conn().(grpc.ClientConnInterface)
	if !ok {
		return nil, errors.Join(fmt.Errorf("containerd at %s: connection is a %T", cfg.Address, inner.Conn()), inner.Close())
	}
	c := &Client{
		cfg: cfg, log: log, client: inner, conn: conn, runtime: runtimeapi.NewRuntimeServiceClient(conn),
		resolved: map[target]resolved{}, parents: map[snapshot]string{}, used: map[snapshot]int64{},
	}
	if _, err := c.Versions(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("containerd at %s: %w", cfg.Address, err), inner.Close())
	}
	return c, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.client.Close() }

// Versions asks for the versions of this moment.
func (c *Client) Versions(ctx context.Context) (Versions, error) {
	v, err := c.ask(ctx)
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.versions = v
	}
	return v, err
}

// askTimeout bounds the first question to a socket that may not be containerd's.
const askTimeout = 5 * time.Second

func (c *Client) ask(ctx context.Context) (Versions, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	v, err := c.client.Version(ctx)
	if err != nil {
		if errors.Is(err, syscall.EACCES) {
			return Versions{}, fmt.Errorf("%w: run as root", err)
		}
		return Versions{}, fmt.Errorf("does not answer as containerd does: %w", err)
	}
	versions := Versions{Runtime: "containerd", RuntimeVersion: v.Version}
	if c.hasCRI() {
		cri, err := c.runtime.Version(ctx, &runtimeapi.VersionRequest{})
		if err != nil {
			return versions, fmt.Errorf("the CRI does not answer, but [containerd] namespaces has %s: is the CRI plugin disabled? %w", CRINamespace, err)
		}
		versions.CRIVersion = cri.GetRuntimeApiVersion()
	}
	return versions, nil
}

// hasCRI says whether the CRI's own containerd namespace is looked after.
func (c *Client) hasCRI() bool { return slices.Contains(c.cfg.Namespaces, CRINamespace) }

// CompareAndDelete says whether this containerd compares a record's target
// before it deletes the record: it does from 2.0 on, and before silently does not.
func (c *Client) CompareAndDelete() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	major, _, _ := strings.Cut(strings.TrimPrefix(c.versions.RuntimeVersion, "v"), ".")
	n, err := strconv.Atoi(major)
	return err == nil && n >= 2
}

// Disk is the file system that holds containerd's root.
type Disk struct {
	Path                 string // containerd's root
	SizeBytes, UsedBytes uint64
}

// Disk asks containerd where its content lies and the kernel how full that is.
func (c *Client) Disk(ctx context.Context) (Disk, error) {
	plugins, err := c.client.IntrospectionService().Plugins(ctx, "type==io.containerd.content.v1")
	if err != nil {
		return Disk{}, fmt.Errorf("root of containerd: %w", err)
	}
	for _, p := range plugins.GetPlugins() {
		root := p.GetExports()["root"]
		if root == "" {
			continue
		}
		d := Disk{Path: filepath.Dir(root)}
		var fs syscall.Statfs_t
		if err := syscall.Statfs(d.Path, &fs); err != nil {
			return Disk{}, fmt.Errorf("root of containerd %s: %w", d.Path, err)
		}
		block := uint64(fs.Bsize)
		d.SizeBytes, d.UsedBytes = fs.Blocks*block, (fs.Blocks-fs.Bfree)*block
		return d, nil
	}
	return Disk{}, errors.New("root of containerd: no content store tells where it is")
}

func in(ctx context.Context, containerdNamespace string) context.Context {
	return namespaces.WithNamespace(ctx, containerdNamespace)
}
