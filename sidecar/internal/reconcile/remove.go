package reconcile

import (
	"context"
	"errors"
	"fmt"

	"github.com/image-custodian/custodian/sidecar/internal/containerd"
	"github.com/image-custodian/custodian/sidecar/internal/policy"
	"github.com/image-custodian/custodian/sidecar/internal/state"
)

// batchSize bounds the images of one hold, so that one collection stays short.
const batchSize = 32

// remove carries out what a look decided: intents first, then a lease that
// keeps all content, a complete second reading of the uses, and only then the
// records. Until the lease is released a claim, or a container that nobody
// admitted, brings an image back. more says that images are left for the next
// pass.
func (r *Reconciler) remove(ctx context.Context, look *Look) (more bool, err error) {
	if r.cfg.Mode != ModeAuto {
		return false, nil
	}
	batch := map[policy.Key]removal{}
	var images []policy.Image
	for i, d := range look.Decisions {
		if !d.Remove {
			continue
		}
		if len(images) == batchSize {
			more = true
			break
		}
		images = append(images, look.Images[i])
		batch[d.Key] = removal{look.Images[i], d}
	}
	if len(images) == 0 {
		return false, nil
	}
	if err := r.intend(batch); err != nil {
		return false, err
	}
	return more, r.removeBatch(ctx, images, batch)
}

type removal struct {
	image    policy.Image
	decision policy.Decision
}

func (r *Reconciler) intend(batch map[policy.Key]removal) error {
	intents := map[policy.Key]state.Removal{}
	for k, m := range batch {
		intents[k] = state.Removal{Names: names(m.image), Reason: m.decision.Reason, Rule: m.decision.Rule, Bytes: m.image.ContentBytes}
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
	hold, err := r.node.Hold(ctx, images)
	if err != nil {
		return errors.Join(fmt.Errorf("lease for removal: %w", err), r.settle(batch, outcome, nil))
	}
	err = r.removeHeld(ctx, hold, images, outcome)
	// What was begun is ended, also when the program is told to stop.
	freed, releaseErr := hold.Release(context.WithoutCancel(ctx))
	return errors.Join(err, releaseErr, r.settle(batch, outcome, freed))
}

// errSkipped is the outcome of an image that something kept at the last moment.
var errSkipped = errors.New("kept by the last check")

func (r *Reconciler) removeHeld(ctx context.Context, hold hold, images []policy.Image, outcome map[policy.Key]error) error {
	uses, err := r.node.Uses(ctx)
	if err != nil {
		return fmt.Errorf("second reading before removal: %w", err)
	}
	now := r.store.Clock().Now
	for _, img := range images {
		if ctx.Err() != nil {
			break
		}
		if usesImage(uses, img) {
			r.log.Info("image is used again, kept", "image", img.Key.ID, "names", names(img))
			continue
		}
		outcome[img.Key] = hold.Remove(ctx, img.Key, func() bool { return r.gate.claimed(img, now()) })
	}

	// A container that was created meanwhile has its image back before the
	// content can go.
	uses, err = r.node.Uses(context.WithoutCancel(ctx))
	for _, img := range images {
		if outcome[img.Key] != nil || err == nil && !usesImage(uses, img) && !r.gate.claimed(img, now()) {
			continue
		}
		outcome[img.Key] = errSkipped
		if restoreErr := hold.Restore(context.WithoutCancel(ctx), img.Key); restoreErr != nil {
			outcome[img.Key] = fmt.Errorf("restore: %w", restoreErr)
		}
		r.log.Info("removal undone", "image", img.Key.ID, "names", names(img))
	}
	if err != nil {
		return fmt.Errorf("second reading after removal: %w", err)
	}
	return nil
}

// settle clears the intents of a batch and writes its events.
func (r *Reconciler) settle(batch map[policy.Key]removal, outcome map[policy.Key]error, freed map[policy.Key]int64) error {
	change := state.Change{At: r.cfg.Wall()}
	for k, m := range batch {
		change.ClearRemovals = append(change.ClearRemovals, k)
		event := state.Event{
			At: change.At, Kind: state.EventRemoved, Image: k, Names: names(m.image),
			Reason: m.decision.Reason, Freed: freed[k],
		}
		switch err := outcome[k]; {
		case err == nil:
			change.DropImages = append(change.DropImages, k)
			r.log.Info("removed", "image", k.ID, "names", event.Names, "reason", event.Reason, "freed", event.Freed)
		case errors.Is(err, errSkipped), errors.Is(err, containerd.ErrClaimed), errors.Is(err, containerd.ErrChanged):
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
