package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// maxAnswer bounds an answer: far above a node with thousands of images and
// containers, which gRPC's own 4 MiB are not.
const maxAnswer = 256 << 20

// findSocket chooses the socket and makes sure that somebody listens. It tries
// before gRPC does, because gRPC hides why a connection failed.
func (a *app) findSocket(ctx context.Context) (string, error) {
	if a.socket != "" {
		return a.socket, unreachable(a.socket, a.try(ctx, a.socket))
	}
	err := a.try(ctx, a.defaultSocket)
	if !errors.Is(err, fs.ErrPermission) {
		return a.defaultSocket, unreachable(a.defaultSocket, err)
	}
	read := filepath.Join(filepath.Dir(a.defaultSocket), "read.sock")
	readErr := a.try(ctx, read)
	if errors.Is(readErr, fs.ErrPermission) || errors.Is(readErr, fs.ErrNotExist) {
		// That control.sock is for root is then what there is to say.
		return "", unreachable(a.defaultSocket, err)
	}
	return read, unreachable(read, readErr)
}

func (a *app) try(ctx context.Context, socket string) error {
	conn, err := a.dial(ctx, socket)
	if err != nil {
		return err
	}
	return conn.Close()
}

func dialUnix(ctx context.Context, socket string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "unix", socket)
}

// unreachable says why nobody answers at a socket, and what to do.
func unreachable(socket string, err error) error {
	if err == nil {
		return nil
	}
	cause := err
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		cause = errno
	}
	if errors.Is(err, fs.ErrPermission) {
		return &failure{code: exitRefused, err: fmt.Errorf("socket %s: %w: be root or, to look only, a member of reader_group in the sidecar's configuration", socket, cause)}
	}
	return failed(fmt.Errorf("socket %s: %w: is image-custodian-sidecar running? (--socket or CUSTODIAN_SOCKET name another socket)", socket, cause))
}

// connect makes a client connection; it is made for real at the first call.
func (a *app) connect(socket string) (*grpc.ClientConn, error) {
	// The path is kept out of the target, which is a URL: a "%" or "?" in it
	// would mean something else there.
	return grpc.NewClient("passthrough:///image-custodian-sidecar",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return a.dial(ctx, socket) }),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)))
}
