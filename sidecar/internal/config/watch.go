package config

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settleTime lets an editor or a ConfigMap finish its several steps.
	settleTime = 500 * time.Millisecond
	// rereadEvery is for file systems that tell of no change.
	rereadEvery = time.Minute
)

// Watch reads the configuration again when a file of it changes, when asked, and
// now and then anyway, until ctx is done. It calls changed with what Load returned if
// that is not what it was before; last is what
// the caller has.
func Watch(ctx context.Context, path string, last Set, lastFaults error, asked <-chan struct{}, log *slog.Logger, changed func(Set, error, error)) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("changes of the configuration are only seen now and then, and on SIGHUP", "err", err)
		w = &fsnotify.Watcher{}
	} else {
		defer func() { _ = w.Close() }() // it only tells; nothing is lost
	}
	seen, absent, noDir := outcome(last, lastFaults, nil), last.absent, last.noDir
	again := time.NewTicker(rereadEvery)
	defer again.Stop()
	settled := time.NewTimer(settleTime)
	defer settled.Stop()
	for {
		if err == nil {
			watchDirs(w, path, log)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-w.Events:
			settled.Reset(settleTime)
			continue
		case err := <-w.Errors:
			log.Warn("a change of the configuration may have been missed", "err", err)
			settled.Reset(settleTime)
			continue
		case <-settled.C:
		case <-again.C:
		case <-asked:
		}
		// A file that was there is wanted: to go on without it would be to go on
		// without its rules.
		set, ruleFaults, fault := Load(path, absent)
		absent = absent && (fault != nil || set.absent)
		if fault == nil && set.noDir && !noDir {
			fault = fmt.Errorf("rules: %s is gone", filepath.Join(filepath.Dir(path), rulesDir))
		}
		noDir = noDir && (fault != nil || set.noDir)
		if now := outcome(set, ruleFaults, fault); now != seen {
			seen = now
			changed(set, ruleFaults, fault)
		}
	}
}

// watchDirs watches the directories, since editors and Kubernetes replace files.
// One that is not there yet is found when its parent changes.
func watchDirs(w *fsnotify.Watcher, path string, log *slog.Logger) {
	dir := filepath.Dir(path)
	for _, d := range []string{dir, filepath.Join(dir, rulesDir)} {
		if err := w.Add(d); err != nil && !errors.Is(err, fs.ErrNotExist) {
			log.Debug("the configuration is only read now and then", "dir", d, "err", err)
		}
	}
}

func outcome(set Set, faults ...error) string {
	return fmt.Sprint(set.Revision, errors.Join(faults...))
}
