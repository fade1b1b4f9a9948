package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// clean makes harmless what others have written: an image, pod or error text
// may hold anything, also what moves a terminal's cursor or turns its text
// around. Such characters are shown as their escapes.
func clean(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return !printable(r) }) < 0 {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case printable(r):
			b.WriteRune(r)
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		default:
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		}
	}
	return b.String()
}

// oneLine makes one clean line of a text that may have several.
func oneLine(s string) string {
	return clean(strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "; "))
}

// orDash stands in for what is not there.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// size tells bytes with one decimal: "20.4 GiB".
func size(bytes uint64) string {
	if bytes < 1024 {
		return fmt.Sprintf("%d B", bytes)
	}
	value, unit := float64(bytes)/1024, 0
	const units = "KMGTPE"
	for value >= 1023.95 && unit < len(units)-1 { // what would read "1024.0"
		value /= 1024
		unit++
	}
	return fmt.Sprintf("%.1f %ciB", value, units[unit])
}

// span tells a time in its largest unit: 45s, 12m, 7h, 29d. Below none is none:
// clocks differ.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	d = max(d, 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < day:
		return fmt.Sprintf("%dh", d/time.Hour)
	default:
		return fmt.Sprintf("%dd", d/day)
	}
}

// spans tells a time in its two largest units: 45s, 4h 12m, 3d 4h.
func spans(d time.Duration) string {
	unit, next := 24*time.Hour, time.Hour
	switch {
	case d < time.Hour:
		return span(d)
	case d < unit:
		unit, next = time.Hour, time.Minute
	}
	if d%unit < next {
		return span(d)
	}
	return span(d) + " " + span(d%unit/next*next)
}

// within tells bytes as a part of a whole that stands beside: it has no unit of
// its own where it has the same.
func within(bytes, whole uint64) string {
	part, all := size(bytes), size(whole)
	return strings.TrimSuffix(part, all[strings.IndexByte(all, ' '):])
}

// at is the time of a stamp, if it has one.
func at(stamp *timestamppb.Timestamp) (time.Time, bool) {
	if stamp == nil || !stamp.IsValid() {
		return time.Time{}, false
	}
	return stamp.AsTime(), true
}

// age tells how long ago a stamp was, or none if it is not set.
func age(stamp *timestamppb.Timestamp, now time.Time, none string) string {
	t, ok := at(stamp)
	if !ok {
		return none
	}
	return span(now.Sub(t))
}

// clock tells a moment to a person, in the zone of now: the time of the day if
// it is near, else the date too.
func clock(t, now time.Time) string {
	t = t.In(now.Location())
	if d := now.Sub(t).Abs(); d < 12*time.Hour {
		return t.Format("15:04")
	}
	return t.Format("2006-01-02 15:04")
}

// until tells how far off a moment is, and when it is: "in 3d 4h (2026-12-04 14:10)".
func until(t, now time.Time) string {
	return fmt.Sprintf("in %s (%s)", spans(t.Sub(now)), clock(t, now))
}

// shortID is an ID as crictl prints it: 13 hex.
func shortID(id string) string {
	_, hex, found := strings.Cut(id, ":")
	if !found {
		hex = id
	}
	return orDash(cut(hex, 13))
}

// shortName keeps 12 hex of the digest in an image name.
func shortName(name string) string {
	const algorithm = "sha256:"
	i := strings.LastIndex(name, algorithm)
	if i < 0 {
		return name
	}
	head, hex := name[:i+len(algorithm)], name[i+len(algorithm):]
	if short := cut(hex, 12); short != hex {
		return head + short + "…"
	}
	return name
}

// cut returns at most the first n characters.
func cut(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}

// plural tells a number of things: "1 image", "2 images".
func plural[N int | uint32](n N, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
