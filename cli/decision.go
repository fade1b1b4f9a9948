package main

import (
	"fmt"
	"time"

	"github.com/image-custodian/custodian/api/v1/control"
)

// decisionOf says what becomes of an image, why, and when.
func decisionOf(img *control.Image, now time.Time) string {
	return verdictOf(img) + timeLeft(img, now)
}

// verdictOf says what becomes of an image, and why.
func verdictOf(img *control.Image) string {
	why := orDash(img.GetReason())
	if rule := img.GetRule(); rule != "" && rule != "default" && byRule(img.GetReason()) {
		why += " (" + rule + ")"
	}
	if kind := img.GetKind(); kind != "" && kind != "image" {
		why += " (" + kind + ")"
	}
	return fmt.Sprintf("%-6s  %s", orDash(img.GetDecision()), why)
}

// byRule reports whether the rule of an image is the cause of a reason. For the
// others it is the rule that would decide without that cause.
func byRule(reason string) bool {
	switch reason {
	case "kept", "kept-latest", "not-expired", "min-age", "expired":
		return true
	default:
		return false
	}
}

// heldBack reports whether a reason keeps only for now what would go.
func heldBack(reason string) bool {
	return reason == "max-per-hour" || reason == "start-grace" || reason == "view-incomplete"
}

// timeLeft says when an image goes, if that is known. What goes before its time
// goes at once, and what is held back goes when the hold ends.
func timeLeft(img *control.Image, now time.Time) string {
	expires, ok := at(img.GetExpiresAt())
	left := expires.Sub(now)
	switch remove := img.GetDecision() == "remove"; {
	case remove && ok && left > 0 && img.GetReason() == "expired":
		return ", in " + span(left)
	case remove:
		return ", next pass"
	case !ok || heldBack(img.GetReason()) && left > 0:
		return ""
	case left > 0:
		return ", " + span(left) + " left"
	default:
		return ", due"
	}
}
