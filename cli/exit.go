package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The exit codes are contract.
const (
	exitDone     = 0
	exitFailed   = 1
	exitUsage    = 2
	exitRefused  = 3
	exitNotFound = 4
)

// failure is an error of a verb. Every other error comes from cobra, before any
// verb ran, and is wrong usage.
type failure struct {
	code int
	err  error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// errNeedsPerson ends `status` with a code and no word: the answer on stdout
// has said it.
var errNeedsPerson = errors.New("something needs a person")

func failed(err error) error { return &failure{code: exitFailed, err: err} }

func exitCode(err error) int {
	if err == nil {
		return exitDone
	}
	if f, ok := errors.AsType[*failure](err); ok {
		return f.code
	}
	return exitUsage
}

// tell makes one line of an error, harmless to a terminal.
func tell(err error) string {
	if err == nil || errors.Is(err, errNeedsPerson) {
		return ""
	}
	text := oneLine(err.Error())
	if exitCode(err) == exitUsage {
		text += " (see --help)"
	}
	return text
}

// exitOf maps the codes of the control service.
func exitOf(code codes.Code) int {
	switch code {
	case codes.OK:
		return exitDone
	case codes.InvalidArgument, codes.OutOfRange:
		return exitUsage
	case codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition:
		return exitRefused
	case codes.NotFound:
		return exitNotFound
	default:
		return exitFailed
	}
}

// explain adds to the error of a call where it happened and what to do.
func (a *app) explain(socket string, err error) error {
	s, ok := status.FromError(err)
	switch {
	case err == nil:
		return nil
	case !ok:
		// Not from the sidecar: the answer could not be printed, or the verb
		// itself says how it ended.
		if _, known := errors.AsType[*failure](err); known {
			return err
		}
		return failed(err)
	}
	message := strings.TrimSuffix(s.Message(), ".")
	text := fmt.Sprintf("socket %s: %s", socket, message)
	switch s.Code() {
	case codes.InvalidArgument, codes.OutOfRange, codes.NotFound:
		text = message
	case codes.DeadlineExceeded:
		text = fmt.Sprintf("socket %s: no answer within %s: is image-custodian-sidecar stuck? (--timeout waits longer)", socket, time.Duration(a.timeout))
	case codes.Canceled:
		text = fmt.Sprintf("socket %s: %v", socket, context.Canceled)
	case codes.Unavailable:
		text = fmt.Sprintf("socket %s: the sidecar cannot answer: %s (its log says more: journalctl -u image-custodian-sidecar)", socket, message)
	case codes.Unimplemented:
		text = fmt.Sprintf("socket %s: the sidecar does not know this call: is it older than custodianctl? (%s)", socket, message)
	}
	return &failure{code: exitOf(s.Code()), err: errors.New(text)}
}
