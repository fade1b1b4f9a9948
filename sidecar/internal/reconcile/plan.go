package reconcile

import (
	"cmp"
	"crypto/rand"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
	"github.com/image-custodian/custodian/sidecar/internal/state"
)

// Ask is what a plan is made for. The zero Ask is what the rules want now.
type Ask struct {
	policy.Ask
	// Ahead looks so far into the future, if nothing is used until then.
	Ahead time.Duration
	// Rules are tried instead of those in force; nil = those in force.
	Rules *policy.Rules
	// Text says what was asked, for a person.
	Text string
}

// MakePlan decides about a look, and removes nothing. The plan has no ID.
func MakePlan(look *Look, ask Ask) state.Plan {
	rules := look.Rules
	if ask.Rules != nil {
		rules = *ask.Rules
	}
	rules.Ask = ask.Ask
	rules.MaxPerHour *= 1 + int(math.Ceil(ask.Ahead.Hours()))
	decisions := policy.Plan(look.View, rules, look.Now.Add(ask.Ahead))
	plan := state.Plan{
		CreatedAt: look.At, ForAt: look.At.Add(ask.Ahead), Complete: look.Complete(), Asked: ask.Text,
	}
	for i, d := range decisions {
		img := look.View.Images[i]
		meant := ask.Among == nil || ask.Among(img)
		decisions[i].Remove = d.Remove && meant
		if decisions[i].Remove {
			plan.RemoveCount++
		}
		if meant && (d.Remove || heldBack(d.Reason)) {
			plan.Entries = append(plan.Entries, entry(img, d, look))
		}
	}
	plan.WillFree = policy.Gain(look.View, decisions)
	unused := func(e state.PlanEntry) policy.Moment { return look.View.Memory[e.Image].UnusedSince() }
	slices.SortFunc(plan.Entries, func(a, b state.PlanEntry) int {
		return cmp.Or(cmp.Compare(unused(a), unused(b)), cmp.Compare(b.UniqueBytes, a.UniqueBytes), cmp.Compare(a.Image.ID, b.Image.ID))
	})
	return plan
}

// heldBack reports whether an image would go but for a cause that passes.
func heldBack(r policy.Reason) bool {
	return r == policy.StartGrace || r == policy.ViewIncomplete || r == policy.HourlyLimit
}

func entry(img policy.Image, d policy.Decision, look *Look) state.PlanEntry {
	e := state.PlanEntry{
		Image: img.Key, Kind: img.Kind, Names: img.Names, Platform: img.Platform,
		Remove: d.Remove, Reason: d.Reason, Rule: d.Rule,
		PulledAt: img.PulledAt, LastUsedAt: look.View.Memory[img.Key].LastUseAt,
		ContentBytes: img.ContentBytes, SnapshotBytes: img.SnapshotBytes, UniqueBytes: img.UniqueBytes,
	}
	if d.Expires != policy.Never {
		e.ExpiresAt = state.Wall(d.Expires, look.Now, look.At)
	}
	return e
}

// SavePlan keeps a plan and returns it with its ID.
func (r *Reconciler) SavePlan(plan state.Plan) (state.Plan, error) {
	plan.ID = strings.ToLower(rand.Text()[:8])
	r.mu.Lock()
	defer r.mu.Unlock()
	return plan, r.store.Commit(state.Change{At: r.cfg.Wall(), PutPlan: &plan})
}

// Plans are those that are kept, the newest first.
func (r *Reconciler) Plans() ([]state.Plan, error) { return r.store.Plans(r.cfg.Wall()) }

// Plan is one that is kept, or state.ErrNoPlan.
func (r *Reconciler) Plan(id string) (state.Plan, error) { return r.store.Plan(id, r.cfg.Wall()) }
