package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/image-custodian/custodian/api/v1/control"
)

// maxLines bounds a list of uses or of what holds an image.
const maxLines = 10

// renderWhy tells of one image in sentences. wanted is what the person typed.
func renderWhy(w *control.WhyResponse, wanted string, wide bool, now time.Time) string {
	p := &page{}
	short := shortName
	if wide {
		short = func(name string) string { return name }
	}
	if w.GetImage() == nil {
		gone(p, w.GetEvents(), wanted, short, now)
		return p.String()
	}
	whatItIs(p, w, short, now)
	p.say("")
	whatBecomes(p, w.GetImage(), now)
	p.list("! The view of the node is incomplete, so nothing is removed. It lacks:", w.GetMissing())
	p.list("Held by:", w.GetHeldBy())
	usesOf(p, w.GetImage(), now)
	namesToldOf(p, w, short, now)
	if events := w.GetEvents(); len(events) > 0 {
		p.say("")
		p.say("Events:")
		tellEvents(p, events, now)
	}
	return p.String()
}

// list tells a few things under a heading, if there is any.
func (p *page) list(heading string, things []string) {
	if len(things) == 0 {
		return
	}
	p.say("")
	p.say("%s", heading)
	for _, thing := range things[:min(len(things), maxLines)] {
		p.say("  %s", thing)
	}
	if more := len(things) - maxLines; more > 0 {
		p.say("  and %d more", more)
	}
}

// table adds columns, indented.
func (p *page) table(c *columns) {
	for line := range strings.Lines(c.String()) {
		p.WriteString("  " + line)
	}
}

func whatItIs(p *page, w *control.WhyResponse, short func(string) string, now time.Time) {
	img := w.GetImage()
	name, _ := namesOf(img)
	what := "an image"
	switch img.GetKind() {
	case "artifact":
		what = "an artifact, which no container can run,"
	case "foreign":
		what = "an image of another platform, or one that cannot be read,"
	}
	if img.GetPlatform() != "" {
		what += " for " + img.GetPlatform()
	}
	where := ""
	if img.GetContainerdNamespace() != "" {
		where = " in " + img.GetContainerdNamespace()
	}
	p.say("%s (%s) is %s%s.", orDash(short(name)), shortID(img.GetId()), what, where)
	takes := fmt.Sprintf("It takes %s: %s of content, %s of unpacked layers.", size(stored(img)), size(img.GetContentBytes()), size(img.GetSnapshotBytes()))
	if stored(img) > 0 {
		takes += fmt.Sprintf(" Without it the node gains %s.", size(img.GetUniqueBytes()))
	}
	p.say("%s", takes)
	if shared := sharedWith(w, short); shared != "" {
		p.say("%s", shared)
	}
	p.say("It %s%s, %s.", isPinned(img), arrived(img, now), lastUsed(img, now))
}

// sharedWith tells who else holds bytes of an image.
func sharedWith(w *control.WhyResponse, short func(string) string) string {
	shared := size(w.GetSharedBytes())
	if w.GetSharedBytes() == 0 {
		return ""
	}
	var parts []string
	for _, s := range w.GetSharers() {
		who := short(s.GetName())
		if who == "" {
			who = shortID(s.GetId())
		}
		parts = append(parts, size(s.GetBytes())+" with "+who)
	}
	switch {
	case len(parts) == 0:
		return "It shares " + shared + " with images of other containerd namespaces."
	case len(parts) == 1 && w.GetSharers()[0].GetBytes() == w.GetSharedBytes():
		return "It shares " + parts[0] + "."
	default:
		return "It shares " + shared + ": " + strings.Join(parts, ", ") + "."
	}
}

func isPinned(img *control.Image) string {
	if img.GetPinned() {
		return "is pinned, "
	}
	return ""
}

func arrived(img *control.Image, now time.Time) string {
	if pulled := age(img.GetPulledAt(), now, ""); pulled != "" {
		return "was pulled " + pulled + " ago"
	}
	if seen := age(img.GetFirstSeen(), now, ""); seen != "" {
		return "was first seen " + seen + " ago"
	}
	return "came nobody knows when"
}

func lastUsed(img *control.Image, now time.Time) string {
	if img.GetInUse() {
		return "and is used now"
	}
	if used := age(img.GetLastUsed(), now, ""); used != "" {
		return "and last used " + used + " ago"
	}
	return "and has never been used since"
}

// usesOf tells who uses an image.
func usesOf(p *page, img *control.Image, now time.Time) {
	uses := img.GetUses()
	if len(uses) == 0 {
		return
	}
	pods := map[string]bool{}
	for _, u := range uses {
		if u.GetPod() != "" {
			pods[u.GetNamespace()+"/"+u.GetPod()+" "+u.GetPodUid()] = true
		}
	}
	by := plural(len(uses), "container")
	if len(pods) > 0 {
		by += " of " + plural(len(pods), "pod")
	}
	p.say("")
	p.say("Used by %s:", by)
	var c columns
	for _, u := range uses[:min(len(uses), maxLines)] {
		pod := "no pod"
		if u.GetPod() != "" {
			pod = u.GetNamespace() + "/" + u.GetPod()
		}
		state := orDash(u.GetState())
		if started := age(u.GetStartedAt(), now, ""); started != "" {
			state += ", started " + started + " ago"
		}
		c.add(pod, containerOf(u), state)
	}
	p.table(&c)
	if more := len(uses) - maxLines; more > 0 {
		p.say("  and %d more (-o json tells all)", more)
	}
}

// namesToldOf tells what the rules say about each name, and which one decides.
func namesToldOf(p *page, w *control.WhyResponse, short func(string) string, now time.Time) {
	verdicts := w.GetNames()
	if len(verdicts)+len(w.GetFollowing()) == 0 {
		return
	}
	heading := "What the rules say about its name:"
	differ := false
	var last *control.NameVerdict
	if len(verdicts) > 1 {
		heading = "What the rules say about each name; it stays as long as one of them asks:"
		last = verdicts[longest(verdicts)]
		differ = !always(w.GetImage().GetReason()) && // else no name decides
			slices.ContainsFunc(verdicts, func(v *control.NameVerdict) bool { return compareVerdicts(v, last) != 0 })
	}
	var c columns
	for _, v := range verdicts {
		text := nameVerdict(v, w.GetImage(), now)
		if differ && compareVerdicts(v, last) == 0 {
			text += " <- decides"
		}
		c.add(orDash(short(v.GetName())), text)
	}
	for _, name := range w.GetFollowing() {
		c.add(orDash(short(name)), "follows the others")
	}
	p.say("")
	p.say("%s", heading)
	p.table(&c)
}

// longest is the verdict that keeps the image longest; of equals the first.
func longest(verdicts []*control.NameVerdict) int {
	last := 0
	for i, v := range verdicts {
		if compareVerdicts(v, verdicts[last]) > 0 {
			last = i
		}
	}
	return last
}

// compareVerdicts is above 0 if a keeps an image longer than b, as the rules
// have it: never is latest, and then what keeps for good is strongest.
func compareVerdicts(a, b *control.NameVerdict) int {
	endsA, timedA := at(a.GetExpiresAt())
	endsB, timedB := at(b.GetExpiresAt())
	switch {
	case timedA && timedB:
		return endsA.Compare(endsB)
	case timedA:
		return -1
	case timedB:
		return 1
	}
	weight := map[string]int{"kept": 2, "kept-latest": 1, "not-an-image": 1}
	return cmp.Compare(weight[a.GetReason()], weight[b.GetReason()])
}
