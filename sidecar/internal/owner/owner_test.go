package owner

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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

func source(t *testing.T, cfg Config) *Source {
	t.Helper()
	s, err := New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s
}

// Without a kubelet there are no pods; one that has answered once is wanted,
// also if it has only said that it is not ready.
func TestAuto(t *testing.T) {
	for name, answer := range map[string]error{"a list": nil, "not ready": status.Error(codes.FailedPrecondition, "initializing")} {
		t.Run(name, func(t *testing.T) { testAuto(t, answer) })
	}
}

func testAuto(t *testing.T, answer error) {
	k := newKubelet(t)
	s := source(t, Config{Mode: ModeAuto, Socket: k.socket})
	if pods, err := s.Pods(t.Context()); pods != nil || err != nil || s.Kind() != "none" {
		t.Errorf("%v, %v, %s", pods, err, s.Kind())
	}
	k.set(t, answer, aPod("a", corev1.PodRunning, "x"))
	k.start(t)
	if pods, err := s.Pods(t.Context()); (err == nil) != (answer == nil) || err == nil && len(pods) != 1 || s.Kind() != "socket" {
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

// A socket at which nobody listens may be that of a kubelet that restarts.
func TestAutoDeadSocket(t *testing.T) {
	k := newKubelet(t)
	if err := os.WriteFile(k.socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := source(t, Config{Mode: ModeAuto, Socket: k.socket})
	if _, err := s.Pods(t.Context()); err == nil || s.Kind() != "socket" {
		t.Errorf("%v, %s", err, s.Kind())
	}
}

func TestNone(t *testing.T) {
	s := source(t, Config{Mode: ModeNone})
	if pods, err := s.Pods(t.Context()); pods != nil || err != nil || s.Kind() != "none" {
		t.Errorf("%v, %v, %s", pods, err, s.Kind())
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := s.Run(ctx, func() { t.Error("woken by nobody") }); err != nil {
		t.Error(err)
	}
}

func TestNew(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(bad, []byte("no PEM"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, cfg := range map[string]Config{
		"mode":            {Mode: "maybe"},
		"no mode":         {},
		"relative socket": {Mode: ModeAuto, Socket: "pods.sock"},
		"URL":             {Mode: ModeHTTPS, URL: "127.0.0.1:10250"},
		"scheme":          {Mode: ModeHTTPS, URL: "ftp://127.0.0.1/pods"},
		"password":        {Mode: ModeHTTPS, URL: "https://me:secret@127.0.0.1/pods"},
		"token in clear":  {Mode: ModeHTTPS, URL: "http://127.0.0.1:10255/pods", TokenFile: bad},
		"no CA":           {Mode: ModeHTTPS, CAFile: bad + ".none"},
		"bad CA":          {Mode: ModeHTTPS, CAFile: bad},
	} {
		if _, err := New(cfg, nil); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, mode := range []Mode{ModeAuto, ModeSocket, ModeHTTPS, ModeNone} {
		if _, err := New(Config{Mode: mode}, nil); err != nil {
			t.Errorf("the defaults of %s: %v", mode, err)
		}
	}
}
