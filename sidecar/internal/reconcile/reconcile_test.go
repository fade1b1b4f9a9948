package reconcile

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
	"github.com/image-custodian/custodian/sidecar/internal/state"
)

func created(number uint64, u policy.Use) Event {
	return Event{Number: number, Kind: Created, ContainerID: u.ContainerID, Use: u}
}

func TestReportKeepsUsesAndLastUse(t *testing.T) {
	b := newBench(t)
	img := b.node.addImage("a")
	b.sync("s1", 0)
	b.look()
	u := b.node.addUse("c1", img)

	if b.report("s1", created(1, u), Event{Number: 2, Kind: Stopped, ContainerID: "c1"}, Event{Number: 3, Kind: Started, ContainerID: "c1"}) {
		t.Fatal("a sync is wanted")
	}
	got := b.liveUses()[state.KeyOf(u)]
	if got.State != policy.StateExited || got.Platform != "linux/amd64" || got.Pod.Name != "c1" {
		t.Errorf("use = %+v, want exited (a start told late revives nothing)", got)
	}
	if m := b.memory(img.Key); m.LastUse != nil {
		t.Errorf("last use = %v while the container is there", *m.LastUse)
	}
	b.node.dropUse("c1")
	b.report("s1", Event{Number: 4, Kind: Removed, ContainerID: "c1", Boottime: 1 << 62})
	if m := b.memory(img.Key); m.LastUse == nil || len(b.liveUses()) != 0 {
		t.Errorf("last use = %v, uses = %v; want an ended use", m.LastUse, b.liveUses())
	}
}

// The runtime announces the end of a container before it takes it off its list:
// a look in between must not revive the use.
func TestALookDoesNotReviveAUse(t *testing.T) {
	b := newBench(t)
	img := b.node.addImage("a")
	u := b.node.addUse("c1", img)
	b.sync("s1", 0, u)
	b.report("s1", Event{Number: 1, Kind: Removed, ContainerID: "c1", Boottime: 1 << 62})
	b.look()
	b.sync("s1", 1)
	if uses := b.liveUses(); len(uses) != 0 {
		t.Errorf("uses = %v, want none", uses)
	}
}

func TestBeginAndEndInOneBatch(t *testing.T) {
	b := newBench(t)
	img := b.node.addImage("a")
	b.sync("s1", 0)
	u := policy.Use{ContainerdNamespace: CRINamespace, ContainerID: "c1", ImageID: img.Key.ID, Kind: policy.UseRoot}
	b.report("s1", created(1, u), Event{Number: 2, Kind: Removed, ContainerID: "c1"})
	if m := b.memory(img.Key); m.LastUse == nil {
		t.Error("a container that lived between two looks left no last use")
	}
}

func TestReportNumbers(t *testing.T) {
	b := newBench(t)
	img := b.node.addImage("a")
	u := b.node.addUse("c1", img)
	if !b.report("s1", created(1, u)) {
		t.Error("a session without a sync is taken")
	}
	b.sync("s1", 0)
	b.report("s1", created(1, u))
	first := b.liveUses()
	b.report("s1", created(1, u))
	if diff := cmp.Diff(first, b.liveUses()); diff != "" {
		t.Errorf("the same batch twice: %s", diff)
	}
	if !b.report("s1", Event{Number: 2, Kind: Stopped, ContainerID: "c1"}, Event{Number: 4, Kind: Removed, ContainerID: "c1"}) {
		t.Error("a hole in the numbers is not noticed")
	}
	if diff := cmp.Diff(first, b.liveUses()); diff != "" {
		t.Errorf("a batch with a hole was applied: %s", diff)
	}
	err := b.rec.Sync(t.Context(), Synced{Session: "s1", Number: 0})
	if !errors.Is(err, ErrStale) || len(b.liveUses()) != 1 {
		t.Errorf("an older list: %v, uses %v; want ErrStale and nothing replaced", err, b.liveUses())
	}
}

func TestSyncJoinsTheRuntimesList(t *testing.T) {
	b := newBench(t)
	img := b.node.addImage("a")
	b.sync("s1", 0)
	gone := policy.Use{ContainerdNamespace: CRINamespace, ContainerID: "gone", ImageID: img.Key.ID, Kind: policy.UseRoot}
	b.report("s1", created(1, gone))

	running := b.node.addUse("running", img)
	exited := b.node.addUse("exited", img)
	exited.State = policy.StateExited
	b.node.uses["exited"] = exited
	running.UserName = "app"
	b.sync("s1", 1, running)

	uses := b.liveUses()
	if len(uses) != 2 || uses[state.KeyOf(running)].UserName != "app" || uses[state.KeyOf(exited)].State != policy.StateExited {
		t.Errorf("uses = %+v, want the running and the exited one", uses)
	}
	if m := b.memory(img.Key); m.LastUse == nil {
		t.Error("the use that ended unseen left no last use")
	}
}

func TestNewSessionIsAGap(t *testing.T) {
	b := newBench(t)
	b.node.addImage("a")
	b.cfg.Rules.UnusedFor = time.Hour
	b.stop()
	b.start()
	b.sync("s1", 0)
	before := b.look()
	b.sync("s1", 0)
	if got := b.look(); got.Decisions[0].Expires != before.Decisions[0].Expires {
		t.Error("a second sync of one session moved a deadline")
	}
	b.sync("s2", 0)
	if got := b.look(); got.Decisions[0].Expires <= before.Decisions[0].Expires {
		t.Error("a new session moved no deadline")
	}
	if n := len(b.events(state.EventGap)); n != 2 {
		t.Errorf("%d gap events, want 2", n)
	}
}

func TestRestartKeepsDeadlines(t *testing.T) {
	b := newBench(t)
	img := b.node.addImage("a")
	b.cfg.Rules.UnusedFor = time.Hour
	b.stop()
	b.start()
	b.sync("s1", 0)
	u := b.node.addUse("c1", img)
	b.report("s1", created(1, u))
	b.node.dropUse("c1")
	b.report("s1", Event{Number: 2, Kind: Removed, ContainerID: "c1", Boottime: 1 << 62})
	before := b.look().Decisions[0]

	b.stop()
	b.cfg.Wall = func() time.Time { return time.Now().AddDate(1, 0, 0) }
	b.start()
	if b.report("s1") {
		t.Error("a restart under a living plugin wants a sync")
	}
	after := b.look().Decisions[0]
	if before.Expires != after.Expires {
		t.Errorf("deadline moved by %v", after.Expires.Sub(before.Expires))
	}
}

// The plugin's first word after a restart of the sidecar wakes the loop, which
// otherwise would sleep on a view that lacked it.
func TestThePluginsReturnWakes(t *testing.T) {
	b := newBench(t)
	b.sync("s1", 0)
	b.stop()
	b.start()
	b.look()
	b.report("s1")
	select {
	case <-b.rec.wake:
	default:
		t.Error("not woken")
	}
	b.report("s1")
	select {
	case <-b.rec.wake:
		t.Error("woken by a mere sign of life")
	default:
	}
}

func TestPassRemoves(t *testing.T) {
	b := newBench(t)
	used, unused := b.node.addImage("used"), b.node.addImage("unused")
	u := b.node.addUse("c1", used)
	b.pass()
	if len(b.node.removed) != 0 {
		t.Fatal("removed before the plugin has synced")
	}
	b.sync("s1", 0, u)
	b.pass()
	b.pass()
	if diff := cmp.Diff([]policy.Key{unused.Key}, b.node.removed); diff != "" {
		t.Error(diff)
	}
	events := b.events(state.EventRemoved)
	if len(events) != 1 || events[0].Freed != 100 || events[0].Reason != policy.Expired || events[0].Names[0] != "reg/unused:1" {
		t.Errorf("events = %+v", events)
	}
	if removals, err := b.store.Removals(); err != nil || len(removals) != 0 {
		t.Errorf("intents left: %v, %v", removals, err)
	}
}

// What happens between the decision and the deletion wins over the decision.
func TestRemovalIsStopped(t *testing.T) {
	cases := map[string]func(b *bench, img policy.Image){
		"a claim before the first record": func(b *bench, img policy.Image) {
			b.node.onRemove = func(policy.Key) {
				b.rec.Admit(b.Context(), policy.Use{ContainerdNamespace: CRINamespace, ContainerID: "c9", ImageID: img.Key.ID})
			}
		},
		"a claim by name": func(b *bench, img policy.Image) {
			b.node.onRemove = func(policy.Key) {
				b.rec.Admit(b.Context(), policy.Use{ContainerdNamespace: CRINamespace, ContainerID: "c9", RecordName: img.Names[0].Name})
			}
		},
		"a container since the look": func(b *bench, img policy.Image) {
			b.node.onUses = func() { b.node.addUse("c9", img) }
		},
		"a container that nobody admitted, after the deletion": func(b *bench, img policy.Image) {
			b.node.onRemove = func(policy.Key) { b.node.addUse("c9", img) }
		},
		"a claim after the deletion": func(b *bench, img policy.Image) {
			calls := 0
			b.node.onUses = func() {
				if calls++; calls == 2 {
					b.rec.Admit(b.Context(), policy.Use{ContainerdNamespace: CRINamespace, ContainerID: "c9", ImageID: img.Key.ID})
				}
			}
		},
	}
	for name, prepare := range cases {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			img := b.node.addImage("a")
			b.sync("s1", 0)
			prepare(b, img)
			b.pass()
			if !b.node.has(img.Key) {
				t.Error("the image is gone")
			}
			if events := b.events(state.EventRemoved); len(events) != 0 {
				t.Errorf("events = %+v, want none", events)
			}
		})
	}
}

// Somebody who looks in the middle of a removal neither tells of it twice nor
// takes it for one that a crash has cut off.
func TestALookDuringARemoval(t *testing.T) {
	b := newBench(t)
	gone, back := b.node.addImage("gone"), b.node.addImage("restored")
	b.sync("s1", 0)
	calls := 0
	var seen policy.Memory
	b.node.onUses = func() {
		if calls++; calls == 2 { // the records are deleted, the lease is not released
			b.node.onUses = nil
			seen = b.memory(back.Key)
			b.look()
			b.rec.Admit(t.Context(), policy.Use{ContainerdNamespace: CRINamespace, ContainerID: "c9", ImageID: back.Key.ID})
		}
	}
	b.pass()
	if events := b.events(state.EventRemoved); len(events) != 1 || events[0].Image != gone.Key || events[0].Freed != 100 {
		t.Errorf("events = %+v, want one, of the image that is gone", events)
	}
	if after := b.memory(back.Key); after.FirstSeen != seen.FirstSeen || seen.FirstSeenAt.IsZero() {
		t.Errorf("memory of the restored image = %+v, was %+v", after, seen)
	}
}

func TestDoubtKeeps(t *testing.T) {
	boom := errors.New("boom")
	cases := map[string]func(b *bench){
		"a list fails":                  func(b *bench) { b.node.fail = boom },
		"the second reading fails":      func(b *bench) { b.node.onUses = func() { b.node.fail = boom } },
		"the plugin lost the runtime":   func(b *bench) { b.rec.session.Over = true },
		"the plugin is silent":          func(b *bench) { b.rec.cfg.PluginSilence = 0 },
		"the clock is before the build": func(b *bench) { b.rec.cfg.NotBefore = time.Now().Add(time.Hour) },
		"the runtime compares nothing":  func(b *bench) { b.rec.cfg.CompareAndDelete = func() bool { return false } },
		"mode plan":                     func(b *bench) { b.rec.settings.Mode = policy.ModePlan },
		"mode off":                      func(b *bench) { b.rec.settings.Mode = policy.ModeOff },
		"grace after the start":         func(b *bench) { b.rec.settings.Rules.StartGrace = time.Hour },
		"the third reading fails":       failThirdReading(boom),
	}
	for name, prepare := range cases {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			img := b.node.addImage("a")
			b.sync("s1", 0)
			prepare(b)
			_, _, err := b.rec.pass(t.Context())
			if err != nil && !errors.Is(err, boom) {
				t.Error(err)
			}
			if !b.node.has(img.Key) {
				t.Error("the image is gone")
			}
		})
	}
}

func failThirdReading(err error) func(*bench) {
	return func(b *bench) {
		calls := 0
		b.node.onUses = func() {
			if calls++; calls == 2 {
				b.node.fail = err
			}
		}
	}
}

// A list that failed must not end a use or forget an image.
func TestAFailedListChangesNothing(t *testing.T) {
	b := newBench(t)
	img := b.node.addImage("a")
	b.sync("s1", 0, b.node.addUse("c1", img))
	b.look()
	b.node.fail = errors.New("boom")
	delete(b.node.images, img.Key)
	b.node.dropUse("c1")
	look := b.look()
	if look.Complete() || len(b.liveUses()) != 1 || b.memory(img.Key).FirstSeenAt.IsZero() {
		t.Errorf("uses %v, memory %+v", b.liveUses(), b.memory(img.Key))
	}
}

func TestARepullCountsAsWanted(t *testing.T) {
	b := newBench(t)
	img := b.node.addImage("a")
	b.look()
	before := b.memory(img.Key).Pulled
	b.look()
	if b.memory(img.Key).Pulled != before {
		t.Error("a look alone counts as a pull")
	}
	img.Names = []policy.Name{{Name: "reg/a:1", Target: "sha256:ta", Updated: time.Now()}}
	b.node.images[img.Key] = img
	b.look()
	if b.memory(img.Key).Pulled <= before {
		t.Error("a pull of the same name was not noticed")
	}
}

func TestClaims(t *testing.T) {
	g := newGate()
	img := policy.Image{Key: policy.Key{ContainerdNamespace: CRINamespace, ID: "sha256:a"}}
	u := policy.Use{ContainerdNamespace: CRINamespace, ContainerID: "c1", ImageID: "sha256:a"}
	g.claim(u, 0)
	if !g.claimed(img, 0) || g.claimed(policy.Image{Key: policy.Key{ContainerdNamespace: "default", ID: "sha256:a"}}, 0) {
		t.Error("a claim is for its own image alone")
	}
	g.drop("c1")
	if g.claimed(img, 0) {
		t.Error("a dropped claim counts")
	}
	g.claim(u, 0)
	if !g.claimed(img, policy.Moment(claimLimit)) || g.claimed(img, policy.Moment(claimLimit)+1) {
		t.Error("a claim counts for its limit, no longer")
	}
}
