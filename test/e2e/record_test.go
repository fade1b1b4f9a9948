//go:build e2e

package e2e

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/image-custodian/custodian/hack/node"
)

// What is recorded of a container is what the CRI says of it.
func TestRecord(t *testing.T) {
	w := newWorld(t, "")
	ref, id := w.push("team/app:1")
	pod, container, err := w.Run(w.ctx, node.PodOptions{Name: "api-0", Namespace: "pay", RuntimeHandler: "runc-alt"}, node.ContainerOptions{Name: "api", Image: ref})
	w.must(err)

	find := func() (u use, found bool) {
		i := slices.IndexFunc(w.uses(), func(u use) bool { return u.ContainerID == container })
		if i < 0 {
			return use{}, false
		}
		return w.uses()[i], true
	}
	w.eventually(10*time.Second, "the use is recorded as running", func() bool {
		u, ok := find()
		return ok && u.State == "running"
	})
	got, _ := find()
	want := use{
		ContainerID: container, ContainerName: "api", Pod: "api-0", Namespace: "pay", ImageID: id, Image: ref,
		RuntimeHandler: "runc-alt", RuntimeType: "io.containerd.runc.v2", Platform: "linux/amd64", State: "running", Kind: "root",
	}
	if got != want {
		t.Errorf("use = %+v\nwant  %+v", got, want)
	}
	sandboxes := slices.DeleteFunc(w.uses(), func(u use) bool { return u.Kind != "sandbox" })
	if len(sandboxes) != 1 || sandboxes[0].ContainerID != pod {
		t.Errorf("sandboxes = %+v, want %s", sandboxes, pod)
	}

	w.must(w.StopContainer(w.ctx, container, time.Second))
	w.eventually(10*time.Second, "the use is exited", func() bool { u, _ := find(); return u.State == "exited" })
	w.must(w.RemoveContainer(w.ctx, container))
	w.eventually(10*time.Second, "the use has ended", func() bool { _, ok := find(); return !ok })
	if img, ok := w.listed(id); !ok || img.InUse || img.LastUsed == "" || img.Reason != "not-expired" {
		t.Errorf("image = %+v, want unused with a last use", img)
	}
}

// Uses equal the runtime's own list at every quiet moment: also of containers
// that were there before, of exited ones, and after each program was killed.
func TestUsesEqualTheRuntime(t *testing.T) {
	w := newIdleWorld(t, node.Options{}, node.CustodianOptions{Bin: bin})
	ref, _ := w.push("app:1")
	_, _, err := w.Run(w.ctx, node.PodOptions{Name: "before"}, node.ContainerOptions{Image: ref})
	w.must(err)
	_, exited, err := w.Run(w.ctx, node.PodOptions{Name: "exited"}, node.ContainerOptions{Image: ref})
	w.must(err)
	w.must(w.StopContainer(w.ctx, exited, time.Second))
	w.must(w.custodian.Start(w.ctx))
	equal := func(when string) {
		t.Helper()
		w.eventually(30*time.Second, "uses equal the runtime's list "+when, func() bool {
			r, err := w.Runtime().ListContainers(w.ctx, &runtimeapi.ListContainersRequest{})
			w.must(err)
			var want, got []string
			for _, c := range r.GetContainers() {
				want = append(want, c.GetId()+" "+c.GetImageId()+" "+strings.ToLower(strings.TrimPrefix(c.GetState().String(), "CONTAINER_")))
			}
			for _, u := range w.uses() {
				if u.Kind == "root" {
					got = append(got, u.ContainerID+" "+u.ImageID+" "+u.State)
				}
			}
			slices.Sort(want)
			slices.Sort(got)
			return len(want) > 0 && slices.Equal(want, got)
		})
	}
	equal("at first")

	pod, _, err := w.Run(w.ctx, node.PodOptions{Name: "after"}, node.ContainerOptions{Image: ref})
	w.must(err)
	equal("after a create")

	w.must(w.custodian.KillSidecar())
	w.end(pod)
	_, _, err = w.Run(w.ctx, node.PodOptions{Name: "unseen"}, node.ContainerOptions{Image: ref})
	w.must(err)
	w.must(w.custodian.StartSidecar(w.ctx))
	equal("after changes while the sidecar was dead")

	w.must(w.custodian.KillPlugin())
	pod, _, err = w.Run(w.ctx, node.PodOptions{Name: "gap"}, node.ContainerOptions{Image: ref})
	w.must(err)
	w.must(w.custodian.StartPlugin(w.ctx))
	equal("after a create while the plugin was dead")

	w.must(w.RestartContainerd(w.ctx))
	w.end(pod)
	equal("after a restart of containerd")
	w.must(w.custodian.StopSidecar())
	w.must(w.custodian.StartSidecar(w.ctx))
	equal("after an orderly restart of the sidecar")
}

// Pinned images and the sandbox's stay, whatever their age.
func TestPinnedAndSandboxStay(t *testing.T) {
	w := newWorld(t, quick)
	_, gone := w.push("gone:1")
	ref, _ := w.push("pinned:1")
	second, err := w.Tag(w.ctx, ref, "pinned:2")
	w.must(err)
	pinnedID, err := w.Pull(w.ctx, second)
	w.must(err)
	img := w.target(second)
	img.Labels["io.cri-containerd.pinned"] = "pinned"
	_, err = w.client.ImageService().Update(w.ctx, img)
	w.must(err)
	pod, err := w.RunPod(w.ctx, node.PodOptions{Name: "empty"})
	w.must(err)

	w.eventually(20*time.Second, "the unused image goes", func() bool { return !w.hasImage(gone) })
	records := w.records(img.Target.Digest.String())
	w.stays(5*time.Second, "the pinned image", func() bool { return slices.Equal(w.records(img.Target.Digest.String()), records) })
	if got, _ := w.listed(pinnedID); got.Reason != "pinned" || !got.Pinned {
		t.Errorf("pinned image = %+v", got)
	}
	var list struct{ Images []image }
	w.ctl(&list, "images", "--filter", "reason=sandbox")
	if len(list.Images) != 1 || !slices.Contains(list.Images[0].Names, w.Pause) {
		t.Errorf("images kept as sandbox = %+v, want %s", list.Images, w.Pause)
	}
	w.end(pod)
}

// Removals in k8s.io leave other containerd namespaces alone, and images that
// no registry holds stay.
func TestOtherNamespacesAndImportsStay(t *testing.T) {
	w := newWorld(t, quick)
	ref, id := w.push("app:1")
	for _, args := range [][]string{
		{"-n", "default", "image", "pull", "--plain-http", ref},
		{"-n", "k8s.io", "image", "export", w.Dir + "/imported.tar", ref},
	} {
		if out, err := w.Command(w.ctx, "ctr", args...).CombinedOutput(); err != nil {
			t.Fatalf("ctr %v: %v\n%s", args, err, out)
		}
	}
	// Until its content has gone too, the blobs still say which registry has them.
	w.eventually(25*time.Second, "the image is removed", func() bool { return w.removals()[ref].Reason == "expired" })
	if w.hasImage(id) {
		t.Error("the CRI still lists the image")
	}
	out, err := w.Command(w.ctx, "ctr", "-n", "default", "image", "check", "name=="+ref).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "complete") {
		t.Errorf("in default: %v\n%s", err, out)
	}
	if out, err := w.Command(w.ctx, "ctr", "-n", "k8s.io", "image", "import", w.Dir+"/imported.tar").CombinedOutput(); err != nil {
		t.Fatalf("import: %v\n%s", err, out)
	}
	w.stays(6*time.Second, "the imported image", func() bool { return slices.Contains(w.records(""), ref) })
	if got, _ := w.listed(id); got.Reason != "unpullable" {
		t.Errorf("imported image = %+v, want it kept as unpullable", got)
	}
}

// The plugin launched by containerd, with its configuration by NRI.
func TestLaunchedPlugin(t *testing.T) {
	dir, err := os.MkdirTemp("", "icl-") //nolint:usetesting // sockets of shims lie in it: t.TempDir is too long for them
	if err != nil {
		t.Fatal(err)
	}
	w := newIdleWorld(t, node.Options{
		Dir:             dir,
		NRIPlugins:      map[string]string{"10-image-custodian": bin + "/image-custodian-plugin"},
		NRIPluginConfig: map[string]string{"10-image-custodian.conf": "node_socket = \"" + dir + "/ic/node/node.sock\"\n"},
	}, node.CustodianOptions{Bin: bin})
	ref, id := w.push("app:1")
	w.must(w.custodian.StartSidecar(w.ctx))
	w.must(w.custodian.WaitSynced(w.ctx, 1))
	_, container, err := w.Run(w.ctx, node.PodOptions{Name: "p"}, node.ContainerOptions{Image: ref})
	w.must(err)
	recorded := func() bool {
		return slices.ContainsFunc(w.uses(), func(u use) bool { return u.ContainerID == container && u.ImageID == id && u.Image == ref })
	}
	w.eventually(10*time.Second, "the use is recorded", recorded)
	w.must(w.RestartContainerd(w.ctx))
	w.must(w.custodian.WaitSynced(w.ctx, 2))
	w.eventually(10*time.Second, "the use is still recorded", recorded)
}

// A sidecar that hangs or is away costs no creation more than a moment.
func TestHangingSidecar(t *testing.T) {
	w := newWorld(t, "")
	ref, _ := w.push("app:1")
	pod, err := w.RunPod(w.ctx, node.PodOptions{Name: "many"})
	w.must(err)
	create := func(n int) time.Duration {
		began := time.Now()
		for i := range n {
			id, err := w.CreateContainer(w.ctx, pod, node.ContainerOptions{Name: "c" + strconv.Itoa(i), Image: ref})
			w.must(err)
			w.must(w.RemoveContainer(w.ctx, id))
		}
		return time.Since(began)
	}
	create(20)
	usual := create(100)
	w.must(w.custodian.Signal(syscall.SIGSTOP))
	hanging := create(100)
	w.must(w.custodian.Signal(syscall.SIGCONT))
	t.Logf("100 creates: %v, with a hanging sidecar %v", usual, hanging)
	if hanging > usual*3/2+time.Second {
		t.Errorf("100 creates took %v with a hanging sidecar, %v before", hanging, usual)
	}
	if _, err := w.Pull(w.ctx, ref); err != nil {
		t.Error(err)
	}
}

// The plugin stays small.
func TestPluginMemory(t *testing.T) {
	w := newWorld(t, "")
	ref, _ := w.push("app:1")
	for i := range 20 {
		_, _, err := w.Run(w.ctx, node.PodOptions{Name: "p" + strconv.Itoa(i)}, node.ContainerOptions{Image: ref})
		w.must(err)
	}
	rss := func(pid int) int {
		data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
		w.must(err)
		for line := range strings.Lines(string(data)) {
			if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
				kb, err := strconv.Atoi(strings.Fields(v)[0])
				w.must(err)
				return kb
			}
		}
		t.Fatal("no VmRSS")
		return 0
	}
	plugin, sidecar := rss(w.custodian.PluginPID()), rss(w.custodian.SidecarPID())
	t.Logf("resident with 20 pods: plugin %d KiB, sidecar %d KiB", plugin, sidecar)
	if plugin > 15*1024 {
		t.Errorf("the plugin has %d KiB resident, more than 15 MiB", plugin)
	}
}
