package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/image-custodian/custodian/api/v1/control"
)

// together is how near removals of one reason are to be told in one line.
const together = time.Hour

// last tells the latest events, newest first. Unless there is room, removals of
// one pass are one line.
func last(p *page, events []*control.Event, wide bool, now time.Time) {
	if len(events) == 0 {
		return
	}
	p.say("")
	label := "LAST"
	for len(events) > 0 {
		n := 1
		if !wide {
			n = run(events)
		}
		p.say("%-6s  %-4s %-9s  %s", label, age(events[0].GetAt(), now, "-"), orDash(events[0].GetKind()), eventText(events[:n]))
		label, events = "", events[n:]
	}
}

// run is how many of the first events are told together.
func run(events []*control.Event) int {
	first := events[0]
	newest, ok := at(first.GetAt())
	if first.GetKind() != "removed" || !ok {
		return 1
	}
	n := 1
	for ; n < len(events); n++ {
		e := events[n]
		t, ok := at(e.GetAt())
		if !ok || e.GetKind() != first.GetKind() || e.GetReason() != first.GetReason() || newest.Sub(t) > together {
			break
		}
	}
	return n
}

func eventText(events []*control.Event) string {
	first := events[0]
	what := eventImage(first)
	if len(events) > 1 {
		what = plural(len(events), "image")
	}
	var parts []string
	if what != "" {
		parts = append(parts, what)
	}
	var freed uint64
	for _, e := range events {
		freed += e.GetFreedBytes()
	}
	if first.GetKind() == "removed" {
		parts = append(parts, "freed "+size(freed))
	}
	if detail := first.GetDetail(); detail != "" && len(events) == 1 {
		parts = append(parts, detail)
	}
	text := strings.Join(parts, ", ")
	if reason := first.GetReason(); reason != "" {
		text += fmt.Sprintf(" (%s)", reason)
	}
	return strings.TrimSpace(text)
}

// eventImage names the image of an event; it is empty if there is none.
func eventImage(e *control.Event) string {
	if name, _ := namesOf(&control.Image{Names: e.GetNames()}); name != "" {
		return shortName(name)
	}
	if e.GetImage() == "" {
		return ""
	}
	return shortID(e.GetImage())
}
