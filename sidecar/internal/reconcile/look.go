package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/image-custodian/custodian/sidecar/internal/containerd"
	"github.com/image-custodian/custodian/sidecar/internal/policy"
	"github.com/image-custodian/custodian/sidecar/internal/state"
)

// settle is how old a use must be before a list that lacks it ends it: the
// runtime announces a container a moment before it lists it.
const settle = 10 * time.Second

// Sources of the view.
const (
	SourceContainerd  = "containerd"
	SourceCRI         = "cri"
	SourceSnapshotter = "snapshotter"
	SourceKubelet     = "kubelet"
	SourceNRI         = "nri"
	SourceClock       = "clock"
	SourceConfig      = "config"
)

// Look is the node at one moment, with what was decided about each image.
type Look struct {
	Now policy.Moment
	At  time.Time
	// View is what was decided about, Rules by what.
	View      policy.View
	Rules     policy.Rules
	Decisions []policy.Decision // of View.Images, in their order
	Uses      []policy.Use      // of the state and open claims, sorted by pod
	// GraceEnds is the end of the grace that counts from View.Started.
	GraceEnds policy.Moment
	// Sources are those that the view needs. The view is complete if all are well.
	Sources map[string]SourceState
	Sizes   containerd.Sizes
	Mode    policy.Mode
	// unsettled is that of the reconciler.
	unsettled policy.Moment
	// Config identifies the configuration, PodsKind says where pods come from.
	Config, PodsKind string
}

// Complete reports whether every source answered.
func (l *Look) Complete() bool { return len(l.faults()) == 0 }

func (l *Look) faults() []string {
	var faults []string
	for name, s := range l.Sources {
		if s.Err != nil {
			faults = append(faults, fmt.Sprintf("%s: %v", name, s.Err))
		}
	}
	slices.Sort(faults)
	return faults
}

// sight is the node as it was read.
type sight struct {
	containerd.Observation
	pods    []policy.PodSpec
	podsErr error
}

// sight reads the node; of what can have changed nothing is from memory if fresh.
func (r *Reconciler) sight(ctx context.Context, fresh bool) sight {
	var s sight
	s.pods, s.podsErr = r.cfg.Pods.Pods(ctx)
	if fresh {
		s.Observation = r.node.Reread(ctx)
	} else {
		s.Observation = r.node.Observe(ctx)
	}
	return s
}

// Look lists the node, mends the state by it, and decides. It removes nothing.
func (r *Reconciler) Look(ctx context.Context) (*Look, error) {
	began := r.store.Clock().Now()
	seen := r.sight(ctx, false)

	r.mu.Lock()
	defer r.mu.Unlock()
	kept, err := r.read()
	if err != nil {
		return nil, err
	}
	if kept, err = r.mend(kept, seen.Observation, began); err != nil {
		return nil, err
	}
	look, err := r.view(kept, seen)
	if err != nil {
		return nil, err
	}
	r.last = look
	return look, nil
}

// Latest is the last look if it is not older than maxAge, else a new one.
func (r *Reconciler) Latest(ctx context.Context, maxAge time.Duration) (*Look, error) {
	r.looking.Lock()
	defer r.looking.Unlock()
	r.mu.Lock()
	last := r.last
	r.mu.Unlock()
	if last != nil && r.store.Clock().Now().Sub(last.Now) <= maxAge {
		return last, nil
	}
	return r.Look(ctx)
}

// kept is what the state has of the node. Reading it is most of what a look costs.
type kept struct {
	uses   map[state.UseKey]policy.Use
	memory map[policy.Key]policy.Memory
}

func (r *Reconciler) read() (k kept, err error) {
	if k.uses, err = r.store.Uses(); err != nil {
		return kept{}, err
	}
	k.memory, err = r.store.Images()
	return k, err
}

// view decides about what was seen. r.mu is held.
func (r *Reconciler) view(kept kept, seen sight) (look *Look, err error) {
	now := r.store.Clock().Now()
	look = &Look{
		Now: now, At: r.cfg.Wall(), Rules: r.settings.effective(),
		Uses:    slices.Concat(slices.Collect(maps.Values(kept.uses)), r.gate.uses(now)),
		Sources: r.judgeSources(seen, now), Sizes: seen.Sizes, unsettled: r.unsettled,
		Mode: r.settings.Mode, Config: r.settings.Revision, PodsKind: r.cfg.Pods.Kind(),
	}
	slices.SortFunc(look.Uses, func(a, b policy.Use) int {
		return slices.Compare(useOrder(a), useOrder(b))
	})
	look.View = policy.View{
		Images: seen.Images, Parts: seen.Sizes.Parts, Disk: seen.Disk,
		Uses: slices.Concat(look.Uses, seen.Uses), Holdings: seen.Holdings,
		Pods: seen.pods, PodsNamespace: CRINamespace, Memory: kept.memory,
		Watched: r.session.Watched, Started: r.started, Incomplete: look.faults(),
	}
	r.pressed = look.Rules.Pressure.Pressed(r.pressed, seen.Disk)
	look.View.Pressed = r.pressed
	if look.Rules.MaxPerHour > 0 {
		look.View.Removed, err = r.store.RemovedSince(now.Add(-time.Hour), policy.Expired, policy.OverBudget)
		if err != nil {
			return nil, err
		}
	}
	look.GraceEnds = r.started.Add(look.Rules.StartGrace)
	look.Decisions = policy.Plan(look.View, look.Rules, now)
	return look, nil
}

// effective are the rules as the mode lets them be.
func (s Settings) effective() policy.Rules {
	if s.Mode == policy.ModeOff {
		return policy.Rules{MinAge: s.Rules.MinAge, StartGrace: s.Rules.StartGrace, KeepUnpullable: s.Rules.KeepUnpullable}
	}
	return s.Rules
}

func useOrder(u policy.Use) []string {
	return []string{u.ContainerdNamespace, u.Pod.Namespace, u.Pod.Name, u.Pod.ID, string(u.Kind), u.Container, u.ContainerID}
}

// judgeSources says which sources answered; r.mu is held.
func (r *Reconciler) judgeSources(seen sight, now policy.Moment) map[string]SourceState {
	errs := map[string]error{SourceNRI: r.pluginFault(now), SourceClock: r.clockFault(), SourceConfig: r.settings.Fault}
	for _, s := range seen.Sources {
		errs[s.Name] = s.Err
	}
	if r.cfg.Pods.Kind() != "none" || seen.podsErr != nil {
		errs[SourceKubelet] = seen.podsErr
	}
	if errs[SourceContainerd] == nil && !r.cfg.CompareAndDelete() {
		errs[SourceContainerd] = errTooOld
	}
	maps.DeleteFunc(r.sources, func(name string, _ SourceState) bool {
		_, asked := errs[name]
		return !asked // a kubelet that was looked for, and is none
	})
	wall := r.cfg.Wall()
	for name, err := range errs {
		old, known := r.sources[name]
		if !known || (old.Err == nil) != (err == nil) {
			old.Since = wall
			if err != nil {
				r.log.Warn("removals are held", "source", name, "err", err)
			} else if known {
				r.log.Info("source is well again", "source", name)
			}
		}
		old.Err = err
		r.sources[name] = old
	}
	return maps.Clone(r.sources)
}

var (
	errTooOld             = errors.New("this containerd deletes image records without comparing them first (before 2.0): cleaning is off here")
	errPluginAbsent       = errors.New("the plugin has not synced since this start: is image-custodian-plugin running and NRI enabled?")
	errPluginDisconnected = errors.New("the plugin has lost the runtime's NRI socket")
)

func (r *Reconciler) pluginFault(now policy.Moment) error {
	switch {
	case r.heard == nil:
		return errPluginAbsent
	case r.session.Over:
		return errPluginDisconnected
	case now.Sub(*r.heard) > r.cfg.PluginSilence:
		return fmt.Errorf("no word from the plugin for %v: is image-custodian-plugin running?", now.Sub(*r.heard).Round(time.Second))
	}
	return nil
}

func (r *Reconciler) clockFault() error {
	if wall := r.cfg.Wall(); wall.Before(r.cfg.NotBefore) {
		return fmt.Errorf("the wall clock says %s, this program was built %s", wall.UTC().Format(time.DateOnly), r.cfg.NotBefore.UTC().Format(time.DateOnly))
	}
	return nil
}

// mend brings the state in line with a list that began to be read at began.
// What the list could not tell changes nothing. It returns what the state has then.
// r.mu is held.
func (r *Reconciler) mend(kept kept, obs containerd.Observation, began policy.Moment) (kept, error) {
	if obs.Err() != nil {
		return kept, r.store.Commit(state.Change{})
	}
	now := r.store.Clock().Now()
	r.index = policy.NewIndex(obs.Images)
	change := state.Change{At: r.cfg.Wall()}
	change.RaiseLastUse = map[policy.Key]policy.Moment{}
	change.PutUses, change.EndUses = r.mendUses(change.RaiseLastUse, kept.uses, obs.Uses, began, now)
	r.mendImages(&change, kept.memory, obs.Images, now)
	if err := r.store.Commit(change); err != nil {
		return kept, err
	}
	if len(change.PutUses)+len(change.EndUses)+len(change.RaiseLastUse)+len(change.PutImages)+len(change.DropImages) == 0 {
		return kept, nil
	}
	return r.read()
}

// mendUses compares the stored uses with the runtime's list. raise takes the
// last uses of images whose container's ID was used again.
func (r *Reconciler) mendUses(raise map[policy.Key]policy.Moment, stored map[state.UseKey]policy.Use, listed []policy.Use, began, now policy.Moment) ([]policy.Use, map[state.UseKey]policy.Moment) {
	var put []policy.Use
	end := map[state.UseKey]policy.Moment{}
	live := map[state.UseKey]bool{}
	for _, l := range listed {
		k := state.KeyOf(l)
		live[k] = true
		if r.endedLately(k, began) {
			continue
		}
		old, known := stored[k]
		if known && anotherLife(old, l) {
			r.raiseImages(raise, old, now)
			old, known = policy.Use{}, false
		}
		merged := merge(old, r.resolveVolumes(l))
		if !known {
			merged.Recorded = now
		}
		if !sameUse(old, merged) {
			put = append(put, merged)
		}
	}
	r.unsettled = policy.Never
	for k, u := range stored {
		switch settled := u.Recorded.Add(settle); {
		case live[k]:
		case settled < began:
			end[k] = now
		default:
			r.unsettled = min(r.unsettled, settled)
		}
	}
	for k, at := range r.ended {
		if at.Add(time.Minute) < began {
			delete(r.ended, k)
		}
	}
	return put, end
}

// endedLately keeps a list from reviving a use: the runtime announces the end of
// a container a moment before it takes it off its list.
func (r *Reconciler) endedLately(k state.UseKey, began policy.Moment) bool {
	at, ok := r.ended[k]
	return ok && at.Add(settle) >= began
}

func (r *Reconciler) mendImages(c *state.Change, memory map[policy.Key]policy.Memory, images []policy.Image, now policy.Moment) {
	c.PutImages = map[policy.Key]policy.Memory{}
	there := map[policy.Key]bool{}
	for _, img := range images {
		there[img.Key] = true
		m, known := memory[img.Key]
		switch {
		case !known:
			m = policy.Memory{FirstSeen: now, FirstSeenAt: c.At, Pulled: now, Names: img.Names}
		case m.Names == nil: // noted by a use, before this first look at it
			m.Names = img.Names
		case !slices.EqualFunc(m.Names, img.Names, sameName):
			m.Pulled, m.Names = now, img.Names
		default:
			continue
		}
		c.PutImages[img.Key] = m
	}
	for k := range memory {
		if !there[k] && !r.removing[k] {
			c.DropImages = append(c.DropImages, k)
		}
	}
}

func sameName(a, b policy.Name) bool {
	return a.Name == b.Name && a.Target == b.Target && a.Updated.Equal(b.Updated)
}
