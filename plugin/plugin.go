package main

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"golang.org/x/sys/unix"

	"github.com/image-custodian/custodian/api/v1/node"
)

// outboxCapacity is how many events wait for a sidecar that is away before they
// are folded: some minutes of a busy node.
const outboxCapacity = 4096

// plugin answers the runtime's hooks. None of them waits for anything but
// Admit, none panics, and none fails but to refuse a container.
type plugin struct {
	cfg    config
	level  *slog.LevelVar
	log    *slog.Logger
	ledger *ledger

	admitter *admitter
	sender   *sender

	startLimit time.Duration

	mu      sync.Mutex
	stub    stub.Stub
	stop    context.CancelFunc // nil before start
	running sync.WaitGroup
}

func newPlugin(cfg config, level *slog.LevelVar, log *slog.Logger) *plugin {
	p := &plugin{cfg: cfg, level: level, log: log, ledger: newLedger(outboxCapacity), startLimit: startLimit}
	p.admitter = newAdmitter(cfg.NodeSocket, log)
	p.sender = &sender{socket: cfg.NodeSocket, ledger: p.ledger, admitter: p.admitter, log: log}
	return p
}

// start begins to talk to the sidecar, once.
func (p *plugin) start(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stop != nil {
		return
	}
	ctx, p.stop = context.WithCancel(ctx)
	p.admitter.socket, p.sender.socket = p.cfg.NodeSocket, p.cfg.NodeSocket // a launched plugin learns it late
	p.running.Go(func() { p.admitter.run(ctx) })
	p.running.Go(func() { p.sender.run(ctx) })
}

// close ends the talk with the sidecar, after a last word.
func (p *plugin) close() {
	p.mu.Lock()
	stop := p.stop
	p.mu.Unlock()
	if stop != nil {
		stop()
		p.running.Wait()
	}
}

// guard recovers a panic of a hook: it is logged and counted, and the runtime
// gets the answer that hinders nothing.
func (p *plugin) guard(hook string) {
	if r := recover(); r != nil {
		p.sender.panics.Add(1)
		p.log.Error("panic in a hook", "hook", hook, "panic", r, "stack", string(debug.Stack()))
	}
}

// Configure takes the configuration of a launched plugin, and says what to
// subscribe to.
func (p *plugin) Configure(_ context.Context, text, runtime, runtimeVersion string) (_ api.EventMask, _ error) {
	defer p.guard("Configure")
	if text != "" {
		cfg, err := parseConfig([]byte(text))
		if err != nil {
			return 0, fmt.Errorf("configuration from %s: %w", runtime, err)
		}
		p.cfg = cfg
		p.level.Set(cfg.Log.Level)
	}
	p.start(context.Background())
	p.sender.runtime.Store(runtime)
	p.sender.runtimeVersion.Store(runtimeVersion)
	p.sender.registrations.Add(1)
	p.log.Info("registered", "runtime", runtime, "version", runtimeVersion)
	return subscription(runtime, runtimeVersion), nil
}

// Synchronize takes the runtime's list and returns: the sidecar gets it in the
// background.
func (p *plugin) Synchronize(_ context.Context, pods []*api.PodSandbox, containers []*api.Container) (_ []*api.ContainerUpdate, _ error) {
	defer p.guard("Synchronize")
	now := boottime()
	byID := map[string]*api.PodSandbox{}
	var nodePods []*node.Pod
	for _, pod := range pods {
		byID[pod.GetId()] = pod
		nodePods = append(nodePods, podOf(pod))
	}
	var uses []*node.Use
	for _, c := range containers {
		uses = append(uses, useOf(byID[c.GetPodSandboxId()], c, now))
	}
	p.ledger.begin(nodePods, uses, now)
	return nil, nil
}

// RunPodSandbox implements stub.RunPodInterface.
func (p *plugin) RunPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	defer p.guard("RunPodSandbox")
	p.ledger.podStarted(podOf(pod), boottime())
	return nil
}

// RemovePodSandbox implements stub.RemovePodInterface.
func (p *plugin) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	defer p.guard("RemovePodSandbox")
	p.ledger.podRemoved(podOf(pod), boottime())
	return nil
}

// CreateContainer asks the sidecar. Only its refusal is an error.
func (p *plugin) CreateContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) (_ *api.ContainerAdjustment, _ []*api.ContainerUpdate, err error) {
	defer p.guard("CreateContainer")
	return nil, nil, p.admitter.admit(ctx, useOf(pod, c, boottime()), p.hookLimit())
}

// hookLimit is how long a hook may take at most, so that the runtime never
// drops the plugin for being late.
func (p *plugin) hookLimit() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	limit := stub.DefaultRequestTimeout
	if p.stub != nil {
		limit = p.stub.RequestTimeout()
	}
	return limit * 6 / 10
}

// PostCreateContainer implements stub.PostCreateContainerInterface.
func (p *plugin) PostCreateContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) error {
	defer p.guard("PostCreateContainer")
	now := boottime()
	p.ledger.created(useOf(pod, c, now), now)
	return nil
}

// PostStartContainer implements stub.PostStartContainerInterface.
func (p *plugin) PostStartContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	defer p.guard("PostStartContainer")
	p.ledger.started(c.GetId(), boottime())
	return nil
}

// StopContainer comes for every container whose process ended, and for one that
// was refused.
func (p *plugin) StopContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) (_ []*api.ContainerUpdate, _ error) {
	defer p.guard("StopContainer")
	p.ledger.stopped(c.GetId(), boottime())
	return nil, nil
}

// RemoveContainer implements stub.RemoveContainerInterface.
func (p *plugin) RemoveContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	defer p.guard("RemoveContainer")
	p.ledger.removed(c.GetId(), boottime())
	return nil
}

// boottime is CLOCK_BOOTTIME in nanoseconds. Zero, were the clock ever not
// readable, reads as now to the sidecar.
func boottime() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return ts.Nano()
}
