package state

import (
	"bytes"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// Reading ties observed time to the kernel's clock at one instant.
type Reading struct {
	// BootID is the kernel's random ID of this boot.
	BootID string `json:"boot_id"`
	// Boottime is CLOCK_BOOTTIME, nanoseconds since that boot with suspends.
	Boottime int64 `json:"boottime"`
	// Observed is the observed time of that instant.
	Observed policy.Moment `json:"observed"`
}

// Clock counts observed time: within one boot it goes with CLOCK_BOOTTIME, over
// a reboot it goes on from the last reading that was written. The wall clock
// has no part in it.
type Clock struct {
	bootID string
	base   policy.Moment // observed time at boottime 0; negative after a reboot
	floor  policy.Moment // observed time never goes below it
	read   func() int64
}

// newClock continues last, the reading in the state, in this boot.
func newClock(last Reading, bootID string, read func() int64) *Clock {
	c := &Clock{bootID: bootID, floor: last.Observed, read: read}
	if now := read(); last.BootID == bootID && last.Boottime <= now {
		c.base = last.Observed - policy.Moment(last.Boottime)
	} else {
		c.base = last.Observed - policy.Moment(now)
	}
	return c
}

// Now is the present moment.
func (c *Clock) Now() policy.Moment { return c.At(c.read()) }

// At is the moment of a CLOCK_BOOTTIME of this boot, in nanoseconds. It is never
// before the last reading of the state and never in the future.
func (c *Clock) At(boottime int64) policy.Moment {
	boottime = min(boottime, c.read())
	return max(c.base+policy.Moment(boottime), c.floor)
}

func (c *Clock) reading() Reading {
	now := c.read()
	return Reading{BootID: c.bootID, Boottime: now, Observed: c.At(now)}
}

// boottime is CLOCK_BOOTTIME in nanoseconds.
func boottime() (int64, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0, fmt.Errorf("CLOCK_BOOTTIME: %w", err)
	}
	return ts.Nano(), nil
}

// systemClock returns the boot's ID and a reader of its clock.
func systemClock() (string, func() int64, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", nil, fmt.Errorf("boot ID: %w", err)
	}
	start, err := boottime()
	if err != nil {
		return "", nil, err
	}
	read := func() int64 {
		now, err := boottime()
		if err != nil {
			return start // an early reading only makes removals later
		}
		return now
	}
	return string(bytes.TrimSpace(id)), read, nil
}

// Wall turns a moment into wall time, for display: now and at are the present
// in both clocks.
func Wall(m, now policy.Moment, at time.Time) time.Time { return at.Add(m.Sub(now)) }
