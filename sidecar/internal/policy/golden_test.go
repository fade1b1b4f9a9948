package policy

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write what was decided into testdata/plan.txt")

// testdata/plan.txt holds a case a line: its name, the images, the rules, the
// node, and what is decided about each image. The columns stand between bars,
// images and rules are separated by semicolons. Times are days unless they have
// a unit, and lie in the past; what is not said is unremarkable.
func TestPlanGolden(t *testing.T) {
	path := filepath.Join("testdata", "plan.txt")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(data), "\n")
	seen := map[Reason]bool{}
	for i, line := range lines {
		if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") {
			continue
		}
		columns := strings.Split(line, "|")
		if len(columns) != 5 {
			t.Fatalf("%s:%d: %d columns, want 5", path, i+1, len(columns))
		}
		name := strings.TrimSpace(columns[0])
		view, rules := parseCase(t, columns[1], columns[2], columns[3])
		decisions := Plan(view, rules, now)
		got := tell(view, decisions)
		for _, d := range decisions {
			seen[d.Reason] = true
		}
		if want := strings.TrimSpace(columns[4]); got != want && !*update {
			t.Errorf("%s:%d: %s\ngot  %s\nwant %s", path, i+1, name, got, want)
		}
		columns[4] = " " + got
		lines[i] = strings.Join(columns, "|")
	}
	for _, r := range []Reason{
		NotAnImage, InUse, ImageVolume, Sandbox, ForPod, Snapshot, Leased, Pinned, Unpullable, Kept, KeptLatest,
		NotExpired, MinAge, Expired, OverBudget, LowDisk, Requested, HourlyLimit, StartGrace, ViewIncomplete,
	} {
		if !seen[r] {
			t.Errorf("no case has the reason %s", r)
		}
	}
	if *update {
		if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// tell is what was decided, in the words of the golden file.
func tell(view View, decisions []Decision) string {
	var parts []string
	for i, d := range decisions {
		text := "keep "
		if d.Remove {
			text = "REMOVE "
		}
		text += string(d.Reason)
		if d.Rule != "" {
			text += " (" + d.Rule + ")"
		}
		if d.Expires != Never {
			text += " " + d.Expires.Sub(now).Round(time.Minute).String()
		}
		if d.Pin {
			text += " +pin"
		}
		if d.Trash != nil {
			text += " +trash " + d.Trash.String()
		}
		if len(decisions) > 1 {
			text = strings.TrimPrefix(view.Images[i].Key.ID, "sha256:") + ": " + text
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

// caseParser reads one line of the golden file.
type caseParser struct {
	*testing.T
	view  View
	rules Rules
}

func parseCase(t *testing.T, images, rules, node string) (View, Rules) {
	p := &caseParser{T: t, rules: Rules{UnusedFor: 31 * 24 * time.Hour, KeepUnpullable: true}}
	p.view = View{Memory: map[Key]Memory{}, Holdings: map[Key]Holding{}, PodsNamespace: "k8s.io", Started: now - 30*day, Disk: Disk{SizeBytes: 1000}}
	for i, words := range split(images) {
		p.image(string(rune('a'+i)), words)
	}
	for _, words := range split(rules) {
		p.rule(words)
	}
	for _, words := range split(node) {
		p.node(words)
	}
	CountUnique(p.view.Images, p.view.Parts)
	return p.view, p.rules
}

func split(column string) (lists [][]string) {
	for _, part := range strings.Split(column, ";") {
		if words := strings.Fields(part); len(words) > 0 {
			lists = append(lists, words)
		}
	}
	return lists
}

func (p *caseParser) duration(text string) time.Duration {
	if n, err := strconv.Atoi(strings.TrimSuffix(text, "d")); err == nil {
		return time.Duration(n) * 24 * time.Hour
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		p.Fatal(err)
	}
	return d
}

func (p *caseParser) number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		p.Fatal(err)
	}
	return n
}

func (p *caseParser) image(id string, words []string) {
	img := image(id, strings.Split(words[0], ",")...)
	mem := unused(now - 40*day)
	ns := img.Key.ContainerdNamespace
	for _, word := range words[1:] {
		k, v, _ := strings.Cut(word, "=")
		ago := func() Moment { return now - Moment(p.duration(v)) }
		switch k {
		case "seen":
			mem = unused(ago())
		case "used":
			mem = lastUsed(mem, ago())
		case "pulled":
			mem = pulled(mem, ago())
		case "unknown":
			mem = Memory{}
		case "pinned":
			img = pinned(img)
		case "local":
			img.FromRegistry = false
		case "artifact":
			img.Kind = KindArtifact
		case "foreign":
			img.Kind = KindForeign
		case "ns":
			ns = v
		case "label":
			k, v, _ := strings.Cut(v, ":")
			img.Labels = map[string]string{k: v}
		case "bytes":
			img.Parts = append(img.Parts, int32(len(p.view.Parts)))
			p.view.Parts = append(p.view.Parts, Part{Bytes: int64(p.number(v))})
		case "part":
			img.Parts = append(img.Parts, int32(p.number(v)))
		case "snapshot", "leased":
			p.view.Holdings[img.Key] = Holding{Reason: Reason(k), By: "x"}
		case "running", "exited", "claimed":
			p.view.Uses = append(p.view.Uses, Use{ContainerdNamespace: ns, ImageID: img.Key.ID, Kind: UseRoot, State: UseState(k)})
		case "sandbox":
			p.view.Uses = append(p.view.Uses, Use{ContainerdNamespace: ns, ImageID: img.Key.ID, Kind: UseSandbox})
		case "volume":
			p.view.Uses = append(p.view.Uses, Use{ContainerdNamespace: ns, ImageID: "sha256:z", Volumes: []string{img.Names[0].Target}})
		default:
			p.Fatalf("image: %q?", word)
		}
	}
	img.Key.ContainerdNamespace = ns
	p.view.Images = append(p.view.Images, img)
	p.view.Memory[img.Key] = mem
}

func (p *caseParser) rule(words []string) {
	if !strings.HasPrefix(words[0], "[") {
		p.global(words)
		return
	}
	r := Rule{Name: strings.Trim(words[0], "[]")}
	for _, word := range words[1:] {
		k, v, _ := strings.Cut(word, "=")
		switch k {
		case "images":
			r.Images = globs(p, strings.Split(v, ",")...)
		case "untagged":
			r.Untagged = true
		case "label":
			k, v, _ := strings.Cut(v, ":")
			r.Labels = append(r.Labels, LabelMatch{k, v})
		case "ns":
			r.ContainerdNamespaces = strings.Split(v, ",")
		case "unused_for":
			d := p.duration(v)
			r.UnusedFor = &d
		case "trash":
			d := p.duration(v)
			r.Trash = &d
		case "keep":
			r.Keep = true
		case "pin":
			r.Pin = true
		case "unpullable":
			r.Unpullable = true
		case "keep_latest":
			r.KeepLatest = p.number(v)
		default:
			p.Fatalf("rule: %q?", word)
		}
	}
	p.rules.List = append(p.rules.List, r)
}

func (p *caseParser) global(words []string) {
	for _, word := range words {
		k, v, _ := strings.Cut(word, "=")
		switch k {
		case "unused_for":
			p.rules.UnusedFor = p.duration(v)
		case "min_age":
			p.rules.MinAge = p.duration(v)
		case "grace":
			p.rules.StartGrace = p.duration(v)
		case "take_unpullable":
			p.rules.KeepUnpullable = false
		case "max_per_hour":
			p.rules.MaxPerHour = p.number(v)
		case "budget":
			p.rules.Budget.UnusedBytes = int64(p.number(v))
		case "budget_images":
			p.rules.Budget.UnusedImages = p.number(v)
		case "high":
			p.rules.Pressure.High = Level{Bytes: int64(p.number(v))}
		case "low":
			p.rules.Pressure.Low = Level{Bytes: int64(p.number(v))}
		case "spread":
			p.rules.Spread = float64(p.number(v)) / 100
		case "free":
			p.rules.Ask.FreeBytes = int64(p.number(v))
		case "until":
			p.rules.Ask.Until = Level{Share: float64(p.number(v)) / 100}
		default:
			p.Fatalf("rules: %q?", word)
		}
	}
}

func (p *caseParser) node(words []string) {
	for _, word := range words {
		k, v, _ := strings.Cut(word, "=")
		switch k {
		case "watched":
			p.view.Watched = now - Moment(p.duration(v))
		case "started":
			p.view.Started = now - Moment(p.duration(v))
		case "incomplete":
			p.view.Incomplete = []string{v}
		case "used":
			p.view.Disk.UsedBytes = int64(p.number(v))
		case "removed":
			for _, ago := range strings.Split(v, ",") {
				p.view.Removed = append(p.view.Removed, now-Moment(p.duration(ago)))
			}
		case "pod":
			p.view.Pods = append(p.view.Pods, PodSpec{Images: strings.Split(v, ",")})
		case "use":
			p.view.Uses = append(p.view.Uses, Use{ContainerdNamespace: "k8s.io", RecordName: v, Kind: UseRoot})
		case "held":
			p.view.Parts[p.number(v)].Held = true
		default:
			p.Fatalf("node: %q?", word)
		}
	}
}

// Every reason is told apart: a case's line is all that there is to know.
func (p *caseParser) String() string { return fmt.Sprint(p.view, p.rules) }
