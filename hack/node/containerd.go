package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	bootTimeout     = 30 * time.Second
	shutdownTimeout = 10 * time.Second
)

// process is a child that has been started; exited closes at its end.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{}
}

// spawn starts cmd so that the kernel kills it when this process dies, in new
// namespaces of the given kinds.
func spawn(cmd *exec.Cmd, namespaces ...uintptr) (*process, error) {
	// An own session: a Ctrl-C at the terminal is not for it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
	for _, kind := range namespaces {
		cmd.SysProcAttr.Cloneflags |= kind
	}
	p := &process{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// Pdeathsig comes when the *thread* that forked ends: keep it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		cmd.Wait() //nolint:errcheck // read from ProcessState where somebody cares
		close(p.exited)
	}()
	return p, <-started
}

// StartContainerd starts containerd and returns when CRI says that runtime
// and network are ready. Start has called it; it is for after KillContainerd.
func (n *Node) StartContainerd(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.startContainerd(ctx)
}

// KillContainerd kills containerd with SIGKILL. Containers go on.
func (n *Node) KillContainerd(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.endContainerd(ctx, syscall.SIGKILL)
}

// RestartContainerd stops containerd in an orderly way and starts it again.
// Containers go on.
func (n *Node) RestartContainerd(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.endContainerd(ctx, syscall.SIGTERM); err != nil {
		return err
	}
	return n.startContainerd(ctx)
}

// ContainerdPID is 0 while containerd is down.
func (n *Node) ContainerdPID() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.containerd == nil {
		return 0
	}
	return n.containerd.cmd.Process.Pid
}

func (n *Node) startContainerd(ctx context.Context) error {
	if n.containerd != nil {
		return fmt.Errorf("node %s: containerd runs already", n.Name)
	}
	if err := n.makeCgroup(); err != nil {
		return fmt.Errorf("node %s: cgroup: %w", n.Name, err)
	}
	log, err := os.OpenFile(n.ContainerdLog, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	// Not CommandContext: containerd outlives the ctx of its start.
	cmd := exec.Command(filepath.Join(n.Dir, "bin", "containerd"),
		"--config", filepath.Join(n.Dir, "containerd.toml"))
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = n.Env(), n.Dir, log, log
	p, err := spawn(cmd)
	if err != nil {
		return fmt.Errorf("node %s: containerd: %w", n.Name, err)
	}
	n.containerd = p

	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	if err := n.waitReady(ctx, p); err != nil {
		return fmt.Errorf("node %s: containerd: %w; its log ends with\n%s", n.Name, err, n.logTail(4096))
	}
	n.booted = true
	return nil
}

func (n *Node) waitReady(ctx context.Context, p *process) error {
	for {
		n.conn.ResetConnectBackoff()
		reply, err := n.Runtime().Status(ctx, &runtimeapi.StatusRequest{})
		if err == nil {
			if err = notReady(reply.GetStatus()); err == nil {
				return nil
			}
		}
		select {
		case <-p.exited:
			return fmt.Errorf("ended at its start: %v", p.cmd.ProcessState)
		default:
		}
		if end := pause(ctx, 3*time.Millisecond); end != nil {
			return fmt.Errorf("not ready: %w (%w)", err, end)
		}
	}
}

func notReady(status *runtimeapi.RuntimeStatus) error {
	for _, c := range status.GetConditions() {
		required := c.GetType() == runtimeapi.RuntimeReady || c.GetType() == runtimeapi.NetworkReady
		if required && !c.GetStatus() {
			return fmt.Errorf("%s: %s %s", c.GetType(), c.GetReason(), c.GetMessage())
		}
	}
	return nil
}

// endContainerd is no error when containerd is down already, by itself too.
func (n *Node) endContainerd(ctx context.Context, signal syscall.Signal) error {
	p := n.containerd
	if p == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, shutdownTimeout)
	defer cancel()
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("node %s: containerd: %w", n.Name, err)
	}
	select {
	case <-p.exited:
		n.containerd = nil
		return nil
	case <-ctx.Done():
		return fmt.Errorf("node %s: containerd does not end on %v: %w", n.Name, signal, ctx.Err())
	}
}

func (n *Node) logTail(limit int) []byte {
	text, err := os.ReadFile(n.ContainerdLog)
	if err != nil {
		return []byte(err.Error())
	}
	if len(text) <= limit {
		return text
	}
	text = text[len(text)-limit:]
	return text[bytes.IndexByte(text, '\n')+1:]
}
