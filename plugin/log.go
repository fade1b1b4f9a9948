package main

import (
	"context"
	"fmt"
	"log/slog"
	"log/syslog"
)

// syslogHandler is where a launched plugin logs: the runtime gives it no output.
// Where nothing takes the log, the plugin works all the same.
func syslogHandler(level slog.Leveler) slog.Handler {
	w, err := syslog.New(syslog.LOG_INFO|syslog.LOG_DAEMON, "image-custodian-plugin")
	if err != nil {
		return slog.DiscardHandler
	}
	text := func(write func(string) error) slog.Handler {
		return slog.NewTextHandler(lines(write), &slog.HandlerOptions{Level: level})
	}
	return bySeverity{debug: text(w.Debug), info: text(w.Info), warn: text(w.Warning), err: text(w.Err)}
}

// bySeverity gives each record to the handler of its level: syslog knows the
// severity of a line by the call that wrote it.
type bySeverity struct{ debug, info, warn, err slog.Handler }

func (h bySeverity) of(level slog.Level) slog.Handler {
	switch {
	case level >= slog.LevelError:
		return h.err
	case level >= slog.LevelWarn:
		return h.warn
	case level >= slog.LevelInfo:
		return h.info
	default:
		return h.debug
	}
}

func (h bySeverity) each(change func(slog.Handler) slog.Handler) slog.Handler {
	return bySeverity{debug: change(h.debug), info: change(h.info), warn: change(h.warn), err: change(h.err)}
}

// Enabled implements slog.Handler.
func (h bySeverity) Enabled(ctx context.Context, level slog.Level) bool {
	return h.of(level).Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h bySeverity) Handle(ctx context.Context, r slog.Record) error {
	return h.of(r.Level).Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h bySeverity) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.each(func(one slog.Handler) slog.Handler { return one.WithAttrs(attrs) })
}

// WithGroup implements slog.Handler.
func (h bySeverity) WithGroup(name string) slog.Handler {
	return h.each(func(one slog.Handler) slog.Handler { return one.WithGroup(name) })
}

// lines is a writer that hands each line to a function.
type lines func(string) error

func (f lines) Write(p []byte) (int, error) { return len(p), f(string(p)) }

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
