//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/image-custodian/custodian/hack/node"
)

type plan struct {
	ID            string  `json:"id"`
	Complete      bool    `json:"complete"`
	Entries       []image `json:"entries"`
	RemoveCount   int     `json:"remove_count"`
	WillFreeBytes int64   `json:"will_free_bytes"`
}

func (w *world) plan(args ...string) (p plan) {
	w.t.Helper()
	w.ctl(&p, append([]string{"plan"}, args...)...)
	return p
}

// What a person can ask before anything goes: what would go now, later, for so
// many bytes, or by other rules; and why. Nothing goes by asking.
func TestPlanAndWhy(t *testing.T) {
	w := newWorld(t, strings.Replace(quick, "4s", "1h", 1)+"spread = \"0\"\n")
	used, usedID := w.push("used:1")
	_, _, err := w.Run(w.ctx, node.PodOptions{Name: "web-0", Namespace: "shop"}, node.ContainerOptions{Image: used})
	w.must(err)
	var ids []string
	for _, name := range []string{"old:1", "young:1"} {
		ref, err := w.PushImage(w.ctx, name, node.ImageOptions{LayerSize: 1 << 20})
		w.must(err)
		id, err := w.Pull(w.ctx, ref)
		w.must(err)
		w.reason(id, "not-expired")
		ids = append(ids, id)
	}
	w.eventually(20*time.Second, "no grace holds anything", func() bool { return w.plan("--free", "1TiB").RemoveCount == 2 })
	if p := w.plan(); p.RemoveCount != 0 || !p.Complete || len(p.Entries) != 0 || p.ID == "" {
		t.Errorf("now: %+v", p)
	}
	if p := w.plan("--in", "2h"); p.RemoveCount != 2 || p.WillFreeBytes < 4<<20 {
		t.Errorf("in two hours: %+v", p)
	}
	kept := w.plan("--free", "1MiB")
	if kept.RemoveCount != 1 || kept.Entries[0].ID != ids[0] || kept.Entries[0].Reason != "requested" || kept.WillFreeBytes < 1<<20 {
		t.Errorf("one MiB: %+v", kept)
	}
	if p := w.plan("--free", "1TiB"); p.RemoveCount != 2 {
		t.Errorf("all: %+v", p)
	}
	if p := w.plan("--free", "1MiB", "--filter", "image=*/young"); p.RemoveCount != 1 || p.Entries[0].ID != ids[1] {
		t.Errorf("of some: %+v", p)
	}
	rules := filepath.Join(t.TempDir(), "10-old.toml")
	w.must(os.WriteFile(rules, []byte("[[rule]]\nname = \"old\"\nimages = [\"*/old\"]\nunused_for = \"1ms\"\n"), 0o600))
	if p := w.plan("--rules", rules); p.RemoveCount != 1 || p.Entries[0].ID != ids[0] || p.Entries[0].Rule != "old" {
		t.Errorf("with other rules: %+v", p)
	}
	w.must(os.WriteFile(rules, []byte("[[rule]]\nunused_for = 5\n"), 0o600))
	if _, stderr, code, err := w.custodian.Ctl(w.ctx, "plan", "--rules", rules); err != nil || code != 2 || !strings.Contains(stderr, "10-old.toml:2:") {
		t.Errorf("wrong rules: exit %d, %s, %v", code, stderr, err)
	}
	w.must(w.custodian.KillSidecar())
	w.must(w.custodian.StartSidecar(w.ctx))
	if p := w.plan(kept.ID); p.RemoveCount != 1 || p.Entries[0].ID != ids[0] || p.WillFreeBytes != kept.WillFreeBytes {
		t.Errorf("kept over a restart: %+v", p)
	}
	w.eventually(20*time.Second, "the read socket plans, and keeps nothing", func() bool {
		stdout, _, code, err := w.custodian.Ctl(w.ctx, "plan", "--free", "1MiB", "--socket", w.custodian.ReadSocket)
		w.must(err)
		return code == 0 && strings.Contains(stdout, "1 image would go") && strings.Contains(stdout, "not kept")
	})

	for wanted, texts := range map[string][]string{
		used:             {"Stays (in-use)", "shop/web-0", "follows the others", used},
		ids[0][7:20]:     {"Stays (not-expired)", `rule "default"`, "1h unused", "It goes in 59m", "Without it the node gains", used},
		"nowhere/at:all": nil,
	} {
		stdout, stderr, code, err := w.custodian.Ctl(w.ctx, "why", wanted)
		w.must(err)
		if (code == 4) != (texts == nil) {
			t.Errorf("why %s: exit %d\n%s%s", wanted, code, stdout, stderr)
		}
		for _, text := range texts {
			if !strings.Contains(stdout, text) {
				t.Errorf("why %s lacks %q:\n%s", wanted, text, stdout)
			}
		}
	}
	for _, id := range append(ids, usedID) {
		if !w.hasImage(id) {
			t.Errorf("%s is gone, and nobody asked for more than a plan", id)
		}
	}
}
