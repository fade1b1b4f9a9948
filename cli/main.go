// Command custodianctl is what people type. It asks the sidecar over its
// control socket and prints the answer; it speaks to nothing else and decides
// nothing.
//
// One file holds one verb: it asks, and hands the answer to a pure function
// that renders it for people at a given time. A new verb is such a file and a
// line in newRoot. JSON and YAML need no work of a verb: they are the message
// of control.proto itself.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// Set by the linker from git.
var (
	version  = "dev"
	revision = "unknown"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	a := &app{
		now: time.Now, build: build{Version: version, Revision: revision},
		socket: os.Getenv("CUSTODIAN_SOCKET"), defaultSocket: "/run/image-custodian/control.sock",
		dial: dialUnix,
	}
	code := a.execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
