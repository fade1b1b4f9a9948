package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// quietSpan is what the budget of CPU is for.
const quietSpan = 300 * time.Second

// quiet tells what both programs take while nothing happens: memory at the end,
// and CPU, extrapolated to quietSpan.
func (b *bench) quiet(ctx context.Context, out io.Writer, d time.Duration) error {
	stop, err := b.startPlugin(ctx)
	if err != nil {
		return err
	}
	if err := settle(ctx, 5*time.Second); err != nil { // the look that the sync asks for
		return err
	}
	programs := map[string]int{"plugin": b.custodian.PluginPID(), "sidecar": b.custodian.SidecarPID()}
	before := map[string]time.Duration{}
	for name, pid := range programs {
		if before[name], err = cpu(pid); err != nil {
			return err
		}
	}
	if err := settle(ctx, d); err != nil {
		return err
	}
	var total time.Duration
	for _, name := range []string{"plugin", "sidecar"} {
		used, err := cpu(programs[name])
		if err != nil {
			return err
		}
		resident, err := status(programs[name], "VmRSS:")
		if err != nil {
			return err
		}
		total += used - before[name]
		fmt.Fprintf(out, "  %-9s  %.1f MiB resident\n", name, float64(resident)/1024)
	}
	scaled := float64(total) * float64(quietSpan) / float64(d)
	fmt.Fprintf(out, "  CPU of both in %v: %.2f s, for 300 quiet seconds %.2f s; budgets: 15 and 40 MiB, 0.6 s\n", d, total.Seconds(), scaled/float64(time.Second))
	return stop()
}

func settle(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// cpu is the time that a process has run, in steps of 10 ms.
func cpu(pid int) (time.Duration, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	var ticks int64
	for _, field := range fields[11:13] { // utime, stime: proc(5)
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("process %d: %w", pid, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

// status is a field of /proc/PID/status, in KiB.
func status(pid int, field string) (int64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, field); ok {
			return strconv.ParseInt(strings.Fields(value)[0], 10, 64)
		}
	}
	return 0, fmt.Errorf("process %d has no %s", pid, field)
}
