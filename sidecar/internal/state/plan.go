package state

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// Bounds on the plans that are kept.
const (
	MaxPlans = 16
	PlanAge  = 24 * time.Hour
)

// ErrNoPlan says that no plan of an ID is kept.
var ErrNoPlan = errors.New("no such plan is kept")

// Plan is the decisions of one moment.
type Plan struct {
	ID        string    `json:"id"`
	CreatedAt time.Time `json:"created_at"`
	// ForAt is the time that it looks ahead to; CreatedAt if it does not.
	ForAt    time.Time `json:"for_at"`
	Complete bool      `json:"complete"`
	// Asked is what was asked for, for a person.
	Asked string `json:"asked,omitempty"`
	// Entries are the images that go and those that only a hold keeps.
	Entries     []PlanEntry `json:"entries"`
	RemoveCount int         `json:"remove_count"`
	WillFree    int64       `json:"will_free_bytes"`
}

// PlanEntry is one image of a plan, as it was then.
type PlanEntry struct {
	Image         policy.Key    `json:"image"`
	Kind          policy.Kind   `json:"kind"`
	Names         []policy.Name `json:"names"`
	Platform      string        `json:"platform,omitempty"`
	Remove        bool          `json:"remove"`
	Reason        policy.Reason `json:"reason"`
	Rule          string        `json:"rule,omitempty"`
	PulledAt      time.Time     `json:"pulled_at,omitzero"`
	LastUsedAt    time.Time     `json:"last_used_at,omitzero"`
	ExpiresAt     time.Time     `json:"expires_at,omitzero"`
	ContentBytes  int64         `json:"content_bytes"`
	SnapshotBytes int64         `json:"snapshot_bytes"`
	UniqueBytes   int64         `json:"unique_bytes"`
}

// putPlan keeps a plan and drops those that are too old or too many.
func (w *writer) putPlan(p Plan) {
	w.require(p.ID != "", "a plan has no ID")
	w.put(bucketPlans, []byte(p.ID), p)
	if w.err != nil {
		return
	}
	var plans []Plan
	err := w.tx.Bucket(bucketPlans).ForEach(func(k, _ []byte) error {
		var p Plan
		w.get(bucketPlans, k, &p)
		plans = append(plans, p)
		return nil
	})
	if err != nil && w.err == nil {
		w.err = err
	}
	sortPlans(plans)
	for i, old := range plans {
		if old.ID != p.ID && (i >= MaxPlans || old.CreatedAt.Add(PlanAge).Before(p.CreatedAt)) {
			w.delete(bucketPlans, []byte(old.ID))
		}
	}
}

func sortPlans(plans []Plan) {
	slices.SortFunc(plans, func(a, b Plan) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
}

// Plans returns the plans that are kept and younger than PlanAge at wall time
// now, the newest first.
func (s *Store) Plans(now time.Time) ([]Plan, error) {
	var plans []Plan
	err := forEach(s, bucketPlans, func(_ []byte, p Plan) {
		if !p.CreatedAt.Add(PlanAge).Before(now) {
			plans = append(plans, p)
		}
	})
	sortPlans(plans)
	return plans, err
}

// Plan returns one plan, or ErrNoPlan.
func (s *Store) Plan(id string, now time.Time) (Plan, error) {
	plans, err := s.Plans(now)
	if err != nil {
		return Plan{}, err
	}
	i := slices.IndexFunc(plans, func(p Plan) bool { return p.ID == id })
	if i < 0 {
		return Plan{}, fmt.Errorf("plan %s: %w", id, ErrNoPlan)
	}
	return plans[i], nil
}
