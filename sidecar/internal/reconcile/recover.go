package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/image-custodian/custodian/sidecar/internal/containerd"
	"github.com/image-custodian/custodian/sidecar/internal/policy"
	"github.com/image-custodian/custodian/sidecar/internal/state"
)

// recoverTimeout bounds what a recovery asks of the runtime.
const recoverTimeout = 2 * time.Minute

// recover settles removals that did not end as they should, of this run or of
// one that was killed: the intents say what was meant, the node what is true. An
// image that is used, or of which only a part of the records went, gets them
// back. Only then do the leases go that have kept its content.
func (r *Reconciler) recover(ctx context.Context) error {
	removals, err := r.store.Removals()
	if err != nil || len(removals) == 0 && !r.staleHolds {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, recoverTimeout)
	defer cancel()
	if len(removals) > 0 {
		if err := r.settleIntents(ctx, removals); err != nil {
			return fmt.Errorf("removals that were cut off: %w", err)
		}
	}
	if err := r.node.DropStaleHolds(ctx); err != nil {
		return fmt.Errorf("leases of removals that were cut off: %w", err)
	}
	r.staleHolds = false
	return nil
}

func (r *Reconciler) settleIntents(ctx context.Context, removals map[policy.Key]state.Removal) error {
	obs := r.node.Observe(ctx)
	if err := obs.Err(); err != nil {
		return err
	}
	uses := slices.Concat(obs.Uses, r.gate.uses(r.store.Clock().Now()))
	change := state.Change{At: r.cfg.Wall()}
	var errs []error
	for k, removal := range removals {
		event := state.Event{At: change.At, Image: k, Names: removal.Names, Reason: removal.Reason, Rule: removal.Rule, Moment: r.store.Clock().Now()}
		missing, present := missingRecords(obs.Images, k, removal)
		switch {
		case len(missing) == 0:
		case !present && !usesImage(uses, imageOf(k, removal)):
			event.Kind, event.Detail = state.EventRemoved, "found removed after a restart; what it freed was not measured"
		default:
			err := r.node.Recreate(ctx, k.ContainerdNamespace, missing)
			if errors.Is(err, containerd.ErrContentGone) {
				event.Kind, event.Detail = state.EventFailed, err.Error()
				break
			}
			if err != nil {
				errs = append(errs, err)
				continue
			}
			r.log.Info("removal undone after it was cut off", "image", k.ID, "names", removal.Names)
		}
		change.ClearRemovals = append(change.ClearRemovals, k)
		if event.Kind != "" {
			change.Events = append(change.Events, event)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(append(errs, r.store.Commit(change))...)
}

// missingRecords are the records of an intent that the node lacks; present says
// that the image has others.
func missingRecords(images []policy.Image, k policy.Key, removal state.Removal) (missing []policy.Record, present bool) {
	i := slices.IndexFunc(images, func(img policy.Image) bool { return img.Key == k })
	for _, record := range removal.Records {
		if i < 0 || !slices.ContainsFunc(images[i].Names, func(n policy.Name) bool { return n.Name == record.Name }) {
			missing = append(missing, record)
		}
	}
	return missing, i >= 0
}

// imageOf is the image that an intent was about, for finding its uses.
func imageOf(k policy.Key, removal state.Removal) policy.Image {
	img := policy.Image{Key: k}
	for _, record := range removal.Records {
		img.Names = append(img.Names, policy.Name{Name: record.Name, Target: record.Digest})
	}
	return img
}
