package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/image-custodian/custodian/api/v1/control"
)

func statusCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "How the node is; exits with 1 when something needs a person",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.ask(cmd.Context(), func(ctx context.Context, c control.ControlClient) error {
				s, err := c.Status(ctx, &control.StatusRequest{})
				if err != nil {
					return err
				}
				err = o.output.show(cmd.OutOrStdout(), s, func(w io.Writer, _ bool) error {
					_, err := io.WriteString(w, statusScreen(s, o.now()))
					return err
				})
				if err == nil && needsPerson(s) {
					return errNeedsPerson
				}
				return err
			})
		},
	}
}

func needsPerson(s *control.StatusResponse) bool {
	for _, h := range s.GetHolds() {
		if h.GetNeedsPerson() {
			return true
		}
	}
	return false
}

// statusScreen puts the trouble and the way out first.
func statusScreen(s *control.StatusResponse, now time.Time) string {
	var b strings.Builder
	state := "OK"
	if needsPerson(s) {
		state = "HELD"
	}
	fmt.Fprintf(&b, "%s  %s   image-custodian %s · %s %s · up %s\n\n", state, harmless(s.GetNode()), s.GetVersion(),
		s.GetRuntime(), s.GetRuntimeVersion(), span(now.Sub(s.GetStartedAt().AsTime())))
	troubles(&b, s, now)

	percent := 0.0
	if s.GetDiskSizeBytes() > 0 {
		percent = 100 * float64(s.GetDiskUsedBytes()) / float64(s.GetDiskSizeBytes())
	}
	fmt.Fprintf(&b, "DISK    %s   %s of %s used (%.0f %%)\n", harmless(s.GetDiskPath()), size(s.GetDiskUsedBytes()), size(s.GetDiskSizeBytes()), percent)
	fmt.Fprintf(&b, "        images %s   in use %s   kept %s   unused %s\n\n", size(s.GetInUse().GetBytes()+s.GetKept().GetBytes()+s.GetUnused().GetBytes()),
		size(s.GetInUse().GetBytes()), size(s.GetKept().GetBytes()), size(s.GetUnused().GetBytes()))

	fmt.Fprintf(&b, "CLEAN   %s   next: %s\n", s.GetCleanMode(), next(s, now))
	fmt.Fprintf(&b, "        %d images in %s   %d in use   %d kept   %d unused\n", s.GetInUse().GetImages()+s.GetKept().GetImages()+s.GetUnused().GetImages(),
		strings.Join(s.GetContainerdNamespaces(), ", "), s.GetInUse().GetImages(), s.GetKept().GetImages(), s.GetUnused().GetImages())

	view := "incomplete"
	if s.GetViewAt() != nil {
		view = "complete " + span(now.Sub(s.GetViewAt().AsTime())) + " ago"
	}
	fmt.Fprintf(&b, "VIEW    %s  ", view)
	for _, source := range s.GetSources() {
		ok := "ok"
		if !source.GetOk() {
			ok = "FAILS"
		}
		fmt.Fprintf(&b, "   %s %s", source.GetName(), ok)
	}
	b.WriteString("\n")
	for i, e := range s.GetEvents() {
		title := "LAST"
		if i > 0 {
			title = ""
		} else {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "%-7s %-4s %-8s %s\n", title, span(now.Sub(e.GetAt().AsTime())), e.GetKind(), harmless(eventText(e)))
	}
	return b.String()
}

func troubles(b *strings.Builder, s *control.StatusResponse, now time.Time) {
	remedies := map[string]string{}
	for _, source := range s.GetSources() {
		remedies[source.GetName()] = source.GetRemedy()
	}
	for _, h := range s.GetHolds() {
		mark := "-"
		if h.GetNeedsPerson() {
			mark = "!"
		}
		fmt.Fprintf(b, "%s Nothing is removed since %s (%s): %s\n  %s\n", mark, h.GetSince().AsTime().Local().Format("15:04"),
			span(now.Sub(h.GetSince().AsTime())), h.GetReason(), harmless(h.GetDetail()))
		source, _, _ := strings.Cut(h.GetDetail(), ":")
		if remedies[source] != "" {
			fmt.Fprintf(b, "  do: %s\n", remedies[source])
		}
	}
	if len(s.GetHolds()) > 0 {
		b.WriteString("\n")
	}
}

func next(s *control.StatusResponse, now time.Time) string {
	if s.GetNextAt() == nil {
		return "nothing"
	}
	when := "in " + span(s.GetNextAt().AsTime().Sub(now))
	if !s.GetNextAt().AsTime().After(now) {
		when = "now"
	}
	return fmt.Sprintf("%d images, %s, %s", s.GetNext().GetImages(), size(s.GetNext().GetBytes()), when)
}

func eventText(e *control.Event) string {
	switch {
	case e.GetKind() == "removed" && e.GetDetail() == "":
		return fmt.Sprintf("%s, freed %s (%s)", firstOf(e.GetNames()), size(e.GetFreedBytes()), e.GetReason())
	case len(e.GetNames()) > 0:
		return firstOf(e.GetNames()) + ": " + e.GetDetail()
	}
	return e.GetDetail()
}

// firstOf prefers a name that people gave.
func firstOf(names []string) string {
	for _, n := range names {
		if !strings.HasPrefix(n, "sha256:") {
			return shortName(n)
		}
	}
	if len(names) == 0 {
		return "an image"
	}
	return shortName(names[0])
}
