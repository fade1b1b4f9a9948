// Package owner asks the kubelet of this node for its pods. A pod that the
// kubelet knows needs the images that it names, also before a container of it
// exists and while none can be made.
package owner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// Mode says where pods come from.
type Mode string

// The modes.
const (
	// ModeAuto is the socket if it is there, looked for at each call, so that a
	// kubelet that is installed later is found. Once a kubelet has answered there,
	// it is wanted: that it fails or has gone is an error until the next start.
	ModeAuto Mode = "auto"
	// ModeSocket is the Pods API of kubelet 1.37 or newer. It answers only when
	// the kubelet knows all its pods.
	ModeSocket Mode = "socket"
	// ModeHTTPS is the kubelet's /pods. A kubelet that has just started may list
	// there fewer pods than it will have; nothing in the answer tells.
	ModeHTTPS Mode = "https"
	ModeNone  Mode = "none"
)

// Where a kubelet listens, if nobody says otherwise.
const (
	DefaultSocket = "/var/lib/kubelet/pods-api/pods-api.sock"
	DefaultURL    = "https://127.0.0.1:10250/pods"
)

const (
	// listTimeout bounds one list; maxMessage its size: hundreds of pods with all
	// that their authors wrote.
	listTimeout = 5 * time.Second
	maxMessage  = 64 << 20
)

// Config says how to reach the kubelet.
type Config struct {
	Mode Mode
	// Socket of the Pods API, an absolute path; empty = DefaultSocket.
	Socket string
	// URL of /pods; empty = DefaultURL. An http URL is that of the kubelet's
	// read-only port.
	URL string
	// TokenFile holds a bearer token and is read for each request; empty = no
	// token. It goes with an https URL only.
	TokenFile string
	// CAFile holds the certificates that may sign the kubelet's; empty = those
	// of the system.
	CAFile string
}

// Source is where pods come from. Its methods may be called concurrently.
type Source struct {
	cfg     Config
	log     *slog.Logger
	http    *http.Client
	timeout time.Duration // of one list

	mu   sync.Mutex
	conn *grpc.ClientConn // of the socket, made when first needed
	// answered says that a kubelet has answered at the socket in this run.
	answered bool
}

// New checks the configuration and reads the CA file. It connects to nothing.
func New(cfg Config, log *slog.Logger) (*Source, error) {
	cfg.Socket = cmp.Or(cfg.Socket, DefaultSocket)
	cfg.URL = cmp.Or(cfg.URL, DefaultURL)
	s := &Source{cfg: cfg, log: log, timeout: listTimeout}
	var err error
	switch cfg.Mode {
	case ModeAuto, ModeSocket:
		if !filepath.IsAbs(cfg.Socket) {
			err = fmt.Errorf("socket %q is not an absolute path", cfg.Socket)
		}
	case ModeHTTPS:
		if err = checkURL(cfg); err == nil {
			s.http, err = httpClient(cfg.CAFile)
		}
	case ModeNone:
	default:
		err = fmt.Errorf("%q is none of auto, socket, https, none", cfg.Mode)
	}
	if err != nil {
		return nil, fmt.Errorf("pods of the kubelet: %w", err)
	}
	return s, nil
}

func checkURL(cfg Config) error {
	u, err := url.Parse(cfg.URL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return fmt.Errorf("%q is no URL like %s", cfg.URL, DefaultURL)
	case u.User != nil:
		return errors.New("the URL holds a user: errors and logs would tell the password")
	case u.Scheme == "http" && cfg.TokenFile != "":
		return fmt.Errorf("token_file and %s: a token is sent over https only", cfg.URL)
	}
	return nil
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
// kubelet is to be asked and does not answer within seconds, or what it says of
// any pod cannot be read, that is an error: an old list is never given for a new
// one. With ModeNone, or ModeAuto without a kubelet, there are none.
func (s *Source) Pods(ctx context.Context) ([]policy.PodSpec, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	switch s.Kind() {
	case string(ModeSocket):
		return s.listSocket(ctx)
	case string(ModeHTTPS):
		return s.listHTTPS(ctx)
	}
	return nil, nil
}

// Run calls changed when a pod comes, changes or goes, until ctx is done. Only
// the socket tells of that; with the other sources it waits. Changes may be lost
// while the watch is: changed is called after each beginning of it, too. Run
// closes the connection at its end.
func (s *Source) Run(ctx context.Context, changed func()) error {
	defer s.close()
	if s.cfg.Mode == ModeHTTPS || s.cfg.Mode == ModeNone {
		<-ctx.Done()
		return nil
	}
	s.watch(ctx, changed)
	return nil
}
