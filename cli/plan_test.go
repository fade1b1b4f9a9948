package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/image-custodian/custodian/api/v1/control"
)

// What is asked for reaches the sidecar.
func TestPlanAsks(t *testing.T) {
	rules := filepath.Join(t.TempDir(), "10-ci.toml")
	if err := os.WriteFile(rules, []byte("[[rule]]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &sidecar{plan: aPlan()}
	got := ctl(t, s, "plan", "--free", "1.5GiB", "--until", "70%", "--in", "1d12h", "--rules", rules, "--filter", "image=a/*", "--filter", "kind=image")
	if got.code != 0 {
		t.Fatal(got.stderr)
	}
	r := s.asked
	if r.GetFreeBytes() != 3<<29 || r.GetUntilShare() != 0.7 || r.GetUntilBytes() != 0 || r.GetAhead().AsDuration() != 36*time.Hour ||
		r.GetRulesName() != "10-ci.toml" || r.GetRules() != "[[rule]]\n" || strings.Join(r.GetFilters(), " ") != "image=a/* kind=image" {
		t.Errorf("asked %v", r)
	}
	if got = ctl(t, s, "plan", "--until", "150GiB"); got.code != 0 || s.asked.GetUntilBytes() != 150*gib || s.asked.GetUntilShare() != 0 {
		t.Errorf("asked %v", s.asked)
	}
}

func TestPlanErrors(t *testing.T) {
	large := filepath.Join(t.TempDir(), "large.toml")
	if err := os.WriteFile(large, make([]byte, maxRules+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]struct {
		code int
		text string
	}{
		"plan --free none":            {exitUsage, "20GiB"},
		"plan --free 0":               {exitUsage, "above none"},
		"plan --free 2000000TiB":      {exitUsage, "exbibyte"},
		"plan --until 100%":           {exitUsage, "below 100%"},
		"plan --until x":              {exitUsage, "70%"},
		"plan --until NaN%":           {exitUsage, "share"},
		"plan --in 0s":                {exitUsage, "longer than none"},
		"plan k3q7 --free 1GiB":       {exitUsage, "no other flags"},
		"plan --list --in 1d":         {exitUsage, "no other flags"},
		"plan a b":                    {exitUsage, "at most 1"},
		"plan --rules /nowhere.toml":  {exitFailed, "/nowhere.toml"},
		"plan --rules " + large:       {exitFailed, "more than 1 MiB"},
		"plan --rules " + t.TempDir(): {exitFailed, "is a directory"},
		"why":                         {exitUsage, "accepts 1"},
	} {
		if got := ctl(t, &sidecar{plan: aPlan()}, strings.Fields(args)...); got.code != want.code || !strings.Contains(got.stderr, want.text) {
			t.Errorf("%s: exit %d, %q; want %d, %q", args, got.code, got.stderr, want.code, want.text)
		}
	}
	for code, want := range map[codes.Code]int{codes.NotFound: exitNotFound, codes.InvalidArgument: exitUsage} {
		for _, args := range []string{"why x", "plan x", "plan"} {
			s := &sidecar{err: status.Error(code, "what the sidecar says"), why: &control.WhyResponse{}, plan: aPlan()}
			if got := ctl(t, s, strings.Fields(args)...); got.code != want || !strings.Contains(got.stderr, "what the sidecar says") {
				t.Errorf("%s: exit %d, %q; want %d", args, got.code, got.stderr, want)
			}
		}
	}
}
