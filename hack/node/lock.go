package node

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"
)

// lockFile opens path, creating it, and takes its exclusive lock, which lasts
// until the file is closed or the process ends. It calls waiting once if
// somebody else holds the lock.
func lockFile(ctx context.Context, path string, waiting func()) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for first := true; ; first = false {
		ok, err := tryLock(f)
		if ok {
			return f, nil
		}
		if err == nil && first {
			waiting()
		}
		if err == nil {
			err = pause(ctx, 100*time.Millisecond)
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
}

// tryLock reports false without an error when somebody else holds the lock.
func tryLock(f *os.File) (bool, error) {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	if err != nil {
		return false, &os.PathError{Op: "flock", Path: f.Name(), Err: err}
	}
	return true, nil
}

// pause waits for d, between two looks at a condition, or for the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
