package node

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// nodeProcess is a process that belongs to a node.
type nodeProcess struct {
	pid     int
	command string
	why     string
	// mere: only the command line names the node. That is no proof that the
	// process is part of it: it may be somebody's `tail -f containerd.log`.
	mere bool
	// foreignCgroups are paths outside of the node's cgroup in which a
	// container was run past CRI, as ctr does.
	foreignCgroups []string
}

func (p nodeProcess) String() string {
	return fmt.Sprintf("process %d %q (%s)", p.pid, p.command, p.why)
}

// processes finds the node's processes: in its cgroup; or with its directory
// in the environment, the executable, the working directory or the command
// line; or with a root file system made of its snapshots. This process and
// its ancestors are nobody's leftover, zombies neither.
func (n *Node) processes() ([]nodeProcess, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	ours := ancestors(os.Getpid())
	var found []nodeProcess
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || ours[pid] {
			continue
		}
		if p, ok := n.inspect(pid); ok {
			found = append(found, p)
		}
	}
	return found, nil
}

// inspect treats what cannot be read as empty: the process has just ended.
func (n *Node) inspect(pid int) (nodeProcess, bool) {
	read := func(name string) []byte {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
		if err != nil {
			return nil
		}
		return data
	}
	link := func(name string) []byte {
		target, err := os.Readlink(fmt.Sprintf("/proc/%d/%s", pid, name))
		if err != nil {
			return nil
		}
		return []byte(target)
	}
	cmdline := read("cmdline")
	if len(cmdline) == 0 { // kernel thread, zombie, or gone
		return nodeProcess{}, false
	}
	p := nodeProcess{pid: pid, command: strings.TrimSpace(string(bytes.ReplaceAll(cmdline, []byte{0}, []byte(" "))))}
	cgroups := read("cgroup")
	switch {
	case mentions(cgroups, n.CgroupParent):
		p.why = "cgroup"
	case mentions(link("exe"), n.Dir):
		p.why = "executable"
	case mentions(link("cwd"), n.Dir):
		p.why = "working directory"
	case mentions(read("environ"), n.Dir):
		p.why = "environment"
	case mentions(rootMount(read("mountinfo")), n.Dir):
		p.why = "root file system"
		p.foreignCgroups = foreignCgroups(cgroups, read("../self/cgroup"))
	case mentions(cmdline, n.Dir):
		p.why, p.mere = "command line", true
	default:
		return nodeProcess{}, false
	}
	return p, true
}

// rootMount is the line of a mountinfo that describes "/".
func rootMount(mountinfo []byte) []byte {
	for line := range bytes.Lines(mountinfo) {
		if fields := bytes.Fields(line); len(fields) > 4 && string(fields[4]) == "/" {
			return line
		}
	}
	return nil
}

// foreignCgroups are the paths of a container's /proc/PID/cgroup that are not
// this process's own too.
func foreignCgroups(container, own []byte) []string {
	not := map[string]bool{"/": true}
	for _, path := range cgroupPaths(own) {
		not[path] = true
	}
	return slices.DeleteFunc(cgroupPaths(container), func(path string) bool { return not[path] })
}

func cgroupPaths(text []byte) []string {
	var paths []string
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3) // ID:controllers:path
		if path := parts[len(parts)-1]; !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	return paths
}

// mentions reports whether text holds path as a whole, not as the beginning
// of a longer name.
func mentions(text []byte, path string) bool {
	for {
		i := bytes.Index(text, []byte(path))
		if i < 0 {
			return false
		}
		text = text[i+len(path):]
		if len(text) == 0 || !isNameByte(text[0]) {
			return true
		}
	}
}

func isNameByte(c byte) bool {
	return c == '-' || c == '_' || c == '.' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func ancestors(pid int) map[int]bool {
	set := make(map[int]bool)
	for pid > 0 && !set[pid] {
		set[pid] = true
		stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil {
			break
		}
		// "PID (name, may hold anything) STATE PPID ..."
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if pid, err = strconv.Atoi(fields[1]); err != nil {
			break
		}
	}
	return set
}
