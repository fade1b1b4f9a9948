package node

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// kubeletScript has sh start the kubelet, in a mount namespace of its own.
//
//go:embed kubelet.sh
var kubeletScript string

// mountKubelet makes the kubelet's root a mount of its own, the only one that
// it shares with containerd: volumes that either mounts there the other sees.
func (n *Node) mountKubelet() error {
	root := n.kubeletRoot()
	for _, hidden := range []string{"/var/lib", "/var/log"} {
		if strings.HasPrefix(root, hidden+"/") {
			return fmt.Errorf("%s is in %s, which is hidden from it", root, hidden)
		}
	}
	points, err := mountsBelow(n.Dir)
	if err != nil || slices.Contains(points, root) {
		return err
	}
	if err := os.MkdirAll(root, 0o750); err != nil {
		return err
	}
	// Private first: a bind of a shared mount is its peer.
	return errors.Join(unix.Mount(root, root, "", unix.MS_BIND, ""),
		unix.Mount("", root, "", unix.MS_PRIVATE, ""), unix.Mount("", root, "", unix.MS_SHARED, ""))
}

// cleanKubelet takes away what a kubelet leaves when it ends, because it expects
// to find it at its next start. Its pods have to be gone.
func (n *Node) cleanKubelet() error {
	return errors.Join(n.unmountKubelet(), n.removeQOSCgroups())
}

// unmountKubelet undoes mountKubelet, and unmounts volumes.
func (n *Node) unmountKubelet() error {
	points, err := mountsBelow(n.Dir)
	if err != nil {
		return fmt.Errorf("mounts: %w", err)
	}
	for _, point := range slices.Backward(points) {
		if point != n.kubeletRoot() && !strings.HasPrefix(point, n.kubeletRoot()+"/") {
			continue
		}
		if e := unix.Unmount(point, unix.UMOUNT_NOFOLLOW); e != nil {
			err = errors.Join(err, fmt.Errorf("mount %s: %w", point, e))
		}
	}
	return err
}

// removeQOSCgroups removes the cgroups of pods and of classes of pods, not those
// of containers: one that is still there was left behind, and keeps its parents.
func (n *Node) removeQOSCgroups() error {
	roots, err := cgroupHierarchies()
	if err != nil {
		return fmt.Errorf("cgroups: %w", err)
	}
	for _, root := range roots {
		dirs, e := cgroupTree(filepath.Join(root, n.CgroupParent, "kubepods"))
		err = errors.Join(err, e)
		for _, dir := range slices.Backward(dirs) {
			name := filepath.Base(dir)
			if !strings.HasPrefix(name, "pod") && !slices.Contains([]string{"kubepods", "burstable", "besteffort"}, name) {
				continue
			}
			if e := unix.Rmdir(dir); e != nil && !errors.Is(e, unix.EBUSY) {
				err = errors.Join(err, fmt.Errorf("cgroup %s: %w", dir, e))
			}
		}
	}
	return err
}

func (k *Kubelet) spawn(bin string, args ...string) error {
	log, err := os.OpenFile(k.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("sh", append([]string{"-c", kubeletScript, "kubelet.sh", k.RootDir, bin}, args...)...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = k.node.Env(), k.node.Dir, log, log
	k.process, err = spawn(cmd, syscall.CLONE_NEWNS)
	if err == nil {
		k.node.kubelet = k
	}
	return err
}
