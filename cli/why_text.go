package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/image-custodian/custodian/api/v1/control"
)

// maxTold bounds the lines about uses of one image.
const maxTold = 10

func renderWhy(answer *control.WhyResponse, now time.Time) string {
	p := &page{}
	img := answer.GetImage()
	if img == nil {
		p.say("The image is not on this node any more.")
		p.say("")
		whyEvents(p, answer.GetEvents(), now)
		return p.String()
	}
	name, _ := namesOf(img)
	p.say("%s   %s %s   %s", orDash(name), orDash(img.GetKind()), shortID(img.GetId()), orDash(img.GetPlatform()))
	p.say("%s", verdict(answer, now))
	for _, missing := range answer.GetMissing() {
		p.say("! The view of the node is incomplete, so nothing goes: %s", missing)
	}
	p.say("")
	whyUses(p, answer)
	whyNames(p, answer, now)
	whySize(p, answer)
	if len(answer.GetEvents()) > 0 {
		p.say("")
		whyEvents(p, answer.GetEvents(), now)
	}
	return p.String()
}

// verdict is the decision in one sentence, with what would come next.
func verdict(answer *control.WhyResponse, now time.Time) string {
	img := answer.GetImage()
	expires, timed := at(img.GetExpiresAt())
	left := expires.Sub(now)
	head := "Stays"
	if img.GetDecision() == "remove" {
		head = "Goes at the next pass"
	}
	text := fmt.Sprintf("%s (%s): %s.", head, orDash(img.GetReason()), meaning(answer))
	switch {
	case img.GetDecision() == "remove":
	case timed && left > 0:
		text += fmt.Sprintf(" It goes in %s, if nothing uses it until then.", long(left))
	case img.GetReason() == "not-expired":
		text += " By its age it never goes."
	}
	return text
}

// meaning puts the reasons, a closed set, into words.
func meaning(answer *control.WhyResponse) string {
	img := answer.GetImage()
	rule := "the rule " + quoted(img.GetRule())
	held := strings.Join(answer.GetHeldBy(), ", ")
	if held == "" {
		held = "something"
	}
	words := map[string]string{
		"not-an-image":    "it is no image for this node (" + orDash(img.GetKind()) + "), and no rule names it",
		"in-use":          "a container uses it",
		"image-volume":    "a container mounts it",
		"sandbox":         "the sandboxes of pods use it",
		"pod-spec":        "a pod that the kubelet knows asks for it: " + held,
		"snapshot":        "something is mounted on it: " + held,
		"leased":          "somebody else holds it: " + held,
		"pinned":          "one of its names is pinned",
		"unpullable":      "no registry is known to hold it, so nobody could pull it again",
		"kept":            rule + " keeps it",
		"kept-latest":     rule + " keeps the latest of its repository",
		"not-expired":     "its time is not over by " + rule,
		"min-age":         "it was pulled too lately",
		"expired":         "its time is over by " + rule,
		"budget":          "all that is unused takes more than the budget",
		"pressure":        "the disk is too full, and it is among the longest unused",
		"requested":       "somebody asked for space",
		"max-per-hour":    "its time is over by " + rule + ", but enough went this hour",
		"start-grace":     "its time is over by " + rule + ", but the sidecar, its plugin or containerd started only lately",
		"view-incomplete": "its time is over by " + rule + ", but not all of the node can be seen",
	}
	if text, ok := words[img.GetReason()]; ok {
		return text
	}
	return "a reason that this program does not know"
}

func quoted(rule string) string { return `"` + orDash(rule) + `"` }

// long tells a time in two units: "2d 4h".
func long(d time.Duration) string {
	first := span(d)
	const day = 24 * time.Hour
	rest := d % time.Minute
	switch {
	case d >= day:
		rest = d % day
	case d >= time.Hour:
		rest = d % time.Hour
	}
	if d < time.Minute || rest < time.Second {
		return first
	}
	return first + " " + span(rest)
}

func whyUses(p *page, answer *control.WhyResponse) {
	uses := answer.GetImage().GetUses()
	if len(uses) == 0 {
		return
	}
	p.say("Used by:")
	for _, u := range uses[:min(len(uses), maxTold)] {
		who := "container " + shortID(u.GetContainerId())
		if u.GetPod() != "" {
			who = u.GetNamespace() + "/" + u.GetPod() + " " + containerOf(u)
		}
		p.say("  %s, %s", who, orDash(u.GetState()))
	}
	if more := len(uses) - maxTold; more > 0 {
		p.say("  and %d more", more)
	}
}

func whyNames(p *page, answer *control.WhyResponse, now time.Time) {
	p.say("Names:")
	for _, v := range answer.GetNames() {
		p.say("  %s   %s", v.GetName(), nameVerdict(v, now))
	}
	for _, name := range answer.GetFollowing() {
		p.say("  %s   follows the others", shortName(name))
	}
}

func nameVerdict(v *control.NameVerdict, now time.Time) string {
	rule := "rule " + quoted(v.GetRule())
	if unusedFor := v.GetUnusedFor().AsDuration(); unusedFor > 0 {
		rule += ", " + long(unusedFor) + " unused"
	}
	expires, ok := at(v.GetExpiresAt())
	switch v.GetReason() {
	case "kept", "kept-latest":
		return rule + ": stays"
	case "not-an-image":
		return "no rule names it: stays"
	}
	switch left := expires.Sub(now); {
	case !ok:
		return rule + ": never goes by its age"
	case left > 0:
		return rule + ": lets it go in " + long(left)
	default:
		return rule + ": lets it go since " + long(-left)
	}
}

func whySize(p *page, answer *control.WhyResponse) {
	img := answer.GetImage()
	p.say("Size: %s as blobs, %s unpacked. Without it the node gains %s.",
		size(img.GetContentBytes()), size(img.GetSnapshotBytes()), size(img.GetUniqueBytes()))
	if len(answer.GetSharers()) == 0 {
		return
	}
	var names []string
	for _, s := range answer.GetSharers() {
		names = append(names, fmt.Sprintf("%s (%s)", shortName(s.GetName()), size(s.GetBytes())))
	}
	p.say("%s stay, for other images: %s.", size(answer.GetSharedBytes()), strings.Join(names, ", "))
}

func whyEvents(p *page, events []*control.Event, now time.Time) {
	for _, e := range events {
		switch e.GetKind() {
		case "removed":
			names := slices.Clone(e.GetNames())
			if shown, _ := namesOf(&control.Image{Names: names}); shown != "" {
				names = []string{shown}
			}
			text := fmt.Sprintf("Removed %s ago%s by custodian: %s", age(e.GetAt(), now, "some time"), clockOf(e, now), orDash(e.GetReason()))
			if e.GetRule() != "" {
				text += " by the rule " + quoted(e.GetRule())
			}
			p.say("%s, freed %s. It was %s.", text, size(e.GetFreedBytes()), strings.Join(names, ", "))
		default:
			p.say("%s ago: %s, %s", age(e.GetAt(), now, "some time"), orDash(e.GetKind()), orDash(e.GetDetail()))
		}
	}
}

func clockOf(e *control.Event, now time.Time) string {
	t, ok := at(e.GetAt())
	if !ok {
		return ""
	}
	return " (" + clock(t, now) + ")"
}
