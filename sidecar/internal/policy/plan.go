package policy

import (
	"slices"
	"time"
)

// Reason is the one machine-readable cause of a decision. The set is closed.
type Reason string

// Reasons to keep an image whatever the rules say, in the order in which the
// first that holds is given. The last two hold every removal of the node.
const (
	NotAnImage     Reason = "not-an-image"
	InUse          Reason = "in-use"
	ImageVolume    Reason = "image-volume"
	Sandbox        Reason = "sandbox"
	Pinned         Reason = "pinned"
	Unpullable     Reason = "unpullable"
	MinAge         Reason = "min-age"
	StartGrace     Reason = "start-grace"
	ViewIncomplete Reason = "view-incomplete"
)

// Reasons that come from the rules.
const (
	NotExpired Reason = "not-expired"
	Expired    Reason = "expired"
)

// DefaultRule is the name of the last rule, which [clean] unused_for makes and
// which applies to every image that no other rule matches.
const DefaultRule = "default"

// Rules are what the operator asks for.
type Rules struct {
	// UnusedFor is how long an image stays after its last use; 0 = it never
	// goes by this rule.
	UnusedFor time.Duration
	// MinAge is how long an image stays after a pull, whatever else is set.
	MinAge time.Duration
	// StartGrace is how long nothing goes after View.Started.
	StartGrace time.Duration
	// KeepUnpullable keeps images that no registry is known to hold.
	KeepUnpullable bool
}

// View is all that a decision depends on.
type View struct {
	Images []Image
	// Uses are those that the state knows, those that the runtime lists and the
	// open claims; duplicates do no harm.
	Uses   []Use
	Memory map[Key]Memory
	// Watched is the end of the last time when nobody watched the node: a use
	// may have ended then unseen, so disuse of no image counts from before.
	Watched Moment
	// Started is the latest start of the sidecar or of the runtime.
	Started Moment
	// Incomplete names what the view lacks; empty = the view is complete.
	Incomplete []string
}

// Decision says what becomes of one image, and why.
type Decision struct {
	Key    Key
	Remove bool
	Reason Reason
	// Rule is the rule that decided; empty for a reason that no rule gave.
	Rule string
	// Expires is when the image goes if nothing else keeps it then; nil if the
	// rules never ask for it.
	Expires *Moment
}

// Plan decides for each image of the view. The result has exactly one decision
// per image, in the order of view.Images. Any doubt keeps: an image without
// memory counts as seen just now, and an incomplete view removes nothing.
func Plan(view View, rules Rules, now Moment) []Decision {
	used := usedBy(view)
	var hold Reason
	switch {
	case len(view.Incomplete) > 0:
		hold = ViewIncomplete
	case now < view.Started.Add(rules.StartGrace):
		hold = StartGrace
	}

	decisions := make([]Decision, len(view.Images))
	for i, img := range view.Images {
		d := decide(img, used[img.Key], view.Memory[img.Key], view.Watched, rules, now)
		if d.Remove && hold != "" {
			d.Remove, d.Reason = false, hold
		}
		decisions[i] = d
	}
	return decisions
}

func decide(img Image, use Reason, mem Memory, watched Moment, rules Rules, now Moment) Decision {
	d := Decision{Key: img.Key}
	switch {
	case img.Kind != KindImage:
		d.Reason = NotAnImage
	case use != "":
		d.Reason = use
	case img.Pinned():
		d.Reason = Pinned
	case rules.KeepUnpullable && !img.FromRegistry:
		d.Reason = Unpullable
	default:
		byRules(&d, mem, watched, rules, now)
	}
	return d
}

func byRules(d *Decision, mem Memory, watched Moment, rules Rules, now Moment) {
	d.Rule, d.Reason = DefaultRule, NotExpired
	if rules.UnusedFor <= 0 {
		return
	}
	if mem.FirstSeenAt.IsZero() {
		mem = Memory{FirstSeen: now, Pulled: now}
	}
	unused := max(mem.UnusedSince(), watched).Add(rules.UnusedFor)
	ripe := mem.Pulled.Add(rules.MinAge)
	expires := max(unused, ripe)
	d.Expires = &expires
	switch {
	case now < unused:
	case now < ripe:
		d.Reason = MinAge
	default:
		d.Remove, d.Reason = true, Expired
	}
}

// UnusedSince is the moment from which the image counts as unused: its last
// use, or, if later, the moment at which somebody last wanted it here.
func (m Memory) UnusedSince() Moment {
	since := max(m.FirstSeen, m.Pulled)
	if m.LastUse != nil {
		since = max(since, *m.LastUse)
	}
	return since
}

// usedBy gives for each image in use the reason that its uses keep it for.
// A use whose image ID is not known counts for every image that bears its name.
func usedBy(view View) map[Key]Reason {
	used := make(map[Key]Reason, len(view.Uses))
	index := NewIndex(view.Images)
	for _, u := range view.Uses {
		reason := InUse
		if u.Kind == UseSandbox {
			reason = Sandbox
		}
		for _, key := range index.Root(u) {
			note(used, key, reason)
		}
		for _, key := range index.Volumes(u) {
			note(used, key, ImageVolume)
		}
	}
	return used
}

// note keeps the strongest reason: a container's root, then a volume, then the
// sandbox.
func note(used map[Key]Reason, key Key, reason Reason) {
	order := []Reason{InUse, ImageVolume, Sandbox}
	if old, ok := used[key]; !ok || slices.Index(order, reason) < slices.Index(order, old) {
		used[key] = reason
	}
}
