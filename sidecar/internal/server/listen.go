package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/containerd/ttrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/image-custodian/custodian/api/v1/control"
	"github.com/image-custodian/custodian/api/v1/node"
)

// ErrTaken says that another process serves a socket.
var ErrTaken = errors.New("another process serves this socket: is another image-custodian-sidecar running?")

// listen makes a unix socket with a mode and, unless it is -1, an owner group. A
// socket that a dead process left is replaced; one that is served is not.
func listen(ctx context.Context, path string, mode os.FileMode, gid int) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil {
		if info.Mode().Type() != os.ModeSocket {
			return nil, fmt.Errorf("socket %s: there is a file that is no socket", path)
		}
		dialer := net.Dialer{Timeout: time.Second}
		conn, err := dialer.DialContext(ctx, "unix", path)
		if err == nil {
			return nil, errors.Join(fmt.Errorf("socket %s: %w", path, ErrTaken), conn.Close())
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("socket %s: %w", path, err)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("socket: %w", err)
		}
	}
	// Nobody else may connect between the making of the socket and its mode.
	old := syscall.Umask(0o177)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	syscall.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	if err := errors.Join(os.Chown(path, -1, gid), os.Chmod(path, mode)); err != nil {
		return nil, errors.Join(fmt.Errorf("socket %s: %w", path, err), listener.Close())
	}
	return listener, nil
}

// Sockets are the places at which a sidecar serves.
type Sockets struct {
	// Node is for the plugin. Its directory is made 0700.
	Node string
	// Control is for root; read.sock lies beside it.
	Control string
	// ReaderGroup may connect to read.sock; empty = root alone.
	ReaderGroup string
}

// ReadSocket is the path of read.sock.
func (s Sockets) ReadSocket() string { return filepath.Join(filepath.Dir(s.Control), "read.sock") }

// Server serves both services.
type Server struct {
	node          *ttrpc.Server
	control, read *grpc.Server
	health        *health.Server
	listeners     [3]net.Listener // node, control, read
}

// Listen takes the sockets, so that a second sidecar fails here, before it
// touches the state. Nothing is answered until Serve.
func Listen(ctx context.Context, sockets Sockets) (*Server, error) {
	gid := -1
	if sockets.ReaderGroup != "" {
		group, err := user.LookupGroup(sockets.ReaderGroup)
		if err != nil {
			return nil, fmt.Errorf("reader_group: %w", err)
		}
		if gid, err = strconv.Atoi(group.Gid); err != nil {
			return nil, fmt.Errorf("reader_group %s: %w", sockets.ReaderGroup, err)
		}
	}
	// First, because the node socket usually lies in a directory below it.
	if err := os.MkdirAll(filepath.Dir(sockets.Control), 0o755); err != nil {
		return nil, fmt.Errorf("directory of the control socket: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(sockets.Node), 0o700); err != nil {
		return nil, fmt.Errorf("directory of the node socket: %w", err)
	}
	if err := os.Chmod(filepath.Dir(sockets.Node), 0o700); err != nil { //nolint:gosec // a directory needs x
		return nil, fmt.Errorf("directory of the node socket: %w", err)
	}
	s := &Server{}
	for i, want := range []struct {
		path string
		mode os.FileMode
		gid  int
	}{{sockets.Node, 0o600, -1}, {sockets.Control, 0o600, -1}, {sockets.ReadSocket(), 0o660, gid}} {
		listener, err := listen(ctx, want.path, want.mode, want.gid)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.listeners[i] = listener
	}
	return s, nil
}

// Close gives back the sockets of a server that never served.
func (s *Server) Close() error {
	var errs []error
	for _, l := range s.listeners {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	return errors.Join(errs...)
}

// Serve answers until ctx is done, then lets running calls end.
func (s *Server) Serve(ctx context.Context, nodeService node.NodeService, controlService control.ControlServer) error {
	var err error
	s.node, err = ttrpc.NewServer(ttrpc.WithServerHandshaker(ttrpc.UnixSocketRequireUidGid(os.Geteuid(), -1)))
	if err != nil {
		return fmt.Errorf("node service: %w", err)
	}
	node.RegisterNodeService(s.node, nodeService)
	s.prepare(controlService)
	failed := make(chan error, 3)
	go func() { failed <- s.node.Serve(ctx, s.listeners[0]) }()
	go func() { failed <- s.control.Serve(s.listeners[1]) }()
	go func() { failed <- s.read.Serve(s.listeners[2]) }()
	var first error
	ended := 0
	select {
	case <-ctx.Done():
	case first = <-failed:
		ended++
	}
	s.health.Shutdown()
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := s.node.Shutdown(stop); err != nil {
		// A plugin that stays connected is cut off when its calls have had
		// their time.
		first = errors.Join(first, ignoreDeadline(err), s.node.Close())
	}
	for _, g := range []*grpc.Server{s.control, s.read} {
		force := context.AfterFunc(stop, g.Stop)
		g.GracefulStop()
		force()
	}
	for ; ended < 3; ended++ {
		if err := <-failed; err != nil && !errors.Is(err, ttrpc.ErrServerClosed) && !errors.Is(err, grpc.ErrServerStopped) {
			first = errors.Join(first, err)
		}
	}
	return first
}

func ignoreDeadline(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// prepare makes the two gRPC servers.
func (s *Server) prepare(service control.ControlServer) {
	s.health = health.NewServer()
	s.control = s.grpcServer(service)
	s.read = s.grpcServer(service, grpc.UnaryInterceptor(readUnary), grpc.StreamInterceptor(readStream))
}

func (s *Server) grpcServer(service control.ControlServer, opts ...grpc.ServerOption) *grpc.Server {
	g := grpc.NewServer(opts...)
	control.RegisterControlServer(g, service)
	healthpb.RegisterHealthServer(g, s.health)
	reflection.Register(g)
	return g
}

// reads are the methods that read.sock answers.
var reads = map[string]bool{
	control.Control_Status_FullMethodName:     true,
	control.Control_ListImages_FullMethodName: true,
	control.Control_ListUses_FullMethodName:   true,
	control.Control_Version_FullMethodName:    true,
	control.Control_Why_FullMethodName:        true,
	control.Control_MakePlan_FullMethodName:   true,
	control.Control_ListPlans_FullMethodName:  true,

	healthpb.Health_Check_FullMethodName:                              true,
	healthpb.Health_List_FullMethodName:                               true,
	healthpb.Health_Watch_FullMethodName:                              true,
	reflectionpb.ServerReflection_ServerReflectionInfo_FullMethodName: true,
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo":  true, // what older clients ask for
}

// mayRead refuses every method that is not known to be a read.
func mayRead(method string) error {
	if reads[method] {
		return nil
	}
	return status.Errorf(codes.PermissionDenied, "%s is only for control.sock: read.sock answers reads alone", method)
}

func readUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := mayRead(info.FullMethod); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func readStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if err := mayRead(info.FullMethod); err != nil {
		return err
	}
	return handler(srv, stream)
}
