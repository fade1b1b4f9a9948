package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// makeCgroup makes the cgroup of containerd itself. On cgroup v1 containerd
// does so, on v2 it only joins one.
func (n *Node) makeCgroup() error {
	var s unix.Statfs_t
	if err := unix.Statfs(cgroupRoot, &s); err != nil {
		return err
	}
	if s.Type != unix.CGROUP2_SUPER_MAGIC {
		return nil
	}
	return os.MkdirAll(filepath.Join(cgroupRoot, n.CgroupParent, "containerd"), 0o755)
}

// cgroupHierarchies are the roots in which to look: one on cgroup v2, one per
// controller on v1 and in hybrid mode.
func cgroupHierarchies() ([]string, error) {
	roots := []string{cgroupRoot}
	entries, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.IsDir() { // on v2 these are ordinary cgroups, and lead nowhere
			roots = append(roots, filepath.Join(cgroupRoot, e.Name()))
		}
	}
	return roots, nil
}

// cleanCgroups removes the node's cgroups, and those of foreign without what
// is below them. Only the two that the node made for itself are no leftover.
func (n *Node) cleanCgroups(ctx context.Context, foreign []string) (left []string, err error) {
	roots, err := cgroupHierarchies()
	if err != nil {
		return nil, fmt.Errorf("cgroups: %w", err)
	}
	named := make(map[string]bool)
	var errs []error
	for _, root := range roots {
		dirs, err := cgroupTree(filepath.Join(root, n.CgroupParent))
		if err != nil {
			errs = append(errs, fmt.Errorf("cgroup %s: %w", n.CgroupParent, err))
		}
		for _, path := range foreign {
			dirs = append(dirs, filepath.Join(root, path))
		}
		for _, dir := range slices.Backward(dirs) {
			name := strings.TrimPrefix(dir, root)
			own := name == n.CgroupParent || name == n.CgroupParent+"/containerd"
			if !own && !named[name] {
				named[name] = true
				left = append(left, "cgroup "+name)
			}
			if err := removeCgroup(ctx, dir); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return left, errors.Join(errs...)
}

// cgroupTree lists dir and all below it, parents first; nothing if it is not
// there.
func cgroupTree(dir string) ([]string, error) {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && e.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	return dirs, err
}

// removeCgroup waits for the kernel to let go of processes that have ended.
func removeCgroup(ctx context.Context, dir string) error {
	deadline := time.Now().Add(forceTimeout)
	for {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return fmt.Errorf("cgroup %s: %w", dir, err)
		}
		if err := pause(ctx, look); err != nil {
			return err
		}
	}
}
