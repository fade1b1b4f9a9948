package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/image-custodian/custodian/sidecar/internal/containerd"
	"github.com/image-custodian/custodian/sidecar/internal/policy"
	"github.com/image-custodian/custodian/sidecar/internal/state"
)

const (
	// batchSize bounds the images of one hold, so that one collection stays short.
	batchSize = 32
	// batchTimeout bounds the removal of one batch, undoTimeout what must be done
	// also when the program is told to stop.
	batchTimeout, undoTimeout = 5 * time.Minute, time.Minute
	// laterPause is how long an image is left alone whose removal did not come
	// about.
	laterPause = time.Minute
)

// remove carries out what a look decided: a lease that keeps all content, the
// intents, a complete second reading and a second decision, and only then the
// records. Until the lease is released a claim, or a container that nobody
// admitted, brings an image back. more says that images are left for the next
// pass.
func (r *Reconciler) remove(ctx context.Context, look *Look) (more bool, err error) {
	if look.Mode != policy.ModeAuto {
		return false, nil
	}
	for k, until := range r.later {
		if until <= look.Now {
			delete(r.later, k)
		}
	}
	batch := map[policy.Key]removal{}
	var images []policy.Image
	for _, i := range look.due() {
		d := look.Decisions[i]
		if r.later[d.Key] != 0 {
			continue
		}
		if len(images) == batchSize {
			more = true
			break
		}
		images = append(images, look.View.Images[i])
		batch[d.Key] = removal{look.View.Images[i], d}
	}
	if len(images) == 0 {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	return more, r.removeBatch(ctx, images, batch)
}

// due are the images that go, the longest unused first: the next batch may not
// be needed any more.
func (l *Look) due() []int {
	var list []int
	for i, d := range l.Decisions {
		if d.Remove {
			list = append(list, i)
		}
	}
	since := func(i int) policy.Moment { return l.View.Memory[l.View.Images[i].Key].UnusedSince() }
	slices.SortStableFunc(list, func(i, j int) int {
		return cmp.Or(cmp.Compare(since(i), since(j)), cmp.Compare(l.View.Images[j].UniqueBytes, l.View.Images[i].UniqueBytes))
	})
	return list
}

type removal struct {
	image    policy.Image
	decision policy.Decision
}

// intend writes down what is about to go, with all that it takes to undo it.
func (r *Reconciler) intend(hold hold, batch map[policy.Key]removal) error {
	intents := map[policy.Key]state.Removal{}
	for k, m := range batch {
		intents[k] = state.Removal{
			Names: names(m.image), Reason: m.decision.Reason, Rule: m.decision.Rule,
			Bytes: m.image.ContentBytes, Records: hold.Records(k),
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.store.Commit(state.Change{PutRemovals: intents}); err != nil {
		return err
	}
	r.removing = map[policy.Key]bool{}
	for k := range batch {
		r.removing[k] = true
	}
	return nil
}

// removeBatch removes images under one hold and writes down what came of it.
func (r *Reconciler) removeBatch(ctx context.Context, images []policy.Image, batch map[policy.Key]removal) error {
	outcome := map[policy.Key]error{}
	for k := range batch {
		outcome[k] = errSkipped
	}
	r.gate.record(true)
	defer r.gate.record(false)
	hold, err := r.node.Hold(ctx, images)
	if err != nil {
		err = fmt.Errorf("lease for removal: %w", err)
		for k := range outcome {
			outcome[k] = err
		}
		r.staleHolds = true
		return r.settle(batch, outcome, nil)
	}
	if err = r.intend(hold, batch); err == nil {
		err = r.removeHeld(ctx, hold, images, outcome)
	}
	// What was begun is ended, also when the program is told to stop.
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	freed, releaseErr := hold.Release(undo)
	r.staleHolds = r.staleHolds || releaseErr != nil
	return errors.Join(err, releaseErr, r.settle(batch, outcome, freed))
}

// errSkipped is the outcome of an image that something kept at the last moment.
var errSkipped = errors.New("kept by the last check")

func (r *Reconciler) removeHeld(ctx context.Context, hold hold, images []policy.Image, outcome map[policy.Key]error) error {
	due, err := r.stillDue(r.sight(ctx, true))
	if err != nil {
		return err
	}
	now := r.store.Clock().Now
	removed := false
	for _, img := range images {
		if ctx.Err() != nil || !due[img.Key] {
			continue
		}
		outcome[img.Key] = hold.Remove(ctx, img.Key, func() bool { return r.gate.claimed(img, now()) })
		removed = removed || outcome[img.Key] == nil
	}
	if removed {
		r.linger(ctx, hold, images, outcome)
	}
	return r.undoUsed(ctx, hold, images, outcome)
}

// stillDue decides again, by a second and complete reading.
func (r *Reconciler) stillDue(seen sight) (map[policy.Key]bool, error) {
	if err := errors.Join(seen.Err(), seen.podsErr); err != nil {
		return nil, fmt.Errorf("second reading before removal: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	kept, err := r.read()
	if err != nil {
		return nil, fmt.Errorf("second decision before removal: %w", err)
	}
	look, err := r.view(kept, seen)
	if err != nil {
		return nil, fmt.Errorf("second decision before removal: %w", err)
	}
	due := map[policy.Key]bool{}
	for i, d := range look.Decisions {
		due[d.Key] = d.Remove && look.Mode == policy.ModeAuto
		if !d.Remove && r.removing[d.Key] {
			r.log.Info("kept by the second decision", "image", d.Key.ID, "names", names(look.View.Images[i]), "reason", d.Reason)
		}
	}
	return due, nil
}

// linger waits for late claims, and gives each image that is claimed back at
// once: the next container of its pod looks for it within moments.
func (r *Reconciler) linger(ctx context.Context, hold hold, images []policy.Image, outcome map[policy.Key]error) {
	over := time.NewTimer(r.cfg.Linger)
	defer over.Stop()
	for {
		now := r.store.Clock().Now()
		for _, img := range images {
			if outcome[img.Key] == nil && r.gate.claimed(img, now) {
				r.undo(ctx, hold, img, outcome)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-over.C:
			return
		case <-r.gate.news:
		}
	}
}

// undo puts an image back whose removal was done.
func (r *Reconciler) undo(ctx context.Context, hold hold, img policy.Image, outcome map[policy.Key]error) {
	outcome[img.Key] = errSkipped
	if err := hold.Restore(ctx, img.Key); err != nil {
		outcome[img.Key] = err
	}
	r.log.Info("removal undone", "image", img.Key.ID, "names", names(img))
}

// undoUsed gives a container that was created meanwhile its image back, before
// the content can go.
func (r *Reconciler) undoUsed(ctx context.Context, hold hold, images []policy.Image, outcome map[policy.Key]error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	uses, err := r.node.Uses(ctx)
	now := r.store.Clock().Now()
	for _, img := range images {
		if outcome[img.Key] != nil || err == nil && !usesImage(uses, img) && !r.gate.claimed(img, now) {
			continue
		}
		r.undo(ctx, hold, img, outcome)
	}
	if err != nil {
		return fmt.Errorf("second reading after removal: %w", err)
	}
	return nil
}

// settle clears the intents of a batch and writes its events. The intent of an
// image that could not be put back stays, and so does its lease: the next pass
// tries again.
func (r *Reconciler) settle(batch map[policy.Key]removal, outcome map[policy.Key]error, freed map[policy.Key]int64) error {
	change := state.Change{At: r.cfg.Wall()}
	now := r.store.Clock().Now()
	for k, m := range batch {
		event := state.Event{
			At: change.At, Kind: state.EventRemoved, Image: k, Names: names(m.image),
			Reason: m.decision.Reason, Rule: m.decision.Rule, Freed: freed[k], Moment: now,
		}
		err := outcome[k]
		if err != nil {
			r.later[k] = now.Add(laterPause)
		} else {
			delete(r.later, k)
		}
		owed := errors.Is(err, containerd.ErrNotRestored)
		if owed {
			r.staleHolds = true
		} else {
			change.ClearRemovals = append(change.ClearRemovals, k)
		}
		switch {
		case err == nil:
			change.DropImages = append(change.DropImages, k)
			r.log.Info("removed", "image", k.ID, "names", event.Names, "reason", event.Reason, "freed", event.Freed)
		case !owed && (errors.Is(err, errSkipped) || errors.Is(err, containerd.ErrClaimed) || errors.Is(err, containerd.ErrChanged)):
			r.log.Info("not removed", "image", k.ID, "names", event.Names, "why", err)
			continue
		default:
			event.Kind, event.Detail = state.EventFailed, err.Error()
			r.log.Error("removal failed", "image", k.ID, "names", event.Names, "err", err)
		}
		change.Events = append(change.Events, event)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last, r.removing = nil, nil // the last look shows what is gone
	return r.store.Commit(change)
}

func names(img policy.Image) []string {
	var names []string
	for _, n := range img.Names {
		names = append(names, n.Name)
	}
	return names
}
