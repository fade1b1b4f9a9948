package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/net/multiplex"
	"github.com/containerd/ttrpc"
)

// silentRuntime takes registrations and does nothing after that.
type silentRuntime struct{ registered chan string }

func (r silentRuntime) RegisterPlugin(_ context.Context, req *api.RegisterPluginRequest) (*api.Empty, error) {
	r.registered <- req.GetPluginIdx() + "-" + req.GetPluginName()
	return &api.Empty{}, nil
}

func (r silentRuntime) UpdateContainers(context.Context, *api.UpdateContainersRequest) (*api.UpdateContainersResponse, error) {
	return nil, errors.New("not here")
}

// A runtime that dies between the registration and the configuration does not
// take the plugin with it.
func TestARuntimeThatGoesSilent(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "nri.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	runtime := silentRuntime{make(chan string, 1)}
	server, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	api.RegisterRuntimeService(server, runtime)
	served := make(chan error, 1)
	hung := make(chan struct{})
	go func() {
		defer close(hung)
		conn, err := l.Accept()
		if err != nil {
			served <- err
			return
		}
		side, err := multiplex.Multiplex(conn).Listen(multiplex.RuntimeServiceConn)
		if err != nil {
			served <- err
			return
		}
		served <- server.Serve(context.WithoutCancel(t.Context()), side)
	}()

	cfg := defaultConfig()
	cfg.NodeSocket, cfg.NRISocket = filepath.Join(t.TempDir(), "node.sock"), socket
	p := newPlugin(cfg, new(slog.LevelVar), slog.New(slog.DiscardHandler))
	p.startLimit = 100 * time.Millisecond
	ended := make(chan error, 1)
	go func() { ended <- p.runExternal(t.Context()) }()
	if name := <-runtime.registered; name != "10-image-custodian" {
		t.Errorf("registered as %s", name)
	}
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "went silent") || !strings.Contains(err.Error(), socket) {
			t.Errorf("err = %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the plugin waits for ever")
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	<-hung
	if err := <-served; err != nil && !errors.Is(err, ttrpc.ErrServerClosed) {
		t.Errorf("the connection is still open: %v", err)
	}
}

// The log of the stub is told apart by level, and its news are details here.
func TestLogOfTheStub(t *testing.T) {
	var got strings.Builder
	log := nriLog{slog.New(slog.NewTextHandler(&got, &slog.HandlerOptions{Level: slog.LevelInfo}))}
	log.Debugf(t.Context(), "debug %d", 1)
	log.Infof(t.Context(), "info %d", 2)
	log.Warnf(t.Context(), "warn %d", 3)
	log.Errorf(t.Context(), "error %d", 4)
	if s := got.String(); strings.Contains(s, "info 2") || !strings.Contains(s, "WARN") || !strings.Contains(s, "warn 3") || !strings.Contains(s, "ERROR") {
		t.Errorf("log = %s", s)
	}
}

// Each record goes out under its own severity, with what With has added.
func TestSeverities(t *testing.T) {
	var got []string
	to := func(name string) slog.Handler {
		return slog.NewTextHandler(lines(func(s string) error {
			_, message, _ := strings.Cut(s, "msg=")
			got = append(got, name+": "+message)
			return nil
		}), nil)
	}
	log := slog.New(bySeverity{debug: to("debug"), info: to("info"), warn: to("warn"), err: to("err")}).With("a", 1).WithGroup("g")
	log.Debug("not enabled")
	log.Info("x", "b", 2)
	log.Warn("y")
	log.Error("z")
	want := []string{"info: x a=1 g.b=2\n", "warn: y a=1\n", "err: z a=1\n"}
	if strings.Join(got, "") != strings.Join(want, "") {
		t.Errorf("log = %q, want %q", got, want)
	}
}
