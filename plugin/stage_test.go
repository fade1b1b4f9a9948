package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
	"github.com/containerd/ttrpc"
	"go.uber.org/goleak"

	"github.com/image-custodian/custodian/api/v1/node"
)

func TestMain(m *testing.M) {
	if os.Getenv(api.PluginSocketEnvVar) != "" {
		main() // TestLaunchedByTheRuntime
		return
	}
	nrilog.Set(nriLog{slog.New(slog.DiscardHandler)})
	goleak.VerifyTestMain(m,
		// The listener of NRI's adaptation ends some time after Stop.
		goleak.IgnoreAnyFunction("github.com/containerd/nri/pkg/adaptation.(*Adaptation).acceptPluginConnections.func1"),
		// TestARuntimeThatGoesSilent leaves a stub behind that nothing can end.
		goleak.IgnoreAnyFunction("github.com/containerd/nri/pkg/stub.(*stub).Start"),
		goleak.IgnoreAnyFunction("github.com/containerd/nri/pkg/stub.(*stub).Start.func6"),
		goleak.IgnoreAnyFunction("github.com/containerd/nri/pkg/stub.(*stub).connClosed"),
	)
}

// sidecar is a Node service that records.
type sidecar struct {
	mu       sync.Mutex
	asked    int // Admits begun
	admits   []*node.Use
	events   []*node.Event
	syncs    []*node.SyncRequest
	session  string
	over     bool
	refuse   string
	hang     chan struct{} // Admit waits for it, if not nil
	failNext int           // so many Reports fail
}

func (s *sidecar) Admit(ctx context.Context, r *node.AdmitRequest) (*node.AdmitResponse, error) {
	s.mu.Lock()
	hang := s.hang
	s.asked++
	s.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.admits = append(s.admits, r.GetUse())
	return &node.AdmitResponse{Refuse: s.refuse != "", Reason: s.refuse}, nil
}

func (s *sidecar) Report(_ context.Context, r *node.ReportRequest) (*node.ReportResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.GetSession() != s.session {
		return &node.ReportResponse{SyncWanted: true}, nil
	}
	if s.failNext > 0 && len(r.GetEvents()) > 0 {
		s.failNext--
		return nil, errors.New("disk full")
	}
	s.over = r.GetDisconnected()
	s.events = append(s.events, r.GetEvents()...)
	return &node.ReportResponse{}, nil
}

func (s *sidecar) Sync(_ context.Context, r *node.SyncRequest) (*node.SyncResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.syncs = append(s.syncs, r)
	if r.GetLast() {
		s.session = r.GetSession()
	}
	return &node.SyncResponse{AdmitTimeout: int64(100 * time.Millisecond)}, nil
}

func (s *sidecar) kinds() (kinds []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		kinds = append(kinds, strings.TrimPrefix(e.GetKind().String(), "EVENT_KIND_")+" "+e.GetContainerId())
	}
	return kinds
}

// serve serves until stop is called, or the test ends.
func (s *sidecar) serve(t testing.TB, socket string) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	node.RegisterNodeService(server, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(context.WithoutCancel(t.Context()), l); !errors.Is(err, ttrpc.ErrServerClosed) {
			t.Errorf("serve: %v", err)
		}
	}()
	stop = sync.OnceFunc(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		<-done
	})
	t.Cleanup(stop)
	return stop
}

// stage is NRI's own runtime side with a plugin connected to it.
type stage struct {
	testing.TB
	runtime    *adaptation.Adaptation
	plugin     *plugin
	sidecar    *sidecar
	nodeSocket string
	nriSocket  string
	wire       *wire
	pod        *api.PodSandbox
	existing   []*api.Container
	morePods   []*api.PodSandbox
}

func newStage(t testing.TB) *stage {
	t.Helper()
	dir := t.TempDir()
	s := &stage{
		TB: t, sidecar: &sidecar{}, nodeSocket: filepath.Join(dir, "node.sock"), nriSocket: filepath.Join(dir, "nri.sock"),
		pod: &api.PodSandbox{Id: "pod1", Name: "api-0", Namespace: "pay", Uid: "u1", Labels: map[string]string{"oci_runtime_type": "io.containerd.runc.v1"}},
	}
	s.startRuntime()
	return s
}

// wire stands between plugin and runtime, to be cut: the runtime side itself
// never closes a connection.
type wire struct {
	mu    sync.Mutex
	conns []net.Conn
}

func (w *wire) between(t testing.TB, from, to string) {
	l, err := net.Listen("unix", from)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("unix", to)
			if err != nil {
				t.Error(err, near.Close())
				return
			}
			w.mu.Lock()
			w.conns = append(w.conns, near, far)
			w.mu.Unlock()
			for _, c := range [][2]net.Conn{{near, far}, {far, near}} {
				go func() {
					_, _ = io.Copy(c[0], c[1]) // ends with the connection
					_ = c[0].Close()
				}()
			}
		}
	}()
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		w.cut()
	})
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close() // may be closed by the other side
	}
	w.conns = nil
}

func (s *stage) startRuntime() {
	s.Helper()
	dir := s.TempDir()
	s.wire = &wire{}
	s.wire.between(s.TB, s.nriSocket, filepath.Join(dir, "nri.sock"))
	sync := func(ctx context.Context, cb adaptation.SyncCB) error {
		_, err := cb(ctx, append(s.morePods, s.pod), s.existing)
		return err
	}
	update := func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil }
	r, err := adaptation.New("containerd", "v2.4.2", sync, update,
		adaptation.WithSocketPath(filepath.Join(dir, "nri.sock")), adaptation.WithPluginPath(dir), adaptation.WithPluginConfigPath(dir))
	if err != nil {
		s.Fatal(err)
	}
	if err := r.Start(); err != nil {
		s.Fatal(err)
	}
	s.runtime = r
	s.Cleanup(r.Stop)
}

// startPlugin runs an external plugin until the test ends.
func (s *stage) startPlugin() {
	s.Helper()
	cfg := defaultConfig()
	cfg.NodeSocket, cfg.NRISocket = s.nodeSocket, s.nriSocket
	s.plugin = newPlugin(cfg, new(slog.LevelVar), slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.Context()))
	done := make(chan error, 1)
	go func() { done <- s.plugin.runExternal(ctx) }()
	s.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			s.Errorf("plugin: %v", err)
		}
	})
}

func (s *stage) eventually(what string, check func() bool) {
	s.Helper()
	for end := time.Now().Add(10 * time.Second); !check(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.Fatalf("in vain: %s", what)
		}
	}
}

// inSync waits until the sidecar has the list, and its Admit is reachable.
func (s *stage) inSync() {
	s.Helper()
	s.eventually("a sync", func() bool {
		s.sidecar.mu.Lock()
		defer s.sidecar.mu.Unlock()
		return s.sidecar.session != ""
	})
	s.eventually("a closed breaker", func() bool {
		s.plugin.admitter.mu.Lock()
		defer s.plugin.admitter.mu.Unlock()
		return s.plugin.admitter.client != nil
	})
}

func (s *stage) container(id string) *api.Container {
	return &api.Container{
		Id: id, PodSandboxId: "pod1", Name: "main", Annotations: map[string]string{annotationImageName: "app", "big": strings.Repeat("x", 300<<10)},
		Image:  &api.Image{Name: "reg/app:1", Digest: "sha256:m", ConfigDigest: "sha256:c"},
		Mounts: []*api.Mount{{Source: "/etc/hosts"}, {Source: "/run/x/image-volumes/pod1/" + strings.Repeat("a", 64)}},
	}
}

func (s *stage) create(id string) error {
	_, err := s.runtime.CreateContainer(s.Context(), &api.CreateContainerRequest{Pod: s.pod, Container: s.container(id)})
	return err
}

func (s *stage) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}
