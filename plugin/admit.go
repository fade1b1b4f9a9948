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
	// After a late Admit the sidecar is left alone for minRest, and twice as long
	// each time that it is late again: to be alive is not to be in time.
	minRest, maxRest = 2 * time.Second, 30 * time.Second
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
	broken chan error
	late   int // Admits in a row that were not answered in time

	fallbacks atomic.Uint64
}

func newAdmitter(socket string, log *slog.Logger) *admitter {
	a := &admitter{socket: socket, log: log, broken: make(chan error, 1)}
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
	bounded, cancel := context.WithTimeout(ctx, min(limit, time.Duration(a.timeout.Load())))
	defer cancel()
	answer, err := node.NewNodeClient(client).Admit(bounded, &node.AdmitRequest{Use: use})
	if err != nil {
		a.fallbacks.Add(1)
		// A runtime that hung up says nothing about the sidecar.
		if ctx.Err() == nil && status.Code(err) != codes.InvalidArgument {
			a.open(client, fmt.Errorf("admit container %s: %w", use.GetContainerId(), err), bounded.Err() != nil)
		}
		return nil
	}
	a.inTime(client)
	if answer.GetRefuse() {
		return errors.New(answer.GetReason())
	}
	return nil
}

// open opens the breaker, once for each client. The reason is logged by run: a
// log may block, and a hook may not.
func (a *admitter) open(client *ttrpc.Client, why error, late bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.client != client {
		return
	}
	a.client = nil
	if late {
		a.late++
	} else {
		a.late = 0
	}
	a.broken <- why // has room: run makes the next client only after taking it
}

func (a *admitter) inTime(client *ttrpc.Client) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.client == client {
		a.late = 0
	}
}

// rest is how long to leave a sidecar alone that was late.
func (a *admitter) rest() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.late == 0 {
		return 0
	}
	return min(minRest<<min(a.late-1, 10), maxRest)
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
		pause.reset()
		client = next
		a.mu.Lock()
		a.client = client
		a.mu.Unlock()
		select {
		case <-ctx.Done():
		case why := <-a.broken:
			rest := a.rest()
			a.log.Warn("containers are created without the sidecar's answer", "for", rest, "err", why)
			closeClient(client, a.log)
			client = nil
			sleep(ctx, rest)
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
