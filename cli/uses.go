package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/image-custodian/custodian/api/v1/control"
)

func usesCommand(o *options) *cobra.Command {
	var filters []string
	var namespace string
	cmd := &cobra.Command{
		Use:   "uses",
		Short: "Which container uses which image",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFilters(filters); err != nil {
				return err
			}
			asked := filters
			if namespace != "" {
				asked = append(asked, "namespace="+namespace)
			}
			return o.ask(cmd.Context(), func(ctx context.Context, c control.ControlClient) error {
				answer, err := c.ListUses(ctx, &control.ListUsesRequest{Filters: asked})
				if err != nil {
					return err
				}
				return o.output.show(cmd.OutOrStdout(), answer, func(w io.Writer, wide bool) error {
					return printUses(w, answer, wide, o.now())
				})
			})
		},
	}
	cmd.Flags().StringArrayVar(&filters, "filter", nil, "key=value, may be repeated; keys: containerd_namespace, namespace, pod, image, image_id, runtime, state, kind")
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "only of this Kubernetes namespace")
	return cmd
}

func printUses(w io.Writer, answer *control.ListUsesResponse, wide bool, now time.Time) error {
	header := []string{"NAMESPACE", "POD", "CONTAINER", "IMAGE", "ID", "RUNTIME", "STATE", "STARTED"}
	if wide {
		header = append(header, "KIND", "PLATFORM", "HANDLER", "SNAPSHOTTER", "POD-UID", "CONTAINER-ID", "CONTAINERD-NS")
	}
	var rows [][]string
	for _, u := range answer.GetUses() {
		container := u.GetContainerName()
		if u.GetKind() == "sandbox" {
			container = "(sandbox)"
		}
		row := []string{
			dash(u.GetNamespace()), dash(u.GetPod()), dash(container), dash(shortName(u.GetImage())), dash(shortID(u.GetImageId())),
			dash(u.GetRuntimeType()), u.GetState(), ago(u.GetStartedAt().AsTime(), u.GetStartedAt() != nil, now),
		}
		if wide {
			row = append(row, u.GetKind(), dash(u.GetPlatform()), dash(u.GetRuntimeHandler()), dash(u.GetSnapshotter()),
				dash(u.GetPodUid()), u.GetContainerId(), u.GetContainerdNamespace())
		}
		rows = append(rows, row)
	}
	if err := table(w, header, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%d uses\n", len(rows))
	return err
}
