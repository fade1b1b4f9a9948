package owner

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func aPod(name string, phase corev1.PodPhase, images ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID("uid-" + name)}}
	p.Status.Phase = phase
	for _, image := range images {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Image: image})
	}
	return p
}

func spec(name string, images ...string) policy.PodSpec {
	return policy.PodSpec{Pod: policy.Pod{UID: "uid-" + name, Name: name, Namespace: "ns"}, Images: images}
}

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

func (k *kubelet) ListPods(context.Context, *podsapi.ListPodsRequest) (*podsapi.ListPodsResponse, error) {
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

func source(t *testing.T, cfg Config) *Source {
	t.Helper()
	s, err := New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s
}

func TestSocket(t *testing.T) {
	k := newKubelet(t)
	s := source(t, Config{Mode: ModeSocket, Socket: k.socket})
	if _, err := s.Pods(t.Context()); err == nil || !strings.Contains(err.Error(), k.socket) {
		t.Errorf("nobody serves it: %v", err)
	}
	k.start(t)
	all := aPod("b", corev1.PodPending, "reg/main:1", "reg/main:1")
	all.Spec.InitContainers = []corev1.Container{{Image: "reg/init:1"}}
	all.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Image: "debug"}}}
	all.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "reg/model:1"}}}, {}}
	going := aPod("a", corev1.PodRunning, "reg/going:1")
	now := metav1.Now()
	going.DeletionTimestamp = &now
	k.set(t, nil, all, going, aPod("done", corev1.PodSucceeded, "x"), aPod("failed", corev1.PodFailed, "y"), aPod("new", "", "z"))
	var got []policy.PodSpec
	var err error
	for range 50 { // the connection is made anew with a back-off
		if got, err = s.Pods(t.Context()); err == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	want := []policy.PodSpec{spec("a", "reg/going:1"), spec("b", "debug", "reg/init:1", "reg/main:1", "reg/model:1"), spec("new", "z")}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}

	k.set(t, status.Error(codes.FailedPrecondition, "not ready"))
	if _, err := s.Pods(t.Context()); err == nil || !strings.Contains(err.Error(), "not read all its sources") {
		t.Errorf("%v", err)
	}
	k.set(t, nil)
	k.pods = [][]byte{[]byte("garbage")}
	if _, err := s.Pods(t.Context()); err == nil || !strings.Contains(err.Error(), "pod 1 of 1") {
		t.Errorf("%v", err)
	}
}

// A change wakes, also after the kubelet has dropped the watch.
func TestWatch(t *testing.T) {
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
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Without a kubelet there are no pods; one that has answered once is wanted.
func TestAuto(t *testing.T) {
	k := newKubelet(t)
	s := source(t, Config{Mode: ModeAuto, Socket: k.socket})
	if pods, err := s.Pods(t.Context()); pods != nil || err != nil || s.Kind() != "none" {
		t.Errorf("%v, %v, %s", pods, err, s.Kind())
	}
	k.start(t)
	k.set(t, nil, aPod("a", corev1.PodRunning, "x"))
	if pods, err := s.Pods(t.Context()); len(pods) != 1 || err != nil || s.Kind() != "socket" {
		t.Errorf("%v, %v, %s", pods, err, s.Kind())
	}
	k.server.Stop()
	if err := os.RemoveAll(k.socket); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Pods(t.Context()); err == nil || s.Kind() != "socket" {
		t.Errorf("%v, %s", err, s.Kind())
	}
}

func TestHTTPS(t *testing.T) {
	var answer http.HandlerFunc
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer(w, r) }))
	defer server.Close()
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	dir := t.TempDir()
	ca, token := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "token")
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for path, data := range map[string]string{ca: string(cert), token: "secret\n"} {
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := source(t, Config{Mode: ModeHTTPS, URL: server.URL + "/pods", CAFile: ca, TokenFile: token})
	list := func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" || r.URL.Path != "/pods" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_ = json.NewEncoder(w).Encode(corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList"}, Items: []corev1.Pod{*aPod("a", corev1.PodRunning, "x"), *aPod("b", corev1.PodFailed, "y")}})
	}
	answer = list
	got, err := s.Pods(t.Context())
	if diff := cmp.Diff([]policy.PodSpec{spec("a", "x")}, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"no right": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }, "nodes/pods"},
		"fault":    {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, "500"},
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://elsewhere/", http.StatusFound)
		}, "302"},
		"garbage":      {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }, "no list of pods"},
		"another JSON": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) }, "no list of pods"},
		"too much": {func(w http.ResponseWriter, _ *http.Request) {
			for range maxMessage>>20 + 1 {
				_, _ = w.Write(make([]byte, 1<<20))
			}
		}, "more than"},
	} {
		answer = c.answer
		if _, err := s.Pods(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), server.URL) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	answer = list
	if err := os.WriteFile(token, []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Pods(t.Context()); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("another token: %v", err)
	}
	if _, err := source(t, Config{Mode: ModeHTTPS, URL: server.URL}).Pods(t.Context()); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown authority: %v", err)
	}
	for name, cfg := range map[string]Config{
		"mode":   {Mode: "maybe"},
		"URL":    {Mode: ModeHTTPS, URL: "127.0.0.1:10250"},
		"no CA":  {Mode: ModeHTTPS, URL: server.URL, CAFile: filepath.Join(dir, "none")},
		"bad CA": {Mode: ModeHTTPS, URL: server.URL, CAFile: token},
	} {
		if _, err := New(cfg, nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// Whatever the kubelet sends, it is read without a panic.
func FuzzDecode(f *testing.F) {
	data, err := aPod("a", corev1.PodRunning, "x").Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, data []byte) {
		pods, err := decodeAll([][]byte{data})
		if err == nil && len(pods) > 1 {
			t.Errorf("%d pods", len(pods))
		}
	})
}

// The numbers of the fields are those of the types of Kubernetes, in both
// encodings, whatever else a pod says.
func TestFieldNumbers(t *testing.T) {
	p := aPod("web", corev1.PodRunning, "main:1")
	p.Labels, p.Spec.NodeName, p.Spec.Priority = map[string]string{"a": "b"}, "n1", new(int32)
	p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "IMAGE", Value: "none:1"}}
	p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "init:1", Command: []string{"x"}}}
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{TargetContainerName: "c", EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e", Image: "debug:1"}}}
	p.Spec.Volumes = []corev1.Volume{
		{Name: "v", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "model:1", PullPolicy: corev1.PullAlways}}},
		{Name: "w", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x"}}},
	}
	p.Status.Message = "none"
	want := []policy.PodSpec{spec("web", "debug:1", "init:1", "main:1", "model:1")}
	data, err := p.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeAll([][]byte{data})
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var j podJSON
	if err := json.Unmarshal(text, &j); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, specs([]pod{j.pod()})); diff != "" {
		t.Error(diff)
	}
}
