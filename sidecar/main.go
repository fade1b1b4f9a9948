// Command image-custodian-sidecar runs beside the kubelet, remembers which
// images of a containerd node are used, and removes those that are not.
//
// This package only wires: it reads the configuration, makes each part once, in
// the order in which they need each other, and runs them.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// Set by the linker from git; the build date is that of the commit.
var (
	version  = "dev"
	revision = "unknown"
	date     = ""
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := root().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "image-custodian-sidecar:", oneLine(err))
		os.Exit(1)
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "image-custodian-sidecar",
		Short:         "Remembers which images of this node are used and removes those that are not",
		Version:       fmt.Sprintf("%s (%s, %s)", version, revision, runtime.Version()),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	cmd.AddCommand(runCommand(), onceCommand(), checkConfigCommand())
	return cmd
}

// oneLine keeps a joined error on one line of a journal.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// buildDate is when the commit was made that this program is from; zero for a
// build that does not know.
func buildDate() time.Time {
	t, err := time.Parse(time.RFC3339, date)
	if err != nil {
		return time.Time{}
	}
	return t
}
