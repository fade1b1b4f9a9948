package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/image-custodian/custodian/api/v1/control"
)

func versionCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Versions of custodianctl, the sidecar, the plugin and the runtime",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.ask(cmd.Context(), func(ctx context.Context, c control.ControlClient) error {
				v, err := c.Version(ctx, &control.VersionRequest{})
				if err != nil {
					return err
				}
				return o.output.show(cmd.OutOrStdout(), v, func(w io.Writer, _ bool) error {
					_, err := fmt.Fprintf(w, "custodianctl  %s (%s)\nsidecar       %s (%s, %s)\nplugin        %s\nruntime       %s %s, CRI %s\n",
						version, revision, v.GetVersion(), v.GetRevision(), v.GetGoVersion(), dash(v.GetPluginVersion()),
						v.GetRuntime(), v.GetRuntimeVersion(), dash(v.GetCriVersion()))
					return err
				})
			})
		},
	}
}
