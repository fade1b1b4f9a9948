package main

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/image-custodian/custodian/api/v1/control"
)

func TestByteSize(t *testing.T) {
	for text, want := range map[string]uint64{
		"10GiB": 10 * gib, "512MiB": 512 << 20, "1.5TiB": 1.5 * (1 << 40), "5GB": 5e9, "7 KiB": 7 << 10, "1": 1, "1073741824": gib, "12B": 12,
		"0.5KiB": 512, "1152921504606846976": 1 << 60,
	} {
		var b byteSize
		if err := b.Set(text); err != nil || uint64(b) != want {
			t.Errorf("%s: %d, %v, want %d", text, b, err, want)
		}
	}
	for _, text := range []string{
		"", "0", "0GiB", "-1", "-1GiB", "1.5", "10G", "10g", "10gib", "10Gi", "10iB", "GiB", "1e9", "0x10", "inf", "nan", "NaNGiB", "1_000", "1,5GiB", "70%",
		" 1GiB", "1  GiB", "1GiB ", "2097152TiB", "99999999999999999999", "0.0001KiB", "1.GiB", ".5GiB",
	} {
		var b byteSize
		if err := b.Set(text); err == nil {
			t.Errorf("%q is taken for %d", text, b)
		}
	}
}

func TestLevel(t *testing.T) {
	for text, want := range map[string]level{
		"70%": {share: 0.7}, "0.5%": {share: 0.005}, "99.9%": {share: 0.999}, "75 %": {share: 0.75}, "150GiB": {bytes: 150 * gib}, "4096": {bytes: 4096},
	} {
		var l level
		if err := l.Set(text); err != nil || l.bytes != want.bytes || math.Abs(l.share-want.share) > 1e-12 {
			t.Errorf("%s: %+v, %v, want %+v", text, l, err, want)
		}
		if strings.HasSuffix(text, "%") && l.String() != strings.ReplaceAll(text, " ", "") {
			t.Errorf("%s reads %s", text, &l)
		}
	}
	for _, text := range []string{"", "%", "0%", "100%", "101%", "-5%", "1e1%", "nan%", "0.7", "70 percent", "0", "GiB"} {
		var l level
		if err := l.Set(text); err == nil {
			t.Errorf("%q is taken for %+v", text, l)
		}
	}
}

// What was typed reaches the sidecar.
func TestPlanAsks(t *testing.T) {
	dir := t.TempDir()
	rules := filepath.Join(dir, "50-ci.toml")
	const text = "[[rule]]\nkeep = true # größe\n"
	write(t, rules, text)
	for args, want := range map[string]*control.MakePlanRequest{
		"plan":                  {},
		"plan --free 10GiB":     {FreeBytes: 10 * gib},
		"plan --until 75%":      {UntilShare: 0.75},
		"plan --until 150GiB":   {UntilBytes: 150 * gib},
		"plan --in 1w1d":        {Ahead: durationpb.New(8 * day)},
		"plan --rules " + rules: {RulesName: "50-ci.toml", Rules: text},
		"plan --filter label=a=b --filter untagged=true --free 1 --in 90s": {FreeBytes: 1, Ahead: durationpb.New(90 * time.Second), Filters: []string{"label=a=b", "untagged=true"}},
	} {
		for _, reader := range []bool{false, true} {
			s := &sidecar{plan: somePlan(), reader: reader}
			got := ctl(t, s, strings.Fields(args)...)
			if diff := cmp.Diff(want, s.asked, protocmp.Transform()); got.code != 0 || diff != "" {
				t.Errorf("%s: exit %d %s\n%s", args, got.code, got.stderr, diff)
			}
			calls := "SavePlan"
			if reader {
				calls = "SavePlan MakePlan"
			}
			if called := strings.Join(s.calls, " "); called != calls {
				t.Errorf("%s: calls %s, want %s", args, called, calls)
			}
		}
	}
	for args, want := range map[string]string{"plan k3vq7w2a": "ListPlans k3vq7w2a", "plan --list": "ListPlans "} {
		s := &sidecar{plans: plans(somePlan())}
		if got := ctl(t, s, strings.Fields(args)...); got.code != 0 || strings.Join(s.calls, ",") != want {
			t.Errorf("%s: exit %d, calls %q: %s", args, got.code, s.calls, got.stderr)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// What is wrong with a plan is told before anybody is asked.
func TestPlanUsage(t *testing.T) {
	for args, want := range map[string]string{
		"plan abc --free 1GiB":         "a plan that is kept stays as it is",
		"plan abc --in 24h":            "a plan that is kept stays as it is",
		"plan abc --until 70%":         "a plan that is kept stays as it is",
		"plan abc --rules x.toml":      "a plan that is kept stays as it is",
		"plan abc --filter rule=ci":    "a plan that is kept stays as it is",
		"plan abc --list":              "--list",
		"plan --list --free 1GiB":      "--list",
		"plan --list --filter rule=ci": "--list",
		"plan a b":                     "at most 1 arg",
		"plan --free 10G":              "want a size like 10GiB",
		"plan --free 0":                "above none",
		"plan --until 100%":            "between 0% and 100%",
		"plan --until much":            "a share of the disk like 70%, or a size",
		"plan --in 3":                  "like 90s",
		"plan --in 0":                  "longer than none",
		"plan --filter rule":           "want key=value",
	} {
		got := newApp(t.TempDir()).run(t, strings.Fields(args)...)
		if got.code != exitUsage || got.stdout != "" || strings.Count(got.stderr, "\n") != 1 || !strings.Contains(got.stderr, want) {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", args, got.code, got.stdout, got.stderr)
		}
	}
	if got := newApp(t.TempDir()).run(t, "plan", ""); got.code != exitUsage || !strings.Contains(got.stderr, "PLAN is empty") {
		t.Errorf("exit %d: %s", got.code, got.stderr)
	}
}

func TestRulesFile(t *testing.T) {
	dir := t.TempDir()
	large, full, binary := filepath.Join(dir, "large.toml"), filepath.Join(dir, "full.toml"), filepath.Join(dir, "binary.toml")
	write(t, large, strings.Repeat("#", maxRules+1))
	write(t, full, strings.Repeat("#", maxRules))
	write(t, binary, "\xff\xfe")
	for path, want := range map[string]string{
		filepath.Join(dir, "none.toml"): "no such file",
		dir:                             "is a directory",
		large:                           "more than 1 MiB",
		binary:                          "not text in UTF-8",
	} {
		got := newApp(t.TempDir()).run(t, "plan", "--rules", path)
		if got.code != exitFailed || got.stdout != "" || !strings.Contains(got.stderr, want) || !strings.Contains(got.stderr, path) {
			t.Errorf("%s: exit %d, stderr %q", path, got.code, got.stderr)
		}
	}
	s := &sidecar{plan: somePlan()}
	if got := ctl(t, s, "plan", "--rules", full); got.code != 0 || len(s.asked.GetRules()) != maxRules {
		t.Errorf("exit %d: %s", got.code, got.stderr)
	}
}

func TestPlanExit(t *testing.T) {
	for _, c := range []struct {
		name, args string
		sidecar    *sidecar
		code       int
		told       string
	}{
		{"no such plan", "plan abc", &sidecar{err: status.Error(codes.NotFound, "plan abc: no such plan is kept")}, exitNotFound, "custodianctl: plan abc: no such plan is kept\n"},
		{"an answer without a plan", "plan abc", &sidecar{plans: plans()}, exitNotFound, "custodianctl: plan abc: no such plan is kept\n"},
		{"bad rules", "plan --free 1GiB", &sidecar{err: status.Error(codes.InvalidArgument, "rules 50.toml:3: keep: no")}, exitUsage, "rules 50.toml:3: keep: no"},
		{"bad rules, of a reader", "plan", &sidecar{reader: true, err: status.Error(codes.InvalidArgument, "filter")}, exitUsage, "filter"},
		{"neither is allowed", "plan", &sidecar{err: status.Error(codes.PermissionDenied, "no")}, exitRefused, "control.sock: no"},
		{"not now", "plan", &sidecar{err: status.Error(codes.Unavailable, "no look")}, exitFailed, "cannot answer"},
		{"an older sidecar", "plan --list", &sidecar{err: status.Error(codes.Unimplemented, "unknown method ListPlans")}, exitFailed, "older than custodianctl"},
	} {
		got := ctl(t, c.sidecar, strings.Fields(c.args)...)
		if got.code != c.code || got.stdout != "" || !strings.Contains(got.stderr, c.told) {
			t.Errorf("%s: exit %d, want %d: %s%s", c.name, got.code, c.code, got.stdout, got.stderr)
		}
	}
}
