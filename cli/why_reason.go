package main

import (
	"fmt"
	"time"

	"github.com/image-custodian/custodian/api/v1/control"
)

// whatBecomes tells the decision on an image, the cause, and when it goes.
func whatBecomes(p *page, img *control.Image, now time.Time) {
	what := "Stays"
	if img.GetDecision() == "remove" {
		what = "Goes at the next pass"
	}
	p.say("%s (%s): %s.", what, orDash(img.GetReason()), becauseOf(img))
	if img.GetDecision() == "remove" {
		return
	}
	expires, ends := at(img.GetExpiresAt())
	switch {
	case img.GetReason() == "unpullable":
		p.say("As long as that is so it stays, unless a rule with unpullable = true matches each of its names.")
	case img.GetReason() == "not-an-image":
		p.say("As long as that is so it stays.")
	case always(img.GetReason()):
		p.say("As long as that is so it stays, whatever the rules say.")
	case heldBack(img.GetReason()):
		p.say("It goes when that is over, if nothing uses it until then.")
	case !ends:
		p.say("By the rules as they are it never goes.")
	case expires.After(now):
		p.say("It goes %s if nothing uses it until then.", until(expires, now))
	default:
		p.say("Its time is over.")
	}
}

// always reports whether a reason keeps an image whatever the rules say.
func always(reason string) bool {
	switch reason {
	case "not-an-image", "in-use", "image-volume", "sandbox", "pod-spec", "snapshot", "leased", "pinned", "unpullable":
		return true
	default:
		return false
	}
}

// becauseOf tells a reason of the closed set in plain words.
func becauseOf(img *control.Image) string {
	rule := ruleOf(img.GetRule())
	switch img.GetReason() {
	case "not-an-image":
		return "it is nothing that this node can run, and no rule names it"
	case "in-use":
		return "a container uses it, whatever its state, or is about to"
	case "image-volume":
		return "a container mounts it as a volume"
	case "sandbox":
		return "the sandbox of a pod is made from it"
	case "pod-spec":
		return "a pod that the kubelet knows asks for it"
	case "snapshot":
		return "somebody works on a snapshot above its layers"
	case "leased":
		return "a lease of another program holds it"
	case "pinned":
		return "one of its names bears the CRI's pin"
	case "unpullable":
		return "no registry is known to hold it, so nobody could pull it again"
	case "kept":
		return rule + " keeps it for good"
	case "kept-latest":
		return rule + " keeps the latest images of its repository, and it is one of them"
	case "not-expired":
		return "it has not been unused for as long as " + rule + " asks"
	case "min-age":
		return "it was pulled only just now, and its time of disuse is over already"
	case "expired":
		return "it has been unused for as long as " + rule + " asks"
	case "budget":
		return "there is more unused than [clean.budget] allows, and it is among the longest unused"
	case "pressure":
		return "the disk is fuller than [clean.pressure] allows, and it is among the longest unused"
	case "requested":
		return "a person asked for its space"
	case "max-per-hour":
		return "its time is over, but the rules have removed as many images as max_per_hour allows"
	case "start-grace":
		return "it would go, but the sidecar, the plugin or containerd has only just started"
	case "view-incomplete":
		return "it would go, but not everything that may use it can be seen"
	default:
		return "custodianctl does not know this reason; is it older than the sidecar?"
	}
}

func ruleOf(name string) string {
	switch name {
	case "":
		return "no rule"
	default:
		return fmt.Sprintf("rule %q", name)
	}
}

// nameVerdict tells what the rules say about one name.
func nameVerdict(v *control.NameVerdict, img *control.Image, now time.Time) string {
	if v.GetReason() == "not-an-image" {
		return "no rule names it, and it is nothing to run: kept"
	}
	rule := ruleOf(v.GetRule())
	switch v.GetReason() {
	case "kept":
		return rule + ": kept for good"
	case "kept-latest":
		return rule + ": kept, as one of the latest of its repository"
	}
	unusedFor := v.GetUnusedFor().AsDuration()
	asked := rule + ", " + spans(unusedFor) + " unused: "
	expires, ends := at(v.GetExpiresAt())
	switch {
	case unusedFor <= 0 || !ends:
		return rule + ": never goes by its age"
	case img.GetInUse():
		return asked + "may go that long after its last use"
	case !expires.After(now):
		return asked + "may go since " + clock(expires, now)
	case v.GetReason() == "min-age":
		return asked + "pulled only just now, may go " + until(expires, now)
	default:
		return asked + "may go " + until(expires, now)
	}
}
