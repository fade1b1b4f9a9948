package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// denied makes some sockets ones that this user may not open, as the kernel
// says it: tests run as root, whom no mode keeps out.
func (a *app) denied(names ...string) {
	a.dial = func(ctx context.Context, socket string) (net.Conn, error) {
		if slices.Contains(names, filepath.Base(socket)) {
			return nil, &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", syscall.EACCES)}
		}
		return dialUnix(ctx, socket)
	}
}

func TestSocket(t *testing.T) {
	for name, c := range map[string]struct {
		serves []string // sockets that answer, with their own name as version
		denied []string
		flag   string // --socket, in the directory
		env    string // CUSTODIAN_SOCKET, in the directory
		want   string // who answered
		code   int
		told   []string
	}{
		"control":                       {serves: []string{"control.sock", "read.sock"}, want: "control.sock"},
		"read, where control is denied": {serves: []string{"read.sock"}, denied: []string{"control.sock"}, want: "read.sock"},
		"both denied":                   {serves: []string{"read.sock"}, denied: []string{"control.sock", "read.sock"}, code: 3, told: []string{"control.sock: permission denied", "reader_group"}},
		"no read.sock":                  {denied: []string{"control.sock"}, code: 3, told: []string{"control.sock: permission denied", "reader_group"}},
		"nothing there":                 {code: 1, told: []string{"control.sock: no such file", "is image-custodian-sidecar running?", "--socket"}},
		// Only a denied control.sock is a reason to ask elsewhere.
		"read alone":     {serves: []string{"read.sock"}, code: 1, told: []string{"control.sock: no such file"}},
		"flag":           {serves: []string{"other.sock"}, flag: "other.sock", want: "other.sock"},
		"flag over env":  {serves: []string{"a.sock", "b.sock"}, flag: "a.sock", env: "b.sock", want: "a.sock"},
		"env":            {serves: []string{"b.sock", "control.sock"}, env: "b.sock", want: "b.sock"},
		"flag is denied": {serves: []string{"read.sock"}, denied: []string{"control.sock"}, flag: "control.sock", code: 3, told: []string{"reader_group"}},
		"odd path":       {serves: []string{"a b%20?#.sock"}, flag: "a b%20?#.sock", want: "a b%20?#.sock"},
		"hostile path":   {flag: "x\x1b[2J\n", code: 1, told: []string{`x\x1b[2J; : no such file`}},
		"too long":       {flag: strings.Repeat("x", 200), code: 1, told: []string{"invalid argument"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := socketDir(t)
			for _, socket := range c.serves {
				v := aVersion()
				v.Version = socket
				serve(t, filepath.Join(dir, socket), &sidecar{version: v})
			}
			a := newApp(dir)
			a.denied(c.denied...)
			if c.env != "" {
				a.socket = filepath.Join(dir, c.env)
			}
			args := []string{"version", "-o", "json"}
			if c.flag != "" {
				args = append(args, "--socket", filepath.Join(dir, c.flag))
			}
			got := a.run(t, args...)
			if got.code != c.code || c.want != "" && !strings.Contains(got.stdout, `"version": "`+c.want+`"`) {
				t.Errorf("exit %d, want %d from %q: %s%s", got.code, c.code, c.want, got.stdout, got.stderr)
			}
			for _, told := range c.told {
				if !strings.Contains(got.stderr, told) {
					t.Errorf("does not tell %q: %s", told, got.stderr)
				}
			}
			if c.code != 0 && strings.Count(got.stderr, "\n") != 1 {
				t.Errorf("want one line: %q", got.stderr)
			}
		})
	}
}

// socketDir is short, as the path of a socket has to be.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ctl") //nolint:usetesting // t.TempDir() holds the test's name and may be too long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// A file of a dead sidecar, and one that never was a socket.
func TestDeadSocket(t *testing.T) {
	dir := socketDir(t)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(dir, "control.sock"))
	if err != nil {
		t.Fatal(err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	got := newApp(dir).run(t, "status")
	if got.code != exitFailed || !strings.Contains(got.stderr, "connection refused: is image-custodian-sidecar running?") {
		t.Errorf("exit %d: %s", got.code, got.stderr)
	}
}

// Whoever else listens there does not speak gRPC.
func TestForeignSocket(t *testing.T) {
	a := newApp(socketDir(t))
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", a.defaultSocket)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		}
	}()
	got := a.run(t, "status", "--timeout", "5s")
	if got.code != exitFailed || !strings.Contains(got.stderr, a.defaultSocket) {
		t.Errorf("exit %d: %s", got.code, got.stderr)
	}
	if err := listener.Close(); err != nil {
		t.Error(err)
	}
	<-ended
}
