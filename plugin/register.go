package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
)

const (
	pluginName  = "image-custodian"
	pluginIndex = "10"
	// Each registration makes every operation of the node wait: do it seldom.
	minPause, maxPause = 250 * time.Millisecond, 30 * time.Second
	dialTimeout        = 5 * time.Second
	// startLimit bounds a registration, for which the runtime has 5 s, and the
	// configuration that follows it.
	startLimit = 15 * time.Second
	// settled is how long a registration lasts before the pauses start anew.
	settled = time.Minute
)

// errClosed says that the runtime has ended a session.
var errClosed = errors.New("the runtime has closed the connection")

// wanted are the events that the plugin handles.
var wanted = []api.Event{
	api.Event_RUN_POD_SANDBOX, api.Event_REMOVE_POD_SANDBOX,
	api.Event_CREATE_CONTAINER, api.Event_POST_CREATE_CONTAINER, api.Event_POST_START_CONTAINER,
	api.Event_STOP_CONTAINER, api.Event_REMOVE_CONTAINER,
}

// lastOldEvent is the last event of NRI 0.8 and before, which containerd links
// up to 2.1. It refuses a plugin that names an event beyond.
const lastOldEvent = api.Event_REMOVE_CONTAINER

// subscription is what of the wanted events the runtime knows.
func subscription(runtime, runtimeVersion string) api.EventMask {
	last := lastOldEvent
	if nri, err := api.InferVersionFromRuntime(runtime, runtimeVersion); err == nil && newerThan08(nri) {
		last = api.Event_LAST - 1
	}
	var mask api.EventMask
	for _, e := range wanted {
		if e <= last {
			mask.Set(e)
		}
	}
	return mask
}

// newerThan08 reads a version like v0.10.0. One that it cannot read counts as
// old: the fewer events are known everywhere.
func newerThan08(version string) bool {
	var major, minor int
	n, err := fmt.Sscanf(version, "v%d.%d", &major, &minor)
	return err == nil && n == 2 && (major > 0 || minor > 8)
}

// runLaunched serves the connection that the runtime has opened, and ends with
// it: the runtime launches the plugin again when it starts again.
func (p *plugin) runLaunched(ctx context.Context) error {
	defer p.close()
	if err := p.serve(ctx); !errors.Is(err, errClosed) {
		return err
	}
	p.log.Info("the runtime has closed the connection: bye")
	return nil
}

// runExternal connects to the NRI socket, for ever once it has succeeded. That
// it cannot at the start is an error for whoever started the plugin.
func (p *plugin) runExternal(ctx context.Context) error {
	p.start(context.WithoutCancel(ctx))
	defer p.close()
	pause := newBackoff(minPause, maxPause)
	var last string
	var said time.Time
	for ctx.Err() == nil {
		began := time.Now()
		err := p.dial(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if p.sender.registrations.Load() == 0 {
			return err
		}
		if why := err.Error(); why != last || time.Since(said) > time.Minute {
			last, said = why, time.Now()
			p.log.Warn("not registered with the runtime, trying again", "err", err)
		}
		if time.Since(began) > settled {
			pause.reset()
		}
		pause.wait(ctx)
	}
	return nil
}

// dial connects to the NRI socket and serves.
func (p *plugin) dial(ctx context.Context) (err error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, "unix", p.cfg.NRISocket)
	if err == nil {
		// A stub that could not register leaves the connection to its owner.
		defer func() {
			if closing := conn.Close(); closing != nil && !errors.Is(closing, net.ErrClosed) {
				err = errors.Join(err, closing)
			}
		}()
		err = p.serve(ctx, stub.WithConnection(conn), stub.WithPluginName(pluginName), stub.WithPluginIdx(pluginIndex))
	}
	switch {
	case err == nil || errors.Is(err, errClosed):
		return err
	default:
		return fmt.Errorf("NRI socket %s: %w: is containerd running, NRI enabled in its configuration, and nri_socket right?", p.cfg.NRISocket, err)
	}
}

// serve registers with a new stub, as a stub cannot be used again, and returns
// when the connection ends.
func (p *plugin) serve(ctx context.Context, opts ...stub.Option) error {
	closed := make(chan struct{})
	onClose := sync.OnceFunc(func() { close(closed) })
	opts = append(opts, stub.WithLogger(nriLog{p.log}), stub.WithOnClose(onClose))
	s, err := stub.New(p, opts...)
	if err != nil {
		return fmt.Errorf("stub: %w", err)
	}
	p.mu.Lock()
	p.stub = s
	p.mu.Unlock()
	defer p.ledger.end()
	if err := p.startStub(ctx, s); err != nil {
		return fmt.Errorf("register: %w", err)
	}
	select {
	case <-ctx.Done():
		s.Stop()
		return nil
	case <-closed:
		return errClosed
	}
}

// startStub is stub.Start with an end: when the runtime dies after it has taken
// the registration and before it configures the plugin, Start waits for ever.
// Nothing can end that wait; it is left behind, with its connection closed.
func (p *plugin) startStub(ctx context.Context, s stub.Stub) error {
	started := make(chan error, 1)
	go func() { started <- s.Start(ctx) }()
	timer := time.NewTimer(p.startLimit)
	defer timer.Stop()
	select {
	case err := <-started:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return errors.New("the runtime took the registration and went silent")
	}
}
