// Package owner asks the kubelet of this node for its pods. A pod that the
// kubelet knows needs the images that it names, also before a container of it
// exists and while none can be made.
package owner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"sync"

	"google.golang.org/grpc"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// Mode says where pods come from.
type Mode string

// The modes. ModeAuto is the socket if it is there.
const (
	ModeAuto   Mode = "auto"
	ModeSocket Mode = "socket" // the Pods API, kubelet 1.37 or newer
	ModeHTTPS  Mode = "https"  // the kubelet's /pods
	ModeNone   Mode = "none"
)

// DefaultSocket is where the kubelet serves its Pods API.
const DefaultSocket = "/var/lib/kubelet/pods-api/pods-api.sock"

// Config says how to reach the kubelet.
type Config struct {
	Mode Mode
	// Socket of the Pods API; empty = DefaultSocket.
	Socket string
	// URL of /pods. Example: "https://127.0.0.1:10250/pods".
	URL string
	// TokenFile holds a bearer token and is read for each request; empty = no
	// token.
	TokenFile string
	// CAFile holds the certificates that may sign the kubelet's; empty = those
	// of the system.
	CAFile string
}

// Source is where pods come from. Its methods may be called concurrently.
type Source struct {
	cfg  Config
	log  *slog.Logger
	http *http.Client

	mu   sync.Mutex
	conn *grpc.ClientConn // of the socket, made when first needed
	// answered says that the socket has answered in this run. From then on it is
	// wanted: that it fails, or has gone, is a fault until the next start.
	answered bool
}

// New checks the configuration. It connects to nothing.
func New(cfg Config, log *slog.Logger) (*Source, error) {
	if cfg.Socket == "" {
		cfg.Socket = DefaultSocket
	}
	s := &Source{cfg: cfg, log: log}
	switch cfg.Mode {
	case ModeAuto, ModeSocket, ModeNone:
		return s, nil
	case ModeHTTPS:
	default:
		return nil, fmt.Errorf("pods of the kubelet: %q is none of auto, socket, https, none", cfg.Mode)
	}
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, fmt.Errorf("pods of the kubelet: %q is no URL like https://127.0.0.1:10250/pods", cfg.URL)
	}
	if s.http, err = httpClient(cfg.CAFile); err != nil {
		return nil, fmt.Errorf("pods of the kubelet: %w", err)
	}
	return s, nil
}

// Kind says where pods come from at present: "socket", "https" or "none".
func (s *Source) Kind() string {
	switch {
	case s.cfg.Mode == ModeHTTPS, s.cfg.Mode == ModeNone, s.cfg.Mode == ModeSocket:
		return string(s.cfg.Mode)
	case s.wanted():
		return string(ModeSocket)
	}
	return string(ModeNone)
}

// wanted reports whether ModeAuto means the socket now.
func (s *Source) wanted() bool {
	s.mu.Lock()
	answered := s.answered
	s.mu.Unlock()
	if answered {
		return true
	}
	_, err := os.Stat(s.cfg.Socket)
	return !errors.Is(err, os.ErrNotExist)
}

// Pods lists the pods that have not ended, by namespace, name and UID. If the
// kubelet is to be asked and does not answer, or answers only in part, that is
// an error: an old list is never given for a new one.
func (s *Source) Pods(ctx context.Context) ([]policy.PodSpec, error) {
	switch s.Kind() {
	case string(ModeSocket):
		return s.listSocket(ctx)
	case string(ModeHTTPS):
		return s.listHTTPS(ctx)
	}
	return nil, nil
}

// Run calls changed when a pod comes, changes or goes, until ctx is done. Only
// the socket tells of that; with the other sources it waits.
func (s *Source) Run(ctx context.Context, changed func()) error {
	defer s.close()
	if s.cfg.Mode == ModeHTTPS || s.cfg.Mode == ModeNone {
		<-ctx.Done()
		return nil
	}
	s.watch(ctx, changed)
	return nil
}

func (s *Source) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		if err := s.conn.Close(); err != nil {
			s.log.Warn("connection to the kubelet", "err", err)
		}
		s.conn = nil
	}
}
