package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/pelletier/go-toml/v2"
)

// pid is 0 for a process that was never started or has ended.
func (p *process) pid() int {
	if p == nil || p.ended() {
		return 0
	}
	return p.cmd.Process.Pid
}

func (p *process) ended() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// end ends a process and waits for it. One that was asked and ends otherwise
// than with 0, or not in time, is an error; so is one that had ended before.
func end(p **process, signal syscall.Signal) error {
	process := *p
	if process == nil {
		return nil
	}
	*p = nil
	if process.ended() {
		return fmt.Errorf("%s ended by itself: %s", process.cmd.Path, process.cmd.ProcessState)
	}
	if err := process.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%s: %w", process.cmd.Path, err)
	}
	select {
	case <-process.exited:
	case <-time.After(shutdownTimeout):
		return errors.Join(fmt.Errorf("%s does not end on %s", process.cmd.Path, signal), process.cmd.Process.Kill())
	}
	if signal != syscall.SIGKILL && process.cmd.ProcessState.ExitCode() != 0 {
		return fmt.Errorf("%s on %s: %s", process.cmd.Path, signal, process.cmd.ProcessState)
	}
	return nil
}

// permanent is an error that waiting does not cure.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// await asks check until it is content, at most for limit.
func await(ctx context.Context, limit time.Duration, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := check()
		if err == nil {
			return nil
		}
		if _, ok := errors.AsType[permanent](err); ok {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// tail is the end of a log, for an error.
func tail(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-2000):])
}

// mergeTOML lays one text over another, key by key.
func mergeTOML(base, over string) ([]byte, error) {
	var tree, changes map[string]any
	if err := errors.Join(toml.Unmarshal([]byte(base), &tree), toml.Unmarshal([]byte(over), &changes)); err != nil {
		return nil, err
	}
	merge(tree, changes)
	return toml.Marshal(tree)
}
