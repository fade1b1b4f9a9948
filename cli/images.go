package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/image-custodian/custodian/api/v1/control"
)

func imagesCommand(o *options) *cobra.Command {
	var filters []string
	var order string
	cmd := &cobra.Command{
		Use:   "images",
		Short: "Each image with its uses, and what is decided about it",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFilters(filters); err != nil {
				return err
			}
			compare, ok := imageOrders[order]
			if !ok {
				return usageError{fmt.Errorf("--sort %q: want name, size or last-used", order)}
			}
			return o.ask(cmd.Context(), func(ctx context.Context, c control.ControlClient) error {
				answer, err := c.ListImages(ctx, &control.ListImagesRequest{Filters: filters})
				if err != nil {
					return err
				}
				slices.SortStableFunc(answer.Images, compare)
				return o.output.show(cmd.OutOrStdout(), answer, func(w io.Writer, wide bool) error {
					return printImages(w, answer, wide, o.now())
				})
			})
		},
	}
	cmd.Flags().StringArrayVar(&filters, "filter", nil, "key=value, may be repeated; keys: containerd_namespace, image, id, platform, runtime, decision, reason, in_use, pinned")
	cmd.Flags().StringVar(&order, "sort", "name", "name, size or last-used")
	return cmd
}

// checkFilters finds what can be told without the sidecar.
func checkFilters(filters []string) error {
	for _, f := range filters {
		if key, _, found := strings.Cut(f, "="); !found || key == "" {
			return usageError{fmt.Errorf("--filter %q: want key=value", f)}
		}
	}
	return nil
}

var imageOrders = map[string]func(a, b *control.Image) int{
	"name": func(a, b *control.Image) int { return cmp.Compare(nameOf(a), nameOf(b)) },
	"size": func(a, b *control.Image) int { return cmp.Compare(b.GetContentBytes(), a.GetContentBytes()) },
	"last-used": func(a, b *control.Image) int {
		return b.GetLastUsed().AsTime().Compare(a.GetLastUsed().AsTime())
	},
}

func nameOf(i *control.Image) string {
	if len(i.GetNames()) == 0 {
		return i.GetId()
	}
	return i.GetNames()[0]
}

func printImages(w io.Writer, answer *control.ListImagesResponse, wide bool, now time.Time) error {
	header := []string{"IMAGE", "ID", "SIZE", "LAST USED", "USED BY", "DECISION"}
	if wide {
		header = append(header, "PLATFORM", "RUNTIME", "RULE", "PULLED", "CONTAINERD-NS", "NAMES")
	}
	var rows [][]string
	var unused int
	var all, waste uint64
	for _, i := range answer.GetImages() {
		all += i.GetContentBytes()
		if !i.GetInUse() && i.GetExpiresAt() != nil {
			unused++
			waste += i.GetContentBytes()
		}
		row := []string{
			shortName(nameOf(i)) + more(len(i.GetNames())), shortID(i.GetId()), size(i.GetContentBytes()),
			lastUsed(i, now), usedBy(i), decision(i, now),
		}
		if wide {
			row = append(row, i.GetPlatform(), dash(strings.Join(i.GetRuntimes(), ",")), dash(i.GetRule()),
				ago(i.GetPulledAt().AsTime(), i.GetPulledAt() != nil, now), i.GetContainerdNamespace(), strings.Join(i.GetNames(), ","))
		}
		rows = append(rows, row)
	}
	if err := table(w, header, rows); err != nil {
		return err
	}
	incomplete := ""
	if !answer.GetComplete() {
		incomplete = "; the view is incomplete: custodianctl status"
	}
	_, err := fmt.Fprintf(w, "%d images, %s; %d unused, %s%s. +1 one more name (-o wide) · ID as in crictl images\n",
		len(rows), size(all), unused, size(waste), incomplete)
	return err
}

func more(names int) string {
	if names < 2 {
		return ""
	}
	return fmt.Sprintf("  +%d", names-1)
}

func dash(s string) string { return cmp.Or(s, "-") }

func ago(t time.Time, known bool, now time.Time) string {
	if !known {
		return "-"
	}
	return span(now.Sub(t))
}

func lastUsed(i *control.Image, now time.Time) string {
	switch {
	case i.GetInUse():
		return "now"
	case i.GetLastUsed() == nil:
		return "never"
	}
	return span(now.Sub(i.GetLastUsed().AsTime()))
}

// usedBy names the pods, few of them by name.
func usedBy(i *control.Image) string {
	count := map[string]int{}
	var users []string
	sandboxes := 0
	for _, u := range i.GetUses() {
		if u.GetKind() == "sandbox" {
			sandboxes++
			continue
		}
		user := u.GetNamespace() + "/" + u.GetPod()
		if u.GetPod() == "" {
			user = fmt.Sprintf("%.13s", u.GetContainerId())
		}
		if count[user]++; count[user] == 1 {
			users = append(users, user)
		}
	}
	if sandboxes > 0 {
		users = append(users, fmt.Sprintf("pods (%d)", sandboxes))
	}
	const shown = 2
	slices.Sort(users)
	rest := max(0, len(users)-shown)
	text := strings.Join(users[:len(users)-rest], ", ")
	if rest > 0 {
		text += fmt.Sprintf(" +%d", rest)
	}
	return dash(text)
}

func decision(i *control.Image, now time.Time) string {
	text := fmt.Sprintf("%-6s  %s", i.GetDecision(), i.GetReason())
	at := i.GetExpiresAt()
	switch {
	case at == nil || i.GetInUse():
		return text
	case i.GetDecision() == "remove":
		return text + ", next pass"
	case at.AsTime().After(now):
		return text + ", " + span(at.AsTime().Sub(now)) + " left"
	}
	return text
}
