package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The shipped file is the table of the defaults.
func TestShippedConfigIsTheDefault(t *testing.T) {
	got, err := LoadConfig(filepath.Join("..", "conf", "sidecar.toml"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(DefaultConfig(), got); diff != "" {
		t.Error(diff)
	}
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
}

func TestConfigFaults(t *testing.T) {
	cases := map[string]struct{ text, want string }{
		"unknown key":        {"[clean]\n\nunused_fro = \"1d\"", `line 3: unknown key "clean.unused_fro"`},
		"two unknown keys":   {"a = 1\nb = 2", `line 1: unknown key "a"; line 2: unknown key "b"`},
		"unknown table":      {"[claen]\nmode = \"auto\"", `unknown key "claen`},
		"no TOML":            {"[clean", "line 1"},
		"bad duration":       {"[clean]\nunused_for = \"31 moons\"", `"31 moons" is no duration`},
		"negative":           {"[clean]\nmin_age = \"-1h\"", "clean.min_age: is negative"},
		"mode":               {"[clean]\nmode = \"maybe\"", `clean.mode: "maybe" is none of`},
		"level":              {"[log]\nlevel = \"loud\"", "loud"},
		"relative path":      {"[state]\ndir = \"state\"", `state.dir: "state" is not an absolute path`},
		"no namespace":       {"[containerd]\nnamespaces = []", "containerd.namespaces"},
		"shared directory":   {"[node]\nsocket = \"/run/image-custodian/node.sock\"", "node.socket"},
		"wrong type":         {"[clean]\nkeep_unpullable = \"yes\"", "line 2"},
		"no admit_timeout":   {"[guard]\nadmit_timeout = \"0\"", "guard.admit_timeout"},
		"all faults at once": {"[clean]\nmode = \"x\"\n[log]\nformat = \"y\"", "log.format"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "sidecar.toml")
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := LoadConfig(path)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "\n") {
				t.Errorf("err = %v\nwant one line that names %s and %q", err, path, c.want)
			}
		})
	}
	if _, err := LoadConfig("/nowhere/sidecar.toml"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a named file that is not there: %v", err)
	}
}

func TestDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"": 0, "0": 0, "90s": 90 * time.Second, "1h30m": 90 * time.Minute, "31d": 31 * day, "2w": 14 * day, "1.5d": 36 * time.Hour,
	} {
		var d Duration
		if err := d.UnmarshalText([]byte(text)); err != nil || time.Duration(d) != want {
			t.Errorf("%q = %v, %v; want %v", text, time.Duration(d), err, want)
		}
	}
	for _, text := range []string{"d", "31", "1d2h", "x", "1e9d", "NaNd", "--1d"} {
		var d Duration
		if err := d.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q = %v, want an error", text, time.Duration(d))
		}
	}
}
