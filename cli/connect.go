package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/image-custodian/custodian/api/v1/control"
)

const controlSocket = "/run/image-custodian/control.sock"

// Exit codes, as the help tells them.
const (
	exitFailed   = 1
	exitUsage    = 2
	exitRefused  = 3
	exitNotFound = 4
)

// usageError is an error of the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// errNeedsPerson ends status with 1 and without a message: the screen says it.
var errNeedsPerson = errors.New("something needs a person")

// exit turns an error into an exit code and what to print.
func exit(err error) (code int, message string) {
	if err == nil || errors.Is(err, errNeedsPerson) {
		if err != nil {
			code = exitFailed
		}
		return code, ""
	}
	message = strings.ReplaceAll(err.Error(), "\n", "; ")
	if _, ok := errors.AsType[usageError](err); ok || strings.HasPrefix(message, "unknown command") {
		return exitUsage, message
	}
	s, ok := status.FromError(err)
	if !ok || s.Code() == codes.OK {
		return exitFailed, message
	}
	switch s.Code() {
	case codes.InvalidArgument:
		code = exitUsage
	case codes.PermissionDenied, codes.Unauthenticated:
		code = exitRefused
	case codes.NotFound:
		code = exitNotFound
	default:
		code = exitFailed
	}
	return code, strings.ReplaceAll(s.Message(), "\n", "; ")
}

// ask calls the sidecar with a client that lives for the one call.
func (o *options) ask(ctx context.Context, call func(context.Context, control.ControlClient) error) (err error) {
	socket, err := chooseSocket(o.socket, controlSocket)
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("socket %s: %w", socket, err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	err = call(ctx, control.NewControlClient(conn))
	switch status.Code(err) {
	case codes.Unavailable:
		return fmt.Errorf("socket %s: %s: is image-custodian-sidecar running?", socket, status.Convert(err).Message())
	case codes.DeadlineExceeded:
		return fmt.Errorf("socket %s: no answer within %v: does image-custodian-sidecar hang?", socket, o.timeout)
	}
	return err
}

// chooseSocket takes the one that was named, else the first that this user may
// use.
func chooseSocket(named, usual string) (string, error) {
	if named != "" {
		path, err := filepath.Abs(named)
		if err != nil {
			return "", fmt.Errorf("socket %s: %w", named, err)
		}
		return path, usable(path)
	}
	err := usable(usual)
	if errors.Is(err, fs.ErrPermission) {
		read := filepath.Join(filepath.Dir(usual), "read.sock")
		if readErr := usable(read); readErr == nil {
			return read, nil
		}
	}
	return usual, err
}

func usable(path string) error {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("socket %s: is not there: is image-custodian-sidecar running?", path)
	}
	const readWrite = 6
	if err := syscall.Access(path, readWrite); err != nil {
		return fmt.Errorf("socket %s: %w: run as root, or join the sidecar's reader_group for read.sock", path, err)
	}
	return nil
}
