//go:build e2e

package e2e

import (
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/leases"

	"github.com/image-custodian/custodian/hack/node"
)

// Containers are created around the moment at which their image goes. One that
// was created has the records of its image a second later.
func TestCreateAroundTheRemoval(t *testing.T) {
	w := newWorld(t, strings.Replace(quick, "4s", "1s", 1))
	pod, err := w.RunPod(w.ctx, node.PodOptions{Name: "racer"})
	w.must(err)
	created, lost := 0, 0
	for i := range 15 {
		ref, id := w.push("race" + strconv.Itoa(i) + ":1")
		time.Sleep(900*time.Millisecond + rand.N(600*time.Millisecond))
		container, err := w.CreateContainer(w.ctx, pod, node.ContainerOptions{Name: "c" + strconv.Itoa(i), Image: ref})
		if err != nil {
			lost++ // the image was gone before: a kubelet would pull it
			continue
		}
		created++
		time.Sleep(time.Second)
		if !w.hasImage(id) || len(w.records(w.target(ref).Target.Digest.String())) != 3 {
			t.Errorf("round %d: the container was created, its image has the records %v", i, w.records(""))
		}
		w.must(w.RemoveContainer(w.ctx, container))
	}
	t.Logf("%d created, %d too late", created, lost)
	log, err := os.ReadFile(w.custodian.PluginLog)
	w.must(err)
	if strings.Contains(string(log), "not registered with the runtime") {
		t.Error("containerd dropped the plugin")
	}
}

// A sidecar that is killed while it removes leaves nothing that the next one
// does not settle: every image is whole or gone, each removal is told once, and
// no lease is left.
func TestKilledWhileRemoving(t *testing.T) {
	w := newWorld(t, strings.Replace(quick, "4s", "6s", 1))
	used, usedID := w.push("used:1")
	_, _, err := w.Run(w.ctx, node.PodOptions{Name: "user"}, node.ContainerOptions{Image: used})
	w.must(err)
	var refs []string
	for i := range 12 {
		ref, _ := w.push("gone" + strconv.Itoa(i) + ":1")
		refs = append(refs, ref)
	}
	w.eventually(30*time.Second, "the removal begins", func() bool {
		return slices.ContainsFunc(refs, func(r string) bool { return !slices.Contains(w.records(""), r) })
	})
	w.must(w.custodian.KillSidecar())
	w.must(w.custodian.StartSidecar(w.ctx))
	w.eventually(40*time.Second, "all unused images go", func() bool {
		return !slices.ContainsFunc(w.records(""), func(r string) bool { return strings.Contains(r, "/gone") })
	})
	if !w.hasImage(usedID) {
		t.Error("the used image is gone")
	}
	w.eventually(10*time.Second, "no lease of ours is left", func() bool {
		list, err := w.client.LeasesService().List(w.ctx)
		w.must(err)
		return !slices.ContainsFunc(list, func(l leases.Lease) bool { return strings.HasPrefix(l.ID, "image-custodian-") })
	})
	told := map[string]int{}
	for _, e := range w.status().Events {
		for _, name := range e.Names {
			told[name]++
		}
	}
	for name, n := range told {
		if n > 1 {
			t.Errorf("the removal of %s is told %d times", name, n)
		}
	}
}
