package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
	"github.com/image-custodian/custodian/sidecar/internal/state"
)

// EventKind is what happened to a container or a pod.
type EventKind int

// The kinds of events, as in node.proto.
const (
	PodStarted EventKind = iota + 1
	PodRemoved
	Created
	Started
	Stopped
	Removed
)

// Event is one event of the plugin.
type Event struct {
	Number      uint64
	Kind        EventKind
	ContainerID string
	PodID       string
	Use         policy.Use // for Created
	Boottime    int64
}

// Report is a batch of events.
type Report struct {
	Session      string
	Events       []Event
	Disconnected bool
	Plugin       string
	Counters     Counters
}

// Synced is the plugin's whole list of live uses.
type Synced struct {
	Session        string
	Number         uint64
	Uses           []policy.Use
	Ended          []LastUse
	Plugin         string
	Runtime        string
	RuntimeVersion string
}

// LastUse is the end of uses whose events were folded.
type LastUse struct {
	Use      policy.Use // only what identifies the image
	Boottime int64
}

// Admit notes that a container is about to use an image. It only touches memory.
func (r *Reconciler) Admit(_ context.Context, u policy.Use) {
	r.gate.claim(u, r.store.Clock().Now())
}

// probe is the session by which the plugin asks whether anybody answers.
const probe = "probe"

// noteCounters tells of what went wrong in the plugin.
func (r *Reconciler) noteCounters(c Counters) {
	if c.Panics > r.counters.Panics || c.Fallbacks > r.counters.Fallbacks || c.Folded > r.counters.Folded {
		r.log.Warn("the plugin had to help itself", "panics", c.Panics, "creations_without_answer", c.Fallbacks, "folded_events", c.Folded)
	}
	r.counters = c
}

// Report makes events durable, in their order. wanted says that the batch does
// not continue what is durable: nothing was applied and the plugin must sync.
func (r *Reconciler) Report(ctx context.Context, rep Report) (wanted bool, err error) {
	for i, e := range rep.Events {
		if e.Kind == Created {
			rep.Events[i].Use = r.node.Resolve(ctx, e.Use)
		}
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	if rep.Session != r.session.ID {
		if rep.Session != probe {
			r.session.Over = true // another session watches, from a list that is still to come
		}
		return true, nil
	}
	now := r.store.Clock().Now()
	session := r.session
	session.Plugin, session.Over = rep.Plugin, rep.Disconnected
	change := state.Change{At: r.cfg.Wall(), EndUses: map[state.UseKey]policy.Moment{}, Session: &session}

	uses, err := r.store.Uses()
	if err != nil {
		return false, err
	}
	for _, e := range rep.Events {
		switch {
		case e.Number <= session.Number:
			continue
		case e.Number != session.Number+1:
			r.gap = true
			r.log.Warn("events are missing, asking for a sync", "session", rep.Session, "have", session.Number, "got", e.Number)
			return true, nil
		}
		session.Number = e.Number
		r.apply(&change, uses, e)
	}
	r.noteCounters(rep.Counters)
	if r.pluginFault(now) != nil {
		r.Wake() // it is back: removals need wait no longer
	}
	r.heard = &now
	if session == r.session && len(rep.Events) == 0 {
		return false, nil
	}
	if err := r.commit(change); err != nil {
		return false, err
	}
	r.session = session
	if session.Over {
		r.log.Warn("the plugin has lost the runtime", "session", session.ID)
	}
	r.Wake()
	return false, nil
}

// apply adds one event to a change; uses are the live ones before it and are
// kept up to date.
func (r *Reconciler) apply(c *state.Change, uses map[state.UseKey]policy.Use, e Event) {
	at := r.store.Clock().At(e.Boottime)
	switch e.Kind {
	case Created:
		u := r.resolveVolumes(e.Use)
		k := state.KeyOf(u)
		u = merge(uses[k], u)
		u.Recorded = r.store.Clock().Now()
		if u.StartedAt.IsZero() {
			u.StartedAt = state.Wall(at, r.store.Clock().Now(), c.At)
		}
		r.put(c, uses, u)
	case Started, Stopped:
		k := cri(e.ContainerID)
		u, ok := uses[k]
		if !ok || u.State == policy.StateExited {
			return
		}
		u.State = policy.StateRunning
		if e.Kind == Stopped {
			u.State = policy.StateExited
		}
		r.put(c, uses, u)
	case Removed:
		r.end(c, uses, cri(e.ContainerID), at)
	case PodRemoved:
		for k, u := range uses {
			if u.Pod.ID == e.PodID && e.PodID != "" {
				r.end(c, uses, k, at)
			}
		}
	case PodStarted: // its sandbox is found by the next look, which this wakes
	}
}

func (r *Reconciler) put(c *state.Change, uses map[state.UseKey]policy.Use, u policy.Use) {
	k := state.KeyOf(u)
	uses[k] = u
	delete(c.EndUses, k)
	c.PutUses = append(slices.DeleteFunc(c.PutUses, func(o policy.Use) bool { return state.KeyOf(o) == k }), u)
}

// end ends a use. A use that this very change began must begin first, so that
// its end raises the last use of its image.
func (r *Reconciler) end(c *state.Change, uses map[state.UseKey]policy.Use, k state.UseKey, at policy.Moment) {
	r.gate.drop(k.ContainerID)
	u, ok := uses[k]
	if !ok {
		return
	}
	if u = r.resolveVolumes(u); !r.known(u) {
		// It ended before any look knew its image: it may have been any.
		c.Session.Watched = max(c.Session.Watched, at)
	}
	delete(uses, k)
	c.EndUses[k] = at
}

// commit makes a change durable and then lets go of what only bridged the time
// until then.
func (r *Reconciler) commit(c state.Change) error {
	if err := r.store.Commit(c); err != nil {
		return err
	}
	now := r.store.Clock().Now()
	r.last = nil // it does not show the change
	for _, u := range c.PutUses {
		r.gate.drop(u.ContainerID)
	}
	for k := range c.EndUses {
		r.ended[k] = now
	}
	return nil
}

// ErrStale says that a sync includes less than what is already durable.
var ErrStale = errors.New("the list is older than what is known")

// Sync replaces the live uses by the plugin's list, joined with the runtime's
// own: NRI omits exited containers. A session that is not the last one means
// that containers may have come and gone unseen: disuse of every image counts
// from now.
func (r *Reconciler) Sync(ctx context.Context, s Synced) error {
	began := r.store.Clock().Now()
	listed, err := r.node.Uses(ctx)
	if err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	for i, u := range s.Uses {
		s.Uses[i] = r.node.Resolve(ctx, u)
	}
	for i, e := range s.Ended {
		s.Ended[i].Use = r.node.Resolve(ctx, e.Use)
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	if s.Session == r.session.ID && s.Number < r.session.Number {
		return fmt.Errorf("sync of session %s at %d, known to %d: %w", s.Session, s.Number, r.session.Number, ErrStale)
	}
	now := r.store.Clock().Now()
	change := state.Change{At: r.cfg.Wall(), EndUses: map[state.UseKey]policy.Moment{}, RaiseLastUse: map[policy.Key]policy.Moment{}}
	stored, err := r.store.Uses()
	if err != nil {
		return err
	}
	r.replaceUses(&change, stored, s.Uses, listed, began, now)
	session := state.Session{
		ID: s.Session, Number: s.Number, Watched: r.session.Watched,
		Plugin: s.Plugin, Runtime: s.Runtime, RuntimeVersion: s.RuntimeVersion,
	}
	for _, e := range s.Ended {
		r.raise(&change, &session, e)
	}
	if s.Session != r.session.ID || r.gap {
		session.Watched = now
		change.Events = []state.Event{{At: change.At, Kind: state.EventGap, Detail: gapDetail(r.session)}}
	}
	change.Session = &session
	if err := r.commit(change); err != nil {
		return err
	}
	if s.Session != r.session.ID {
		r.started = now
	}
	r.gap = false
	r.session, r.heard = session, &now
	r.log.Info("synced with the plugin", "session", s.Session, "uses", len(s.Uses), "listed", len(listed), "runtime", s.Runtime, "version", s.RuntimeVersion)
	r.Wake()
	return nil
}

func (r *Reconciler) replaceUses(c *state.Change, stored map[state.UseKey]policy.Use, synced, listed []policy.Use, began, now policy.Moment) {
	live := map[state.UseKey]policy.Use{}
	for _, u := range synced {
		live[state.KeyOf(u)] = u
	}
	for _, u := range listed {
		if r.endedLately(state.KeyOf(u), began) {
			continue
		}
		live[state.KeyOf(u)] = merge(live[state.KeyOf(u)], u)
	}
	for k, u := range live {
		old, known := stored[k]
		if known && anotherLife(old, u) {
			r.raiseImages(c.RaiseLastUse, old, now)
			old, known = policy.Use{}, false
		}
		u = merge(old, r.resolveVolumes(u))
		if !known {
			u.Recorded = now
		}
		if !sameUse(old, u) {
			c.PutUses = append(c.PutUses, u)
		}
	}
	for k, u := range stored {
		if _, ok := live[k]; !ok && u.Recorded < began {
			c.EndUses[k] = now
		}
	}
}

// raise applies a folded end. An end without a known image counts for all.
func (r *Reconciler) raise(c *state.Change, session *state.Session, e LastUse) {
	at := r.store.Clock().At(e.Boottime)
	keys := r.index.Root(e.Use)
	if len(keys) == 0 {
		session.Watched = max(session.Watched, at)
	}
	for _, k := range keys {
		c.RaiseLastUse[k] = max(c.RaiseLastUse[k], at)
	}
}

func gapDetail(last state.Session) string {
	if last.ID == "" {
		return "the plugin is here for the first time: disuse counts from now"
	}
	return "the plugin was away: containers may have come and gone unseen, so disuse counts from now"
}

// cri names a container of the CRI, whose containerd namespace is fixed.
func cri(containerID string) state.UseKey {
	return state.UseKey{ContainerdNamespace: CRINamespace, ContainerID: containerID}
}

// CRINamespace is the containerd namespace in which the CRI works.
const CRINamespace = "k8s.io"
