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
		Short:   "Why an image stays or goes, also one that is gone",
		Long: `Why an image stays or goes: what uses it, what each of its names means to the
rules, when it would go, and what else holds its bytes. Of an image that is gone
it tells what the events know.

An IMAGE is a name as people write it (nginx:1.27), or an image ID, also
shortened.`,
		Example: `  custodianctl why nginx:1.27
  custodianctl why 77b1c0ffee123 -o json`,
		Args: cobra.ExactArgs(1),
		RunE: a.ask(func(ctx context.Context, cmd *cobra.Command, client control.ControlClient, args []string) error {
			answer, err := client.Why(ctx, &control.WhyRequest{Image: args[0]})
			if err != nil {
				return err
			}
			return a.print(cmd.OutOrStdout(), answer, func(bool) string { return renderWhy(answer, a.now()) })
		}),
	}
}
