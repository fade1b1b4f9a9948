package reconcile

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/image-custodian/custodian/sidecar/internal/containerd"
	"github.com/image-custodian/custodian/sidecar/internal/policy"
	"github.com/image-custodian/custodian/sidecar/internal/state"
)

// cutOff is the intent of a run that was killed.
func (b *bench) cutOff(id string, recordNames ...string) policy.Key {
	b.Helper()
	k := policy.Key{ContainerdNamespace: CRINamespace, ID: "sha256:" + id}
	removal := state.Removal{Names: recordNames, Reason: policy.Expired}
	for _, n := range recordNames {
		removal.Records = append(removal.Records, policy.Record{Name: n, Digest: "sha256:t" + id})
	}
	if err := b.store.Commit(state.Change{PutRemovals: map[policy.Key]state.Removal{k: removal}}); err != nil {
		b.Fatal(err)
	}
	return k
}

func (b *bench) recover() error {
	b.Helper()
	return b.rec.recover(b.Context())
}

func (b *bench) intents() int {
	b.Helper()
	removals, err := b.store.Removals()
	if err != nil {
		b.Fatal(err)
	}
	return len(removals)
}

// What a kill has cut off is settled by what the node says: whole images stay,
// gone and unused ones are told as removed, half removed and used ones come back.
func TestRecover(t *testing.T) {
	b := newBench(t)
	b.node.addImage("whole")
	b.cutOff("whole", "reg/whole:1")
	gone := b.cutOff("gone", "reg/gone:1")
	b.node.addImage("half")
	b.cutOff("half", "reg/half:1", "reg/half:2")
	used := b.cutOff("used", "reg/used:1")
	b.node.addUse("c1", policy.Image{Key: used})
	if err := b.recover(); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, n := range b.node.recreated {
		got[n] = true
	}
	if diff := cmp.Diff(map[string]bool{"reg/half:2": true, "reg/used:1": true}, got); diff != "" {
		t.Error(diff)
	}
	events := b.events(state.EventRemoved)
	if len(events) != 1 || events[0].Image != gone || b.intents() != 0 || b.node.dropped != 1 {
		t.Errorf("events %+v, %d intents, leases dropped %d times", events, b.intents(), b.node.dropped)
	}
}

// While an image cannot be put back its intent and the leases stay.
func TestRecoverTriesAgain(t *testing.T) {
	b := newBench(t)
	used := b.cutOff("used", "reg/used:1")
	b.node.addUse("c1", policy.Image{Key: used})
	b.node.recreateErr = errors.New("connection lost")
	if err := b.recover(); err == nil || b.intents() != 1 || b.node.dropped != 0 {
		t.Errorf("%v, %d intents, leases dropped %d times", err, b.intents(), b.node.dropped)
	}
	b.node.recreateErr = nil
	if err := b.recover(); err != nil || b.intents() != 0 || b.node.dropped != 1 || !b.node.has(used) {
		t.Errorf("%v, %d intents, leases dropped %d times", err, b.intents(), b.node.dropped)
	}
}

func TestRecoverWithoutContent(t *testing.T) {
	b := newBench(t)
	used := b.cutOff("used", "reg/used:1")
	b.node.addUse("c1", policy.Image{Key: used})
	b.node.recreateErr = containerd.ErrContentGone
	if err := b.recover(); err != nil || b.intents() != 0 || len(b.events(state.EventFailed)) != 1 {
		t.Errorf("%v, %d intents, events %+v", err, b.intents(), b.events(state.EventFailed))
	}
}

// A claim whose image cannot be put back at once: it is told, and tried again.
func TestAnUndoThatFails(t *testing.T) {
	b := newBench(t)
	img := b.node.addImage("a")
	b.sync("s1", 0)
	b.node.restoreErr = containerd.ErrNotRestored
	b.node.onRemove = func(policy.Key) { b.node.addUse("c9", img) }
	b.pass()
	if b.intents() != 1 || len(b.events(state.EventFailed)) != 1 {
		t.Fatalf("%d intents, events %+v", b.intents(), b.events(state.EventFailed))
	}
	b.pass()
	if b.intents() != 0 || !b.node.has(img.Key) {
		t.Errorf("%d intents, image there: %v", b.intents(), b.node.has(img.Key))
	}
}

// A container that came and went between the look and the deletion moved the
// last use: the second decision sees it.
func TestAShortUseSinceTheLook(t *testing.T) {
	b := newBench(t)
	img := b.node.addImage("a")
	b.cfg.Rules.UnusedFor = 50 * time.Millisecond
	b.stop()
	b.start()
	b.sync("s1", 0)
	b.look()
	look := b.look()
	for !look.Decisions[0].Remove { // as soon as its time is over
		look = b.look()
	}
	u := policy.Use{ContainerdNamespace: CRINamespace, ContainerID: "c1", ImageID: img.Key.ID, Kind: policy.UseRoot}
	b.rec.Admit(t.Context(), u)
	b.report("s1", created(1, u), Event{Number: 2, Kind: Removed, ContainerID: "c1", Boottime: 1 << 62})
	if _, err := b.rec.remove(t.Context(), look); err != nil || !b.node.has(img.Key) {
		t.Errorf("%v: the image was removed by an old decision", err)
	}
}

// Outside the CRI an ID is used again: the first life's image has its last use.
func TestAContainerIDUsedAgain(t *testing.T) {
	b := newBench(t)
	first, second := b.node.addImage("first"), b.node.addImage("second")
	run := func(img policy.Image, at int64) {
		u := policy.Use{ContainerdNamespace: CRINamespace, ContainerID: "backup", ImageID: img.Key.ID, Kind: policy.UseRoot, State: policy.StateRunning, StartedAt: time.Unix(at, 0)}
		b.node.uses["backup"] = u
		b.look()
	}
	run(first, 100)
	run(second, 200)
	if m := b.memory(first.Key); m.LastUse == nil {
		t.Error("the first life left no last use")
	}
	uses := b.liveUses()
	if len(uses) != 1 || uses[state.UseKey{ContainerdNamespace: CRINamespace, ContainerID: "backup"}].ImageID != second.Key.ID {
		t.Errorf("uses = %+v", uses)
	}
}

// A tag that moves does not move the image of a container that runs from it.
func TestAMovedNameMovesNoUse(t *testing.T) {
	b := newBench(t)
	img, other := b.node.addImage("a"), b.node.addImage("b")
	u := b.node.addUse("c1", img)
	b.look()
	u.ImageID = other.Key.ID
	b.node.uses["c1"] = u
	b.look()
	if got := b.liveUses()[state.KeyOf(u)].ImageID; got != img.Key.ID {
		t.Errorf("image = %s, want %s", got, img.Key.ID)
	}
}

// An end whose image nobody knows counts for every image, and so do events that
// are missing.
func TestUnknownEndsAndHoles(t *testing.T) {
	volume := policy.Use{ContainerdNamespace: CRINamespace, ContainerID: "c1", ImageID: "sha256:a", Volumes: []string{"sha256:unknown"}}
	nameless := policy.Use{ContainerdNamespace: CRINamespace, ContainerID: "c1", UserName: "nginx"}
	removed := Event{Number: 2, Kind: Removed, ContainerID: "c1", Boottime: 1 << 62}
	for name, events := range map[string][]Event{
		"image volume":  {created(1, volume), removed},
		"no image ID":   {created(1, nameless), removed},
		"missing event": {{Number: 7, Kind: Removed, ContainerID: "c1"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.node.addImage("a")
			b.sync("s1", 0)
			before := b.rec.Session().Watched
			if b.report("s1", events...) {
				b.sync("s1", 7)
			}
			if got := b.rec.Session().Watched; got <= before {
				t.Errorf("disuse still counts from %v", got)
			}
		})
	}
}

// What becomes due while a pass removes something else is not forgotten until
// the next interval: the pass is repeated at once. What is left alone for a
// while has its turn as soon as that is over.
func TestDueDuringARemoval(t *testing.T) {
	b := newBench(t)
	b.cfg.Rules.UnusedFor = 100 * time.Millisecond
	b.stop()
	b.start()
	b.sync("s1", 0)
	first := b.node.addImage("first")
	b.look()
	time.Sleep(50 * time.Millisecond)
	b.node.addImage("second")
	look := b.look()
	for !look.Decisions[0].Remove {
		look = b.look()
	}
	if look.Decisions[1].Remove {
		t.Fatal("both were due: nothing is shown")
	}
	time.Sleep(100 * time.Millisecond) // the removal of the first, which lingers
	if next := b.rec.untilNext(look); next != 0 {
		t.Errorf("next pass in %v, want it at once", next)
	}
	look = b.look()
	b.rec.later[first.Key] = look.Now.Add(time.Second)
	if next := b.rec.untilNext(look); next > time.Second {
		t.Errorf("next pass in %v, want it when the image may be tried again", next)
	}
}

// A removal that waits for late claims makes the loop no slower afterwards.
func TestARemovalIsNoReasonToRest(t *testing.T) {
	b := newBench(t)
	b.cfg.Linger = 500 * time.Millisecond // times restFactor: ten seconds
	b.stop()
	b.start()
	b.node.addImage("a")
	b.sync("s1", 0)
	rest, _, err := b.rec.pass(t.Context())
	if err != nil || len(b.node.removed) != 1 || rest >= restFactor*b.cfg.Linger {
		t.Errorf("%v, removed %v, rest %v", err, b.node.removed, rest)
	}
}

// A claim after the deletion brings the image back at once, not when the wait
// for late claims is over.
func TestALateClaimIsAnsweredAtOnce(t *testing.T) {
	b := newBench(t)
	b.cfg.Linger = time.Minute
	b.stop()
	b.start()
	img := b.node.addImage("a")
	b.sync("s1", 0)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _, _ = b.rec.pass(ctx) // it is cut short below
	}()
	wait := func(what string, there bool) {
		for began := time.Now(); b.node.has(img.Key) != there; time.Sleep(time.Millisecond) {
			if time.Since(began) > 10*time.Second {
				t.Fatal(what)
			}
		}
	}
	wait("never removed", false)
	b.rec.Admit(t.Context(), policy.Use{ContainerdNamespace: CRINamespace, ContainerID: "c9", ImageID: img.Key.ID})
	wait("not back while the removal waits", true)
	stop()
	<-done
}

// A container that was made and went within moments ends by itself as soon as
// the runtime cannot only be slow to list it.
func TestAYoungUseThatIsNotListed(t *testing.T) {
	b := newBench(t)
	img := b.node.addImage("a")
	b.node.addUse("c1", img)
	b.sync("s1", 0)
	b.look()
	b.node.dropUse("c1")
	look := b.look()
	if next := b.rec.untilNext(look); len(b.liveUses()) != 1 || next > settle+time.Second || next < settle-time.Second {
		t.Errorf("%d uses, next pass in %v, want it after %v", len(b.liveUses()), next, settle)
	}
}

// What goes, goes in the order of disuse, a batch at a time, whatever the order
// of the list.
func TestTheLongestUnusedGoFirst(t *testing.T) {
	look := &Look{View: policy.View{Memory: map[policy.Key]policy.Memory{}}}
	for i, since := range []policy.Moment{30, 10, 20} {
		k := policy.Key{ID: string(rune('a' + i))}
		look.View.Images = append(look.View.Images, policy.Image{Key: k})
		look.View.Memory[k] = policy.Memory{FirstSeen: since}
		look.Decisions = append(look.Decisions, policy.Decision{Key: k, Remove: true})
	}
	look.Decisions = append(look.Decisions, policy.Decision{})
	if diff := cmp.Diff([]int{1, 2, 0}, look.due()); diff != "" {
		t.Error(diff)
	}
}

// What a crash cut off and is found removed counts for the hour.
func TestARecoveredRemovalCounts(t *testing.T) {
	b := newBench(t)
	b.cutOff("gone", "reg/gone:1")
	if err := b.recover(); err != nil {
		t.Fatal(err)
	}
	if n, err := b.store.RemovedSince(0, policy.Expired); err != nil || len(n) != 1 {
		t.Errorf("%d removals, %v", len(n), err)
	}
}
