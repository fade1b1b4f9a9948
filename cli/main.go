// Command custodianctl is what people type. It speaks only to the sidecar, over
// one of its two sockets, and shows what it answers.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// Set by the linker from git.
var (
	version  = "dev"
	revision = "unknown"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := root(time.Now).ExecuteContext(ctx)
	stop()
	code, message := exit(err)
	if message != "" {
		fmt.Fprintln(os.Stderr, "custodianctl:", message)
	}
	os.Exit(code)
}

// options are the flags that every verb knows.
type options struct {
	socket  string
	timeout time.Duration
	output  output
	now     func() time.Time
}

func root(now func() time.Time) *cobra.Command {
	o := &options{output: outputTable, now: now}
	cmd := &cobra.Command{
		Use:   "custodianctl",
		Short: "Who uses the images of this node, and what becomes of them",
		Long: `Who uses the images of this node, and what becomes of them.

Exit codes: 0 done, 1 failed or (status) something needs a person, 2 wrong usage,
3 refused or denied, 4 not found.`,
		Version:       fmt.Sprintf("%s (%s, %s)", version, revision, runtime.Version()),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	flags := cmd.PersistentFlags()
	flags.StringVar(&o.socket, "socket", os.Getenv("CUSTODIAN_SOCKET"), "socket of the sidecar, also CUSTODIAN_SOCKET (default "+controlSocket+", else read.sock beside it)")
	flags.DurationVar(&o.timeout, "timeout", 10*time.Second, "how long to wait for an answer")
	flags.VarP(&o.output, "output", "o", "table, wide, json or yaml")
	cmd.AddCommand(statusCommand(o), imagesCommand(o), usesCommand(o), versionCommand(o))
	for _, c := range cmd.Commands() {
		c.Args = noArgs
	}
	return cmd
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("unexpected argument %q", args[0])}
	}
	return nil
}
