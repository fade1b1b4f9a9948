package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/image-custodian/custodian/api/v1/control"
)

// gone tells of an image that is not here any more what the events know.
func gone(p *page, events []*control.Event, wanted string, short func(string) string, now time.Time) {
	if len(events) == 0 {
		p.say("%s is not on this node, and no event tells of it.", wanted)
		return
	}
	newest := events[0]
	if newest.GetKind() != "removed" {
		p.say("%s is not on this node any more. It is not known that custodian removed it.", wanted)
		p.say("")
		p.say("Events:")
		tellEvents(p, events, now)
		return
	}
	p.say("Removed %s by custodian (%s): %s.", moment(newest, now), orDash(newest.GetReason()), wentFor(newest))
	switch {
	case newest.GetDetail() == "":
		p.say("Freed %s.", size(newest.GetFreedBytes()))
	case newest.GetFreedBytes() > 0:
		p.say("Freed %s; %s.", size(newest.GetFreedBytes()), newest.GetDetail())
	default:
		p.say("It was %s.", newest.GetDetail())
	}
	var names []string
	for _, name := range newest.GetNames() {
		names = append(names, short(name))
	}
	p.list(fmt.Sprintf("It was %s, with the names:", shortID(newest.GetImage())), names)
	if older := events[1:]; len(older) > 0 {
		p.say("")
		p.say("Before that:")
		tellEvents(p, older, now)
	}
}

// tellEvents tells each event about an image.
func tellEvents(p *page, events []*control.Event, now time.Time) {
	var c columns
	for _, e := range events {
		var parts []string
		if e.GetKind() == "removed" {
			parts = append(parts, "freed "+size(e.GetFreedBytes()))
		}
		if e.GetDetail() != "" {
			parts = append(parts, oneLine(e.GetDetail()))
		}
		if e.GetReason() != "" {
			parts = append(parts, "("+e.GetReason()+")")
		}
		when := age(e.GetAt(), now, "")
		if when != "" {
			when += " ago"
		}
		c.add(orDash(when), orDash(e.GetKind()), shortID(e.GetImage()), strings.Join(parts, " "))
	}
	p.table(&c)
}

// wentFor tells in plain words why an image was removed.
func wentFor(e *control.Event) string {
	switch e.GetReason() {
	case "expired":
		if e.GetRule() == "" {
			return "it was unused for as long as its rule asks"
		}
		return "it was unused for as long as " + ruleOf(e.GetRule()) + " asks"
	case "budget":
		return "there was more unused than [clean.budget] allows"
	case "pressure":
		return "the disk was fuller than [clean.pressure] allows"
	case "requested":
		return "a person asked for its space"
	default:
		return "custodianctl does not know this reason; is it older than the sidecar?"
	}
}

// moment tells when an event was, to the second.
func moment(e *control.Event, now time.Time) string {
	t, ok := at(e.GetAt())
	if !ok {
		return "some time ago"
	}
	t = t.In(now.Location())
	layout := time.DateTime
	if now.Sub(t).Abs() < 12*time.Hour {
		layout = time.TimeOnly
	}
	return fmt.Sprintf("%s ago (%s)", span(now.Sub(t)), t.Format(layout))
}
