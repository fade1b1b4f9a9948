//go:build e2e

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/image-custodian/custodian/hack/node"
)

// Whatever is wrong at the start is told in one line that names the thing and
// what to do; the exit code is not 0, and what was there is still there.
func TestBadInput(t *testing.T) {
	w := newIdleWorld(t, node.Options{}, node.CustodianOptions{Bin: bin})
	c := w.custodian
	w.must(c.StartSidecar(w.ctx)) // takes the sockets and the state
	files := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(files, name)
		w.must(os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	// elsewhere is a configuration that shares nothing with the running sidecar.
	elsewhere := func(name, more string) string {
		return write(name, "[containerd]\naddress = \""+w.ContainerdAddress+"\"\n[node]\nsocket = \""+files+"/"+name+".d/n/node.sock\"\n[state]\ndir = \""+files+"/"+name+".state\"\n[control]\nsocket = \""+files+"/"+name+".d/control.sock\"\n"+more)
	}
	damaged := elsewhere("damaged", "")
	w.must(os.MkdirAll(damaged+".state", 0o700))
	w.must(os.WriteFile(damaged+".state/state.db", []byte(strings.Repeat("rubbish", 9999)), 0o600))
	locked := elsewhere("locked", "")
	text, err := os.ReadFile(locked)
	w.must(err)
	write("locked", strings.Replace(string(text), files+"/locked.state", filepath.Dir(c.StateFile), 1))

	cases := map[string]struct {
		program string
		args    []string
		want    []string
	}{
		"no containerd at the address": {"image-custodian-sidecar", []string{"run", "--config", write("nobody", "[containerd]\naddress = \"/nowhere/containerd.sock\"\n[node]\nsocket = \""+files+"/x.d/n/node.sock\"\n[control]\nsocket = \""+files+"/x.d/control.sock\"\n")}, []string{"/nowhere/containerd.sock"}},
		"not containerd":               {"image-custodian-sidecar", []string{"run", "--config", replaceIn(elsewhere("other", ""), w.ContainerdAddress, w.NRISocket)}, []string{w.NRISocket}},
		"socket taken":                 {"image-custodian-sidecar", []string{"run", "--config", c.SidecarConfig}, []string{c.NodeSocket, "another"}},
		"state locked":                 {"image-custodian-sidecar", []string{"run", "--config", locked}, []string{c.StateFile, "locked", "another"}},
		"state damaged":                {"image-custodian-sidecar", []string{"run", "--config", damaged}, []string{"state.db.damaged-1", "start again"}},
		"unknown key":                  {"image-custodian-sidecar", []string{"run", "--config", elsewhere("unknown", "[clean]\nunused_fro = \"31d\"\n")}, []string{"unknown", ":10:", "clean.unused_fro"}},
		"bad duration":                 {"image-custodian-sidecar", []string{"run", "--config", elsewhere("duration", "[clean]\nunused_for = \"31 moons\"\n")}, []string{"duration", "31 moons"}},
		"two faults at once":           {"image-custodian-sidecar", []string{"run", "--config", elsewhere("two", "[clean]\nmode = \"maybe\"\n[log]\nformat = \"xml\"\n")}, []string{"clean.mode", "log.format"}},
		"no such configuration":        {"image-custodian-sidecar", []string{"run", "--config", "/nowhere/sidecar.toml"}, []string{"/nowhere/sidecar.toml"}},
		"plugin: unknown key":          {"image-custodian-plugin", []string{"--config", write("plugin", "node_sokcet = \"/x\"\n")}, []string{"plugin", "node_sokcet"}},
		"plugin: no NRI":               {"image-custodian-plugin", []string{"--config", write("nonri", "nri_socket = \"/nowhere/nri.sock\"\n")}, []string{"/nowhere/nri.sock", "NRI"}},
		"custodianctl: nobody there":   {"custodianctl", []string{"--socket", "/nowhere/control.sock", "status"}, []string{"/nowhere/control.sock", "image-custodian-sidecar"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			_, stderr, code, err := c.Run(ctx, tc.program, tc.args...)
			if err != nil || code == 0 {
				t.Fatalf("exit %d, %v\n%s", code, err, stderr)
			}
			var told []string
			for line := range strings.Lines(stderr) {
				if strings.HasPrefix(line, tc.program+": ") {
					told = append(told, line)
				}
			}
			if len(told) != 1 {
				t.Fatalf("want one line that starts with the program's name:\n%s", stderr)
			}
			for _, want := range tc.want {
				if !strings.Contains(told[0], want) {
					t.Errorf("does not name %q: %s", want, told[0])
				}
			}
		})
	}

	// Nothing was lost, and the set-aside state starts anew.
	if kept, err := os.ReadFile(damaged + ".state/state.db.damaged-1"); err != nil || !strings.HasPrefix(string(kept), "rubbish") {
		t.Errorf("the damaged state: %v", err)
	}
	if got := w.status(); len(got.Sources) == 0 {
		t.Error("the running sidecar no longer answers")
	}
	w.must(w.custodian.StopSidecar())
	w.must(os.Remove(c.StateFile))
	w.must(os.WriteFile(c.StateFile, []byte(strings.Repeat("rubbish", 9999)), 0o600))
	if err := c.StartSidecar(w.ctx); err == nil {
		t.Error("started on a damaged state")
	}
	w.must(c.Forget())
	w.must(c.StartSidecar(w.ctx))
}

// replaceIn replaces a text within a file and returns its path.
func replaceIn(path, old, text string) string {
	data, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte(strings.ReplaceAll(string(data), old, text)), 0o600)
	}
	if err != nil {
		return err.Error() // no such file: the case then says so
	}
	return path
}

// Only root may speak to the plugin's socket and control.sock; everybody else
// is kept out by the modes, and read.sock is for the reader group.
func TestSocketsAreGuarded(t *testing.T) {
	w := newIdleWorld(t, node.Options{}, node.CustodianOptions{Bin: bin, Config: "[control]\nreader_group = \"daemon\"\n"})
	w.must(w.custodian.StartSidecar(w.ctx))
	w.must(os.Chmod(w.Dir, 0o711)) // the private node's directory is no part of the product
	as := func(group uint32, socket string) (string, int) {
		cmd := w.Command(w.ctx, bin+"/custodianctl", "--socket", socket, "version")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: group}}
		out, err := cmd.CombinedOutput()
		if err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	const daemon, nobody = 1, 65534
	w.must(os.Chmod(filepath.Dir(bin), 0o755))
	for _, tc := range []struct {
		group  uint32
		socket string
		may    bool
	}{
		{daemon, w.custodian.ReadSocket, true}, {daemon, w.custodian.Socket, false},
		{nobody, w.custodian.ReadSocket, false}, {nobody, w.custodian.Socket, false},
	} {
		if out, code := as(tc.group, tc.socket); (code == 0) != tc.may {
			t.Errorf("group %d at %s: exit %d, may = %v\n%s", tc.group, tc.socket, code, tc.may, out)
		}
	}
	if _, err := os.Stat(w.custodian.NodeSocket); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(filepath.Dir(w.custodian.NodeSocket)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory of the node socket: %v, %v", info.Mode(), err)
	}
}

// once looks at a node with nothing installed and changes nothing.
func TestOnce(t *testing.T) {
	w := newIdleWorld(t, node.Options{}, node.CustodianOptions{Bin: bin})
	used, usedID := w.push("used:1")
	unused, _ := w.push("unused:1")
	_, _, err := w.Run(w.ctx, node.PodOptions{Name: "api-0", Namespace: "pay"}, node.ContainerOptions{Image: used})
	w.must(err)
	stdout, stderr, code, err := w.custodian.Run(w.ctx, "image-custodian-sidecar", "once", "--config", w.custodian.SidecarConfig)
	w.must(err)
	if code != 0 {
		t.Fatalf("exit %d\n%s", code, stderr)
	}
	t.Log("\n" + stdout)
	for line := range strings.Lines(stdout) {
		switch {
		case strings.HasPrefix(line, used+" "):
			if !strings.Contains(line, "pay/api-0") || !strings.Contains(line, "in-use") || !strings.Contains(line, usedID[7:20]) {
				t.Errorf("used image: %s", line)
			}
		case strings.HasPrefix(line, unused+" "):
			if !strings.Contains(line, "go, if nobody uses it for 31d") {
				t.Errorf("unused image: %s", line)
			}
		}
	}
	if !strings.Contains(stdout, "1 of them unused") {
		t.Error("the summary does not count one unused image")
	}
	if _, err := os.Stat(filepath.Dir(w.custodian.StateFile)); !os.IsNotExist(err) {
		t.Errorf("a state was made: %v", err)
	}
}
