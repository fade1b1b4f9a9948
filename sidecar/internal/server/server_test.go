package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/ttrpc"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/image-custodian/custodian/api/v1/control"
	"github.com/image-custodian/custodian/api/v1/node"
	"github.com/image-custodian/custodian/sidecar/internal/policy"
	"github.com/image-custodian/custodian/sidecar/internal/reconcile"
	"github.com/image-custodian/custodian/sidecar/internal/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type fakeViewer struct{ look *reconcile.Look }

func (v fakeViewer) Latest(context.Context, time.Duration) (*reconcile.Look, error) {
	return v.look, nil
}
func (v fakeViewer) SavePlan(p state.Plan) (state.Plan, error) { p.ID = "p1"; return p, nil }
func (v fakeViewer) Plans() ([]state.Plan, error)              { return []state.Plan{{ID: "p1"}}, nil }
func (v fakeViewer) Plan(id string) (state.Plan, error) {
	if id != "p1" {
		return state.Plan{}, fmt.Errorf("plan %s: %w", id, state.ErrNoPlan)
	}
	return state.Plan{ID: id}, nil
}
func (v fakeViewer) Session() state.Session { return state.Session{Plugin: "0.9.9"} }
func (v fakeViewer) Events(int) ([]state.Event, error) {
	return []state.Event{{Kind: state.EventRemoved, Image: policy.Key{ContainerdNamespace: "k8s.io", ID: "sha256:dd"}, Names: []string{"a:1"}, Freed: 7}}, nil
}

type fakeRecorder struct {
	admitted []policy.Use
	reports  []reconcile.Report
	syncs    []reconcile.Synced
	wanted   bool
	err      error
}

func (r *fakeRecorder) Admit(_ context.Context, u policy.Use) { r.admitted = append(r.admitted, u) }
func (r *fakeRecorder) Report(_ context.Context, rep reconcile.Report) (bool, error) {
	r.reports = append(r.reports, rep)
	return r.wanted, r.err
}
func (r *fakeRecorder) Sync(_ context.Context, s reconcile.Synced) error {
	r.syncs = append(r.syncs, s)
	return r.err
}

func sockets(t *testing.T) Sockets {
	dir := t.TempDir()
	return Sockets{Node: filepath.Join(dir, "node", "node.sock"), Control: filepath.Join(dir, "control.sock")}
}

// serve runs a server for the time of a test.
func serve(t *testing.T, s Sockets, r *fakeRecorder, v fakeViewer) {
	t.Helper()
	srv, err := Listen(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	log := slog.New(slog.DiscardHandler)
	about := About{Node: "n", Version: "1", Disk: func(context.Context) (Disk, error) { return Disk{Path: "/d", SizeBytes: 9, UsedBytes: 3}, nil }}
	go func() {
		done <- srv.Serve(ctx, NewNodeService(r, 250*time.Millisecond, log), NewControlService(v, about))
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
}

func dial(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return conn
}

// changer is a service with a method that nobody has declared to be a read.
var changer = grpc.ServiceDesc{
	ServiceName: "imagecustodian.control.v1.Changer", HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Remove", Handler: func(_ any, ctx context.Context, dec func(any) error, i grpc.UnaryServerInterceptor) (any, error) {
		req := new(control.VersionRequest)
		if err := dec(req); err != nil {
			return nil, err
		}
		done := func(context.Context, any) (any, error) { return &control.VersionResponse{}, nil }
		if i == nil {
			return done(ctx, req)
		}
		return i(ctx, req, &grpc.UnaryServerInfo{FullMethod: "/imagecustodian.control.v1.Changer/Remove"}, done)
	}}},
	Streams: []grpc.StreamDesc{{StreamName: "Empty", ServerStreams: true, Handler: func(_ any, _ grpc.ServerStream) error { return nil }}},
}

// Every method answers on control.sock; on read.sock only those that are
// declared to be reads, so that a method added tomorrow is refused by default.
func TestReadSocket(t *testing.T) {
	s := sockets(t)
	srv, err := Listen(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if err := srv.Close(); err != nil {
		t.Fatal(err)
	}
	srv = &Server{}
	listeners := map[string]*grpc.Server{}
	look := &reconcile.Look{At: time.Now()}
	service := NewControlService(fakeViewer{look}, About{Disk: func(context.Context) (Disk, error) { return Disk{}, nil }})
	srv.prepare(service)
	listeners["control"], listeners["read"] = srv.control, srv.read
	methods := map[string]bool{} // whether it is a stream
	conns := map[string]*grpc.ClientConn{}
	for name, g := range listeners {
		g.RegisterService(&changer, nil)
		for service, info := range g.GetServiceInfo() {
			for _, m := range info.Methods {
				methods["/"+service+"/"+m.Name] = m.IsServerStream || m.IsClientStream
			}
		}
		path := filepath.Join(t.TempDir(), name)
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = g.Serve(l) }() // Stop makes it return nil
		t.Cleanup(g.Stop)
		conns[name] = dial(t, path)
	}
	if len(methods) < 8 {
		t.Fatalf("only %d methods found: %v", len(methods), methods)
	}
	for method, stream := range methods {
		t.Run(method, func(t *testing.T) {
			for name, conn := range conns {
				err := call(t.Context(), conn, method, stream)
				refused := status.Code(err) == codes.PermissionDenied
				if want := name == "read" && (strings.Contains(method, "Changer") || strings.HasSuffix(method, "/SavePlan")); refused != want {
					t.Errorf("%s.sock: refused = %v (%v), want %v", name, refused, err, want)
				}
			}
		})
	}
}

func call(ctx context.Context, conn *grpc.ClientConn, method string, stream bool) error {
	ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if !stream {
		return conn.Invoke(ctx, method, &control.VersionRequest{}, &control.VersionResponse{})
	}
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	if err := errors.Join(s.SendMsg(&healthpb.HealthCheckRequest{}), s.CloseSend()); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return s.RecvMsg(&reflectionpb.ServerReflectionResponse{})
}

func TestServeBothServices(t *testing.T) {
	s := sockets(t)
	rec := &fakeRecorder{}
	key := policy.Key{ContainerdNamespace: "k8s.io", ID: "sha256:aa"}
	at := policy.Moment(time.Hour)
	look := &reconcile.Look{
		At: time.Now(), View: policy.View{Parts: []policy.Part{{Bytes: 5}}, Images: []policy.Image{{
			Key: key, Kind: policy.KindImage, Names: []policy.Name{{Name: "sha256:aa", Target: "sha256:t"}, {Name: "z/app:1", Target: "sha256:t"}},
			Parts: []int32{0},
		}}},
		Decisions: []policy.Decision{{Key: key, Reason: policy.NotExpired, Expires: at}},
		Sources:   map[string]reconcile.SourceState{"cri": {Err: errors.New("down")}},
	}
	serve(t, s, rec, fakeViewer{look})

	conn, err := net.Dial("unix", s.Node)
	if err != nil {
		t.Fatal(err)
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	nodeClient := node.NewNodeClient(client)
	if _, err := nodeClient.Admit(t.Context(), &node.AdmitRequest{Use: &node.Use{ContainerId: "c1", Image: &node.Image{UserName: "nginx"}}}); err != nil {
		t.Fatal(err)
	}
	if got := rec.admitted; len(got) != 1 || got[0].RecordName != "docker.io/library/nginx:latest" {
		t.Errorf("admitted %+v, want the normalised name", got)
	}

	ctl := control.NewControlClient(dial(t, s.ReadSocket()))
	images, err := ctl.ListImages(t.Context(), &control.ListImagesRequest{Filters: []string{"image=z/app:2", "id=aa"}})
	if err != nil {
		t.Fatal(err)
	}
	if len(images.GetImages()) != 0 {
		t.Errorf("got %v, want none of that name", images.GetImages())
	}
	images, err = ctl.ListImages(t.Context(), &control.ListImagesRequest{Filters: []string{"id=a", "id=b", "decision=keep"}})
	if err != nil || len(images.GetImages()) != 1 || images.GetImages()[0].GetNames()[0] != "z/app:1" || images.GetComplete() {
		t.Errorf("images = %v, %v", images, err)
	}
	if _, err := ctl.ListImages(t.Context(), &control.ListImagesRequest{Filters: []string{"colour=red"}}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("an unknown filter: %v", err)
	}
	st, err := ctl.Status(t.Context(), &control.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if st.GetUnused().GetBytes() != 5 || st.GetDiskUsedBytes() != 3 || len(st.GetHolds()) != 1 || !st.GetHolds()[0].GetNeedsPerson() || st.GetViewAt() != nil {
		t.Errorf("status = %v", st)
	}
	v, err := ctl.Version(t.Context(), &control.VersionRequest{})
	if err != nil || v.GetPluginVersion() != "0.9.9" {
		t.Errorf("version = %v, %v", v, err)
	}
	h, err := healthpb.NewHealthClient(dial(t, s.Control)).Check(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil || h.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health = %v, %v", h, err)
	}
}

func TestListen(t *testing.T) {
	s := sockets(t)
	serve(t, s, &fakeRecorder{}, fakeViewer{})
	if _, err := Listen(t.Context(), s); !errors.Is(err, ErrTaken) || !strings.Contains(err.Error(), s.Node) {
		t.Errorf("a taken socket: %v, want ErrTaken naming it", err)
	}
	for path, mode := range map[string]os.FileMode{s.Node: 0o600, s.Control: 0o600, s.ReadSocket(): 0o660, filepath.Dir(s.Node): 0o700} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: mode %v, %v; want %v", path, info.Mode().Perm(), err, mode)
		}
	}

	dead := sockets(t)
	l, err := net.Listen("unix", dead.Control)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	serve(t, dead, &fakeRecorder{}, fakeViewer{})

	file := sockets(t)
	if err := os.WriteFile(file.Control, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(t.Context(), file); err == nil {
		t.Error("a file in the place of a socket is overwritten")
	}
	if data, err := os.ReadFile(file.Control); err != nil || string(data) != "precious" {
		t.Errorf("file = %q, %v", data, err)
	}
	nobody := sockets(t)
	nobody.ReaderGroup = "no-such-group"
	if _, err := Listen(t.Context(), nobody); err == nil || !strings.Contains(err.Error(), "no-such-group") {
		t.Errorf("an unknown group: %v", err)
	}
}

func TestSyncInChunks(t *testing.T) {
	use := func(id string) []*node.Use { return []*node.Use{{ContainerId: id}} }
	chunk := func(session string, generation uint64, n uint32, last bool, id string) *node.SyncRequest {
		return &node.SyncRequest{Session: session, Generation: generation, Chunk: n, Last: last, Uses: use(id), Number: 7}
	}
	rec := &fakeRecorder{}
	s := NewNodeService(rec, time.Second, slog.New(slog.DiscardHandler))
	send := func(r *node.SyncRequest, want codes.Code) {
		t.Helper()
		if _, err := s.Sync(t.Context(), r); status.Code(err) != want {
			t.Errorf("chunk %d: %v, want %v", r.GetChunk(), err, want)
		}
	}
	send(chunk("s", 1, 0, false, "a"), codes.OK)
	send(chunk("s", 1, 2, true, "c"), codes.FailedPrecondition)
	send(chunk("s", 1, 1, true, "b"), codes.FailedPrecondition)
	send(chunk("s", 2, 0, false, "a"), codes.OK)
	send(chunk("s", 2, 1, false, "b"), codes.OK)
	send(chunk("s", 2, 2, true, "c"), codes.OK)
	send(chunk("s", 2, 0, true, ""), codes.FailedPrecondition)
	if len(rec.syncs) != 1 || len(rec.syncs[0].Uses) != 3 || rec.syncs[0].Number != 7 {
		t.Errorf("syncs = %+v, want one of three uses", rec.syncs)
	}
	rec.err = reconcile.ErrStale
	send(chunk("s", 3, 0, true, "a"), codes.FailedPrecondition)
	rec.err = errors.New("disk")
	send(chunk("s", 4, 0, true, "a"), codes.Unavailable)
}

func TestReportRefusesNonsense(t *testing.T) {
	rec := &fakeRecorder{wanted: true}
	s := NewNodeService(rec, time.Second, slog.New(slog.DiscardHandler))
	for name, req := range map[string]*node.ReportRequest{
		"no session":         {},
		"unknown kind":       {Session: "s", Events: []*node.Event{{Kind: 99}}},
		"created without ID": {Session: "s", Events: []*node.Event{{Kind: node.EventKind_EVENT_KIND_CREATED}}},
	} {
		if _, err := s.Report(t.Context(), req); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	answer, err := s.Report(t.Context(), &node.ReportRequest{Session: "s"})
	if err != nil || !answer.GetSyncWanted() {
		t.Errorf("answer = %v, %v", answer, err)
	}
}

func TestImageVolumes(t *testing.T) {
	hex := strings.Repeat("a1", 32)
	u := useFrom(&node.Use{ContainerId: "c", ImageVolumes: []string{
		"/run/containerd/io.containerd.grpc.v1.cri/image-volumes/sb1/" + hex,
		"/run/containerd/io.containerd.grpc.v1.cri/image-volumes/sb1/" + hex + "/sub/path",
		"/etc/passwd", "/image-volumes/sb1/" + hex + "ff",
	}})
	if len(u.Volumes) != 2 || u.Volumes[0] != "sha256:"+hex || u.Volumes[1] != "sha256:"+hex {
		t.Errorf("volumes = %v", u.Volumes)
	}
}
