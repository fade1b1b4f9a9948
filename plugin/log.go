package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"log/syslog"
)

// syslogWriter is where a launched plugin writes: the runtime gives it no
// output. Where nothing takes the log, the plugin works all the same.
func syslogWriter() io.Writer {
	w, err := syslog.New(syslog.LOG_INFO|syslog.LOG_DAEMON, "image-custodian-plugin")
	if err != nil {
		return io.Discard
	}
	return w
}

// nriLog hands the log of the NRI stub to slog.
type nriLog struct{ log *slog.Logger }

func (l nriLog) Debugf(ctx context.Context, format string, args ...any) {
	l.to(ctx, slog.LevelDebug, format, args)
}
func (l nriLog) Infof(ctx context.Context, format string, args ...any) {
	l.to(ctx, slog.LevelDebug, format, args) // the stub's news are details here
}
func (l nriLog) Warnf(ctx context.Context, format string, args ...any) {
	l.to(ctx, slog.LevelWarn, format, args)
}
func (l nriLog) Errorf(ctx context.Context, format string, args ...any) {
	l.to(ctx, slog.LevelError, format, args)
}

func (l nriLog) to(ctx context.Context, level slog.Level, format string, args []any) {
	if l.log.Enabled(ctx, level) {
		l.log.Log(ctx, level, "nri", "msg", fmt.Sprintf(format, args...))
	}
}
