package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/image-custodian/custodian/api/v1/control"
)

// build says what this program is.
type build struct{ Version, Revision string }

func (b build) String() string {
	return fmt.Sprintf("%s (%s, %s)", b.Version, b.Revision, runtime.Version())
}

// app is one run of the program: what it was given, and the flags that all
// verbs share.
type app struct {
	now   func() time.Time
	build build
	// socket is where to ask. Empty = defaultSocket or, where that one may not
	// be opened, read.sock beside it.
	socket, defaultSocket string
	timeout               duration
	output                format
	// dial opens a connection to a unix socket.
	dial func(ctx context.Context, socket string) (net.Conn, error)
}

// execute runs the program and returns its exit code.
func (a *app) execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := a.newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if text := tell(err); text != "" {
		fmt.Fprintln(stderr, "custodianctl: "+text)
	}
	return exitCode(err)
}

func (a *app) newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "custodianctl",
		Short: "Ask the Image Custodian of this node",
		Long: `Ask the Image Custodian of this node which images are used, by whom, and what
becomes of them.

Without --socket it asks /run/image-custodian/control.sock or, for members of
the reader_group, read.sock beside it.

-o json and -o yaml give the answer as it is: every field is always there, a
list is a list even if it is empty, sizes are bytes as numbers, times are
RFC 3339 in UTC, and what is not set is null.

Exit codes: 0 done, 1 failed or (status) something needs a person, 2 wrong
usage, 3 refused or denied, 4 not found.`,
		Version:       a.build.String(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	a.timeout, a.output = duration(10*time.Second), tableFormat
	flags := root.PersistentFlags()
	flags.StringVar(&a.socket, "socket", a.socket, "`path` of the sidecar's socket (environment: CUSTODIAN_SOCKET)")
	flags.Var(&a.timeout, "timeout", "how long to wait for an answer")
	flags.VarP(&a.output, "output", "o", "table, wide, json or yaml")
	complete(root, "output", formats...)
	root.AddCommand(a.statusVerb(), a.imagesVerb(), a.usesVerb(), a.whyVerb(), a.planVerb(), a.versionVerb())
	return root
}

// ask makes the RunE of a verb that asks the sidecar: a connection, a deadline,
// and errors with the exit code that belongs to them.
func (a *app) ask(verb func(ctx context.Context, cmd *cobra.Command, client control.ControlClient, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), time.Duration(a.timeout))
		defer cancel()
		socket, err := a.findSocket(ctx)
		if err != nil {
			return err
		}
		conn, err := a.connect(socket)
		if err != nil {
			return failed(fmt.Errorf("socket %s: %w", socket, err))
		}
		err = verb(ctx, cmd, control.NewControlClient(conn), args)
		if closed := conn.Close(); err == nil && closed != nil {
			err = closed
		}
		return a.explain(socket, err)
	}
}

// complete offers the values of a flag to the shell; after one that ends in "="
// the person types on.
func complete(cmd *cobra.Command, flag string, values ...string) {
	directive := cobra.ShellCompDirectiveNoFileComp
	if strings.HasSuffix(values[0], "=") {
		directive |= cobra.ShellCompDirectiveNoSpace
	}
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, directive))
	if err != nil {
		panic(err) // there is no such flag: a mistake in this program
	}
}
