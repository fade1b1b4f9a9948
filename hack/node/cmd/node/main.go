// Command node gives a person or a script a private container node with
// image-custodian on it: a shell in which ctr, crictl, runc and custodianctl
// talk to it, or one command run in that environment. The node goes when the
// shell or the command ends.
//
//	go run ./hack/node/cmd/node                # a shell
//	go run ./hack/node/cmd/node crictl info    # one command; its exit code
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/image-custodian/custodian/hack/node"
)

func main() {
	// Ctrl-C is for what runs inside. What it interrupts ends, and so does
	// this program, by itself.
	interrupt := make(chan os.Signal, 1)
	signal.Notify(interrupt, syscall.SIGINT, syscall.SIGQUIT)
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGHUP)
	code, err := run(ctx, interrupt, os.Args[1:])
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func run(ctx context.Context, interrupt <-chan os.Signal, args []string) (code int, err error) {
	n, custodian, err := boot(ctx, interrupt)
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, custodian.Stop(), n.Stop(ctx)) }()

	cmd, err := command(ctx, n, args)
	if err != nil {
		return 1, err
	}
	cmd.Env = append(cmd.Env, "CUSTODIAN_SOCKET="+custodian.Socket)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGHUP) }
	cmd.WaitDelay = 5 * time.Second
	err = cmd.Run()
	if cmd.ProcessState == nil { // never started
		return 1, err
	}
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return cmd.ProcessState.ExitCode(), nil
}

// boot starts the node and image-custodian on it. A Ctrl-C ends it, as nothing
// else runs yet.
func boot(ctx context.Context, interrupt <-chan os.Signal) (*node.Node, *node.Custodian, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-interrupt:
			cancel()
		case <-ctx.Done():
		}
	}()
	n, err := node.Start(ctx, node.Options{Log: os.Stderr})
	if err != nil {
		return nil, nil, err
	}
	custodian, err := join(ctx, n)
	if err != nil {
		return nil, nil, errors.Join(err, n.Stop(ctx))
	}
	return n, custodian, nil
}

// join builds image-custodian beside the node's own programs and starts it.
func join(ctx context.Context, n *node.Node) (*node.Custodian, error) {
	bin := filepath.Join(n.Dir, "bin")
	if err := node.BuildCustodian(ctx, bin); err != nil {
		return nil, err
	}
	custodian, err := n.NewCustodian(node.CustodianOptions{Bin: bin, Config: "[log]\nlevel = \"info\"\n"})
	if err != nil {
		return nil, err
	}
	if err := custodian.Start(ctx); err != nil {
		return nil, errors.Join(err, custodian.Stop())
	}
	return custodian, nil
}

// command is what to run on the node: args, or a shell. Without a terminal a
// shell reads its commands from the standard input.
func command(ctx context.Context, n *node.Node, args []string) (*exec.Cmd, error) {
	if len(args) > 0 {
		return n.Command(ctx, args[0], args[1:]...), nil
	}
	shell := os.Getenv("SHELL")
	if shell == "" {
		shell = "bash"
	}
	if !isTerminal(os.Stdin) {
		return n.Command(ctx, shell), nil
	}
	fmt.Fprintf(os.Stderr, "node %s in %s; registry %s; crictl, ctr and custodianctl point at it; exit to remove it\n", n.Name, n.Dir, n.Registry)
	prompt := "(" + n.Name + `) \w \$ `
	if filepath.Base(shell) != "bash" {
		cmd := n.Command(ctx, shell)
		cmd.Env = append(cmd.Env, "PS1=("+n.Name+") $ ")
		return cmd, nil
	}
	// After the user's own file, which may set prompt and PATH.
	rc := filepath.Join(n.Dir, "bashrc")
	text := fmt.Sprintf("[ -f ~/.bashrc ] && . ~/.bashrc\nPS1='%s'\nPATH='%s':$PATH\n", prompt, filepath.Join(n.Dir, "bin"))
	if err := os.WriteFile(rc, []byte(text), 0o644); err != nil {
		return nil, err
	}
	return n.Command(ctx, shell, "--rcfile", rc), nil
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
