package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/image-custodian/custodian/api/v1/node"
)

const (
	// defaultAdmitTimeout holds until the sidecar has told its own.
	defaultAdmitTimeout = 250 * time.Millisecond
	// probeTimeout is how long a sidecar may take to prove that it is alive.
	probeTimeout = time.Second
)

// admitter asks the sidecar, on a connection of its own so that no large Sync
// is in the way, and gives up in time. After one failure it is open, like a
// breaker: it answers at once as for a sidecar that is away, and tries in the
// background until the sidecar answers again.
type admitter struct {
	socket  string
	log     *slog.Logger
	timeout atomic.Int64 // nanoseconds

	mu     sync.Mutex
	client *ttrpc.Client // nil = open
	broken chan struct{}

	answered  atomic.Bool // since the breaker closed last
	fallbacks atomic.Uint64
}

func newAdmitter(socket string, log *slog.Logger) *admitter {
	a := &admitter{socket: socket, log: log, broken: make(chan struct{}, 1)}
	a.timeout.Store(int64(defaultAdmitTimeout))
	return a
}

// admit returns the sidecar's refusal, or nil: the container may be created.
// There is no mode yet in which no answer means no.
func (a *admitter) admit(ctx context.Context, use *node.Use, limit time.Duration) error {
	a.mu.Lock()
	client := a.client
	a.mu.Unlock()
	if client == nil {
		a.fallbacks.Add(1)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, min(limit, time.Duration(a.timeout.Load())))
	defer cancel()
	answer, err := node.NewNodeClient(client).Admit(ctx, &node.AdmitRequest{Use: use})
	if err != nil {
		a.fallbacks.Add(1)
		a.log.Warn("created without the sidecar's answer", "container", use.GetContainerId(), "err", err)
		if status.Code(err) != codes.InvalidArgument {
			a.open(client)
		}
		return nil
	}
	a.answered.Store(true)
	if answer.GetRefuse() {
		return errors.New(answer.GetReason())
	}
	return nil
}

// open opens the breaker, once for each client.
func (a *admitter) open(client *ttrpc.Client) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.client != client {
		return
	}
	a.client = nil
	select {
	case a.broken <- struct{}{}:
	default:
	}
}

// run keeps a live client until ctx is done.
func (a *admitter) run(ctx context.Context) {
	var client *ttrpc.Client
	defer func() { closeClient(client, a.log) }()
	pause := newBackoff(100*time.Millisecond, 5*time.Second)
	for ctx.Err() == nil {
		next, err := connect(ctx, a.socket)
		if err == nil {
			err = probe(ctx, next)
			if err != nil {
				closeClient(next, a.log)
			}
		}
		if err != nil {
			a.log.Debug("the sidecar does not answer", "err", err)
			pause.wait(ctx)
			continue
		}
		client = next
		a.mu.Lock()
		a.client = client
		a.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-a.broken:
			closeClient(client, a.log)
			client = nil
			// One that is alive but does not answer is asked ever more seldom.
			if a.answered.Swap(false) {
				pause.reset()
			}
			pause.wait(ctx)
		}
	}
}

// probe asks something that changes nothing: events of a session that is not.
func probe(ctx context.Context, client *ttrpc.Client) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	_, err := node.NewNodeClient(client).Report(ctx, &node.ReportRequest{Session: "probe"})
	return err
}

// connect dials the sidecar. A client is dead for good once its connection is.
func connect(ctx context.Context, socket string, opts ...ttrpc.ClientOpts) (*ttrpc.Client, error) {
	dialer := net.Dialer{Timeout: probeTimeout}
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("sidecar: %w", err)
	}
	return ttrpc.NewClient(conn, opts...), nil
}

func closeClient(client *ttrpc.Client, log *slog.Logger) {
	if client == nil {
		return
	}
	if err := client.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		log.Debug("close the connection to the sidecar", "err", err)
	}
}

// backoff is an exponential pause with full jitter.
type backoff struct{ least, most, now time.Duration }

func newBackoff(least, most time.Duration) *backoff { return &backoff{least, most, least} }

func (b *backoff) reset() { b.now = b.least }

// wait pauses, or returns when ctx is done.
func (b *backoff) wait(ctx context.Context) {
	timer := time.NewTimer(b.least/2 + rand.N(b.now))
	defer timer.Stop()
	b.now = min(2*b.now, b.most)
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
