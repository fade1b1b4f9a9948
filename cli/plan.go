package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/image-custodian/custodian/api/v1/control"
)

// maxRules bounds a rules file.
const maxRules = 1 << 20

// planFlags are what a plan can be asked for.
type planFlags struct {
	free   amount
	until  level
	ahead  duration
	rules  string
	wanted filters
	list   bool
}

func (a *app) planVerb() *cobra.Command {
	var f planFlags
	cmd := &cobra.Command{
		Use:   "plan [PLAN]",
		Short: "What would go, and what the node would gain; removes nothing",
		Long: `What would go, and what the node would gain. A plan removes nothing.

Without flags it is what the rules want now. With a PLAN it is shown as it was
made; plans are kept for 24 hours, the newest 16.

--free and --until add images beyond the rules, the longest unused first; what is
used, kept or pinned stays. --rules tries a rules file as if it were installed.`,
		Example: `  custodianctl plan --in 24h
  custodianctl plan --free 20GiB --filter image=ci.corp/**
  custodianctl plan --rules 10-ci.toml`,
		Args: cobra.MaximumNArgs(1),
		RunE: a.ask(func(ctx context.Context, cmd *cobra.Command, client control.ControlClient, args []string) error {
			switch {
			case len(args) == 1:
				return a.showPlan(ctx, cmd, client, args[0], f)
			case f.list:
				return a.listPlans(ctx, cmd, client, f)
			default:
				return a.makePlan(ctx, cmd, client, f)
			}
		}),
	}
	flags := cmd.Flags()
	flags.Var(&f.free, "free", "until so much is free, as 20GiB")
	flags.Var(&f.until, "until", "until no more of the file system is used, as 70% or 150GiB")
	flags.Var(&f.ahead, "in", "what will have gone by then, if nothing is used until then")
	flags.StringVar(&f.rules, "rules", "", "try this rules `file`")
	flags.Var(&f.wanted, "filter", "only images that match, may be repeated; keys as for images")
	flags.BoolVar(&f.list, "list", false, "the plans that are kept")
	complete(cmd, "filter", imageFilters...)
	return cmd
}

// asks reports whether a plan is asked for that is not made yet.
func (f planFlags) asks() bool {
	return f.free > 0 || f.until != (level{}) || f.ahead > 0 || f.rules != "" || len(f.wanted) > 0
}

var errPlanFlags = errors.New("a plan that is kept is shown as it was made: no other flags go with it")

func (a *app) showPlan(ctx context.Context, cmd *cobra.Command, client control.ControlClient, id string, f planFlags) error {
	if f.asks() || f.list {
		return &failure{code: exitUsage, err: errPlanFlags}
	}
	answer, err := client.ListPlans(ctx, &control.ListPlansRequest{Id: id})
	if err != nil {
		return err
	}
	if len(answer.GetPlans()) != 1 {
		return failed(fmt.Errorf("plan %s: %d answers", id, len(answer.GetPlans())))
	}
	plan := answer.GetPlans()[0]
	return a.print(cmd.OutOrStdout(), plan, func(bool) string { return renderPlan(plan, 0, a.now()) })
}

func (a *app) listPlans(ctx context.Context, cmd *cobra.Command, client control.ControlClient, f planFlags) error {
	if f.asks() {
		return &failure{code: exitUsage, err: errPlanFlags}
	}
	answer, err := client.ListPlans(ctx, &control.ListPlansRequest{})
	if err != nil {
		return err
	}
	return a.print(cmd.OutOrStdout(), answer, func(bool) string { return renderPlans(answer, a.now()) })
}

// makePlan keeps the plan if it may: who may only look, sees it all the same.
func (a *app) makePlan(ctx context.Context, cmd *cobra.Command, client control.ControlClient, f planFlags) error {
	request := &control.MakePlanRequest{
		FreeBytes: uint64(f.free), UntilBytes: f.until.bytes, UntilShare: f.until.share, Filters: f.wanted,
	}
	if f.ahead > 0 {
		request.Ahead = durationpb.New(time.Duration(f.ahead))
	}
	if f.rules != "" {
		text, err := readRules(f.rules)
		if err != nil {
			return failed(err)
		}
		request.RulesName, request.Rules = filepath.Base(f.rules), text
	}
	var plan *control.Plan
	saved, err := client.SavePlan(ctx, &control.SavePlanRequest{Plan: request})
	plan = saved.GetPlan()
	if status.Code(err) == codes.PermissionDenied {
		var made *control.MakePlanResponse
		made, err = client.MakePlan(ctx, request)
		plan = made.GetPlan()
	}
	if err != nil {
		return err
	}
	return a.print(cmd.OutOrStdout(), plan, func(bool) string { return renderPlan(plan, uint64(f.free), a.now()) })
}

func readRules(path string) (text string, err error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("rules: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	data, err := io.ReadAll(io.LimitReader(file, maxRules+1))
	if err != nil {
		return "", fmt.Errorf("rules: %w", err)
	}
	if len(data) > maxRules {
		return "", fmt.Errorf("rules %s: more than 1 MiB", path)
	}
	return string(data), nil
}

func renderPlan(plan *control.Plan, wanted uint64, now time.Time) string {
	p := &page{}
	if !plan.GetComplete() {
		p.say("! The view of the node is incomplete, nothing would go: custodianctl status")
	}
	if asked := plan.GetAsked(); asked != "" {
		p.say("Asked: %s", asked)
	}
	if plan.GetForAt().AsTime().After(plan.GetCreatedAt().AsTime()) {
		p.say("As it will be at %s, if nothing is used until then.", clock(plan.GetForAt().AsTime(), now))
	}
	if len(plan.GetEntries()) == 0 {
		p.say("Nothing would go.")
	} else {
		var c columns
		c.add("IMAGE", "ID", "UNIQUE", "LAST USED", "DECISION")
		for _, img := range plan.GetEntries() {
			name, _ := namesOf(img)
			c.add(orDash(shortName(name)), shortID(img.GetId()), size(img.GetUniqueBytes()), age(img.GetLastUsed(), now, "never"), planned(img))
		}
		p.WriteString(c.String() + "\n")
		p.say("%s would go, %s freed.", plural(plan.GetRemoveCount(), "image"), size(plan.GetWillFreeBytes()))
	}
	if wanted > plan.GetWillFreeBytes() {
		p.say("%s short: the rest is in use or kept (custodianctl images --filter decision=keep)", size(wanted-plan.GetWillFreeBytes()))
	}
	p.say("%s", kept(plan, now))
	return p.String()
}

func planned(img *control.Image) string {
	why := orDash(img.GetReason())
	if rule := img.GetRule(); rule != "" && rule != "default" && img.GetReason() != "requested" {
		why += " (" + rule + ")"
	}
	return fmt.Sprintf("%-6s  %s", orDash(img.GetDecision()), why)
}

// kept says whether a plan can be shown again.
func kept(plan *control.Plan, now time.Time) string {
	made, ok := at(plan.GetCreatedAt())
	if plan.GetId() == "" || !ok {
		return "The plan is not kept. A plan removes nothing."
	}
	return fmt.Sprintf("Kept as plan %s until %s. A plan removes nothing.", plan.GetId(), clock(made.Add(24*time.Hour), now))
}

func renderPlans(answer *control.ListPlansResponse, now time.Time) string {
	if len(answer.GetPlans()) == 0 {
		return "No plan is kept.\n"
	}
	var c columns
	c.add("PLAN", "MADE", "IMAGES", "FREES", "ASKED")
	for _, plan := range answer.GetPlans() {
		c.add(orDash(plan.GetId()), age(plan.GetCreatedAt(), now, "-"), fmt.Sprint(plan.GetRemoveCount()), size(plan.GetWillFreeBytes()), orDash(strings.TrimSpace(plan.GetAsked())))
	}
	return c.String()
}
