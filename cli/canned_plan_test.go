package main

import (
	"time"

	"github.com/image-custodian/custodian/api/v1/control"
)

func somePlan() *control.Plan {
	return &control.Plan{
		Id: "k3vq7w2a", CreatedAt: ago(0), ForAt: ago(0), Complete: true,
		Entries: []*control.Image{
			{
				ContainerdNamespace: "k8s.io", Id: digest("77b1c0ffee123"), Kind: "image", Platform: "linux/amd64",
				Names: []string{"docker.io/library/postgres:16", "mirror.corp/postgres:16"}, PulledAt: ago(40 * day), LastUsed: ago(29 * day),
				ContentBytes: 132 << 20, SnapshotBytes: 300 << 20, UniqueBytes: 290 << 20, Decision: "remove", Reason: "requested", Rule: "default", ExpiresAt: ago(in(2 * day)),
			},
			{
				ContainerdNamespace: "k8s.io", Id: digest("0c1d2e3f4a5b6"), Kind: "image", Platform: "linux/amd64",
				Names: []string{"ci.corp:5000/build/ui@" + digest("77aa01")}, PulledAt: ago(9 * time.Hour), LastUsed: ago(7 * time.Hour),
				ContentBytes: 0.5 * gib, SnapshotBytes: 0.75 * gib, UniqueBytes: 836 << 20, Decision: "remove", Reason: "expired", Rule: "ci", ExpiresAt: ago(time.Hour),
			},
			{
				ContainerdNamespace: "k8s.io", Id: digest("0ff1ce"), Kind: "artifact", Names: []string{"registry.corp/charts/pay\x1b[2J:1"},
				ContentBytes: 12 << 10, UniqueBytes: 12 << 10, Decision: "keep", Reason: "max-per-hour", Rule: "charts", ExpiresAt: ago(time.Hour),
			},
		},
		RemoveCount: 2, WillFreeBytes: 1.125 * gib,
	}
}

func unkept(plan *control.Plan) *control.Plan {
	plan.Id = ""
	return plan
}

func aheadPlan() *control.Plan {
	plan := somePlan()
	plan.CreatedAt, plan.ForAt, plan.Asked = ago(3*time.Hour), ago(in(7*day-3*time.Hour)), "in 7d, with rules 50-ci.toml"
	plan.Entries[2].Decision, plan.Entries[2].Reason, plan.RemoveCount = "remove", "expired", 3
	return plan
}

func emptyPlan() *control.Plan {
	return &control.Plan{Id: "m2aa5xyz", CreatedAt: ago(20 * time.Hour), ForAt: ago(20 * time.Hour), Complete: true, Asked: "free 10 GiB"}
}

func emptyAhead() *control.Plan {
	plan := emptyPlan()
	plan.ForAt, plan.Asked = ago(in(4*time.Hour)), "in 1d"
	return plan
}

func incompletePlan() *control.Plan {
	plan := somePlan()
	plan.Complete, plan.RemoveCount, plan.WillFreeBytes, plan.Asked = false, 0, 0, "free 1.0 GiB"
	for _, img := range plan.Entries {
		img.Decision, img.Reason = "keep", "view-incomplete"
	}
	return plan
}

func plans(list ...*control.Plan) *control.ListPlansResponse {
	return &control.ListPlansResponse{Plans: list}
}
