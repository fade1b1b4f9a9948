package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/image-custodian/custodian/api/v1/control"
)

func (a *app) versionVerb() *cobra.Command {
	fromSidecar := a.ask(func(ctx context.Context, cmd *cobra.Command, client control.ControlClient, _ []string) error {
		answer, err := client.Version(ctx, &control.VersionRequest{})
		if err != nil {
			return err
		}
		return a.print(cmd.OutOrStdout(), answer, func(bool) string { return renderVersion(answer) })
	})
	return &cobra.Command{
		Use:   "version",
		Short: "Versions of this program, the sidecar, the plugin and the runtime",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			// Its own version this program knows without the sidecar.
			if a.output == tableFormat || a.output == wideFormat {
				if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%-9s %s\n", "cli", a.build); err != nil {
					return failed(err)
				}
			}
			return fromSidecar(cmd, args)
		},
	}
}

func renderVersion(v *control.VersionResponse) string {
	details := []string{}
	for _, d := range []string{v.GetRevision(), v.GetGoVersion()} {
		if d != "" {
			details = append(details, d)
		}
	}
	sidecar := orDash(v.GetVersion())
	if len(details) > 0 {
		sidecar += " (" + strings.Join(details, ", ") + ")"
	}
	plugin := v.GetPluginVersion()
	if plugin == "" {
		plugin = "none has reported"
	}
	engine := strings.TrimSpace(v.GetRuntime() + " " + v.GetRuntimeVersion())
	if cri := v.GetCriVersion(); cri != "" {
		engine += ", CRI " + cri
	}
	var b strings.Builder
	for _, line := range [][2]string{{"sidecar", sidecar}, {"plugin", plugin}, {"runtime", orDash(engine)}} {
		fmt.Fprintf(&b, "%-9s %s\n", line[0], clean(line[1]))
	}
	return b.String()
}
