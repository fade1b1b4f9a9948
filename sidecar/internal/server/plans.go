package server

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/image-custodian/custodian/api/v1/control"
	"github.com/image-custodian/custodian/sidecar/internal/policy"
	"github.com/image-custodian/custodian/sidecar/internal/reconcile"
	"github.com/image-custodian/custodian/sidecar/internal/state"
)

// maxRulesText and maxAhead bound what a plan may be asked for.
const (
	maxRulesText = 64 << 10
	maxAhead     = 10 * 365 * 24 * time.Hour
)

// MakePlan implements control.ControlServer.
func (s *ControlService) MakePlan(ctx context.Context, req *control.MakePlanRequest) (*control.MakePlanResponse, error) {
	plan, err := s.plan(ctx, req)
	if err != nil {
		return nil, err
	}
	return &control.MakePlanResponse{Plan: planTo(plan)}, nil
}

// SavePlan implements control.ControlServer.
func (s *ControlService) SavePlan(ctx context.Context, req *control.SavePlanRequest) (*control.SavePlanResponse, error) {
	plan, err := s.plan(ctx, req.GetPlan())
	if err != nil {
		return nil, err
	}
	if plan, err = s.viewer.SavePlan(plan); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &control.SavePlanResponse{Plan: planTo(plan)}, nil
}

// ListPlans implements control.ControlServer.
func (s *ControlService) ListPlans(_ context.Context, req *control.ListPlansRequest) (*control.ListPlansResponse, error) {
	if req.GetId() != "" {
		plan, err := s.viewer.Plan(req.GetId())
		switch {
		case errors.Is(err, state.ErrNoPlan):
			return nil, status.Error(codes.NotFound, err.Error())
		case err != nil:
			return nil, status.Error(codes.Internal, err.Error())
		}
		return &control.ListPlansResponse{Plans: []*control.Plan{planTo(plan)}}, nil
	}
	plans, err := s.viewer.Plans()
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	response := &control.ListPlansResponse{}
	for _, p := range plans {
		response.Plans = append(response.Plans, planTo(p))
	}
	return response, nil
}

func (s *ControlService) plan(ctx context.Context, req *control.MakePlanRequest) (state.Plan, error) {
	ask, err := askOf(req)
	if err != nil {
		return state.Plan{}, status.Error(codes.InvalidArgument, err.Error())
	}
	if req.GetRules() != "" || req.GetRulesName() != "" {
		rules, err := s.about.TryRules(req.GetRulesName(), req.GetRules())
		if err != nil {
			return state.Plan{}, status.Error(codes.InvalidArgument, err.Error())
		}
		ask.Rules = &rules
	}
	look, err := s.look(ctx)
	if err != nil {
		return state.Plan{}, err
	}
	switch {
	case ask.FreeBytes == 0 && ask.Until == (policy.Level{}):
	case len(look.View.Images) > 0 && len(look.View.Parts) == 0:
		return state.Plan{}, status.Error(codes.Unavailable, "what the images take could not be measured")
	case ask.Until != (policy.Level{}) && look.View.Disk.SizeBytes == 0:
		return state.Plan{}, status.Error(codes.Unavailable, "the use of the file system is not known")
	}
	if len(req.GetFilters()) > 0 {
		keep, err := filter(req.GetFilters(), imageFilters)
		if err != nil {
			return state.Plan{}, err
		}
		meant := map[policy.Key]bool{}
		for _, img := range imagesOf(look) {
			meant[policy.Key{ContainerdNamespace: img.GetContainerdNamespace(), ID: img.GetId()}] = keep(img)
		}
		ask.Among = func(img policy.Image) bool { return meant[img.Key] }
	}
	return reconcile.MakePlan(look, ask), nil
}

// askOf checks what a plan is asked for and tells it in words.
func askOf(req *control.MakePlanRequest) (reconcile.Ask, error) {
	var words []string
	ask := reconcile.Ask{Ahead: req.GetAhead().AsDuration()}
	if free := req.GetFreeBytes(); free > 0 {
		if free > 1<<60 {
			return ask, fmt.Errorf("free: %d bytes are more than any disk has", free)
		}
		ask.FreeBytes = int64(free)
		words = append(words, "free "+humanize.IBytes(free))
	}
	switch share, bytes := req.GetUntilShare(), req.GetUntilBytes(); {
	case share != 0 && bytes != 0:
		return ask, errors.New("until: either bytes or a share of the file system, not both")
	case share < 0 || share >= 1 || math.IsNaN(share):
		return ask, fmt.Errorf("until: %v is no share of a file system between 0 and 1", share)
	case bytes > 1<<60:
		return ask, fmt.Errorf("until: %d bytes are more than any disk has", bytes)
	case share > 0:
		ask.Until = policy.Level{Share: share}
		words = append(words, fmt.Sprintf("until %.4g %% are used", 100*share))
	case bytes > 0:
		ask.Until = policy.Level{Bytes: int64(bytes)}
		words = append(words, "until "+humanize.IBytes(bytes)+" are used")
	}
	if ask.Ahead < 0 || ask.Ahead > maxAhead {
		return ask, fmt.Errorf("ahead: %v: want a time from now on and within ten years", ask.Ahead)
	}
	if ask.Ahead > 0 {
		words = append(words, "in "+days(ask.Ahead))
	}
	if len(req.GetRules()) > maxRulesText {
		return ask, fmt.Errorf("rules %s: more than %d bytes", req.GetRulesName(), maxRulesText)
	}
	if req.GetRulesName() != "" {
		words = append(words, "with rules "+req.GetRulesName())
	}
	for _, f := range req.GetFilters() {
		words = append(words, "only "+f)
	}
	ask.Text = strings.Join(words, ", ")
	return ask, nil
}

// days tells a time as people write it: 36h, 7d.
func days(d time.Duration) string {
	if d%(24*time.Hour) == 0 {
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
	text := d.String()
	for _, nothing := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, nothing) {
			text = text[:len(text)-2]
		}
	}
	return text
}

func planTo(p state.Plan) *control.Plan {
	out := &control.Plan{
		Id: p.ID, CreatedAt: stamp(p.CreatedAt), ForAt: stamp(p.ForAt), Complete: p.Complete,
		RemoveCount: uint32(p.RemoveCount), WillFreeBytes: size(p.WillFree), Asked: p.Asked,
	}
	for _, e := range p.Entries {
		img := &control.Image{
			ContainerdNamespace: e.Image.ContainerdNamespace, Id: e.Image.ID, Kind: string(e.Kind), Platform: e.Platform,
			PulledAt: stamp(e.PulledAt), LastUsed: stamp(e.LastUsedAt), ExpiresAt: stamp(e.ExpiresAt),
			ContentBytes: size(e.ContentBytes), SnapshotBytes: size(e.SnapshotBytes), UniqueBytes: size(e.UniqueBytes),
			Decision: "keep", Reason: string(e.Reason), Rule: e.Rule,
		}
		if e.Remove {
			img.Decision = "remove"
		}
		img.Names, img.Targets = namesTo(e.Names)
		out.Entries = append(out.Entries, img)
	}
	return out
}
