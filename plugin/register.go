package main

import (
	"context"
	"errors"
	"fmt"
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
	// settled is how long a registration lasts before the pauses start anew.
	settled = time.Minute
)

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
	return p.serve(ctx)
}

// runExternal connects to the NRI socket, for ever once it has succeeded. That
// it cannot at the start is an error for whoever started the plugin.
func (p *plugin) runExternal(ctx context.Context) error {
	p.start(context.WithoutCancel(ctx))
	defer p.close()
	pause := newBackoff(minPause, maxPause)
	var last string
	for ctx.Err() == nil {
		began := time.Now()
		err := p.serve(ctx, stub.WithSocketPath(p.cfg.NRISocket), stub.WithPluginName(pluginName), stub.WithPluginIdx(pluginIndex))
		if ctx.Err() != nil {
			return nil
		}
		if p.sender.registrations.Load() == 0 {
			return fmt.Errorf("NRI socket %s: %w: is containerd running, NRI enabled in its configuration, and nri_socket right?", p.cfg.NRISocket, err)
		}
		if why := err.Error(); why != last {
			last = why
			p.log.Warn("not registered with the runtime, trying again", "socket", p.cfg.NRISocket, "err", err)
		}
		if time.Since(began) > settled {
			pause.reset()
		}
		pause.wait(ctx)
	}
	return nil
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
	if err := s.Start(ctx); err != nil {
		return fmt.Errorf("register: %w", err)
	}
	select {
	case <-ctx.Done():
		s.Stop()
		return nil
	case <-closed:
		return errors.New("the runtime has closed the connection")
	}
}
