//go:build e2e

package node

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// asOwner makes the test binary the owner of a node, to be killed; its value is
// one of owners.
const asOwner = "NODE_TEST_OWNER"

// owners are what an owner runs on its node.
var owners = map[string]func(context.Context, *Node) error{
	"pod": func(ctx context.Context, n *Node) error {
		_, _, err := n.Run(ctx, PodOptions{}, ContainerOptions{Image: n.Pause})
		return err
	},
}

func TestMain(m *testing.M) {
	if os.Getenv(asOwner) != "" {
		own()
	}
	goleak.VerifyTestMain(m)
}

// own runs something on a node, says so, and waits for SIGKILL.
func own() {
	ctx := context.Background()
	n, err := Start(ctx, Options{})
	if err == nil {
		err = owners[os.Getenv(asOwner)](ctx, n)
	}
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println(n.Name)
	select {}
}

// TestNode holds the promises of the package on two nodes side by side: they
// boot, run containers, survive a restart of containerd, share nothing, and
// leave nothing.
//
//nolint:paralleltest // a start beside "owner killed" would sweep its node first
func TestNode(t *testing.T) {
	t.Run("side by side", testSideBySide)
	t.Run("left behind", testLeftBehind)
	t.Run("cancelled", testCancelled)
	t.Run("owner killed", func(t *testing.T) { testOwnerKilled(t, "pod") })
}

func testSideBySide(t *testing.T) {
	nodes := make([]*Node, 2)
	began := time.Now()
	var g errgroup.Group
	for i := range nodes {
		g.Go(func() (err error) {
			nodes[i], err = Start(t.Context(), Options{Log: t.Output()})
			return err
		})
	}
	err := g.Wait()
	for _, n := range nodes {
		if n != nil {
			t.Cleanup(func() {
				if err := n.Stop(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("two nodes booted in %v", time.Since(began))

	var work errgroup.Group
	for i, n := range nodes {
		work.Go(func() error { return exercise(t, n, i == 1) })
	}
	if err := work.Wait(); err != nil {
		t.Fatal(err)
	}

	for _, n := range nodes {
		began := time.Now()
		if err := n.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		t.Logf("%s stopped in %v", n.Name, time.Since(began))
		if exists(n.Dir) || exists(filepath.Join(ownersDir, n.Name)) || exists("/sys/class/net/"+n.Name) {
			t.Errorf("node %s: Stop left something and did not say so", n.Name)
		}
	}
}

func exercise(t *testing.T, n *Node, killShim bool) error {
	ctx := t.Context()
	ref, err := n.PushImage(ctx, "team/app:v1", ImageOptions{Layers: 3, Labels: map[string]string{"a": "b"}})
	if err != nil {
		return err
	}
	second, err := n.Tag(ctx, ref, "team/app:v2")
	if err != nil {
		return err
	}
	id, err := n.Pull(ctx, ref)
	if err != nil {
		return err
	}
	if again, err := n.Pull(ctx, second); err != nil || again != id {
		t.Errorf("Pull(%s) = %s, %v, want the image of %s, %s", second, again, err, ref, id)
	}
	volume, err := n.PushImage(ctx, "volume", ImageOptions{Layers: 1})
	if err != nil {
		return err
	}
	began := time.Now()
	_, container, err := n.Run(ctx, PodOptions{Name: "web"}, ContainerOptions{Image: ref, ImageVolumes: map[string]string{"/volume": volume}})
	if err != nil {
		return err
	}
	t.Logf("first pod ran in %v", time.Since(began))
	began = time.Now()
	if _, _, err := n.Run(ctx, PodOptions{RuntimeHandler: "runc-alt"}, ContainerOptions{Image: ref}); err != nil {
		return err
	}
	t.Logf("second pod ran in %v", time.Since(began))

	out, err := n.Command(ctx, "crictl", "exec", container, "ls", "/volume/layer-0").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "layer-0") {
		t.Errorf("crictl exec: %v\n%s", err, out)
	}
	if err := runAside(t, n, second); err != nil {
		return err
	}

	if killShim {
		pid, err := shimOf(n)
		if err != nil {
			return err
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return err
		}
	}
	began = time.Now()
	if err := n.RestartContainerd(ctx); err != nil {
		return err
	}
	t.Logf("containerd restarted in %v", time.Since(began))
	if err := n.KillContainerd(ctx); err != nil {
		return err
	}
	if err := n.StartContainerd(ctx); err != nil {
		return err
	}
	reply, err := n.Runtime().ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return err
	}
	if got := len(reply.GetContainers()); got != 2 {
		t.Errorf("%d containers after the restarts, want 2", got)
	}
	began = time.Now()
	err = n.StopContainer(ctx, container, 10*time.Second)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the default command took %v to obey SIGTERM", took)
	}
	return err
}

// runAside runs a container past CRI, in another containerd namespace. ctr
// makes a cgroup named after that: the node's own name leaves nothing behind.
func runAside(t *testing.T, n *Node, ref string) error {
	for _, args := range [][]string{
		{"images", "pull", "--plain-http", ref},
		{"run", "-d", "--null-io", "--runc-root", filepath.Join(n.Dir, "runc"), ref, "aside"},
	} {
		args = append([]string{"-n", n.Name}, args...)
		if out, err := n.Command(t.Context(), "ctr", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ctr %v: %w\n%s", args, err, out)
		}
	}
	return nil
}

// shimOf returns the PID of one shim of the node.
func shimOf(n *Node) (int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		cmdline, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(cmdline), "containerd-shim-runc-v2") && mentions(cmdline, n.ContainerdAddress) {
			return strconv.Atoi(filepath.Base(filepath.Dir(file)))
		}
	}
	return 0, os.ErrNotExist
}

// testLeftBehind makes leftovers of several kinds and wants each one named
// and gone.
func testLeftBehind(t *testing.T) {
	n, err := Start(t.Context(), Options{ContainerdConfig: "[debug]\nlevel = 'info'"})
	if err != nil {
		t.Fatal(err)
	}
	mnt := filepath.Join(n.Dir, "mnt")
	if err := errors.Join(os.Mkdir(mnt, 0o755), syscall.Mount("none", mnt, "tmpfs", 0, "")); err != nil {
		t.Error(err)
	}
	forgotten := n.Command(context.Background(), "sleep", "1000")
	if err := forgotten.Start(); err != nil {
		t.Error(err)
	}
	cgroup := "/sys/fs/cgroup/pids" + n.CgroupParent + "/forgotten"
	if !exists("/sys/fs/cgroup/pids") {
		cgroup = "/sys/fs/cgroup" + n.CgroupParent + "/forgotten"
	}
	if err := os.MkdirAll(cgroup, 0o755); err != nil {
		t.Error(err)
	}
	err = n.Stop(t.Context())
	for _, want := range []string{"mount " + mnt, "sleep 1000", "cgroup " + n.CgroupParent + "/forgotten"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Stop = %v, want an error that names %q", err, want)
		}
	}
	if err := forgotten.Wait(); err == nil {
		t.Error("the forgotten process ended well, want it killed")
	}
	if exists(n.Dir) || exists(cgroup) {
		t.Error("Stop named leftovers but did not remove them")
	}
}

// testCancelled interrupts starts at different moments.
func testCancelled(t *testing.T) {
	for _, after := range []time.Duration{0, 20, 60, 100} {
		ctx, cancel := context.WithTimeout(t.Context(), after*time.Millisecond)
		n, err := Start(ctx, Options{})
		cancel()
		if err == nil { // was faster
			if err := n.Stop(ctx); err != nil {
				t.Errorf("after %d ms: %v", after, err)
			}
			continue
		}
		if !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "stop node") {
			t.Errorf("after %d ms: %v", after, err)
		}
	}
}

func testOwnerKilled(t *testing.T, kind string) {
	owner := exec.CommandContext(t.Context(), os.Args[0])
	owner.Env = append(os.Environ(), asOwner+"="+kind)
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Error(err)
	}
	name := strings.TrimSpace(line)
	swept, err := Sweep(t.Context())
	if err != nil || slices.Contains(swept, name) {
		t.Errorf("Sweep = %v, %v while the owner of %s lives", swept, err, name)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Error(err)
	}
	if err := owner.Wait(); err == nil {
		t.Error("the owner ended well")
	}
	began := time.Now()
	swept, err = Sweep(t.Context())
	if err != nil || !slices.Contains(swept, name) {
		t.Errorf("Sweep = %v, %v, want %s", swept, err, name)
	}
	t.Logf("swept in %v", time.Since(began))
	left, err := newNode(name, filepath.Join(os.TempDir(), name)).clean(t.Context(), 0)
	if err != nil || len(left) > 0 || exists(filepath.Join(os.TempDir(), name)) {
		t.Errorf("after the sweep: %v, %v", left, err)
	}
}
