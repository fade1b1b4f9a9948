package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/image-custodian/custodian/api/v1/control"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// now is the time of every answer in these tests.
var now = time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)

// sidecar answers as it was told to.
type sidecar struct {
	control.UnimplementedControlServer
	status  *control.StatusResponse
	images  *control.ListImagesResponse
	uses    *control.ListUsesResponse
	version *control.VersionResponse
	why     *control.WhyResponse
	plan    *control.Plan
	plans   *control.ListPlansResponse
	reader  bool // only reads are answered
	err     error
	hang    bool // until the caller gives up

	mu      sync.Mutex
	filters []string // of the last request
	asked   *control.MakePlanRequest
	calls   []string // of the last run, those about plans
}

func (s *sidecar) answer(ctx context.Context, filters []string) error {
	s.mu.Lock()
	s.filters = filters
	s.mu.Unlock()
	if s.hang {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err() // no answer may overtake the deadline
	}
	return s.err
}

func (s *sidecar) Status(ctx context.Context, _ *control.StatusRequest) (*control.StatusResponse, error) {
	return s.status, s.answer(ctx, nil)
}

func (s *sidecar) ListImages(ctx context.Context, r *control.ListImagesRequest) (*control.ListImagesResponse, error) {
	return s.images, s.answer(ctx, r.GetFilters())
}

func (s *sidecar) ListUses(ctx context.Context, r *control.ListUsesRequest) (*control.ListUsesResponse, error) {
	return s.uses, s.answer(ctx, r.GetFilters())
}

func (s *sidecar) Why(ctx context.Context, r *control.WhyRequest) (*control.WhyResponse, error) {
	return s.why, s.answer(ctx, []string{r.GetImage()})
}

func (s *sidecar) MakePlan(ctx context.Context, r *control.MakePlanRequest) (*control.MakePlanResponse, error) {
	s.called("MakePlan", r)
	return &control.MakePlanResponse{Plan: s.plan}, s.answer(ctx, r.GetFilters())
}

func (s *sidecar) SavePlan(ctx context.Context, r *control.SavePlanRequest) (*control.SavePlanResponse, error) {
	s.called("SavePlan", r.GetPlan())
	if s.reader {
		return nil, status.Error(codes.PermissionDenied, "SavePlan is only for control.sock")
	}
	return &control.SavePlanResponse{Plan: s.plan}, s.answer(ctx, r.GetPlan().GetFilters())
}

func (s *sidecar) ListPlans(ctx context.Context, r *control.ListPlansRequest) (*control.ListPlansResponse, error) {
	s.called("ListPlans "+r.GetId(), nil)
	return s.plans, s.answer(ctx, nil)
}

func (s *sidecar) called(method string, asked *control.MakePlanRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls, s.asked = append(s.calls, method), asked
}

func (s *sidecar) Version(ctx context.Context, _ *control.VersionRequest) (*control.VersionResponse, error) {
	return s.version, s.answer(ctx, nil)
}

// serve answers at a real socket until the test ends.
func serve(t *testing.T, socket string, s control.ControlServer) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	control.RegisterControlServer(server, s)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		// A test may end before the server has begun.
		if err := <-ended; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
}

// result is what came of a run of the program.
type result struct {
	stdout, stderr string
	code           int
}

// newApp is the program in a world of its own: whatever listens at control.sock
// and read.sock of the test's directory.
func newApp(dir string) *app {
	return &app{
		now: func() time.Time { return now }, build: build{Version: "0.1.0", Revision: "abc1234"},
		defaultSocket: filepath.Join(dir, "control.sock"), dial: dialUnix,
	}
}

func (a *app) run(t *testing.T, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := a.execute(t.Context(), args, &stdout, &stderr)
	return result{stdout.String(), stderr.String(), code}
}

// ctl asks s.
func ctl(t *testing.T, s *sidecar, args ...string) result {
	t.Helper()
	a := newApp(t.TempDir())
	serve(t, a.defaultSocket, s)
	return a.run(t, args...)
}

// golden compares with testdata/name.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (go test ./cli -update makes it)", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}
