//go:build e2e

package node

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestNode holds the promises of the package on two nodes side by side: they
// boot, run containers, survive a restart of containerd, share nothing, and
// leave nothing.
func TestNode(t *testing.T) {
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
	// A container past CRI and without its cgroup parent.
	if out, err := n.Command(ctx, "ctr", "run", "-d", "--null-io", "--runc-binary", filepath.Join(n.Dir, "bin/runc"),
		"--runc-root", filepath.Join(n.Dir, "runc"), second, n.Name+"-aside").CombinedOutput(); err != nil {
		t.Errorf("ctr run: %v\n%s", err, out)
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
