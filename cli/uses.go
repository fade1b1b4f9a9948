package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/image-custodian/custodian/api/v1/control"
)

func (a *app) usesVerb() *cobra.Command {
	var wanted filters
	var namespaces []string
	cmd := &cobra.Command{
		Use:   "uses",
		Short: "Which container uses which image",
		Long: `Which container uses which image: every container of any state, and the
sandbox of every pod. A use ends when its container is removed.

Filters of different keys all have to match, of one key any. Keys:
containerd_namespace, namespace, pod, image, image_id, runtime, state, kind.`,
		Args: cobra.NoArgs,
		RunE: a.ask(func(ctx context.Context, cmd *cobra.Command, client control.ControlClient, _ []string) error {
			request := &control.ListUsesRequest{Filters: wanted}
			for _, n := range namespaces {
				request.Filters = append(request.Filters, "namespace="+n)
			}
			answer, err := client.ListUses(ctx, request)
			if err != nil {
				return err
			}
			return a.print(cmd.OutOrStdout(), answer, func(wide bool) string { return renderUses(answer, wide, a.now()) })
		}),
	}
	cmd.Flags().Var(&wanted, "filter", "only uses that match, may be repeated")
	cmd.Flags().StringArrayVarP(&namespaces, "namespace", "n", nil, "only this Kubernetes `namespace`, may be repeated")
	complete(cmd, "filter", "containerd_namespace=", "namespace=", "pod=", "image=", "image_id=", "runtime=", "state=", "kind=")
	return cmd
}

func renderUses(answer *control.ListUsesResponse, wide bool, now time.Time) string {
	var c columns
	head := []string{"POD", "NAMESPACE", "CONTAINER", "IMAGE", "ID", "RUNTIME", "STATE", "STARTED"}
	if wide {
		head = append(head, "PLATFORM", "POD UID", "CONTAINER ID", "SNAPSHOTTER", "CONTAINERD-NS")
	}
	c.add(head...)
	images := map[string]bool{}
	for _, u := range answer.GetUses() {
		if u.GetImageId() != "" {
			images[u.GetContainerdNamespace()+" "+u.GetImageId()] = true
		}
		image := u.GetImage()
		if !wide {
			image = shortName(image)
		}
		row := []string{
			orDash(u.GetPod()), orDash(u.GetNamespace()), containerOf(u), orDash(image),
			shortID(u.GetImageId()), runtimeOf(u), orDash(u.GetState()), age(u.GetStartedAt(), now, "-"),
		}
		if wide {
			row = append(row, orDash(u.GetPlatform()), orDash(u.GetPodUid()), orDash(u.GetContainerId()),
				orDash(u.GetSnapshotter()), orDash(u.GetContainerdNamespace()))
		}
		c.add(row...)
	}
	return c.String() + fmt.Sprintf("\n%s of %s\n", plural(len(answer.GetUses()), "use"), plural(len(images), "image"))
}

// containerOf names a container, and its kind if it is not the usual one.
func containerOf(u *control.Use) string {
	name := u.GetContainerName()
	if name == "" && u.GetKind() != "sandbox" {
		name = shortID(u.GetContainerId())
	}
	switch kind := u.GetKind(); {
	case kind == "" || kind == "root":
		return name
	case name == "":
		return "(" + kind + ")"
	default:
		return name + " (" + kind + ")"
	}
}

func runtimeOf(u *control.Use) string {
	if handler := u.GetRuntimeHandler(); handler != "" {
		return handler
	}
	return orDash(u.GetRuntimeType())
}
