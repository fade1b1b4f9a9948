package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/image-custodian/custodian/api/v1/control"
)

func (a *app) whyVerb() *cobra.Command {
	return &cobra.Command{
		Use:     "why IMAGE",
		Aliases: []string{"explain"},
		Short:   "Why an image stays or goes, and when; also why one is gone",
		Long: `Why an image stays or goes, and when: who uses it, what the rules say about each
of its names, and with whom it shares its bytes. Of an image that is gone it
tells why that was, as long as the events are kept.

IMAGE is a name as in a pod, or an image ID as in crictl images, also shortened
to three characters or more.`,
		Example: `  custodianctl why nginx:1.29
  custodianctl why 4f2e81c09ab3d`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.ask(func(ctx context.Context, cmd *cobra.Command, client control.ControlClient, args []string) error {
			answer, err := client.Why(ctx, &control.WhyRequest{Image: args[0]})
			if err != nil {
				return err
			}
			return a.print(cmd.OutOrStdout(), answer, func(wide bool) string { return renderWhy(answer, args[0], wide, a.now()) })
		}),
	}
}
