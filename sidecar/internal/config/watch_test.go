package config

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type loaded struct {
	set         Set
	faults, err error
}

// A change is seen however it is made: written in place, renamed over, made in a
// directory that was not there, or by the swap of a link as Kubernetes does.
func TestWatch(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "sidecar.toml")
	write(t, path, "[clean]\nunused_for = \"1d\"\n")
	set, faults, err := Load(path, false)
	if err != nil || faults != nil {
		t.Fatal(faults, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	asked := make(chan struct{})
	got, done := make(chan loaded, 10), make(chan error, 1)
	go func() {
		done <- Watch(ctx, path, set, nil, asked, slog.New(slog.DiscardHandler), func(s Set, faults, err error) { got <- loaded{s, faults, err} })
	}()
	next := func(what string) loaded {
		t.Helper()
		select {
		case l := <-got:
			return l
		case <-time.After(10 * time.Second):
			t.Fatal("not seen: " + what)
			return loaded{}
		}
	}

	write(t, path, "[clean]\nunused_for = \"2d\"\n")
	if l := next("written in place"); l.err != nil || l.set.Config.Clean.UnusedFor.Duration != 2*day {
		t.Errorf("%+v", l)
	}
	write(t, filepath.Join(dir, "new"), "[clean]\nunused_for = \"3 d\"\n")
	if err := os.Rename(filepath.Join(dir, "new"), path); err != nil {
		t.Fatal(err)
	}
	if l := next("renamed over"); l.err == nil || !strings.Contains(l.err.Error(), "sidecar.toml:2") {
		t.Errorf("%+v", l)
	}
	write(t, path, "[clean]\nunused_for = \"3d\"\n")
	if l := next("mended"); l.err != nil {
		t.Errorf("%+v", l)
	}
	write(t, filepath.Join(dir, "rules.d", "a.toml"), "[[rule]]\nkeep = true\n")
	if l := next("a new directory"); l.err != nil || l.faults != nil || len(l.set.Rules().List) != 1 {
		t.Errorf("%+v", l)
	}

	for _, version := range []string{"v1", "v2"} {
		write(t, filepath.Join(dir, "rules.d", "..", version, "b.toml"), "[[rule]]\nname = \""+version+"\"\nkeep = true\n")
	}
	link := func(to, from string) {
		t.Helper()
		if err := os.Symlink(to, from+".tmp"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(from+".tmp", from); err != nil {
			t.Fatal(err)
		}
	}
	data := filepath.Join(dir, "rules.d", "..data")
	link(filepath.Join(dir, "v1"), data)
	link(filepath.Join("..data", "b.toml"), filepath.Join(dir, "rules.d", "b.toml"))
	if l := next("a link"); len(l.set.Rules().List) != 2 || l.set.Rules().List[1].Name != "v1" {
		t.Errorf("%+v", l)
	}
	link(filepath.Join(dir, "v2"), data)
	if l := next("a swapped link"); len(l.set.Rules().List) != 2 || l.set.Rules().List[1].Name != "v2" {
		t.Errorf("%+v", l)
	}
	if err := os.Rename(filepath.Join(dir, "rules.d"), filepath.Join(dir, "old")); err != nil {
		t.Fatal(err)
	}
	if l := next("the rules are gone"); l.err == nil || !strings.Contains(l.err.Error(), "rules.d is gone") {
		t.Errorf("%+v", l)
	}
	if err := os.Rename(filepath.Join(dir, "old"), filepath.Join(dir, "rules.d")); err != nil {
		t.Fatal(err)
	}
	if l := next("the rules are back"); l.err != nil || l.faults != nil {
		t.Errorf("%+v", l)
	}
	asked <- struct{}{} // nothing has changed: nothing is told
	stop()
	if err := <-done; err != nil || len(got) != 0 {
		t.Errorf("%v, %d more", err, len(got))
	}
}

// A configuration that comes and goes: its going is a fault, since its rules go
// with it.
func TestWatchAnOptionalFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sidecar.toml")
	set, _, err := Load(path, true)
	if err != nil || set.Config.Clean.UnusedFor != Default().Clean.UnusedFor {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	got, done := make(chan loaded, 10), make(chan error, 1)
	go func() {
		done <- Watch(ctx, path, set, nil, nil, slog.New(slog.DiscardHandler), func(s Set, faults, err error) { got <- loaded{s, faults, err} })
	}()
	write(t, path, "[[rule]]\nkeep = true\n")
	if l := <-got; l.err != nil || len(l.set.Rules().List) != 1 {
		t.Errorf("%+v", l)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if l := <-got; !errors.Is(l.err, os.ErrNotExist) {
		t.Errorf("%+v", l)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
