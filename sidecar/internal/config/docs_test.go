package config

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

const root = "../../.."

// sample is a line of the documents: names, what is known of the image, and what
// becomes of it.
var sample = regexp.MustCompile(`^(\S+(?:, \S+)*)\s+((?:in use|unused \w+)(?:, [^()]+?)?)\s+((?:goes|stays) \(.+\))$`)

// expect runs the samples against rules.
func expect(t *testing.T, where string, rules policy.Rules, lines []string) {
	t.Helper()
	const now = policy.Moment(1000 * day)
	view := policy.View{Memory: map[policy.Key]policy.Memory{}}
	var wants []string
	for i, line := range lines {
		m := sample.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			t.Errorf("%s: %q is no sample", where, line)
			continue
		}
		img := policy.Image{Key: policy.Key{ContainerdNamespace: "k8s.io", ID: fmt.Sprintf("sha256:%d", i)}, Kind: policy.KindImage, FromRegistry: true}
		for _, name := range strings.Split(m[1], ", ") {
			img.Names = append(img.Names, policy.Name{Name: name})
		}
		mem := policy.Memory{FirstSeen: now - policy.Moment(500*day), FirstSeenAt: time.Unix(1, 0), Pulled: now - policy.Moment(500*day)}
		inUse := false
		for _, word := range strings.Split(m[2], ", ") {
			key, value, labelled := strings.Cut(word, "=")
			switch {
			case word == "in use":
				inUse = true
			case word == "imported":
				img.FromRegistry = false
			case word == "artifact":
				img.Kind = policy.KindArtifact
			case strings.HasPrefix(word, "in "):
				img.Key.ContainerdNamespace = word[3:]
			case strings.HasPrefix(word, "unused "):
				var d Duration
				if err := d.UnmarshalText([]byte(word[7:])); err != nil {
					t.Fatal(err)
				}
				last := now.Add(-d.Duration)
				mem.LastUse = &last
			case labelled:
				if img.Labels == nil {
					img.Labels = map[string]string{}
				}
				img.Labels[key] = value
			default:
				t.Errorf("%s: %q of %q says nothing", where, word, line)
			}
		}
		if inUse {
			view.Uses = append(view.Uses, policy.Use{ContainerdNamespace: img.Key.ContainerdNamespace, ImageID: img.Key.ID})
		}
		view.Images, view.Memory[img.Key] = append(view.Images, img), mem
		wants = append(wants, m[3])
	}
	for i, d := range policy.Plan(view, rules, now) {
		got := "stays ("
		if d.Remove {
			got = "goes ("
		}
		got += string(d.Reason)
		if d.Rule != "" {
			got += ", " + d.Rule
		}
		if got += ")"; got != wants[i] {
			t.Errorf("%s: %s %s, it says %s", where, view.Images[i].Names[0].Name, got, wants[i])
		}
	}
}

// Each block of rules in docs/rules.md does to the images after it what it says.
func TestDocumentedRules(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(root, "docs", "rules.md"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	blocks := regexp.MustCompile("(?s)```toml\n(.*?)```\n```text\n(.*?)```").FindAllStringSubmatchIndex(text, -1)
	if want := strings.Count(text, "```toml"); len(blocks) != want || want < 10 {
		t.Fatalf("%d of %d blocks of rules have samples", len(blocks), want)
	}
	documented := map[string]bool{}
	for _, b := range blocks {
		where := fmt.Sprintf("docs/rules.md:%d", strings.Count(text[:b[2]], "\n"))
		block := text[b[2]:b[3]]
		c, own, faults := parse(where, []byte(block))
		if len(faults) > 0 {
			t.Error(faults)
			continue
		}
		c.Clean.Spread = Share{} // its hash is of no interest here
		expect(t, where, Set{Config: c, own: own}.Rules(), strings.Split(strings.TrimSpace(text[b[4]:b[5]]), "\n"))
		for _, key := range regexp.MustCompile(`(?m)^(\w+)\s*=`).FindAllStringSubmatch(block, -1) {
			documented[key[1]] = true
		}
	}
	for _, key := range []string{"name", "images", "untagged", "labels", "containerd_namespaces", "unused_for", "keep", "pin", "keep_latest", "trash", "unpullable"} {
		if !documented[key] {
			t.Errorf("docs/rules.md has no example of %s", key)
		}
	}
}

// The ready rules do what they say of themselves.
func TestReadyRules(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "conf", "rules.d", "examples", "*.toml"))
	if err != nil || len(files) < 3 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		rules, faults := parseRules(file, data)
		if len(faults) > 0 {
			t.Error(faults)
		}
		_, told, ok := strings.Cut(string(data), "# What it does:\n")
		if !ok {
			t.Fatalf("%s does not say what it does", file)
		}
		config := Default()
		config.Clean.Spread = Share{}
		all := Set{Config: config, files: []rulesFile{{"x", rules}}}.Rules()
		expect(t, filepath.Base(file), all, strings.Split(strings.TrimSpace(strings.ReplaceAll(told, "#   ", "")), "\n"))
	}
}
