package main

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/image-custodian/custodian/api/v1/control"
)

func (a *app) statusVerb() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "How this node is and what, if anything, needs a person",
		Long: `How this node is and what, if anything, needs a person. If something does, it
comes first, with the way out, and the exit code is 1.`,
		Args: cobra.NoArgs,
		RunE: a.ask(func(ctx context.Context, cmd *cobra.Command, client control.ControlClient, _ []string) error {
			answer, err := client.Status(ctx, &control.StatusRequest{})
			if err != nil {
				return err
			}
			err = a.print(cmd.OutOrStdout(), answer, func(wide bool) string { return renderStatus(answer, wide, a.now()) })
			if err == nil && needsPerson(answer) {
				err = errNeedsPerson
			}
			return err
		}),
	}
}

// needsPerson reports whether anything does not end well by itself. A source
// that fails is such a thing only if the sidecar says so: the plugin may take
// its time after a start.
func needsPerson(s *control.StatusResponse) bool {
	return slices.ContainsFunc(s.GetHolds(), (*control.Hold).GetNeedsPerson)
}
