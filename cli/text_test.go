package main

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/image-custodian/custodian/api/v1/control"
)

func TestSize(t *testing.T) {
	for bytes, want := range map[uint64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 742 << 10: "742.0 KiB", 1<<20 - 1: "1.0 MiB", 1 << 20: "1.0 MiB",
		310 << 20: "310.0 MiB", 1<<30 - 1: "1.0 GiB", 20.375 * gib: "20.4 GiB", 1 << 40: "1.0 TiB", math.MaxUint64: "16.0 EiB",
	} {
		if got := size(bytes); got != want {
			t.Errorf("size(%d) = %q, want %q", bytes, got, want)
		}
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Hour: "0s", 0: "0s", 45 * time.Second: "45s", 59*time.Minute + 59*time.Second: "59m", 7*time.Hour + 59*time.Minute: "7h",
		23 * time.Hour: "23h", 24 * time.Hour: "1d", 29*day + 3*time.Hour: "29d", math.MaxInt64: "106751d", math.MinInt64: "0s",
	} {
		if got := span(d); got != want {
			t.Errorf("span(%v) = %q, want %q", d, got, want)
		}
	}
}

func TestSpans(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Hour: "0s", 45 * time.Second: "45s", 12*time.Minute + 5*time.Second: "12m", time.Hour: "1h", 4*time.Hour + 12*time.Minute: "4h 12m",
		3*day + 4*time.Hour + 59*time.Minute: "3d 4h", 31 * day: "31d", 31*day + 59*time.Minute: "31d",
	} {
		if got := spans(d); got != want {
			t.Errorf("spans(%v) = %q, want %q", d, got, want)
		}
	}
}

func TestWithin(t *testing.T) {
	for _, c := range []struct {
		part, whole uint64
		want        string
	}{
		{31 * gib, 54 * gib, "31.0"}, {20 << 20, 54 * gib, "20.0 MiB"}, {0, gib, "0 B"}, {0, 0, "0"}, {12, 900, "12"},
	} {
		if got := within(c.part, c.whole); got != c.want {
			t.Errorf("within(%d, %d) = %q, want %q", c.part, c.whole, got, c.want)
		}
	}
}

func TestHorizon(t *testing.T) {
	for d, want := range map[time.Duration]string{-time.Hour: "24h", 3 * time.Hour: "24h", day: "24h", day + 1: "2d", 9*day + time.Hour: "10d"} {
		if got := horizon(d); got != want {
			t.Errorf("horizon(%v) = %q, want %q", d, got, want)
		}
	}
}

func TestClean(t *testing.T) {
	for s, want := range map[string]string{
		"docker.io/library/nginx:1": "docker.io/library/nginx:1", "größe·…": "größe·…", "a\tb\n": `a\tb\n`, "\x1b]0;x\a": `\x1b]0;x\a`,
		"\u009b31m": `\u009b31m`, "\u202e\u200b": `\u202e\u200b`, "\xff'\x00": `\xff'\x00`, "\x7f": `\x7f`, "\ufffd": `\ufffd`,
	} {
		if got := clean(s); got != want {
			t.Errorf("clean(%q) = %q, want %q", s, got, want)
		}
	}
}

func TestShort(t *testing.T) {
	for name, want := range map[string]string{
		"nginx:1": "nginx:1", "a/b@" + digest("77aa01"): "a/b@sha256:77aa01000000…", digest("ab"): "sha256:ab0000000000…",
		"sha256:abc": "sha256:abc", "": "", "sha256:": "sha256:",
	} {
		if got := shortName(name); got != want {
			t.Errorf("shortName(%q) = %q, want %q", name, got, want)
		}
	}
	for id, want := range map[string]string{digest("873ed75102791"): "873ed75102791", "": "-", "sha256:": "-", "9a": "9a", "ééééééééééééééé": "ééééééééééééé"} {
		if got := shortID(id); got != want {
			t.Errorf("shortID(%q) = %q, want %q", id, got, want)
		}
	}
}

func TestNames(t *testing.T) {
	d := "@" + digest("1")
	for _, c := range []struct {
		names []string
		shown string
		more  int
	}{
		{nil, "", 0},
		{[]string{digest("1")}, digest("1"), 0},
		{[]string{digest("1"), "a/b" + d}, "a/b" + d, 0},
		{[]string{digest("1"), "a/b" + d, "a/b:1"}, "a/b:1", 0},
		{[]string{"a/b:1", "a/b:2", "c/b" + d}, "a/b:1", 2},
		{[]string{"h:5000/b" + d, "h:5000/b"}, "h:5000/b", 0},
		{[]string{"h:5000/b" + d, "h:5000/b:1" + d, "h:5000/b:1"}, "h:5000/b:1", 1},
	} {
		if shown, more := namesOf(&control.Image{Names: c.names}); shown != c.shown || more != c.more {
			t.Errorf("%q: %q +%d, want %q +%d", c.names, shown, more, c.shown, c.more)
		}
	}
}

func TestDecision(t *testing.T) {
	for want, img := range map[string]*control.Image{
		"keep    not-expired, 2d left":        {Decision: "keep", Reason: "not-expired", Rule: "default", ExpiresAt: ago(-50 * time.Hour)},
		"keep    start-grace, due":            {Decision: "keep", Reason: "start-grace", ExpiresAt: ago(time.Hour)},
		"keep    in-use":                      {Decision: "keep", Reason: "in-use"},
		"remove  expired, next pass":          {Decision: "remove", Reason: "expired", ExpiresAt: ago(0)},
		"remove  expired (ci), next pass":     {Decision: "remove", Reason: "expired", Rule: "ci"},
		"remove  expired, in 5m":              {Decision: "remove", Reason: "expired", ExpiresAt: ago(-5 * time.Minute)},
		"keep    not-an-image (foreign)":      {Decision: "keep", Reason: "not-an-image", Kind: "foreign"},
		"maybe   a-reason-of-a-later-version": {Decision: "maybe", Reason: "a-reason-of-a-later-version"},
		"-       -":                           {},
		"remove  budget, next pass":           {Decision: "remove", Reason: "budget", Rule: "ci", ExpiresAt: ago(-day)},
		"remove  pressure, next pass":         {Decision: "remove", Reason: "pressure", Rule: "default", ExpiresAt: ago(-day)},
		"keep    max-per-hour, due":           {Decision: "keep", Reason: "max-per-hour", Rule: "ci", ExpiresAt: ago(day)},
		"keep    start-grace":                 {Decision: "keep", Reason: "start-grace", Rule: "ci", ExpiresAt: ago(-day)},
		"keep    kept (release)":              {Decision: "keep", Reason: "kept", Rule: "release"},
		"keep    kept-latest (release)":       {Decision: "keep", Reason: "kept-latest", Rule: "release"},
		"keep    min-age (ci), 59m left":      {Decision: "keep", Reason: "min-age", Rule: "ci", ExpiresAt: ago(time.Second - time.Hour)},
	} {
		if got := decisionOf(img, now); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{"90s": 90 * time.Second, "31d": 31 * day, "2w": 14 * day, "1w1d1h": 8*day + time.Hour, "250ms": 250 * time.Millisecond} {
		var d duration
		if err := d.Set(text); err != nil || time.Duration(d) != want {
			t.Errorf("%s: %v, %v", text, time.Duration(d), err)
		}
	}
}

// The filters reach the sidecar as they were typed, commas and all.
func TestFilters(t *testing.T) {
	for _, c := range []struct {
		args string
		want []string
	}{
		{"images", nil},
		{"images --filter image=a,b --filter reason=in-use", []string{"image=a,b", "reason=in-use"}},
		{"images --filter image=a=b --filter id=", []string{"image=a=b", "id="}},
		{"uses -n pay --filter pod=x -n ml", []string{"pod=x", "namespace=pay", "namespace=ml"}},
	} {
		s := &sidecar{images: someImages(), uses: someUses()}
		if got := ctl(t, s, strings.Fields(c.args)...); got.code != 0 || !slices.Equal(s.filters, c.want) {
			t.Errorf("%s: exit %d, filters %q, want %q", c.args, got.code, s.filters, c.want)
		}
	}
}

func TestEncode(t *testing.T) {
	text, err := encode(&control.ListImagesResponse{Complete: true, Images: []*control.Image{{
		Id: "\x1b\u009b\u202e\"\\<&>\n\U000e0001", ContentBytes: math.MaxUint64,
		BuiltAt: timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 600, time.FixedZone("", 3600))),
		Labels:  map[string]string{"b": "2\x1b", "a\"": "1"},
		// A time that RFC 3339 cannot tell.
		PulledAt: &timestamppb.Timestamp{Seconds: math.MaxInt64},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"id": "\u001b\u009b\u202e\"\\<&>\n\udb40\udc01"`, `"content_bytes": 18446744073709551615`, `"names": []`, `"uses": []`,
		`"built_at": "2026-01-02T02:04:05.0000006Z"`, `"pulled_at": null`, `"last_used": null`, `"in_use": false`, `"complete": true`,
		"\"labels\": {\n        \"a\\\"\": \"1\",\n        \"b\": \"2\\u001b\"\n      }",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("lacks %s:\n%s", want, text)
		}
	}
	var back struct{ Images []struct{ ID string } }
	if err := json.Unmarshal(text, &back); err != nil || back.Images[0].ID != "\x1b\u009b\u202e\"\\<&>\n\U000e0001" {
		t.Errorf("%q, %v", back, err)
	}
	if text, err = encode((*control.StatusResponse)(nil)); err != nil || !json.Valid(text) {
		t.Errorf("nothing: %s, %v", text, err)
	}
}

// A large node's answer is more than gRPC takes unasked.
func TestLargeAnswer(t *testing.T) {
	images := &control.ListImagesResponse{Complete: true}
	for range 3000 {
		images.Images = append(images.Images, &control.Image{Names: []string{"n:" + strings.Repeat("x", 2000)}, Decision: "keep", Reason: "in-use"})
	}
	if got := ctl(t, &sidecar{images: images}, "images"); got.code != 0 || !strings.Contains(got.stdout, "3000 images: 3000 in use") {
		t.Errorf("exit %d: %s", got.code, got.stderr)
	}
}

func TestCompletion(t *testing.T) {
	for args, want := range map[string]string{
		"completion bash": "custodianctl", "__complete images --sort ": "last-used", "__complete images --filter ": "untagged=", "__complete plan --filter ": "label=", "__complete plan --rules ": "toml", "__complete uses --filter ": "namespace=", "__complete -o ": "yaml",
	} {
		got := newApp(t.TempDir()).run(t, strings.Split(args, " ")...)
		if got.code != 0 || !strings.Contains(got.stdout, want) {
			t.Errorf("%s: exit %d: %s", args, got.code, got.stdout)
		}
	}
}
