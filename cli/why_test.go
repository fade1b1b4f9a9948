package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/image-custodian/custodian/api/v1/control"
)

// Every reason of the closed set has its words, and they say what is known of
// the time.
func TestReasons(t *testing.T) {
	for _, c := range []struct {
		reason string
		when   string
	}{
		{"not-an-image", "As long as that is so"},
		{"in-use", "whatever the rules say"},
		{"image-volume", "whatever the rules say"},
		{"sandbox", "whatever the rules say"},
		{"pod-spec", "whatever the rules say"},
		{"snapshot", "whatever the rules say"},
		{"leased", "whatever the rules say"},
		{"pinned", "whatever the rules say"},
		{"unpullable", "unless a rule with unpullable = true"},
		{"kept", "never goes"},
		{"kept-latest", "never goes"},
		{"not-expired", "in 3d 4h (2026-12-04 14:00) if nothing uses it until then"},
		{"min-age", "in 3d 4h"},
		{"max-per-hour", "when that is over"},
		{"start-grace", "when that is over"},
		{"view-incomplete", "when that is over"},
		{"expired", "at the next pass"},
		{"budget", "at the next pass"},
		{"pressure", "at the next pass"},
		{"requested", "at the next pass"},
	} {
		img := &control.Image{Decision: "keep", Reason: c.reason, Rule: "ci", ExpiresAt: ago(in(3*day + 4*time.Hour))}
		if wentFor(&control.Event{Reason: c.reason}) != wentFor(nil) {
			img.Decision = "remove" // one of those for which images go
		}
		if strings.HasPrefix(c.reason, "kept") {
			img.ExpiresAt = nil
		}
		got := renderWhy(&control.WhyResponse{Image: img}, "x", false, now)
		if becauseOf(img) == becauseOf(&control.Image{}) || !strings.Contains(got, "("+c.reason+"): ") || !strings.Contains(got, c.when) {
			t.Errorf("%s: does not tell %q:\n%s", c.reason, c.when, got)
		}
	}
	if got := renderWhy(&control.WhyResponse{Image: &control.Image{Decision: "keep", Reason: "of-a-later-version"}}, "x", false, now); !strings.Contains(got, "(of-a-later-version): custodianctl does not know") {
		t.Error(got)
	}
}

// The name that keeps an image longest is the one that decides, as in the rules.
func TestLongest(t *testing.T) {
	expired := &control.NameVerdict{Reason: "expired", ExpiresAt: ago(day)}
	soon, late := &control.NameVerdict{Reason: "not-expired", ExpiresAt: ago(in(time.Hour))}, &control.NameVerdict{Reason: "not-expired", ExpiresAt: ago(in(day))}
	never, latest, kept := &control.NameVerdict{Reason: "not-expired"}, &control.NameVerdict{Reason: "kept-latest"}, &control.NameVerdict{Reason: "kept"}
	for _, c := range []struct {
		verdicts []*control.NameVerdict
		want     int
	}{
		{[]*control.NameVerdict{expired}, 0},
		{[]*control.NameVerdict{expired, late, soon}, 1},
		{[]*control.NameVerdict{late, never, soon}, 1},
		{[]*control.NameVerdict{never, latest, kept, late}, 2},
		{[]*control.NameVerdict{kept, kept}, 0},
		{[]*control.NameVerdict{latest, never}, 0},
		{[]*control.NameVerdict{never, {Reason: "not-an-image"}}, 1},
		{[]*control.NameVerdict{nil, nil}, 0},
	} {
		if got := longest(c.verdicts); got != c.want {
			t.Errorf("%v: %d, want %d", c.verdicts, got, c.want)
		}
	}
}

func TestNameVerdict(t *testing.T) {
	six := durationpb.New(6 * time.Hour)
	for want, v := range map[string]*control.NameVerdict{
		"no rule names it, and it is nothing to run: kept":                 {Reason: "not-an-image"},
		`rule "a": kept for good`:                                          {Reason: "kept", Rule: "a"},
		`rule "a": kept, as one of the latest of its repository`:           {Reason: "kept-latest", Rule: "a", UnusedFor: six},
		`rule "default": never goes by its age`:                            {Reason: "not-expired", Rule: "default"},
		`rule "a", 6h unused: may go in 2h (12:00)`:                        {Reason: "not-expired", Rule: "a", UnusedFor: six, ExpiresAt: ago(in(2 * time.Hour))},
		`rule "a", 6h unused: pulled only just now, may go in 30m (10:30)`: {Reason: "min-age", Rule: "a", UnusedFor: six, ExpiresAt: ago(in(30 * time.Minute))},
		`rule "a", 6h unused: may go since 2026-11-30 10:00`:               {Reason: "expired", Rule: "a", UnusedFor: six, ExpiresAt: ago(day)},
	} {
		if got := nameVerdict(v, &control.Image{}, now); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	// While it is used, its time has not begun.
	v := &control.NameVerdict{Reason: "expired", Rule: "a", UnusedFor: six, ExpiresAt: ago(day)}
	if got := nameVerdict(v, &control.Image{InUse: true}, now); got != `rule "a", 6h unused: may go that long after its last use` {
		t.Error(got)
	}
}

func TestWhyAsks(t *testing.T) {
	for _, verb := range []string{"why", "explain"} {
		s := &sidecar{why: whyArtifact()}
		if got := ctl(t, s, verb, "nginx:1"); got.code != 0 || !slices.Equal(s.filters, []string{"nginx:1"}) {
			t.Errorf("%s: exit %d, asked for %q: %s", verb, got.code, s.filters, got.stderr)
		}
	}
}

func TestWhyExit(t *testing.T) {
	for _, c := range []struct {
		args string
		err  error
		code int
		told string
	}{
		{"why nginx:1", status.Error(codes.NotFound, `image "nginx:1" is not on this node, and no event tells of it`), exitNotFound, `custodianctl: image "nginx:1" is not on this node, and no event tells of it` + "\n"},
		{"why abc", status.Error(codes.InvalidArgument, `"abc" means 2 images, name one by its ID: k8s.io: sha256:abc1`), exitUsage, `"abc" means 2 images`},
		{"why", nil, exitUsage, "1 arg"},
		{"why a b", nil, exitUsage, "1 arg"},
	} {
		got := ctl(t, &sidecar{err: c.err}, strings.Fields(c.args)...)
		if got.code != c.code || got.stdout != "" || !strings.Contains(got.stderr, c.told) {
			t.Errorf("%s: exit %d, want %d: %s%s", c.args, got.code, c.code, got.stdout, got.stderr)
		}
	}
}
