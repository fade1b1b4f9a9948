package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// The shipped file is the table of the defaults.
func TestShippedConfigIsTheDefault(t *testing.T) {
	path := filepath.Join("..", "..", "..", "conf", "sidecar.toml")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got, rules, faults := parse(path, data)
	if diff := cmp.Diff(Default(), got, cmpopts.EquateEmpty()); diff != "" || len(rules) > 0 || len(faults) > 0 {
		t.Error(diff, rules, faults)
	}
	if _, _, faults := parse("empty", nil); len(faults) > 0 {
		t.Error(faults)
	}
}

func TestFaults(t *testing.T) {
	cases := map[string]struct {
		text string
		want []string // "line: text", all of them, in this order
	}{
		"unknown key":         {"[clean]\n\nunused_fro = \"1d\"", []string{`3: unknown key "clean.unused_fro"`}},
		"two unknown keys":    {"a = 1\nb = 2", []string{`1: unknown key "a"`, `2: unknown key "b"`}},
		"unknown table":       {"[claen]\nmode = \"auto\"", []string{`1: unknown key "claen`}},
		"no TOML":             {"[clean", []string{"1: "}},
		"bad duration":        {"[clean]\nunused_for = \"31 moons\"", []string{`2: `}},
		"negative":            {"[clean]\nmin_age = \"-1h\"", []string{"2: clean.min_age: is negative"}},
		"a million years":     {"[clean]\nmin_age = \"99999w\"", []string{"2: "}},
		"mode":                {"[clean]\nmode = \"maybe\"", []string{`2: clean.mode: "maybe" is none of`}},
		"level":               {"[log]\nlevel = \"loud\"", []string{"2: "}},
		"relative path":       {"[state]\ndir = \"state\"", []string{`2: state.dir: "state" is not an absolute path`}},
		"no namespace":        {"[containerd]\nnamespaces = []", []string{"2: containerd.namespaces: name at least one"}},
		"shared directory":    {"[node]\nsocket = \"/run/image-custodian/node.sock\"", []string{"2: node.socket"}},
		"wrong type":          {"[clean]\nkeep_unpullable = \"yes\"", []string{"2: "}},
		"no admit_timeout":    {"[guard]\nadmit_timeout = \"0\"", []string{"2: guard.admit_timeout"}},
		"pods":                {"[kubelet]\npods = \"maybe\"", []string{"2: kubelet.pods"}},
		"token over http":     {"[kubelet]\nurl = \"http://127.0.0.1:10255/pods\"\ntoken_file = \"/t\"", []string{"3: kubelet.token_file"}},
		"password in the URL": {"[kubelet]\nurl = \"https://u:p@127.0.0.1/pods\"", []string{"2: kubelet.url"}},
		"too few events":      {"[history]\nevents = 100", []string{"2: history.events: want more than clean.max_per_hour"}},
		"spread":              {"[clean]\nspread = \"1000%\"", []string{"2: "}},
		"half a pressure":     {"[clean.pressure]\nhigh = \"80%\"", []string{"1: clean.pressure: high and low belong together"}},
		"low above high":      {"[clean.pressure]\nhigh = \"80%\"\nlow = \"85%\"", []string{"3: clean.pressure.low: must be below high"}},
		"share and size":      {"[clean.pressure]\nhigh = \"80%\"\nlow = \"10GiB\"", []string{"3: clean.pressure.low"}},
		"budget":              {"[clean.budget]\nunused_bytes = \"much\"\nunused_images = -1", []string{"2: ", "3: clean.budget.unused_images: is negative"}},
		"glob":                {"[[rule]]\nkeep = true\nimages = [\n  \"a/***\",\n]", []string{"3: images: "}},
		"empty images":        {"[[rule]]\nkeep = true\nimages = []", []string{"3: images: an empty list"}},
		"keep and pin":        {"[[rule]]\nkeep = true\npin = true", []string{"2: keep and pin"}},
		"keep and unused_for": {"[[rule]]\nkeep = true\nunused_for = \"1d\"", []string{"1: keep or pin keeps for ever"}},
		"a rule without term": {"[[rule]]\nimages = [\"a\"]\n[[rule]]\nuntagged = true", []string{"1: a rule says", "3: a rule says"}},
		"negative term":       {"[[rule]]\nkeep_latest = -1\n[[rule]]\nunused_for = \"-1d\"", []string{"2: keep_latest: is negative", "4: unused_for: is negative"}},
		"rule namespace":      {"[[rule]]\nkeep = true\ncontainerd_namespaces = [\"a/b\"]", []string{"3: containerd_namespaces"}},
		"rule named default":  {"[[rule]]\nname = \"default\"\nkeep = true", []string{"2: name: \"default\""}},
		"twice the same":      {"[[rule]]\nunused_for = 5\n[[rule]]\nunused_for = 5", []string{"1: a rule says", "2: \"5\"", "3: a rule says", "4: \"5\""}},
		"all at once": {
			"[clean]\nmode = \"x\"\nmin_age = 5\nspread = \"x\"\nmax_per_hour = -1\nnew = 1\n[log]\nformat = \"y\"\n[[rule]]\nunused_for = [\n1\n]\nkeep = \"no\"",
			[]string{"2: clean.mode", "3: ", "4: ", "5: clean.max_per_hour", "6: unknown key", "8: log.format", "9: a rule says", "10: ", "13: "},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "sidecar.toml")
			write(t, path, c.text)
			_, _, err := Load(path, false)
			var faults Faults
			if !errors.As(err, &faults) || len(faults) != len(c.want) {
				t.Fatalf("err = %v\nwant %d faults: %q", err, len(c.want), c.want)
			}
			for i, line := range strings.Split(faults.Error(), "\n") {
				if !strings.HasPrefix(line, path+":"+c.want[i]) {
					t.Errorf("fault %d = %s\nwant %s", i, line, c.want[i])
				}
			}
		})
	}
	if _, faults := parseRules("many.toml", []byte(strings.Repeat("[[rule]]\nkeep = true\n", maxRules+1))); len(faults) != 1 || !strings.Contains(faults.Error(), "many.toml:1: 1001 rules") {
		t.Errorf("too many rules: %v", faults)
	}
	if _, _, err := Load("/nowhere/sidecar.toml", false); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a named file that is not there: %v", err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func names(s Set) (names []string) {
	for _, r := range s.Rules().List {
		names = append(names, r.Name)
	}
	return names
}

// Rules files are read by name after the rules of sidecar.toml; one that is wrong
// is told, and the others, too.
func TestRulesFiles(t *testing.T) {
	dir := t.TempDir()
	main := filepath.Join(dir, "sidecar.toml")
	write(t, main, "[[rule]]\nname = \"own\"\nkeep = true\n")
	write(t, filepath.Join(dir, "rules.d", "20-b.toml"), "\n[[rule]]\nkeep = true\n")
	write(t, filepath.Join(dir, "rules.d", "10-a.toml"), "[[rule]]\nname = \"a\"\nkeep = true\n[[rule]]\nname = \"a2\"\nkeep = true\n")
	write(t, filepath.Join(dir, "rules.d", ".hidden.toml"), "garbage")
	write(t, filepath.Join(dir, "rules.d", "README"), "garbage")
	set, ruleFaults, err := Load(main, false)
	if err != nil || ruleFaults != nil {
		t.Fatal(ruleFaults, err)
	}
	if diff := cmp.Diff([]string{"own", "a", "a2", "20-b.toml:2"}, names(set)); diff != "" {
		t.Error(diff)
	}
	tried, err := set.Try("/somewhere/10-a.toml", "[[rule]]\nname = \"new\"\nkeep = true\n")
	if err != nil || len(tried.List) != 3 || tried.List[1].Name != "new" {
		t.Errorf("tried: %+v, %v", tried.List, err)
	}
	if tried, err = set.Try("15-c.toml", "[[rule]]\nname = \"c\"\nkeep = true\n"); err != nil || tried.List[3].Name != "c" {
		t.Errorf("tried: %+v, %v", tried.List, err)
	}
	for _, bad := range []string{"c.txt", ".c.toml"} {
		if _, err := set.Try(bad, ""); err == nil {
			t.Errorf("%s was tried", bad)
		}
	}
	if _, err := set.Try("c.toml", "[clean]\nmode = \"off\""); err == nil {
		t.Error("a rules file may hold only rules")
	}

	before := set.Revision
	write(t, filepath.Join(dir, "rules.d", "10-a.toml"), "[[rule]]\nunused_fro = \"1d\"\n")
	write(t, filepath.Join(dir, "rules.d", "30-c.toml"), "[clean]\nmode = \"off\"\n")
	set, ruleFaults, err = Load(main, false)
	if err != nil || set.Revision == before {
		t.Fatalf("%v, revision %s", err, set.Revision)
	}
	for _, want := range []string{"10-a.toml:1: a rule says", "10-a.toml:2: unknown key", "30-c.toml:1: unknown key"} {
		if !strings.Contains(ruleFaults.Error(), want) {
			t.Errorf("%v\nlacks %s", ruleFaults, want)
		}
	}
}

// A file that never ends, and one in which every line is a fault, take no longer
// than others.
func TestReadingEnds(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "sidecar.toml"), "")
	write(t, filepath.Join(dir, "rules.d", "keys.toml"), strings.Repeat("[[rule]]\nkeep = true\n", maxFile/30))
	if err := os.Symlink("/proc/kmsg", filepath.Join(dir, "rules.d", "log.toml")); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	_, faults, err := Load(filepath.Join(dir, "sidecar.toml"), false)
	if err != nil || faults == nil || time.Since(began) > 20*time.Second {
		t.Errorf("%v, %v after %v", err, faults, time.Since(began))
	}
	write(t, filepath.Join(dir, "rules.d", "large.toml"), strings.Repeat("#", maxFile+1))
	if _, faults, _ := Load(filepath.Join(dir, "sidecar.toml"), false); !strings.Contains(faults.Error(), "large.toml") {
		t.Errorf("%v", faults)
	}
}

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		text  string
		rules int
		fault string
	}{
		"main.toml":   {"[clean]\nmode = \"plan\"\n[[rule]]\nkeep = true\n", 1, ""},
		"rules.toml":  {"[[rule]]\nkeep = true\n[[rule]]\nuntagged = true\nunused_for = \"1d\"\n[rule.labels]\na = \"b\"\n", 2, ""},
		"empty.toml":  {"# nothing\n", 0, ""},
		"wrong.toml":  {"[[rule]]\nunused_for = 1\n", 1, "wrong.toml:2"},
		"wrong2.toml": {"[clean]\nmode = 1\n", 0, "wrong2.toml:2"},
	} {
		path := filepath.Join(dir, name)
		write(t, path, c.text)
		n, err := Check(path)
		if n != c.rules || (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%s: %d rules, %v", name, n, err)
		}
	}
	write(t, filepath.Join(dir, "rules.d", "a.toml"), "[clean]\nmode = \"plan\"\n[[rule]]\nkeep = true\n")
	if _, err := Check(filepath.Join(dir, "rules.d")); err == nil || !strings.Contains(err.Error(), "a.toml:1: unknown key") {
		t.Errorf("a rules file with more than rules: %v", err)
	}
	if n, err := Check(dir); n != 4 || err == nil || !strings.Contains(err.Error(), "wrong.toml") || !strings.Contains(err.Error(), "wrong2.toml") {
		t.Errorf("directory: %d rules, %v", n, err)
	}
	if _, err := Check(filepath.Join(dir, "none.toml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

func TestValues(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"": 0, "0": 0, "90s": 90 * time.Second, "1h30m": 90 * time.Minute, "31d": 31 * day, "2w": 14 * day, "1.5d": 36 * time.Hour,
	} {
		var d Duration
		if err := d.UnmarshalText([]byte(text)); err != nil || d.Duration != want {
			t.Errorf("%q = %v, %v; want %v", text, d.Duration, err, want)
		}
	}
	for text, want := range map[string]int64{"": 0, "0": 0, "1B": 1, "512MiB": 512 << 20, "1.5 GiB": 3 << 29, "5GB": 5e9} {
		var s Size
		if err := s.UnmarshalText([]byte(text)); err != nil || s.Bytes != want {
			t.Errorf("%q = %v, %v; want %v", text, s, err, want)
		}
	}
	for text, want := range map[string]Level{"": {}, "80%": {Share: 0.8}, "10GiB": {Bytes: 10 << 30}} {
		var l Level
		if err := l.UnmarshalText([]byte(text)); err != nil || l != want {
			t.Errorf("%q = %v, %v; want %v", text, l, err, want)
		}
	}
	for _, text := range []string{"d", "31", "1d2h", "x", "1e9d", "NaNd", "--1d", "99999w"} {
		var d Duration
		if err := d.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q = %v, want an error", text, d.Duration)
		}
	}
	for _, text := range []string{"5", "GiB", "-1GiB", "NaNGiB", "1e30GiB", "5 apples", "101%", "-1%", "NaN%", "%"} {
		var s Size
		var l Level
		if err := errors.Join(s.UnmarshalText([]byte(text)), l.UnmarshalText([]byte(text))); err == nil {
			t.Errorf("%q = %v, %v, want an error", text, s, l)
		}
	}
}

// Whatever is written, it is told in bounded time and without a panic.
func FuzzLoad(f *testing.F) {
	f.Add("[clean]\nunused_for = \"31d\"\n[[rule]]\nimages = [\"a/*\"]\nkeep = true\n")
	f.Add("[[rule]]\nlabels = {a = \"b\"}\nunused_for = 5\n[rule.labels]\nx = 1")
	f.Add("a = [\n1,\n\n]\r\nb.c.\"d\" = '''\n'''\n[[x.y]]\n")
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 {
			return
		}
		_, _, faults := parse("f.toml", []byte(text))
		for _, fault := range faults {
			if fault.Text == "" || fault.Line > strings.Count(text, "\n")+1 {
				t.Errorf("fault %+v", fault)
			}
		}
		if _, faults := parseRules("r.toml", []byte(text)); len(faults) > maxFaults+100 {
			t.Errorf("%d faults", len(faults))
		}
	})
}
