package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/image-custodian/custodian/api/v1/control"
)

// renderPlan shows the images of a plan and what it comes to. asked is what a
// new plan was asked for; nil for one that was kept.
func renderPlan(plan *control.Plan, asked *control.MakePlanRequest, wide bool, now time.Time) string {
	p := &page{}
	switch {
	case plan.GetComplete():
	case asked == nil:
		p.say("! The view of the node was incomplete then: nothing would go.")
		p.say("")
	default:
		p.WriteString(incomplete + "\n")
	}
	if asked == nil {
		made := age(plan.GetCreatedAt(), now, "")
		if made != "" {
			made = " " + made + " ago"
		}
		p.say("Made%s: %s", made, askedOf(plan))
		p.say("")
	}
	if entries := plan.GetEntries(); len(entries) > 0 {
		p.WriteString(planTable(plan, wide, now) + "\n")
	}
	p.say("%s%s", planSum(plan, asked, now), moreNames(plan.GetEntries()))
	if short := shortOf(plan, asked); short != "" {
		p.say("%s", short)
	}
	p.say("%s; nothing is removed by a plan", keptUntil(plan, now))
	return p.String()
}

// planTable shows each image as it was when the plan was made.
func planTable(plan *control.Plan, wide bool, now time.Time) string {
	if made, ok := at(plan.GetCreatedAt()); ok {
		now = made
	}
	var c columns
	head := []string{"IMAGE", "ID", "UNIQUE", "LAST USED", "DECISION"}
	if wide {
		head = append(head, "SIZE", "PLATFORM", "RULE", "NAMES", "PULLED", "CONTAINERD-NS")
	}
	c.add(head...)
	for _, img := range plan.GetEntries() {
		row := []string{
			nameCell(img), shortID(img.GetId()), size(img.GetUniqueBytes()),
			age(img.GetLastUsed(), now, "never"), verdictOf(img),
		}
		if wide {
			row = append(row, size(stored(img)), orDash(img.GetPlatform()), orDash(img.GetRule()),
				orDash(strings.Join(img.GetNames(), ",")), age(img.GetPulledAt(), now, "-"), orDash(img.GetContainerdNamespace()))
		}
		c.add(row...)
	}
	return c.String()
}

// planSum says how many images would go, by when, and what that frees.
func planSum(plan *control.Plan, asked *control.MakePlanRequest, now time.Time) string {
	count := plan.GetRemoveCount()
	held := len(plan.GetEntries()) - int(count)
	by := ""
	if then, ok := at(plan.GetForAt()); ok && laterThan(plan) > 0 {
		by = " by " + clock(then, now)
	}
	wantsSpace := asked.GetFreeBytes() > 0 || asked.GetUntilBytes() > 0 || asked.GetUntilShare() > 0
	text := "No image would go" + by
	switch {
	case count > 0 && by != "":
		text = fmt.Sprintf("%s would go%s if not used until then, %s freed", plural(count, "image"), by, size(plan.GetWillFreeBytes()))
	case count > 0:
		text = fmt.Sprintf("%s would go, %s freed", plural(count, "image"), size(plan.GetWillFreeBytes()))
	case held == 0 && !wantsSpace && by == "" && asked != nil:
		text += ": none is due. custodianctl plan --in 7d looks ahead"
	}
	if held > 0 {
		text += fmt.Sprintf("; %d held back for now", held)
	}
	return text
}

// laterThan is how far a plan looks ahead.
func laterThan(plan *control.Plan) time.Duration {
	made, ok := at(plan.GetCreatedAt())
	then, ahead := at(plan.GetForAt())
	if !ok || !ahead {
		return 0
	}
	return then.Sub(made)
}

// shortOf says what is missing to what was asked to be freed.
func shortOf(plan *control.Plan, asked *control.MakePlanRequest) string {
	will, want := plan.GetWillFreeBytes(), asked.GetFreeBytes()
	if want <= will {
		return ""
	}
	rest := "in use or kept"
	switch {
	case !plan.GetComplete():
		return size(want-will) + " short: nothing goes while the view is incomplete"
	case len(plan.GetEntries()) > int(plan.GetRemoveCount()):
		rest = "in use, kept or held back"
	}
	if len(asked.GetFilters()) > 0 {
		rest += ", or does not match"
	}
	return size(want-will) + " short: the rest is " + rest + ": custodianctl images --filter decision=keep"
}

// planAge is how long the sidecar keeps a plan.
const planAge = 24 * time.Hour

func keptUntil(plan *control.Plan, now time.Time) string {
	if plan.GetId() == "" {
		return "not kept, because read.sock only tells"
	}
	text := "kept as plan " + plan.GetId()
	if made, ok := at(plan.GetCreatedAt()); ok {
		text += " until " + clock(made.Add(planAge), now)
	}
	return text
}

// askedOf tells what a plan was made for.
func askedOf(plan *control.Plan) string {
	if plan.GetAsked() == "" {
		return "by the rules"
	}
	return plan.GetAsked()
}

// renderPlans lists the plans that are kept.
func renderPlans(answer *control.ListPlansResponse, now time.Time) string {
	plans := answer.GetPlans()
	if len(plans) == 0 {
		return "No plan is kept. custodianctl plan makes one.\n"
	}
	var c columns
	c.add("ID", "MADE", "FOR", "IMAGES", "FREES", "ASKED")
	for _, plan := range plans {
		when := "at once"
		if d := laterThan(plan); d > 0 {
			when = spans(d) + " later"
		}
		frees := size(plan.GetWillFreeBytes())
		asked := askedOf(plan)
		if !plan.GetComplete() {
			asked += " (the view was incomplete)"
		}
		c.add(orDash(plan.GetId()), age(plan.GetCreatedAt(), now, "-"), when, fmt.Sprint(plan.GetRemoveCount()), frees, asked)
	}
	return c.String() + "\n" + plural(len(plans), "plan") + ", each kept for 24 hours: custodianctl plan PLAN\n"
}
