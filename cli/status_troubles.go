package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/image-custodian/custodian/api/v1/control"
)

// troubles tells why nothing is removed: first what needs a person, with the way
// out, then what ends by itself.
func troubles(p *page, s *control.StatusResponse, now time.Time) {
	told := map[*control.Hold]bool{}
	var said strings.Builder
	for _, hold := range s.GetHolds() {
		if !hold.GetNeedsPerson() || told[hold] {
			continue
		}
		p.say("! Nothing is removed%s: %s", since(hold, now), orDash(hold.GetReason()))
		for _, same := range s.GetHolds() { // one headline for each reason
			if same.GetNeedsPerson() && same.GetReason() == hold.GetReason() {
				told[same] = true
				said.WriteString(same.GetDetail() + "\n")
				if same.GetDetail() != "" {
					p.say("  %s", same.GetDetail())
				}
			}
		}
	}
	mark := "-"
	if needsPerson(s) {
		mark = "!"
	}
	failures(p, mark, s.GetSources(), said.String(), now)
	for _, hold := range s.GetHolds() {
		if !hold.GetNeedsPerson() {
			passing(p, hold, now)
		}
	}
	if len(s.GetHolds()) > 0 || needsPerson(s) {
		p.say("")
	}
}

// failures tells of the sources that do not answer, unless a hold has told the
// error already, and what to do.
func failures(p *page, mark string, sources []*control.Source, said string, now time.Time) {
	for _, source := range sources {
		if source.GetOk() {
			continue
		}
		name := orDash(source.GetName())
		if source.GetError() == "" || !strings.Contains(said, source.GetError()) {
			p.say("%s %s for %s: %s", mark, fault(name), age(source.GetSince(), now, "some time"), orDash(source.GetError()))
		}
		if source.GetRemedy() != "" {
			p.say("  do (%s): %s", name, source.GetRemedy())
		}
	}
}

// fault says what it means that a source fails.
func fault(name string) string {
	switch name {
	case "clock":
		return "the clock has been wrong"
	case "config":
		return "the configuration has been refused"
	case "kubelet":
		return "the kubelet has not told its pods"
	case "snapshotter":
		return "a snapshotter has not listed what it holds"
	default:
		return name + " has not answered"
	}
}

// passing tells of a hold that ends by itself.
func passing(p *page, hold *control.Hold, now time.Time) {
	reason, detail := orDash(hold.GetReason()), hold.GetDetail()
	if end, ok := at(hold.GetUntil()); ok {
		p.say("- Nothing is removed until %s (%s): %s", clock(end, now), span(end.Sub(now)), reason)
		return
	}
	if detail != "" {
		detail = ", " + detail
	}
	p.say("- Nothing is removed%s: %s%s; this ends by itself", since(hold, now), reason, detail)
}

func since(hold *control.Hold, now time.Time) string {
	began, ok := at(hold.GetSince())
	if !ok {
		return " at present"
	}
	return fmt.Sprintf(" since %s (%s)", clock(began, now), span(now.Sub(began)))
}
