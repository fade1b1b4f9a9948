package state

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// The newest plans stay, over a restart, for a day.
func TestPlans(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	at := time.Unix(1e9, 0).UTC()
	for i := range MaxPlans + 4 {
		plan := Plan{ID: "p" + strconv.Itoa(i), CreatedAt: at.Add(time.Duration(i) * time.Minute), WillFree: int64(i), Entries: []PlanEntry{{Image: policy.Key{ContainerdNamespace: "k8s.io", ID: "sha256:a"}}}}
		if err := s.Commit(Change{PutPlan: &plan}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(s.Check(), s.Close()); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	last := at.Add((MaxPlans + 3) * time.Minute)
	plans, err := s.Plans(last)
	if err != nil || len(plans) != MaxPlans || plans[0].ID != "p19" || plans[MaxPlans-1].ID != "p4" {
		t.Fatalf("%d plans, %v", len(plans), err)
	}
	if got, err := s.Plan("p7", last); err != nil || got.WillFree != 7 || len(got.Entries) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := s.Plan("p3", last); !errors.Is(err, ErrNoPlan) {
		t.Errorf("%v", err)
	}
	if old, err := s.Plans(last.Add(PlanAge - 10*time.Minute)); err != nil || len(old) != 11 {
		t.Errorf("%d plans after most of a day, %v", len(old), err)
	}
	if err := s.Commit(Change{PutPlan: &Plan{ID: "new", CreatedAt: last.Add(2 * PlanAge)}}); err != nil {
		t.Fatal(err)
	}
	if all, err := s.Plans(at); err != nil || len(all) != 1 {
		t.Errorf("%d plans are left, %v", len(all), err)
	}
	if err := s.Commit(Change{PutPlan: &Plan{}}); err == nil {
		t.Error("a plan without an ID was kept")
	}
}

// RemovedSince counts what was removed for a reason, and no older event.
func TestRemovedSince(t *testing.T) {
	s := open(t, t.TempDir())
	for _, e := range []Event{
		{Kind: EventRemoved, Reason: policy.Expired, Moment: 5},
		{Kind: EventRemoved, Reason: policy.Expired, Moment: 10},
		{Kind: EventGap},
		{Kind: EventRemoved, Reason: policy.LowDisk, Moment: 11},
		{Kind: EventRemoved, Reason: policy.Expired}, // of a program that knew no moments
		{Kind: EventRemoved, Reason: policy.OverBudget, Moment: 12},
	} {
		if err := s.Commit(Change{Events: []Event{e}}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.RemovedSince(10, policy.Expired, policy.OverBudget)
	if diff := cmp.Diff([]policy.Moment{12, 10}, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
}
