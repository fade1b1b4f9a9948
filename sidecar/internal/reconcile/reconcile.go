// Package reconcile keeps the state true to the node and removes what the rules
// let go. It is told of containers by the plugin (Admit, Report, Sync), looks at
// the node itself (Look), and acts on what policy.Plan decides (Run).
//
// One mutex orders all that changes the state. It is never held over a call to
// containerd, and Admit does not take it.
package reconcile

import (
	"context"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/image-custodian/custodian/sidecar/internal/containerd"
	"github.com/image-custodian/custodian/sidecar/internal/policy"
	"github.com/image-custodian/custodian/sidecar/internal/state"
)

// node is the part of the runtime that a reconciler needs.
type node interface {
	Observe(ctx context.Context) containerd.Observation
	Reread(ctx context.Context) containerd.Observation
	Uses(ctx context.Context) ([]policy.Use, error)
	Resolve(ctx context.Context, u policy.Use) policy.Use
	Watch(ctx context.Context, changed func())
	Hold(ctx context.Context, images []policy.Image) (hold, error)
	Recreate(ctx context.Context, containerdNamespace string, records []policy.Record) error
	DropStaleHolds(ctx context.Context) error
}

// hold keeps the content of images while their records are removed.
type hold interface {
	Records(key policy.Key) []policy.Record
	Remove(ctx context.Context, key policy.Key, claimed func() bool) error
	Restore(ctx context.Context, key policy.Key) error
	Release(ctx context.Context) (map[policy.Key]int64, error)
}

// client fits a containerd client to node.
type client struct{ *containerd.Client }

func (c client) Hold(ctx context.Context, images []policy.Image) (hold, error) {
	return c.Client.Hold(ctx, images)
}

// pods is what a reconciler needs of the kubelet.
type pods interface {
	// Pods lists all pods, or says why it cannot.
	Pods(ctx context.Context) ([]policy.PodSpec, error)
	// Kind says where they come from: "socket", "https" or "none".
	Kind() string
}

// noPods is a node without a kubelet.
type noPods struct{}

func (noPods) Pods(context.Context) ([]policy.PodSpec, error) { return nil, nil }
func (noPods) Kind() string                                   { return "none" }

// Settings are the part of the configuration that may change while the sidecar
// runs.
type Settings struct {
	Mode  policy.Mode
	Rules policy.Rules
	// Revision identifies the configuration, for a person.
	Revision string
	// Fault says that a newer configuration is wrong: this one stays in force,
	// and nothing is removed by it.
	Fault error
}

// Config of a reconciler.
type Config struct {
	Settings
	// Pods are those of the kubelet; nil = there is none.
	Pods pods
	// Interval is the longest time between two looks at the node.
	Interval time.Duration
	// PluginSilence is how long after its last sign of life the plugin counts
	// as gone; removals are held from then on.
	PluginSilence time.Duration
	// NotBefore is the build date of the program: while the wall clock is
	// before it, nothing is removed, since containerd counts the expiry of
	// leases by that clock.
	NotBefore time.Time
	// Wall is the wall clock, for display and for NotBefore.
	Wall func() time.Time
	// CompareAndDelete is false for a runtime that deletes a record without
	// comparing its target: there nothing is removed.
	CompareAndDelete func() bool
	// Linger is how long the content of removed images is kept while late claims
	// are awaited: a creation that found its image before it went is heard of
	// only after its snapshot is made.
	Linger time.Duration
}

// Reconciler joins the plugin's word, the runtime's lists and the state.
type Reconciler struct {
	cfg   Config
	node  node
	store *state.Store
	log   *slog.Logger
	gate  *gate
	wake  chan struct{}

	// looking lets one look at a time out.
	looking sync.Mutex

	// mu orders everything that reads the state in order to change it.
	mu sync.Mutex
	// settings are those in force.
	settings Settings
	// started is the latest start of the sidecar or of the plugin's session.
	started policy.Moment
	session state.Session
	// heard is the plugin's last sign of life in this run; nil = none yet.
	heard *policy.Moment
	// ended remembers recent ends, so that an older list cannot revive a use.
	ended map[state.UseKey]policy.Moment
	// unsettled is when the first use may end that the last look did not find:
	// until then the runtime may only be slow to list it.
	unsettled policy.Moment
	// pressed says that the file system was too full and is not down to low yet.
	pressed bool
	// removing are the images of the batch under way: a look in the middle of it
	// must not judge by what it sees of them.
	removing map[policy.Key]bool
	// index finds the images of the last look.
	index *policy.Index
	// gap says that events of the session are missing: its next sync is a gap.
	gap bool
	// staleHolds says that leases of ours may be left from a removal that did
	// not end as it should.
	staleHolds bool
	// later are images whose removal did not come about: they are left alone
	// until then, so that they do not stand in the way of others.
	later map[policy.Key]policy.Moment
	// counters are the plugin's own, as it last told them.
	counters Counters
	sources  map[string]SourceState
	last     *Look
}

// Counters are what the plugin counted since it started.
type Counters struct {
	Panics, Fallbacks, Registrations, Folded uint64
}

// SourceState says whether a source of the view answered last time.
type SourceState struct {
	Err   error
	Since time.Time
}

// New makes a reconciler over a connected runtime and an open state.
func New(cfg Config, c *containerd.Client, store *state.Store, log *slog.Logger) (*Reconciler, error) {
	return newReconciler(cfg, client{c}, store, log)
}

func newReconciler(cfg Config, n node, store *state.Store, log *slog.Logger) (*Reconciler, error) {
	session, err := store.Session()
	if err != nil {
		return nil, err
	}
	if store.Rebuilt() {
		wall := cfg.Wall()
		event := state.Event{At: wall, Kind: state.EventRebuilt, Detail: "the old state was set aside: disuse of every image counts from now"}
		if err := store.Commit(state.Change{At: wall, Events: []state.Event{event}}); err != nil {
			return nil, err
		}
	}
	if cfg.Pods == nil {
		cfg.Pods = noPods{}
	}
	return &Reconciler{
		cfg: cfg, settings: cfg.Settings, node: n, store: store, log: log,
		gate: newGate(), wake: make(chan struct{}, 1),
		started: store.Clock().Now(), session: session, unsettled: policy.Never,
		ended: map[state.UseKey]policy.Moment{}, index: policy.NewIndex(nil),
		sources: map[string]SourceState{}, staleHolds: true, later: map[policy.Key]policy.Moment{},
	}, nil
}

// Apply puts other settings in force.
func (r *Reconciler) Apply(s Settings) {
	r.mu.Lock()
	r.settings, r.last = s, nil
	r.mu.Unlock()
	r.Wake()
}

// Wake asks for a pass soon.
func (r *Reconciler) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

const (
	// minPause lies between two passes, however often the node wakes the loop.
	minPause = time.Second
	// retryPause is how soon a source that failed is asked again.
	retryPause = 15 * time.Second
	// restFactor bounds what looks cost on a node that changes all the time: the
	// loop rests that many times as long as a look took.
	restFactor = 20
)

// Run looks and removes until ctx is done: when something changed, when the
// earliest image is due, and at the latest every Interval.
func (r *Reconciler) Run(ctx context.Context) error {
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		r.node.Watch(ctx, r.Wake)
	}()
	defer func() { <-watched }()

	for passes := 0; ; passes++ {
		rest, next, err := r.pass(ctx)
		if passes == 0 {
			// The first look reads every manifest and configuration of the node,
			// later ones only what is new: its memory is not needed again.
			debug.FreeOSMemory()
		}
		if err != nil && ctx.Err() == nil {
			r.log.Error("pass", "err", err)
		}
		pause := time.NewTimer(rest)
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil
		case <-pause.C:
		}
		due := time.NewTimer(max(0, next-rest))
		select {
		case <-ctx.Done():
		case <-due.C:
		case <-r.wake:
		}
		due.Stop()
		if ctx.Err() != nil {
			return nil
		}
	}
}

// pass looks once and acts once. rest is how long not to pass again whatever
// happens, next when to pass again if nothing happens. What a removal waits for
// costs the node nothing, so only the look makes for a longer rest.
func (r *Reconciler) pass(ctx context.Context) (rest, next time.Duration, err error) {
	if err := r.recover(ctx); err != nil {
		return minPause, retryPause, err
	}
	began := time.Now()
	look, err := r.Look(ctx)
	rest = max(minPause, restFactor*time.Since(began))
	if err != nil {
		return rest, r.cfg.Interval, err
	}
	more, err := r.remove(ctx, look)
	switch {
	case err != nil:
		return rest, r.cfg.Interval, err
	case more:
		return rest, 0, nil
	}
	return rest, r.untilNext(look), nil
}

// untilNext is the time until the earliest moment after the look at which a
// decision of it can change without an event. That moment may have passed while
// the pass was removing: then it is 0.
func (r *Reconciler) untilNext(look *Look) time.Duration {
	next := r.cfg.Interval
	now := r.store.Clock().Now()
	consider := func(m policy.Moment) {
		if m > look.Now {
			next = min(next, max(0, m.Sub(now)))
		}
	}
	consider(look.GraceEnds)
	if !look.Complete() {
		consider(now.Add(retryPause))
	}
	for _, until := range r.later {
		consider(until)
	}
	if look.unsettled != policy.Never {
		consider(look.unsettled.Add(time.Millisecond)) // settled is what is older
	}
	for _, d := range look.Decisions {
		consider(d.Expires)
		if d.Reason == policy.HourlyLimit && len(look.View.Removed) > 0 {
			consider(slices.Min(look.View.Removed).Add(time.Hour))
		}
	}
	return next
}
