package server

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/image-custodian/custodian/api/v1/control"
	"github.com/image-custodian/custodian/sidecar/internal/policy"
	"github.com/image-custodian/custodian/sidecar/internal/reconcile"
)

const day = policy.Moment(24 * time.Hour)

// someLook has an image in use, one that is 40 days unused, one that is 10 days
// unused and shares a layer with it, and an artifact.
func someLook() *reconcile.Look {
	now := 100 * day
	image := func(id, name string, parts ...int32) policy.Image {
		img := policy.Image{Key: policy.Key{ContainerdNamespace: "k8s.io", ID: "sha256:" + id}, Kind: policy.KindImage, FromRegistry: true, Parts: parts}
		img.Names = []policy.Name{{Name: name, Target: "sha256:t" + id}, {Name: "sha256:" + id, Target: "sha256:t" + id}}
		return img
	}
	unused := func(days policy.Moment) policy.Memory {
		return policy.Memory{FirstSeen: now - days*day, FirstSeenAt: time.Unix(1, 0), Pulled: now - days*day}
	}
	view := policy.View{
		Images:        []policy.Image{image("aaa1", "reg/used:1", 0), image("bbb1", "reg/old:1", 1, 2), image("bbb2", "reg/young:1", 2, 3), image("ccc1", "reg/chart:1", 4)},
		Parts:         []policy.Part{{Bytes: 1000}, {Bytes: 100}, {Bytes: 10}, {Bytes: 200}, {Bytes: 5}},
		Uses:          []policy.Use{{ContainerdNamespace: "k8s.io", ContainerID: "c", ImageID: "sha256:aaa1", Pod: policy.Pod{Name: "web", Namespace: "shop"}}},
		Pods:          []policy.PodSpec{{Pod: policy.Pod{Name: "web", Namespace: "shop"}, Images: []string{"docker.io/reg/used:1"}}},
		Memory:        map[policy.Key]policy.Memory{},
		PodsNamespace: "k8s.io", Started: now - day, Disk: policy.Disk{SizeBytes: 10000, UsedBytes: 8000},
	}
	view.Images[3].Kind = policy.KindArtifact
	view.Images[0].Labels = map[string]string{"team": "shop"}
	for i, days := range []policy.Moment{50, 40, 10, 90} {
		view.Memory[view.Images[i].Key] = unused(days)
		for _, p := range view.Images[i].Parts {
			view.Images[i].ContentBytes += view.Parts[p].Bytes
		}
	}
	policy.CountUnique(view.Images, view.Parts)
	rules := policy.Rules{UnusedFor: 31 * 24 * time.Hour, KeepUnpullable: true}
	return &reconcile.Look{
		Now: now, At: time.Unix(1e9, 0), View: view, Rules: rules, Uses: view.Uses, Mode: policy.ModeAuto,
		Decisions: policy.Plan(view, rules, now),
	}
}

func service(look *reconcile.Look) *ControlService {
	return NewControlService(fakeViewer{look}, About{
		Disk: func(context.Context) (Disk, error) { return Disk{Path: "/d", SizeBytes: 10000, UsedBytes: 8000}, nil },
		TryRules: func(name, text string) (policy.Rules, error) {
			if text != "keep" {
				return policy.Rules{}, errors.New(name + ":1: wrong")
			}
			return policy.Rules{}, nil
		},
	})
}

func TestMakePlan(t *testing.T) {
	cases := map[string]struct {
		req   *control.MakePlanRequest
		want  string // ids of entries that go
		bytes uint64
		asked string
	}{
		"by the rules":        {req: &control.MakePlanRequest{}, want: "bbb1", bytes: 100},
		"ahead":               {req: &control.MakePlanRequest{Ahead: durationpb.New(30 * 24 * time.Hour)}, want: "bbb1 bbb2", bytes: 310, asked: "in 30d"},
		"free less":           {req: &control.MakePlanRequest{FreeBytes: 90}, want: "bbb1", bytes: 100, asked: "free 90 B"},
		"free more":           {req: &control.MakePlanRequest{FreeBytes: 101}, want: "bbb1 bbb2", bytes: 310, asked: "free 101 B"},
		"free all":            {req: &control.MakePlanRequest{FreeBytes: 1 << 40}, want: "bbb1 bbb2", bytes: 310, asked: "free 1.0 TiB"},
		"until a share":       {req: &control.MakePlanRequest{UntilShare: 0.78}, want: "bbb1 bbb2", bytes: 310, asked: "until 78 % are used"},
		"until bytes":         {req: &control.MakePlanRequest{UntilBytes: 7900}, want: "bbb1", bytes: 100, asked: "until 7.7 KiB are used"},
		"already so low":      {req: &control.MakePlanRequest{UntilShare: 0.9}, want: "bbb1", bytes: 100, asked: "until 90 % are used"},
		"only some":           {req: &control.MakePlanRequest{FreeBytes: 50, Filters: []string{"image=reg/young"}}, want: "bbb2", bytes: 200, asked: "free 50 B, only image=reg/young"},
		"none that is meant":  {req: &control.MakePlanRequest{Filters: []string{"label=team"}}, asked: "only label=team"},
		"with rules to try":   {req: &control.MakePlanRequest{RulesName: "new.toml", Rules: "keep"}, asked: "with rules new.toml"},
		"rules and a request": {req: &control.MakePlanRequest{RulesName: "new.toml", Rules: "keep", FreeBytes: 1}, want: "bbb1", bytes: 100, asked: "free 1 B, with rules new.toml"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			response, err := service(someLook()).MakePlan(t.Context(), c.req)
			if err != nil {
				t.Fatal(err)
			}
			plan := response.GetPlan()
			var ids []string
			for _, e := range plan.GetEntries() {
				if e.GetDecision() == "remove" {
					ids = append(ids, strings.TrimPrefix(e.GetId(), "sha256:"))
				}
			}
			if got := strings.Join(ids, " "); got != c.want || int(plan.GetRemoveCount()) != len(ids) || plan.GetWillFreeBytes() != c.bytes {
				t.Errorf("%q go, count %d, %d bytes; want %q, %d", got, plan.GetRemoveCount(), plan.GetWillFreeBytes(), c.want, c.bytes)
			}
			if plan.GetAsked() != c.asked || plan.GetId() != "" || !plan.GetComplete() {
				t.Errorf("asked %q, id %q, complete %v", plan.GetAsked(), plan.GetId(), plan.GetComplete())
			}
		})
	}
}

func TestDays(t *testing.T) {
	for d, want := range map[time.Duration]string{
		time.Minute: "1m", 90 * time.Second: "1m30s", time.Hour: "1h", 36 * time.Hour: "36h", 48 * time.Hour: "2d", time.Hour + time.Second: "1h0m1s", 10 * time.Second: "10s",
	} {
		if got := days(d); got != want {
			t.Errorf("%v = %s, want %s", d, got, want)
		}
	}
}

func TestMakePlanRefuses(t *testing.T) {
	for name, req := range map[string]*control.MakePlanRequest{
		"too much":       {FreeBytes: 1 << 63},
		"two levels":     {UntilBytes: 1, UntilShare: 0.5},
		"no share":       {UntilShare: 1.5},
		"negative":       {UntilShare: -1},
		"the past":       {Ahead: durationpb.New(-time.Hour)},
		"a century":      {Ahead: durationpb.New(1e6 * time.Hour)},
		"wrong rules":    {RulesName: "a.toml", Rules: "x"},
		"too long rules": {RulesName: "a.toml", Rules: strings.Repeat("#", 2<<20)},
		"a filter":       {Filters: []string{"imag=x"}},
		"a pattern":      {Filters: []string{"image=***"}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := service(someLook()).MakePlan(t.Context(), req); status.Code(err) != codes.InvalidArgument {
				t.Errorf("err = %v", err)
			}
		})
	}
}

func TestAPlanWithoutSizes(t *testing.T) {
	look := someLook()
	look.View.Disk = policy.Disk{}
	if _, err := service(look).MakePlan(t.Context(), &control.MakePlanRequest{UntilShare: 0.5}); status.Code(err) != codes.Unavailable {
		t.Errorf("no disk: %v", err)
	}
	look.View.Parts = nil
	for i := range look.View.Images {
		look.View.Images[i].Parts = nil
	}
	if _, err := service(look).MakePlan(t.Context(), &control.MakePlanRequest{FreeBytes: 1}); status.Code(err) != codes.Unavailable {
		t.Errorf("no sizes: %v", err)
	}
	if _, err := service(look).MakePlan(t.Context(), &control.MakePlanRequest{}); err != nil {
		t.Errorf("by the rules: %v", err)
	}
}

// While the view is incomplete a plan removes nothing, and says what it holds.
func TestAPlanInDoubt(t *testing.T) {
	look := someLook()
	look.View.Incomplete = []string{"cri: down"}
	look.Sources = map[string]reconcile.SourceState{"cri": {Err: errors.New("down")}}
	response, err := service(look).SavePlan(t.Context(), &control.SavePlanRequest{Plan: &control.MakePlanRequest{FreeBytes: 1 << 40}})
	if err != nil {
		t.Fatal(err)
	}
	plan := response.GetPlan()
	if plan.GetComplete() || plan.GetRemoveCount() != 0 || plan.GetWillFreeBytes() != 0 || len(plan.GetEntries()) != 2 || plan.GetId() != "p1" {
		t.Errorf("plan = %v", plan)
	}
	for _, e := range plan.GetEntries() {
		if e.GetDecision() != "keep" || e.GetReason() != "view-incomplete" {
			t.Errorf("entry %v", e)
		}
	}
}

func TestListPlans(t *testing.T) {
	s := service(someLook())
	if got, err := s.ListPlans(t.Context(), &control.ListPlansRequest{}); err != nil || len(got.GetPlans()) != 1 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := s.ListPlans(t.Context(), &control.ListPlansRequest{Id: "p2"}); status.Code(err) != codes.NotFound {
		t.Errorf("%v", err)
	}
}

func TestWhy(t *testing.T) {
	s := service(someLook())
	why := func(image string) *control.WhyResponse {
		t.Helper()
		response, err := s.Why(t.Context(), &control.WhyRequest{Image: image})
		if err != nil {
			t.Fatal(err)
		}
		return response
	}
	used := why("reg/used:1")
	if used.GetImage().GetReason() != "in-use" || len(used.GetHeldBy()) != 0 || len(used.GetFollowing()) != 1 || used.GetNames()[0].GetReason() != "expired" {
		t.Errorf("%v", used)
	}
	old := why("bbb1")
	if old.GetImage().GetDecision() != "remove" || old.GetSharedBytes() != 10 || len(old.GetSharers()) != 1 || old.GetSharers()[0].GetName() != "reg/young:1" || old.GetSharers()[0].GetBytes() != 10 {
		t.Errorf("%v", old)
	}
	if n := old.GetNames(); len(n) != 1 || n[0].GetRule() != "default" || n[0].GetUnusedFor().AsDuration() != 31*24*time.Hour || n[0].GetExpiresAt() == nil {
		t.Errorf("%v", n)
	}
	if chart := why("sha256:ccc1"); chart.GetImage().GetReason() != "not-an-image" {
		t.Errorf("%v", chart)
	}
	if gone := why("a:1"); gone.GetImage() != nil || len(gone.GetEvents()) != 1 {
		t.Errorf("%v", gone)
	}
	look := someLook()
	twin := look.View.Images[1]
	twin.Key.ContainerdNamespace = "default"
	look.View.Images = append(look.View.Images, twin)
	look.Decisions = append(look.Decisions, policy.Decision{Key: twin.Key, Reason: policy.Kept})
	if response, err := service(look).Why(t.Context(), &control.WhyRequest{Image: "bbb1"}); err != nil || response.GetImage().GetContainerdNamespace() != "k8s.io" {
		t.Errorf("in two containerd namespaces: %v, %v", response.GetImage(), err)
	}
	for image, want := range map[string]codes.Code{"": codes.InvalidArgument, "bbb": codes.InvalidArgument, "reg/none:1": codes.NotFound, "b": codes.NotFound} {
		if _, err := s.Why(t.Context(), &control.WhyRequest{Image: image}); status.Code(err) != want {
			t.Errorf("%q: %v, want %v", image, err, want)
		}
	}
}

func TestFilters(t *testing.T) {
	for filter, want := range map[string]int{
		"image=reg/*": 4, "image=*/*": 0, "image=docker.io/reg/*": 4, "image=reg/old": 1, "image=reg/old:2": 0,
		"untagged=true": 0, "untagged=false": 4, "label=team": 1, "label=team=sh*": 1, "label=team=x": 0,
		"kind=artifact": 1, "rule=default": 2, "decision=remove": 1, "id=bbb": 2, "in_use=true": 1,
	} {
		got, err := service(someLook()).ListImages(t.Context(), &control.ListImagesRequest{Filters: []string{filter}})
		if err != nil || len(got.GetImages()) != want {
			t.Errorf("%s: %d images, %v; want %d", filter, len(got.GetImages()), err, want)
		}
	}
}
