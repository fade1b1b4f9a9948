package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Every gRPC code has its exit code, here and through a real call.
func TestExitCodes(t *testing.T) {
	want := map[codes.Code]int{
		codes.OK: 0, codes.Canceled: 1, codes.Unknown: 1, codes.InvalidArgument: 2, codes.DeadlineExceeded: 1,
		codes.NotFound: 4, codes.AlreadyExists: 1, codes.PermissionDenied: 3, codes.ResourceExhausted: 1,
		codes.FailedPrecondition: 3, codes.Aborted: 1, codes.OutOfRange: 2, codes.Unimplemented: 1,
		codes.Internal: 1, codes.Unavailable: 1, codes.DataLoss: 1, codes.Unauthenticated: 3,
	}
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		t.Run(code.String(), func(t *testing.T) {
			exit, known := want[code]
			if !known {
				t.Fatal("a code without an exit code")
			}
			if got := exitOf(code); got != exit {
				t.Errorf("exitOf = %d, want %d", got, exit)
			}
			s := &sidecar{images: someImages()}
			if code != codes.OK {
				s.err = status.Error(code, "the words\nof \x1b[31mthe sidecar")
			}
			got := ctl(t, s, "images")
			if got.code != exit {
				t.Errorf("exit %d, want %d", got.code, exit)
			}
			if code == codes.OK {
				return
			}
			if got.stdout != "" || strings.Count(got.stderr, "\n") != 1 || !strings.HasPrefix(got.stderr, "custodianctl: ") || strings.Contains(got.stderr, "\x1b") {
				t.Errorf("want one clean line on stderr alone: %q, %q", got.stdout, got.stderr)
			}
		})
	}
}

func TestWhatToDo(t *testing.T) {
	for _, c := range []struct {
		code codes.Code
		want string
	}{
		{codes.Unavailable, "control.sock: the sidecar cannot answer: words (its log"},
		{codes.Unimplemented, "control.sock: the sidecar does not know this call: is it older"},
		{codes.PermissionDenied, "control.sock: words"},
		{codes.Internal, "control.sock: words"},
		{codes.InvalidArgument, "custodianctl: words (see --help)\n"},
		{codes.NotFound, "custodianctl: words\n"},
	} {
		if got := ctl(t, &sidecar{err: status.Error(c.code, "words")}, "uses"); !strings.Contains(got.stderr, c.want) {
			t.Errorf("%s: %q does not tell %q", c.code, got.stderr, c.want)
		}
	}
}

func TestWrongUsage(t *testing.T) {
	for args, want := range map[string]string{
		"bogus":                      `unknown command "bogus"`,
		"status extra":               `"extra"`,
		"images --filter reason":     "want key=value",
		"images --filter =x":         "want key=value",
		"uses --filter x":            "want key=value",
		"images --sort colour":       "name, size, unique, last-used",
		"status -o xml":              "table, wide, json, yaml",
		"status --nope":              "--nope",
		"status --timeout 0":         "longer than none",
		"status --timeout -3s":       "90s",
		"status --timeout 3 moons":   "90s",
		"uses -n":                    "-n",
		"version --timeout 1d-1h":    "90s",
		"images --timeout 99999999d": "90s",
	} {
		got := newApp(t.TempDir()).run(t, strings.Fields(args)...)
		if got.code != exitUsage || got.stdout != "" || strings.Count(got.stderr, "\n") != 1 || !strings.Contains(got.stderr, want) {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", args, got.code, got.stdout, got.stderr)
		}
	}
}

func TestTimeout(t *testing.T) {
	got := ctl(t, &sidecar{hang: true, status: goodStatus()}, "status", "--timeout", "50ms")
	if got.code != exitFailed || !strings.Contains(got.stderr, "no answer within 50ms") {
		t.Errorf("exit %d: %s", got.code, got.stderr)
	}
}

func TestInterrupted(t *testing.T) {
	a := newApp(t.TempDir())
	serve(t, a.defaultSocket, &sidecar{hang: true})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	if code := a.execute(ctx, []string{"status"}, &stdout, &stderr); code != exitFailed {
		t.Errorf("exit %d", code)
	}
}

// A full disk or a closed pipe is no success.
func TestUnwritable(t *testing.T) {
	for _, verb := range []string{"status", "images", "uses", "version", "why x", "plan", "plan --list"} {
		a := newApp(t.TempDir())
		serve(t, a.defaultSocket, &sidecar{status: goodStatus(), images: someImages(), uses: someUses(), version: aVersion(), why: whyGone(), plan: somePlan(), plans: plans()})
		var stderr bytes.Buffer
		if code := a.execute(t.Context(), strings.Fields(verb), full{}, &stderr); code != exitFailed || !strings.Contains(stderr.String(), "no space") {
			t.Errorf("%s: exit %d: %s", verb, code, &stderr)
		}
	}
}

type full struct{}

var _ io.Writer = full{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// What a verb itself decides is kept.
func TestOwnExitCode(t *testing.T) {
	own := &failure{code: exitRefused, err: errors.New("not today")}
	if got := exitCode(newApp("").explain(filepath.Join("x", "y"), fmt.Errorf("image: %w", own))); got != exitRefused {
		t.Errorf("exit %d", got)
	}
}
