// Package state is the sidecar's memory on disk: one bbolt file that only this
// process opens. It stores and returns; what a fact means is decided elsewhere.
//
// Schema 1. Keys are bytes, values JSON; "ns" is a containerd namespace, the
// separator is a zero byte.
//
//	meta
//	├── format    {"schema":1,"min_reader":1}  a program that knows less than min_reader sets the file aside
//	├── machine   machine ID, hashed           another machine's file is set aside
//	├── clock     Reading                      observed time, see Clock
//	└── session   Session                      the plugin's session and what of it is durable
//	uses
//	└── ns 0 container ID    policy.Use        live uses only
//	images
//	└── ns 0 image ID        policy.Memory     images of the last look
//	removals
//	└── ns 0 image ID        Removal           intents: written before the first deletion, cleared with its event
//	events
//	└── uint64, big endian   Event             the newest, at most Options.MaxEvents
//	plans
//	└── ID                   Plan              the newest MaxPlans, each for PlanAge
package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// Schema is the version of the schema that this program writes; minReader is
// the oldest program that reads it without harm.
const (
	Schema    = 1
	minReader = 1
)

// Errors that Open returns; each says what to do.
var (
	// ErrLocked: another process has the file open.
	ErrLocked = errors.New("locked by another process: is another image-custodian-sidecar running?")
	// ErrSetAside: the file could not be used and lies renamed beside its place;
	// opening again makes a new state.
	ErrSetAside = errors.New("set aside, start again to make a new state from the node; the last use of every image then counts from that start")
)

// Options of a state.
type Options struct {
	// Dir holds state.db. It is made, 0700, if it is not there.
	Dir string
	// MachineID tells this machine from others; empty = not known.
	MachineID string
	// MaxEvents bounds the events kept; 0 = 10 000.
	MaxEvents int
}

// Store is an open state. Its methods may be called from any goroutine.
type Store struct {
	db        *bbolt.DB
	path      string
	maxEvents int
	clock     *Clock
	created   bool
}

// Open opens the state in opts.Dir, or makes it. A file that is damaged, from
// another machine, or of a newer format is renamed, not deleted, and the error
// wraps ErrSetAside. Any error names the file.
func Open(opts Options) (*Store, error) {
	if opts.MaxEvents == 0 {
		opts.MaxEvents = 10000
	}
	path := filepath.Join(opts.Dir, "state.db")
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	_, err := os.Stat(path)
	created := errors.Is(err, os.ErrNotExist)

	db, err := openFile(path)
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, fmt.Errorf("state %s: %w", path, ErrLocked)
	case damaged(err):
		return nil, setAside(path, "damaged", err)
	case err != nil:
		return nil, fmt.Errorf("state %s: %w", path, err)
	}

	s := &Store{db: db, path: path, maxEvents: opts.MaxEvents, created: created}
	err = s.start(opts)
	if err == nil {
		err = s.Check()
	}
	if err != nil {
		if closeErr := db.Close(); closeErr != nil {
			return nil, errors.Join(err, closeErr)
		}
		if bad, ok := errors.AsType[*unusableError](err); ok {
			return nil, setAside(path, bad.why, bad.cause)
		}
		return nil, fmt.Errorf("state %s: %w", path, err)
	}
	return s, nil
}

// openFile turns the panics and faults with which bbolt meets a damaged file
// into an error.
func openFile(path string) (db *bbolt.DB, err error) {
	defer recoverDamage(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	return bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second, PreLoadFreelist: true})
}

func recoverDamage(err *error) {
	if r := recover(); r != nil {
		*err = &unusableError{"damaged", fmt.Errorf("%v", r)}
	}
}

// Created reports whether Open made a new file.
func (s *Store) Created() bool { return s.created }

// Rebuilt reports whether Open made a new file where an unusable one had been
// set aside.
func (s *Store) Rebuilt() bool {
	aside, err := filepath.Glob(s.path + ".*-*")
	return s.created && err == nil && len(aside) > 0
}

// Path is the file of the state.
func (s *Store) Path() string { return s.path }

// Clock is the observed time that this state counts.
func (s *Store) Clock() *Clock { return s.clock }

// Close writes the clock and closes the file.
func (s *Store) Close() error {
	err := s.Commit(Change{})
	return errors.Join(err, s.db.Close())
}

// unusableError says that the content of the file cannot be used as it is.
type unusableError struct {
	why   string
	cause error
}

func (e *unusableError) Error() string { return e.why + ": " + e.cause.Error() }
func (e *unusableError) Unwrap() error { return e.cause }

// damaged tells a file that bbolt refuses from a system that refuses the file.
func damaged(err error) bool {
	if err == nil {
		return false
	}
	_, path := errors.AsType[*fs.PathError](err)
	_, errno := errors.AsType[syscall.Errno](err)
	return !path && !errno
}

// setAside renames the file to state.db.<why>-<n>, never over an older one.
func setAside(path, why string, cause error) error {
	for n := 1; ; n++ {
		aside := fmt.Sprintf("%s.%s-%d", path, why, n)
		if _, err := os.Lstat(aside); err == nil {
			continue
		}
		if err := os.Rename(path, aside); err != nil {
			return fmt.Errorf("state %s is unusable (%w) and cannot be renamed: %w", path, cause, err)
		}
		return fmt.Errorf("state %s (%s: %w) now lies in %s: %w", path, why, cause, aside, ErrSetAside)
	}
}
