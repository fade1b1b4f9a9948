package main

import (
	"fmt"
	"strconv"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/image-custodian/custodian/api/v1/node"
)

func useIn(container, pod, image string) *node.Use {
	return &node.Use{ContainerId: container, Pod: &node.Pod{Id: pod}, Image: &node.Image{Id: image}, State: node.UseState_USE_STATE_CREATED}
}

// numbers of the queued events, which have no holes.
func numbers(out outgoing) (n []uint64) {
	for _, e := range out.events {
		n = append(n, e.GetNumber())
	}
	return n
}

func TestEventsStayUntilAcknowledged(t *testing.T) {
	l := newLedger(10)
	l.begin(nil, nil, 0)
	l.syncDone(l.makeSync(), true)
	l.created(useIn("c1", "p1", "sha256:a"), 1)
	l.started("c1", 2)
	l.stopped("c1", 3)
	session := l.next(10).session
	for range 2 {
		if got := fmt.Sprint(numbers(l.next(10))); got != "[1 2 3]" {
			t.Errorf("numbers = %s, want [1 2 3] each time", got)
		}
	}
	l.ack("another session", 3)
	l.ack(session, 2)
	if got := fmt.Sprint(numbers(l.next(10))); got != "[3]" {
		t.Errorf("after an ack of 2: %s", got)
	}
}

// A process that lived shortly has its start told after its end: it stays ended.
func TestStopBeforeStart(t *testing.T) {
	l := newLedger(10)
	l.begin(nil, nil, 0)
	l.created(useIn("c1", "p1", "sha256:a"), 1)
	l.stopped("c1", 2)
	l.started("c1", 3)
	if got := l.makeSync().uses[0].GetState(); got != node.UseState_USE_STATE_EXITED {
		t.Errorf("state = %v", got)
	}
}

// The end of a container that was refused is told, because it had a claim.
func TestRefusedContainer(t *testing.T) {
	l := newLedger(10)
	l.begin(nil, nil, 0)
	l.syncDone(l.makeSync(), true)
	l.stopped("refused", 1)
	l.removed("refused", 2)
	events := l.next(10).events
	if len(events) != 1 || events[0].GetKind() != node.EventKind_EVENT_KIND_REMOVED {
		t.Errorf("events = %v", events)
	}
}

func TestPodTakesItsContainersAlong(t *testing.T) {
	l := newLedger(10)
	l.begin([]*node.Pod{{Id: "p1"}}, []*node.Use{useIn("c1", "p1", "a"), useIn("c2", "p2", "a")}, 0)
	l.podRemoved(&node.Pod{Id: "p1"}, 5)
	s := l.makeSync()
	if len(s.uses) != 1 || s.uses[0].GetContainerId() != "c2" || len(s.pods) != 0 {
		t.Errorf("uses %v, pods %v", s.uses, s.pods)
	}
	if len(s.ended) != 1 || s.ended[0].GetBoottime() != 5 {
		t.Errorf("ended = %v", s.ended)
	}
}

// However many events a small outbox gets, no end is lost: it arrives as an
// event or as the last use of its image.
func TestOverflowLosesNoEnd(t *testing.T) {
	l := newLedger(10)
	l.begin(nil, nil, 0)
	l.syncDone(l.makeSync(), true)
	const containers = 1000
	for i := range containers {
		id := strconv.Itoa(i)
		l.created(useIn("c"+id, "p"+id, "image"+id), int64(i))
		l.stopped("c"+id, int64(i))
		l.removed("c"+id, int64(i))
	}
	l.created(useIn("alive", "p", "image"), 1)
	if !l.next(10).syncDue {
		t.Fatal("no sync is due after an overflow")
	}
	failed := l.makeSync()
	l.removed("c-between", 1)
	l.syncDone(failed, false)
	s := l.makeSync()
	if len(s.ended) != containers || len(s.uses) != 1 || s.number != containers*3+2 {
		t.Errorf("%d ends, %d uses, number %d; want %d, 1, %d", len(s.ended), len(s.uses), s.number, containers, containers*3+2)
	}
	l.created(useIn("after", "p", "image"), 1)
	l.syncDone(s, true)
	out := l.next(10)
	if out.syncDue || len(out.events) != 1 || out.events[0].GetNumber() != s.number+1 || out.folded == 0 {
		t.Errorf("after the sync: %+v", out)
	}
}

// The end of a container with image volumes counts for every image.
func TestFoldedImageVolumes(t *testing.T) {
	l := newLedger(10)
	u := useIn("c1", "p1", "sha256:a")
	u.ImageVolumes = []string{"/image-volumes/p1/x"}
	l.begin(nil, []*node.Use{u}, 1)
	l.removed("c1", 7)
	s := l.makeSync()
	if len(s.ended) != 1 || s.ended[0].GetImage().GetId() != "" || s.ended[0].GetBoottime() != 7 {
		t.Errorf("ended = %v, want every image", s.ended)
	}
}

// A list that is overtaken by a new session hands its ends on.
func TestASyncOvertakenByASession(t *testing.T) {
	l := newLedger(10)
	l.begin(nil, []*node.Use{useIn("c1", "p1", "a")}, 0)
	l.removed("c1", 7)
	s := l.makeSync()
	l.begin(nil, nil, 0)
	l.syncDone(s, false)
	if again := l.makeSync(); len(again.ended) != 1 || again.ended[0].GetBoottime() != 7 {
		t.Errorf("ended = %v", again.ended)
	}
}

func TestEndedIsBounded(t *testing.T) {
	ended := map[string]*node.LastUse{}
	for i := range maxEnded + 5 {
		noteEnd(ended, &node.Image{Id: strconv.Itoa(i)}, int64(i))
	}
	if len(ended) != maxEnded+1 {
		t.Errorf("%d images", len(ended))
	}
	all := ended[""]
	if all.GetBoottime() != maxEnded+4 || !proto.Equal(all.GetImage(), &node.Image{}) {
		t.Errorf("the rest = %v, want every image at the latest end", all)
	}
}

func TestSyncInSmallChunks(t *testing.T) {
	l := newLedger(10)
	var uses []*node.Use
	for i := range 5000 {
		u := useIn(strconv.Itoa(i), "p", "a")
		for range maxVolumes {
			u.ImageVolumes = append(u.ImageVolumes, string(make([]byte, maxString)))
		}
		uses = append(uses, u)
	}
	l.begin(nil, uses, 0)
	s := &sender{ledger: l}
	chunks := s.chunks(l.makeSync())
	total := 0
	for i, c := range chunks {
		total += len(c.GetUses())
		if c.GetChunk() != uint32(i) || c.GetLast() != (i == len(chunks)-1) {
			t.Fatalf("chunk %d is number %d, last %v", i, c.GetChunk(), c.GetLast())
		}
		if size := proto.Size(c); size > 4<<20 {
			t.Fatalf("chunk %d has %d bytes, more than ttrpc takes", i, size)
		}
	}
	if total != 5000 {
		t.Errorf("%d uses in all", total)
	}
	if empty := s.chunks(list{session: "s"}); len(empty) != 1 || !empty[0].GetLast() {
		t.Errorf("an empty list: %v", empty)
	}
}
