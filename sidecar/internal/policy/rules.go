package policy

import (
	"slices"
	"strings"
	"time"
)

// DefaultRule is the name of the last rule, which [clean] unused_for makes and
// which applies to every name that no other rule matches.
const DefaultRule = "default"

// Mode says what becomes of the images that the rules let go.
type Mode string

// The modes of cleaning.
const (
	ModeAuto Mode = "auto" // they are removed
	ModePlan Mode = "plan" // they are shown, and stay
	ModeOff  Mode = "off"  // the rules ask for nothing
)

// Modes are all of them.
var Modes = []Mode{ModeAuto, ModePlan, ModeOff}

// Rules are what the operator asks for.
type Rules struct {
	// List is tried in order for each name of an image; the first rule that
	// matches decides about that name. The image goes when the last of its
	// names allows.
	List []Rule
	// UnusedFor is how long an image stays after its last use that no rule of
	// the list matches; 0 = it never goes by its age.
	UnusedFor time.Duration
	// MinAge is how long an image stays after a pull, whatever else is set.
	MinAge time.Duration
	// StartGrace is how long nothing goes after View.Started.
	StartGrace time.Duration
	// KeepUnpullable keeps images that no registry is known to hold, unless the
	// rules of all their names say Unpullable.
	KeepUnpullable bool
	// Spread lengthens each time of disuse by up to this share of it, by a hash
	// of Machine and the image, so that a fleet never acts as one.
	Spread float64
	// Machine identifies this node among others.
	Machine string
	// MaxPerHour bounds the images that rules and budget remove in an hour of
	// observed time; 0 = no bound. Pressure and people are not bound by it.
	MaxPerHour int
	Budget     Budget
	Pressure   Pressure
	// Ask is what a person wants beyond the rules.
	Ask Ask
}

// Rule matches names of images and says how long these may stay. What is not
// set does not narrow the match.
type Rule struct {
	Name string

	// Images match if one of them does.
	Images []Glob
	// Untagged matches only names without a tag.
	Untagged bool
	// Labels of the image config that must all match.
	Labels []LabelMatch
	// ContainerdNamespaces match if the image is in one of them.
	ContainerdNamespaces []string

	// Keep keeps for ever; Pin does too, and asks for the CRI's pin, which the
	// kubelet obeys.
	Keep, Pin bool
	// KeepLatest keeps so many images of each repository: those that were used
	// or pulled last.
	KeepLatest int
	// UnusedFor is how long an image stays after its last use; nil = as
	// Rules.UnusedFor, 0 = it never goes by its age.
	UnusedFor *time.Duration
	// Trash is how long a removed image can be restored; nil = as configured.
	Trash *time.Duration
	// Unpullable lets images go that no registry is known to hold.
	Unpullable bool
}

// LabelMatch asks for a label of the image config.
type LabelMatch struct {
	Key string
	// Value is what the label must be; a "*" stands for any text.
	Value string
}

// Budget bounds all that is unused. 0 = no bound.
type Budget struct {
	UnusedBytes  int64
	UnusedImages int
}

// Level is a use of the file system: in bytes, or as a share of its size.
// Zero = off.
type Level struct {
	Bytes int64
	Share float64 // 0.8 is 80 %
}

func (l Level) of(size int64) int64 {
	if l.Share > 0 {
		return int64(l.Share * float64(size))
	}
	return l.Bytes
}

// Pressure removes by the use of the file system: from High down to Low, the
// longest unused images first.
type Pressure struct{ High, Low Level }

// Ask is what a person asks for beyond the rules: the longest unused images go
// until FreeBytes are free or the file system is used no more than Until.
type Ask struct {
	FreeBytes int64
	Until     Level
	// Among says which images he means; nil = all. What goes of others by the
	// rules counts for nothing here.
	Among func(Image) bool
}

// matches reports whether the rule is about this name of the image. What is no
// image is matched only by a rule that names it.
func (r *Rule) matches(img *Image, name, full, repository string) bool {
	if len(r.ContainerdNamespaces) > 0 && !slices.Contains(r.ContainerdNamespaces, img.Key.ContainerdNamespace) {
		return false
	}
	if len(r.Images) > 0 && !slices.ContainsFunc(r.Images, func(g Glob) bool {
		return g.match(full, repository) && (img.Kind == KindImage || g.names())
	}) {
		return false
	}
	if img.Kind != KindImage && len(r.Images) == 0 {
		return false
	}
	if r.Untagged && parseReference(name).tag != "" {
		return false
	}
	for _, l := range r.Labels {
		if value, ok := img.Labels[l.Key]; !ok || !l.Match(value) {
			return false
		}
	}
	return true
}

// Match reports whether the label's value is what is asked for.
func (l LabelMatch) Match(value string) bool {
	parts := strings.Split(l.Value, "*")
	if len(parts) == 1 {
		return value == l.Value
	}
	first, last := parts[0], parts[len(parts)-1]
	if len(value) < len(first)+len(last) || !strings.HasPrefix(value, first) || !strings.HasSuffix(value, last) {
		return false
	}
	value = value[len(first) : len(value)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		_, rest, ok := strings.Cut(value, part)
		if !ok {
			return false
		}
		value = rest
	}
	return true
}

// byDigest reports whether a rule that keeps names a digest.
func (r *Rules) byDigest() bool {
	for i := range r.List {
		rule := &r.List[i]
		if (rule.Keep || rule.Pin) && slices.ContainsFunc(rule.Images, func(g Glob) bool { return g.digest }) {
			return true
		}
	}
	return false
}

// find returns the rule that decides about a name; nil = the default rule.
func (r *Rules) find(img *Image, name, full, repository string) *Rule {
	for i := range r.List {
		if r.List[i].matches(img, name, full, repository) {
			return &r.List[i]
		}
	}
	return nil
}
