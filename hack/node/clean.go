package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// forceTimeout bounds the wait for the kernel after a kill: it frees
	// cgroups and network devices in its own time.
	forceTimeout = 5 * time.Second
	look         = 5 * time.Millisecond
)

// clean finds whatever is left of the node outside of this process and
// removes it. left names what an orderly stop would not have left, after
// processes had settle to end by themselves; err says what stayed.
func (n *Node) clean(ctx context.Context, settle time.Duration) (left []string, err error) {
	left, orphans, err := n.cleanProcesses(ctx, settle)
	if err != nil {
		return left, err
	}
	steps := []func(context.Context) ([]string, error){
		n.cleanMounts, n.findSockets, n.cleanBridge, n.cleanNetworkCache,
		func(ctx context.Context) ([]string, error) { return n.cleanCgroups(ctx, orphans) },
	}
	var errs []error
	for _, step := range steps {
		found, err := step(ctx)
		left = append(left, found...)
		errs = append(errs, err)
	}
	return left, errors.Join(errs...)
}

// cleanProcesses waits for the node's processes to end and kills the rest;
// those that merely name the node are reported and left alone. orphans are
// cgroups of killed ones outside of the node's own.
func (n *Node) cleanProcesses(ctx context.Context, settle time.Duration) (left, orphans []string, err error) {
	named := make(map[int]bool)
	patience := time.Now().Add(settle)
	end := patience.Add(forceTimeout)
	for {
		found, err := n.processes()
		if err != nil {
			return left, orphans, fmt.Errorf("processes: %w", err)
		}
		waiting := !time.Now().After(patience)
		alive := found[:0:0]
		for _, p := range found {
			if !p.mere || waiting {
				alive = append(alive, p)
			}
			if waiting {
				continue
			}
			if !named[p.pid] {
				named[p.pid] = true
				left = append(left, p.String())
				orphans = append(orphans, p.foreignCgroups...)
			}
			if p.mere {
				continue
			}
			if err := unix.Kill(p.pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return left, orphans, fmt.Errorf("%v: kill: %w", p, err)
			}
		}
		if len(alive) == 0 {
			return left, orphans, nil
		}
		if time.Now().After(end) {
			return left, orphans, fmt.Errorf("%v does not die", alive[0])
		}
		if err := pause(ctx, look); err != nil {
			return left, orphans, err
		}
	}
}

// cleanMounts includes the network namespaces: they are mounts in StateDir.
func (n *Node) cleanMounts(context.Context) (left []string, err error) {
	points, err := mountsBelow(n.Dir)
	if err != nil {
		return nil, fmt.Errorf("mounts: %w", err)
	}
	for _, point := range slices.Backward(points) { // the innermost first
		left = append(left, "mount "+point)
		if e := unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); e != nil {
			err = errors.Join(err, fmt.Errorf("mount %s: %w", point, e))
		}
	}
	return left, err
}

func mountsBelow(dir string) ([]string, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var points []string
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		if point := unescape.Replace(fields[4]); strings.HasPrefix(point, dir+"/") {
			points = append(points, point)
		}
	}
	return points, nil
}

// findSockets looks for sockets below the directory that somebody, probably
// this process, still has open; they go with their owner.
func (n *Node) findSockets(context.Context) (left []string, err error) {
	text, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil, fmt.Errorf("sockets: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if i := strings.Index(line, n.Dir+"/"); i >= 0 {
			left = append(left, "open socket "+strings.TrimSpace(line[i:]))
		}
	}
	return left, nil
}

// cleanBridge removes the node's bridge, which CNI never does. A port of it
// is a pod's interface that was left behind.
func (n *Node) cleanBridge(ctx context.Context) (left []string, err error) {
	bridge := filepath.Join("/sys/class/net", n.Name)
	ports, err := filepath.Glob(filepath.Join(bridge, "brif", "*"))
	if err != nil {
		return nil, err
	}
	for _, port := range ports {
		left = append(left, "network interface "+filepath.Base(port))
	}
	if !exists(bridge) {
		return left, nil
	}
	if err := deleteBridge(n.Name); err != nil {
		return left, fmt.Errorf("bridge %s: %w", n.Name, err)
	}
	// The namespaces of killed pods, and with them both ends of their
	// interfaces, go in the background.
	deadline := time.Now().Add(forceTimeout)
	for _, port := range ports {
		for exists(filepath.Join("/sys/class/net", filepath.Base(port))) {
			if time.Now().After(deadline) {
				return left, fmt.Errorf("network interface %s stays", filepath.Base(port))
			}
			if err := pause(ctx, look); err != nil {
				return left, err
			}
		}
	}
	return left, nil
}

func deleteBridge(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	request.SetUint16(0) // no flags: down
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("down: %w", err)
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCBRDELBR, request); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	return nil
}

// cleanNetworkCache removes results that libcni keeps for the whole machine,
// in files that start with the name of the network.
func (n *Node) cleanNetworkCache(context.Context) (left []string, err error) {
	for _, dir := range []string{"/var/lib/cni/results", "/var/lib/cni/cache/results"} {
		files, e := filepath.Glob(filepath.Join(dir, n.Name+"-*"))
		err = errors.Join(err, e)
		for _, file := range files {
			left = append(left, "CNI result "+file)
			err = errors.Join(err, os.Remove(file))
		}
	}
	return left, err
}
