//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/image-custodian/custodian/hack/node"
)

// Two names of one digest, a container that uses one of them: all stays. When
// it has ended and the time is over, every record and every blob goes.
func TestCase08ManyNames(t *testing.T) {
	w := newWorld(t, quick)
	a, id := w.push("a:1")
	b, err := w.Tag(w.ctx, a, "b:2")
	w.must(err)
	same, err := w.Pull(w.ctx, b)
	w.must(err)
	if same != id {
		t.Fatalf("a:1 is %s, b:2 is %s", id, same)
	}
	target := w.target(a).Target.Digest
	pod, container, err := w.Run(w.ctx, node.PodOptions{Name: "user"}, node.ContainerOptions{Image: b})
	w.must(err)

	before := w.stored() // the sandbox's image is there by now
	records := w.records(target.String())
	if len(records) != 5 { // two tags, two digests, and the ID
		t.Fatalf("records = %v", records)
	}
	w.stays(6*time.Second, "all records while a container uses one", func() bool {
		return slices.Equal(w.records(target.String()), records)
	})
	if got, _ := w.listed(id); got.Reason != "in-use" || !got.InUse || got.Decision != "keep" {
		t.Errorf("image = %+v", got)
	}
	w.must(w.StopContainer(w.ctx, container, time.Second))
	w.stays(6*time.Second, "all records while the exited container is there", func() bool {
		return slices.Equal(w.records(target.String()), records)
	})

	w.end(pod)
	w.eventually(20*time.Second, "all records go", func() bool { return len(w.records(target.String())) == 0 })
	w.eventually(10*time.Second, "the blobs go", func() bool {
		_, err := w.client.ContentStore().Info(w.ctx, target)
		return err != nil
	})
	if w.hasImage(id) {
		t.Error("the CRI still lists the image")
	}
	w.eventually(10*time.Second, "the removal is told", func() bool { return w.removals()[a].FreedBytes > 0 })
	removal := w.removals()[a]
	if lost := before - w.stored(); removal.FreedBytes != lost || removal.Reason != "expired" || len(removal.Names) != 5 {
		t.Errorf("removal = %+v, the store lost %d bytes", removal, lost)
	}
}

// A container longer-lived than the TTL, stopped: the image stays for the TTL
// from there. Neither kill -9 of the sidecar nor a wall clock that is wrong by
// a year, or by decades, changes the deadline.
func TestCase09LastUseAndRestart(t *testing.T) {
	const ttl = 12 * time.Second
	w := newIdleWorld(t, node.Options{}, node.CustodianOptions{
		Bin: faultsBin, Config: strings.Replace(quick, "4s", ttl.String(), 1),
		Env: []string{"CUSTODIAN_FAULT_WALL_OFFSET=0s"},
	})
	w.must(w.custodian.Start(w.ctx))
	ref, id := w.push("app:1")
	_, other := w.push("never-used:1")
	pod, _, err := w.Run(w.ctx, node.PodOptions{}, node.ContainerOptions{Image: ref})
	w.must(err)
	w.eventually(ttl+20*time.Second, "the image that nobody used goes", func() bool { return !w.hasImage(other) })
	w.stays(time.Second, "the used image outlives the TTL", func() bool { return w.hasImage(id) })

	w.end(pod)
	ended := time.Now()
	for i, offset := range []string{"8760h", "-8760h", "-490000h", "0s"} {
		w.must(w.custodian.KillSidecar())
		w.custodian.SetEnv("CUSTODIAN_FAULT_WALL_OFFSET=" + offset)
		w.must(w.custodian.StartSidecar(w.ctx))
		if !w.hasImage(id) {
			t.Fatalf("restart %d, wall clock off by %s: removed %v after its last use", i, offset, time.Since(ended))
		}
	}
	w.eventually(ttl+20*time.Second, "the image goes after its time", func() bool { return !w.hasImage(id) })
	if took := time.Since(ended); took < ttl {
		t.Errorf("removed %v after its last use ended, before its %v", took, ttl)
	} else {
		t.Logf("removed %v after the last use, TTL %v", took.Round(10*time.Millisecond), ttl)
	}
	w.eventually(15*time.Second, "the removal is told", func() bool { return w.removals()[ref].Reason == "expired" })
	if err := digest.Digest(id).Validate(); err != nil {
		t.Error(fmt.Errorf("image ID %q: %w", id, err))
	}
}
