package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/image-custodian/custodian/api/v1/control"
)

// planFlags are what a plan is asked for.
type planFlags struct {
	free   byteSize
	until  level
	ahead  duration
	rules  string // a file
	wanted filters
	list   bool
}

func (a *app) planVerb() *cobra.Command {
	var f planFlags
	cmd := &cobra.Command{
		Use:   "plan [PLAN]",
		Short: "Which images would go; nothing is removed",
		Long: `Which images would go, by the rules as they are or by what the flags ask for, and
what the node would gain. Nothing is removed.

A plan is kept for 24 hours, the newest 16 are: plan PLAN shows one again as it
was, --list tells which there are. Who may only read (read.sock) gets the plan
all the same, and it is not kept.

--rules tries a rules file as if it were installed beside the others under its
name; one of the same name is replaced.

` + imageFilterHelp,
		Example: `  custodianctl plan --in 24h
  custodianctl plan --free 10GiB --filter containerd_namespace=k8s.io
  custodianctl plan --until 70%
  custodianctl plan --rules ./50-ci.toml`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(args); err != nil {
				return err
			}
			request, err := f.request()
			if err != nil {
				return err
			}
			return a.ask(func(ctx context.Context, cmd *cobra.Command, client control.ControlClient, args []string) error {
				switch {
				case f.list:
					return a.listPlans(ctx, cmd, client)
				case len(args) == 1:
					return a.showPlan(ctx, cmd, client, args[0])
				default:
					return a.makePlan(ctx, cmd, client, request)
				}
			})(cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.Var(&f.free, "free", "free so much, the longest unused first: 10GiB, or bytes")
	flags.Var(&f.until, "until", "free until the disk is used no more than this: 70% or 150GiB")
	flags.Var(&f.ahead, "in", "what goes within this time if nothing is used until then: 24h, 7d")
	flags.StringVar(&f.rules, "rules", "", "try a rules `file`")
	flags.Var(&f.wanted, "filter", "only images that match, may be repeated")
	flags.BoolVar(&f.list, "list", false, "tell the plans that are kept")
	complete(cmd, "filter", imageFilters...)
	if err := cmd.MarkFlagFilename("rules", "toml"); err != nil {
		panic(err) // there is no such flag: a mistake in this program
	}
	return cmd
}

// check tells which flags do not go together.
func (f *planFlags) check(args []string) error {
	asks := f.free != 0 || f.until != level{} || f.ahead != 0 || f.rules != "" || len(f.wanted) > 0
	switch {
	case f.list && (asks || len(args) > 0):
		return errors.New("--list tells the plans that are kept: it goes with nothing else")
	case len(args) > 0 && asks:
		return errors.New("a plan that is kept stays as it is: PLAN goes with none of the flags")
	case len(args) > 0 && args[0] == "":
		return errors.New("PLAN is empty: custodianctl plan --list tells which there are")
	}
	return nil
}

func (f *planFlags) request() (*control.MakePlanRequest, error) {
	r := &control.MakePlanRequest{
		FreeBytes: uint64(f.free), UntilBytes: uint64(f.until.bytes), UntilShare: f.until.share, Filters: f.wanted,
	}
	if f.ahead > 0 {
		r.Ahead = durationpb.New(time.Duration(f.ahead))
	}
	if f.rules != "" {
		text, err := readRules(f.rules)
		if err != nil {
			return nil, failed(fmt.Errorf("rules: %w", err))
		}
		r.RulesName, r.Rules = filepath.Base(f.rules), text
	}
	return r, nil
}

// maxRules is what the sidecar takes of a rules file.
const maxRules = 1 << 20

func readRules(path string) (text string, err error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	data, err := io.ReadAll(io.LimitReader(file, maxRules+1))
	switch {
	case err != nil:
		return "", err
	case len(data) > maxRules:
		return "", fmt.Errorf("%s: more than 1 MiB", path)
	case !utf8.Valid(data):
		return "", fmt.Errorf("%s: not text in UTF-8", path)
	}
	return string(data), nil
}

// makePlan asks for a plan that is kept or, where this is not allowed, for one
// that is not.
func (a *app) makePlan(ctx context.Context, cmd *cobra.Command, client control.ControlClient, request *control.MakePlanRequest) error {
	saved, err := client.SavePlan(ctx, &control.SavePlanRequest{Plan: request})
	if err == nil {
		return a.print(cmd.OutOrStdout(), saved.GetPlan(), func(wide bool) string { return renderPlan(saved.GetPlan(), request, wide, a.now()) })
	}
	if status.Code(err) != codes.PermissionDenied {
		return err
	}
	made, err := client.MakePlan(ctx, request)
	if err != nil {
		return err
	}
	return a.print(cmd.OutOrStdout(), made.GetPlan(), func(wide bool) string { return renderPlan(made.GetPlan(), request, wide, a.now()) })
}

// showPlan shows a plan that is kept.
func (a *app) showPlan(ctx context.Context, cmd *cobra.Command, client control.ControlClient, id string) error {
	answer, err := client.ListPlans(ctx, &control.ListPlansRequest{Id: id})
	if err != nil {
		return err
	}
	if len(answer.GetPlans()) == 0 {
		return &failure{code: exitNotFound, err: fmt.Errorf("plan %s: no such plan is kept", id)}
	}
	plan := answer.GetPlans()[0]
	return a.print(cmd.OutOrStdout(), plan, func(wide bool) string { return renderPlan(plan, nil, wide, a.now()) })
}

func (a *app) listPlans(ctx context.Context, cmd *cobra.Command, client control.ControlClient) error {
	answer, err := client.ListPlans(ctx, &control.ListPlansRequest{})
	if err != nil {
		return err
	}
	return a.print(cmd.OutOrStdout(), answer, func(bool) string { return renderPlans(answer, a.now()) })
}
