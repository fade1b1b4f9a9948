package main

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"

	"github.com/image-custodian/custodian/api/v1/node"
)

// ends are the last uses of a list, by image ID.
func ends(l list) map[string]int64 {
	at := map[string]int64{}
	for _, e := range l.ended {
		at[e.GetImage().GetId()] = e.GetBoottime()
	}
	return at
}

// The runtime restarts while the sidecar is away: what the sidecar has never
// heard of still counts.
func TestANewSessionKeepsTheEndsOfTheOldOne(t *testing.T) {
	l := newLedger(10)
	l.begin(nil, nil, 0)
	l.syncDone(l.makeSync(), true)
	l.created(useIn("short", "p", "a"), 1)
	l.removed("short", 2)
	l.created(useIn("gone", "p", "b"), 3)
	l.created(useIn("alive", "p", "c"), 4)
	l.created(useIn("exited", "p", "d"), 5)
	l.stopped("exited", 6)
	l.end()
	l.begin(nil, []*node.Use{useIn("alive", "p", "c")}, 9)
	got := ends(l.makeSync())
	for image, want := range map[string]int64{
		"a": 2, // its end was told, and not acknowledged
		"b": 9, // ended unseen: at the latest now
		"d": 6, // NRI does not list what has exited
	} {
		if got[image] != want {
			t.Errorf("end of %s = %d, want %d", image, got[image], want)
		}
	}
	if at, ended := got["c"]; ended {
		t.Errorf("c is alive and ended at %d", at)
	}
}

// That a session is over is said with its last event, and once.
func TestTheEndOfASessionIsTold(t *testing.T) {
	l := newLedger(10)
	l.begin(nil, nil, 0)
	l.syncDone(l.makeSync(), true)
	for i := range 3 {
		l.removed(strconv.Itoa(i), int64(i))
	}
	l.end()
	if out := l.next(2); !out.over || !out.more || out.told {
		t.Errorf("with an event to come: %+v", out)
	}
	l.ack(l.session, 2)
	if out := l.next(2); !out.over || out.more {
		t.Errorf("with the last event: %+v", out)
	}
	l.tell("another session")
	if some, _ := l.pending(); !some {
		t.Error("nothing is pending before it is told")
	}
	l.tell(l.session)
	if some, _ := l.pending(); some {
		t.Error("something is pending after it was told")
	}
	l.begin(nil, nil, 1)
	if some, _ := l.pending(); !some {
		t.Error("nothing is pending in a new session")
	}
}

// A message stays far below what ttrpc takes, whatever is in its events.
func TestBatchesAreBounded(t *testing.T) {
	l := newLedger(4096)
	l.begin(nil, nil, 0)
	l.syncDone(l.makeSync(), true)
	for i := range 1000 {
		u := useIn(strconv.Itoa(i), "p", "a")
		for range maxVolumes {
			u.ImageVolumes = append(u.ImageVolumes, strings.Repeat("v", maxString))
		}
		l.created(u, 1)
	}
	var last uint64
	for out := l.next(maxBatch); len(out.events) > 0; out = l.next(maxBatch) {
		if size := proto.Size(&node.ReportRequest{Events: out.events}); size > 2<<20 {
			t.Fatalf("a message of %d bytes", size)
		}
		if first := out.events[0].GetNumber(); first != last+1 {
			t.Fatalf("event %d follows event %d", first, last)
		}
		last = out.events[len(out.events)-1].GetNumber()
		l.ack(out.session, last)
	}
	if last != 1000 {
		t.Errorf("the last event is %d", last)
	}
}

// The author of a pod can name directories as the runtime names image volumes,
// and hides none of the real ones with them.
func TestImageVolumesAreTheRuntimes(t *testing.T) {
	hex := strings.Repeat("0a", 32)
	var mounts []*api.Mount
	for range 2 * maxVolumes {
		mounts = append(mounts, &api.Mount{Source: "/tmp/image-volumes/mine/" + hex})
	}
	want := []string{"/run/cri/image-volumes/sb/" + hex, "/run/cri/image-volumes/sb/" + hex + "/sub/path"}
	for _, source := range append(slices.Clone(want), "/image-volumes/sb/short", "/image-volumes/sb/"+hex+"0", "/image-volumes/sb") {
		mounts = append(mounts, &api.Mount{Source: source})
	}
	got := useOf(nil, &api.Container{Id: "c", PodSandboxId: "sb", Mounts: mounts}, 1).GetImageVolumes()
	if !slices.Equal(got, want) {
		t.Errorf("image volumes = %q, want %q", got, want)
	}
	if got := useOf(nil, &api.Container{Mounts: []*api.Mount{{Source: "/image-volumes//" + hex}}}, 1).GetImageVolumes(); got != nil {
		t.Errorf("image volumes without a sandbox = %q", got)
	}
}
