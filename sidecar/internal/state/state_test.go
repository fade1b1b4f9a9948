package state

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(Options{Dir: dir, MachineID: "m1", MaxEvents: 5})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Check(); err != nil && !errors.Is(err, bolterrors.ErrDatabaseNotOpen) {
			t.Errorf("check: %v", err)
		}
		if err := s.Close(); err != nil && !errors.Is(err, bolterrors.ErrDatabaseNotOpen) {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func commit(t *testing.T, s *Store, c Change) {
	t.Helper()
	if err := s.Commit(c); err != nil {
		t.Fatal(err)
	}
}

var img = policy.Key{ContainerdNamespace: "k8s.io", ID: "sha256:aa"}

func use(id string) policy.Use {
	return policy.Use{ContainerdNamespace: "k8s.io", ContainerID: id, ImageID: img.ID, Kind: policy.UseRoot, State: policy.StateRunning}
}

func TestEndedUseRaisesItsImages(t *testing.T) {
	s := open(t, t.TempDir())
	u := use("c1")
	u.Volumes = []string{"sha256:bb"}
	at := s.Clock().Now()
	commit(t, s, Change{PutUses: []policy.Use{u}})
	commit(t, s, Change{EndUses: map[UseKey]policy.Moment{KeyOf(u): at, {"k8s.io", "none"}: at}, At: time.Unix(7, 0)})

	images, err := s.Images()
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"sha256:aa", "sha256:bb"} {
		m := images[policy.Key{ContainerdNamespace: "k8s.io", ID: id}]
		if m.LastUse == nil || *m.LastUse != at || !m.LastUseAt.Equal(time.Unix(7, 0)) {
			t.Errorf("image %s: last use %v at %v, want %v", id, m.LastUse, m.LastUseAt, at)
		}
	}
	if uses, err := s.Uses(); err != nil || len(uses) != 0 {
		t.Errorf("uses = %v, %v; want none", uses, err)
	}
}

func TestLastUseNeverGoesBack(t *testing.T) {
	s := open(t, t.TempDir())
	now := s.Clock().Now()
	early := now - 1000
	commit(t, s, Change{RaiseLastUse: map[policy.Key]policy.Moment{img: now}})
	commit(t, s, Change{RaiseLastUse: map[policy.Key]policy.Moment{img: early}})
	images, err := s.Images()
	if err != nil {
		t.Fatal(err)
	}
	if got := *images[img].LastUse; got != now {
		t.Errorf("last use = %v, want %v", got, now)
	}
}

func TestReopenKeepsAll(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if !s.Created() {
		t.Error("a new state is not marked as created")
	}
	now := s.Clock().Now()
	u := use("c1")
	mem := policy.Memory{FirstSeen: now, Pulled: now, LastUse: &now, Names: []policy.Name{{Name: "a:1", Target: "sha256:t"}}}
	session := Session{ID: "s", Number: 9, Runtime: "containerd"}
	removal := Removal{Names: []string{"a:1"}, Reason: policy.Expired, Bytes: 5}
	commit(t, s, Change{
		PutUses: []policy.Use{u}, PutImages: map[policy.Key]policy.Memory{img: mem},
		PutRemovals: map[policy.Key]Removal{img: removal}, Session: &session,
	})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = open(t, dir)
	if s.Created() {
		t.Error("an old state is marked as created")
	}
	if s.Clock().Now() < now {
		t.Error("observed time went back")
	}
	uses, err1 := s.Uses()
	images, err2 := s.Images()
	removals, err3 := s.Removals()
	gotSession, err4 := s.Session()
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	for _, diff := range []string{
		cmp.Diff(map[UseKey]policy.Use{KeyOf(u): u}, uses),
		cmp.Diff(map[policy.Key]policy.Memory{img: mem}, images),
		cmp.Diff(map[policy.Key]Removal{img: removal}, removals),
		cmp.Diff(session, gotSession),
	} {
		if diff != "" {
			t.Error(diff)
		}
	}
}

// What Check would call a fault never gets into the file.
func TestCommitRefusesNonsense(t *testing.T) {
	s := open(t, t.TempDir())
	for name, c := range map[string]Change{
		"image without ID":      {PutImages: map[policy.Key]policy.Memory{{ContainerdNamespace: "k8s.io"}: {}}},
		"use without container": {PutUses: []policy.Use{{ContainerdNamespace: "k8s.io"}}, Session: &Session{ID: "s"}},
	} {
		if err := s.Commit(c); err == nil {
			t.Errorf("%s: is stored", name)
		}
	}
	if session, err := s.Session(); err != nil || session.ID != "" {
		t.Errorf("session = %+v, %v: a refused change is stored in part", session, err)
	}
}

func TestEventsAreBounded(t *testing.T) {
	s := open(t, t.TempDir())
	for i := range 12 {
		commit(t, s, Change{Events: []Event{{Kind: EventGap, Freed: int64(i)}}})
	}
	events, err := s.Events(100)
	if err != nil {
		t.Fatal(err)
	}
	var got []int64
	for _, e := range events {
		got = append(got, e.Freed)
	}
	if diff := cmp.Diff([]int64{11, 10, 9, 8, 7}, got); diff != "" {
		t.Error(diff)
	}
}

func TestOpenLocked(t *testing.T) {
	dir := t.TempDir()
	open(t, dir)
	if _, err := Open(Options{Dir: dir}); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), filepath.Join(dir, "state.db")) {
		t.Errorf("err = %v, want ErrLocked naming the file", err)
	}
}

// An unusable file is set aside whole, with a reason, and the next start works.
func TestOpenUnusable(t *testing.T) {
	sound := func(t *testing.T, dir string) {
		s := open(t, dir)
		for i := range 200 {
			commit(t, s, Change{PutUses: []policy.Use{use(strings.Repeat("c", i+1))}})
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	edit := func(t *testing.T, dir string, f func(tx *bbolt.Tx) error) {
		db, err := bbolt.Open(filepath.Join(dir, "state.db"), 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(db.Update(f), db.Close()); err != nil {
			t.Fatal(err)
		}
	}
	truncate := func(size int64) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			sound(t, dir)
			if err := os.Truncate(filepath.Join(dir, "state.db"), size); err != nil {
				t.Fatal(err)
			}
		}
	}
	cases := map[string]struct {
		make func(t *testing.T, dir string)
		want string
	}{
		"garbage": {func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, "state.db"), []byte(strings.Repeat("garbage", 9999)), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "damaged-1"},
		"truncated to one page":    {truncate(4096), "damaged-1"},
		"truncated to three pages": {truncate(3 * 4096), "damaged-1"},
		"zeroed pages": {func(t *testing.T, dir string) {
			sound(t, dir)
			f, err := os.OpenFile(filepath.Join(dir, "state.db"), os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteAt(make([]byte, 20*4096), 2*4096); err != nil {
				t.Fatal(err)
			}
		}, "damaged-1"},
		"bad value": {func(t *testing.T, dir string) {
			sound(t, dir)
			edit(t, dir, func(tx *bbolt.Tx) error { return tx.Bucket(bucketUses).Put([]byte("x\x00y"), []byte("{")) })
		}, "damaged-1"},
		"newer": {func(t *testing.T, dir string) {
			sound(t, dir)
			edit(t, dir, func(tx *bbolt.Tx) error {
				return tx.Bucket(bucketMeta).Put(keyFormat, []byte(`{"schema":9,"min_reader":9}`))
			})
		}, "newer-1"},
		"other machine": {func(t *testing.T, dir string) {
			s, err := Open(Options{Dir: dir, MachineID: "m2"})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}, "other-machine-1"},
		"somebody else's database": {func(t *testing.T, dir string) {
			edit(t, dir, func(tx *bbolt.Tx) error { _, err := tx.CreateBucket([]byte("theirs")); return err })
		}, "foreign-1"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c.make(t, dir)
			before, err := os.ReadFile(filepath.Join(dir, "state.db"))
			if err != nil {
				t.Fatal(err)
			}
			_, err = Open(Options{Dir: dir, MachineID: "m1"})
			if !errors.Is(err, ErrSetAside) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("err = %v, want ErrSetAside in one line", err)
			}
			after, err := os.ReadFile(filepath.Join(dir, "state.db."+c.want))
			if err != nil {
				t.Fatal(err)
			}
			if len(before) != len(after) {
				t.Errorf("the file set aside has %d bytes, had %d", len(after), len(before))
			}
			if s := open(t, dir); !s.Rebuilt() {
				t.Error("the new state does not know that it replaces one")
			}
		})
	}
}

// A program that may read a newer file leaves its format as it is.
func TestANewerFormatStays(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	const newer = `{"schema":2,"min_reader":1}`
	if err := s.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyFormat, []byte(newer)) }); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	if err := s.db.View(func(tx *bbolt.Tx) error {
		if got := tx.Bucket(bucketMeta).Get(keyFormat); string(got) != newer {
			t.Errorf("format = %s", got)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestClock(t *testing.T) {
	const hour = policy.Moment(time.Hour)
	last := Reading{BootID: "b1", Boottime: int64(5 * hour), Observed: 100 * hour}
	cases := map[string]struct {
		bootID   string
		boottime int64
		want     policy.Moment
	}{
		"same boot, an hour later":        {"b1", int64(6 * hour), 101 * hour},
		"rebooted: stood still":           {"b2", int64(hour), 100 * hour},
		"same boot ID, clock behind file": {"b1", int64(2 * hour), 100 * hour},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			now := c.boottime
			clock := newClock(last, c.bootID, func() int64 { return now })
			if got := clock.Now(); got != c.want {
				t.Errorf("now = %v, want %v", time.Duration(got), time.Duration(c.want))
			}
			now += int64(hour)
			if got := clock.Now(); got != c.want+hour {
				t.Errorf("an hour on = %v, want %v", time.Duration(got), time.Duration(c.want+hour))
			}
			if got := clock.At(0); got < last.Observed {
				t.Errorf("an old event is at %v, before the last reading", time.Duration(got))
			}
			if got := clock.At(now * 10); got != clock.Now() {
				t.Errorf("a future event is at %v, want now", time.Duration(got))
			}
		})
	}
}
