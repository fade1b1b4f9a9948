//go:build e2e && kubelet

package node

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// wantOutside wants nothing new or changed on the machine. Some of it may have
// gone, with somebody else.
func wantOutside(t *testing.T, when string, before map[string]string) {
	t.Helper()
	for what, is := range outside(t) {
		if was := before[what]; was != is {
			t.Errorf("%s: %s was %q, is %q", when, what, was, is)
		}
	}
}

// outside is what a kubelet could change on the machine: files, directories
// and cgroups by name, kernel parameters by value, mounts, packet filters.
// Other nodes may come and go meanwhile.
func outside(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, root := range []string{"/etc", "/opt", "/run", "/usr/libexec", "/var", cgroupRoot} {
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			if strings.HasPrefix(e.Name(), "icn-") {
				if e.IsDir() {
					return fs.SkipDir
				}
				return nil
			}
			found[path] = "there"
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{
		"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys",
		"kernel/keys/root_maxbytes", "net/ipv4/ip_forward", "net/ipv4/conf/all/route_localnet", "net/netfilter/nf_conntrack_max",
	} {
		value, err := os.ReadFile("/proc/sys/" + key)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		found["sysctl "+key] = strings.TrimSpace(string(value))
	}
	mounts, err := mountsBelow("")
	if err != nil {
		t.Fatal(err)
	}
	for _, point := range mounts {
		if !strings.Contains(point, "/icn-") {
			found["mount "+point] = "there"
		}
	}
	if save, err := exec.LookPath("iptables-save"); err == nil {
		rules, err := exec.CommandContext(t.Context(), save).Output()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(rules)) {
			if !strings.HasPrefix(line, "#") {
				found["iptables "+strings.TrimSpace(line)] = "there"
			}
		}
	}
	return found
}
