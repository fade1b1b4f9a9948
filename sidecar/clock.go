//go:build !faults

package main

import "time"

// wallClock is for display; no deadline depends on it.
func wallClock() time.Time { return time.Now() }
