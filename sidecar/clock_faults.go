//go:build faults

package main

import (
	"os"
	"time"
)

// wallClock is off by CUSTODIAN_FAULT_WALL_OFFSET, so that a test can show that
// no deadline depends on it.
func wallClock() time.Time {
	offset, err := time.ParseDuration(os.Getenv("CUSTODIAN_FAULT_WALL_OFFSET"))
	if err != nil {
		return time.Now()
	}
	return time.Now().Add(offset)
}
