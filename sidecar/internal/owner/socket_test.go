package owner

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// kubelet serves the Pods API on a socket of the test.
type kubelet struct {
	podsapi.UnimplementedPodsServer
	socket string
	server *grpc.Server

	mu      sync.Mutex
	pods    [][]byte
	err     error
	events  chan podsapi.EventType
	watches atomic.Int32
	drop    atomic.Bool
	hang    atomic.Bool
}

func (k *kubelet) set(t *testing.T, err error, pods ...*corev1.Pod) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods, k.err = nil, err
	for _, p := range pods {
		data, err := p.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		k.pods = append(k.pods, data)
	}
}

func (k *kubelet) ListPods(ctx context.Context, _ *podsapi.ListPodsRequest) (*podsapi.ListPodsResponse, error) {
	if k.hang.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return &podsapi.ListPodsResponse{Pods: k.pods}, k.err
}

func (k *kubelet) WatchPods(_ *podsapi.WatchPodsRequest, stream grpc.ServerStreamingServer[podsapi.WatchPodsEvent]) error {
	k.watches.Add(1)
	for _, kind := range []podsapi.EventType{podsapi.EventType_ADDED, podsapi.EventType_INITIAL_SYNC_COMPLETE} {
		if err := stream.Send(&podsapi.WatchPodsEvent{Type: kind}); err != nil {
			return err
		}
	}
	if k.drop.Swap(false) {
		return status.Error(codes.ResourceExhausted, "too slow")
	}
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case kind := <-k.events:
			if err := stream.Send(&podsapi.WatchPodsEvent{Type: kind}); err != nil {
				return err
			}
		}
	}
}

func (k *kubelet) start(t *testing.T) {
	t.Helper()
	l, err := net.Listen("unix", k.socket)
	if err != nil {
		t.Fatal(err)
	}
	k.server = grpc.NewServer()
	podsapi.RegisterPodsServer(k.server, k)
	go func() { _ = k.server.Serve(l) }() // Stop makes it return
	t.Cleanup(k.server.Stop)
}

func newKubelet(t *testing.T) *kubelet {
	return &kubelet{socket: filepath.Join(t.TempDir(), "pods.sock"), events: make(chan podsapi.EventType)}
}

func TestSocket(t *testing.T) {
	k := newKubelet(t)
	k.start(t)
	s := source(t, Config{Mode: ModeSocket, Socket: k.socket})
	going := aPod("a", corev1.PodRunning, "reg/going:1")
	now := metav1.Now()
	going.DeletionTimestamp = &now
	k.set(t, nil, aPod("b", corev1.PodPending, "reg/main:1"), going, aPod("done", corev1.PodSucceeded, "x"), aPod("failed", corev1.PodFailed, "y"), aPod("new", "", "z"))
	got, err := s.Pods(t.Context())
	want := []policy.PodSpec{spec("a", "reg/going:1"), spec("b", "reg/main:1"), spec("new", "z")}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}

	large := aPod("large", corev1.PodRunning, "x")
	large.Annotations = map[string]string{"note": strings.Repeat("x", 8<<20)}
	k.set(t, nil, large)
	if pods, err := s.Pods(t.Context()); len(pods) != 1 || err != nil {
		t.Errorf("a list of more than gRPC's 4 MiB: %d pods, %v", len(pods), err)
	}
	k.set(t, status.Error(codes.FailedPrecondition, "not ready"))
	if _, err := s.Pods(t.Context()); err == nil || !strings.Contains(err.Error(), "not read all its sources") {
		t.Errorf("a kubelet that starts: %v", err)
	}
	k.set(t, nil)
	k.pods = [][]byte{[]byte("garbage")}
	if _, err := s.Pods(t.Context()); err == nil || !strings.Contains(err.Error(), "pod 1 of 1") {
		t.Errorf("%v", err)
	}
	k.set(t, nil)
	if pods, err := s.Pods(t.Context()); len(pods) != 0 || err != nil {
		t.Errorf("an empty list: %v, %v", pods, err)
	}
}

// A kubelet that hangs is one that does not answer.
func TestSocketHangs(t *testing.T) {
	k := newKubelet(t)
	k.hang.Store(true)
	k.start(t)
	s := source(t, Config{Mode: ModeSocket, Socket: k.socket})
	s.timeout = 50 * time.Millisecond
	if _, err := s.Pods(t.Context()); status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), k.socket) {
		t.Errorf("%v", err)
	}
}

// A kubelet that is back is found at once, however long it was away.
func TestSocketRestart(t *testing.T) {
	t.Parallel() // it waits
	k := newKubelet(t)
	k.set(t, nil, aPod("a", corev1.PodRunning, "x"))
	s := source(t, Config{Mode: ModeSocket, Socket: k.socket})
	until := time.Now().Add(3 * time.Second) // gRPC's own pauses would now be longer than what is allowed below
	for time.Now().Before(until) {
		if _, err := s.Pods(t.Context()); err == nil || !strings.Contains(err.Error(), k.socket) {
			t.Fatalf("nobody serves it: %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	k.start(t)
	back := time.Now()
	for {
		_, err := s.Pods(t.Context())
		if err == nil {
			break
		}
		if time.Since(back) > 2*minPause {
			t.Fatalf("it has been back for %v: %v", time.Since(back), err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// A change wakes, also after the kubelet has dropped the watch.
func TestWatch(t *testing.T) {
	t.Parallel() // it waits
	k := newKubelet(t)
	k.drop.Store(true)
	k.start(t)
	s := source(t, Config{Mode: ModeAuto, Socket: k.socket})
	woken := make(chan struct{}, 100)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, func() { woken <- struct{}{} }) }()
	wait := func(what string) {
		t.Helper()
		select {
		case <-woken:
		case <-time.After(10 * time.Second):
			t.Fatal("not woken: " + what)
		}
	}
	wait("the first list")
	wait("the list after the drop")
	k.events <- podsapi.EventType_DELETED
	wait("a change")
	if n := k.watches.Load(); n != 2 {
		t.Errorf("%d watches, want 2", n)
	}
	k.server.Stop()
	k.start(t)
	wait("the list after a restart")
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
