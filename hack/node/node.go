package node

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ErrNotRoot is returned by Start for anybody but root.
var ErrNotRoot = errors.New("a node needs root")

// Options of a node; the zero value is a good one.
type Options struct {
	// Dir is the node's directory: missing or empty, removed by Stop. At
	// most 40 bytes, because the sockets of the shims live in it. "" is a new
	// temporary one.
	Dir string
	// Log gets one line for each thing that takes time. nil is nowhere.
	Log io.Writer
	// ContainerdConfig is TOML (version 3) merged over the generated
	// configuration, key by key.
	ContainerdConfig string
	// NRIPlugins are executables that containerd shall launch: file name in
	// the plugin directory ("10-image-custodian") to the path to copy it from.
	NRIPlugins map[string]string
	// NRIPluginConfig holds their configuration: file name
	// ("10-image-custodian.conf") to its text.
	NRIPluginConfig map[string]string
}

// Node is a running private node. Its methods may be called concurrently.
type Node struct {
	// Name is unique among all nodes of the machine, and short: the bridge,
	// the cgroup and the CNI network carry it.
	Name string
	Dir  string

	ContainerdAddress  string // absolute path of the socket, for CRI too
	ContainerdRootDir  string
	ContainerdStateDir string
	ContainerdLog      string // file
	NRISocket          string
	CgroupParent       string // absolute, as CRI takes it
	Registry           string // host:port of the node's own registry
	Pause              string // reference of the sandbox image

	options  Options
	log      io.Writer
	owner    *ownerRecord
	registry *http.Server
	pushes   *http.Transport
	base     func() (v1.Layer, error)
	conn     *grpc.ClientConn

	mu         sync.Mutex
	containerd *process                                // nil when it is down
	kubelet    *Kubelet                                // nil when none runs
	pods       map[string]*runtimeapi.PodSandboxConfig // by pod ID
	booted     bool                                    // was ready once, so there may be pods
	stopped    bool
}

// RuntimeHandlers are the handlers that a pod may name; the first one is the
// default, the others are of the same type.
func (n *Node) RuntimeHandlers() []string { return []string{"runc", "runc-alt"} }

// Start boots a node and returns when CRI says that it is ready. ctx bounds
// the start only; the node lives until Stop, which the caller owes. When Start
// fails, or ctx ends meanwhile, nothing of the node is left.
func Start(ctx context.Context, o Options) (_ *Node, err error) {
	if os.Geteuid() != 0 {
		return nil, ErrNotRoot
	}
	log := o.Log
	if log == nil {
		log = io.Discard
	}
	swept, err := Sweep(ctx)
	for _, name := range swept {
		fmt.Fprintf(log, "swept %s, whose owner died\n", name)
	}
	if err != nil { // somebody else's dirt must not stop this node
		fmt.Fprintf(log, "sweep: %v\n", err)
	}
	if err := requirePackages(ctx, log, runtimePackages()); err != nil {
		return nil, err
	}
	bin, err := programs(ctx, log)
	if err != nil {
		return nil, err
	}

	n, err := create(o, log)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Stop(ctx))
		}
	}()
	if err := n.serveRegistry(ctx); err != nil {
		return nil, err
	}
	if err := n.writeFiles(bin); err != nil {
		return nil, err
	}
	if err := n.dial(); err != nil {
		return nil, err
	}
	if err := n.StartContainerd(ctx); err != nil {
		return nil, err
	}
	return n, nil
}

// create names the node, makes its directory and records who owns it.
func create(o Options, log io.Writer) (*Node, error) {
	suffix := make([]byte, 4)
	rand.Read(suffix) // never fails, by its contract
	name := "icn-" + hex.EncodeToString(suffix)

	dir := o.Dir
	if dir == "" {
		dir = filepath.Join(os.TempDir(), name)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("node directory: %w", err)
	}
	// The longest path that containerd accepts for its shims' sockets is 42.
	if len(dir) > 40 {
		return nil, fmt.Errorf("node directory %q: %d bytes, sockets allow 40", dir, len(dir))
	}
	n := newNode(name, dir)
	n.options, n.log = o, log
	// The record comes first: what has no record is never swept.
	if n.owner, err = recordOwner(name, dir); err != nil {
		return nil, fmt.Errorf("node %s: owner record: %w", name, err)
	}
	if err := makeEmptyDir(dir); err != nil {
		return nil, errors.Join(fmt.Errorf("node directory: %w", err), n.owner.remove())
	}
	return n, nil
}

// makeEmptyDir accepts no directory that holds anything: Stop removes it all.
func makeEmptyDir(dir string) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		err = fmt.Errorf("%s is not empty", dir)
	}
	return err
}

func newNode(name, dir string) *Node {
	return &Node{
		Name:               name,
		Dir:                dir,
		ContainerdAddress:  filepath.Join(dir, "containerd.sock"),
		ContainerdRootDir:  filepath.Join(dir, "root"),
		ContainerdStateDir: filepath.Join(dir, "state"),
		ContainerdLog:      filepath.Join(dir, "containerd.log"),
		NRISocket:          filepath.Join(dir, "nri", "nri.sock"),
		CgroupParent:       "/" + name,
		log:                io.Discard,
		pods:               make(map[string]*runtimeapi.PodSandboxConfig),
	}
}

// dial makes the one connection of Runtime and Images. It outlives containerd:
// after a restart the next call connects again, without much back-off.
func (n *Node) dial() error {
	conn, err := grpc.NewClient("unix://"+n.ContainerdAddress,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1.5, MaxDelay: 50 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	n.conn = conn
	return nil
}

// Runtime is the node's CRI runtime service.
func (n *Node) Runtime() runtimeapi.RuntimeServiceClient {
	return runtimeapi.NewRuntimeServiceClient(n.conn)
}

// Images is the node's CRI image service.
func (n *Node) Images() runtimeapi.ImageServiceClient {
	return runtimeapi.NewImageServiceClient(n.conn)
}
