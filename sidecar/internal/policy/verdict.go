package policy

import (
	"cmp"
	"slices"
	"time"
)

// Verdict is what the rules say about one name of an image, whatever else keeps
// the image.
type Verdict struct {
	Name   string
	Reason Reason // Kept, KeptLatest, NotAnImage, NotExpired, MinAge or Expired
	Rule   string
	// Expires is when this name lets the image go.
	Expires Moment
	// UnusedFor is the time of disuse that the rule asks for, with the spread;
	// 0 = none.
	UnusedFor time.Duration

	pin, unpullable bool
	trash           *time.Duration
}

// Explain gives the verdicts on the names of one image, in their order. The
// names that follow others are left out: the record under an ID, and the digest
// beside a tag.
func Explain(view View, rules Rules, now Moment, key Key) []Verdict {
	i := slices.IndexFunc(view.Images, func(img Image) bool { return img.Key == key })
	if i < 0 {
		return nil
	}
	return newPlanner(&view, &rules, now).judge(i)
}

// judge gives the verdicts on the names of image i, until the next call.
func (p *planner) judge(i int) []Verdict {
	p.verdicts = p.verdicts[:0]
	for _, a := range p.asked[p.first[i]:p.first[i+1]] {
		p.verdicts = append(p.verdicts, p.judgeName(i, a))
	}
	return p.verdicts
}

func (p *planner) judgeName(i int, a asked) Verdict {
	img, rule := &p.view.Images[i], a.rule
	v := Verdict{Name: a.name, Rule: DefaultRule, UnusedFor: p.rules.UnusedFor, Expires: Never}
	switch {
	case rule != nil:
		v.Rule, v.pin, v.unpullable, v.trash = rule.Name, rule.Pin, rule.Unpullable, rule.Trash
		if rule.UnusedFor != nil {
			v.UnusedFor = *rule.UnusedFor
		}
	case img.Kind != KindImage:
		v.Rule, v.Reason, v.UnusedFor = "", NotAnImage, 0
		return v
	}
	if rule != nil && (rule.Keep || rule.Pin) {
		v.Reason, v.UnusedFor = Kept, 0
		return v
	}
	if rule != nil && rule.KeepLatest > 0 && p.latest[ranked{rule, img.Key, a.repository}] {
		v.Reason = KeptLatest
		return v
	}
	v.Reason = NotExpired
	if v.UnusedFor <= 0 {
		return v
	}
	v.UnusedFor += p.rules.spread(img.Key, v.UnusedFor)
	unused := p.since[i].Add(v.UnusedFor)
	v.Expires = max(unused, p.ripe(i))
	switch {
	case p.now < unused:
	case p.now < p.ripe(i):
		v.Reason = MinAge
	default:
		v.Reason = Expired
	}
	return v
}

// lasting is the verdict that keeps the image longest.
func lasting(verdicts []Verdict) Verdict {
	last := verdicts[0]
	for _, v := range verdicts[1:] {
		if cmp.Or(cmp.Compare(v.Expires, last.Expires), cmp.Compare(v.lasts(), last.lasts())) > 0 {
			last = v
		}
	}
	return last
}

// lasts orders the reasons of what never goes.
func (v *Verdict) lasts() int {
	switch v.Reason {
	case Kept:
		return 2
	case KeptLatest, NotAnImage:
		return 1
	default:
		return 0
	}
}

// ranked names an image within a repository and the rule that keeps the latest
// of it.
type ranked struct {
	rule       *Rule
	key        Key
	repository string
}

// rankLatest finds what the rules with KeepLatest keep: of each repository, in
// each containerd namespace, the images that were used or pulled last.
func (p *planner) rankLatest() map[ranked]bool {
	if !slices.ContainsFunc(p.rules.List, func(r Rule) bool { return r.KeepLatest > 0 }) {
		return nil
	}
	groups := map[ranked][]int{} // with the containerd namespace alone as key
	for i := range p.view.Images {
		img := &p.view.Images[i]
		for _, a := range p.asked[p.first[i]:p.first[i+1]] {
			if a.rule == nil || a.rule.KeepLatest == 0 {
				continue
			}
			g := ranked{a.rule, Key{ContainerdNamespace: img.Key.ContainerdNamespace}, a.repository}
			if n := len(groups[g]); n == 0 || groups[g][n-1] != i { // two tags are one image
				groups[g] = append(groups[g], i)
			}
		}
	}
	latest := map[ranked]bool{}
	for g, members := range groups {
		slices.SortFunc(members, p.byLatest)
		for _, i := range members[:min(len(members), g.rule.KeepLatest)] {
			latest[ranked{g.rule, p.view.Images[i].Key, g.repository}] = true
		}
	}
	return latest
}

// byLatest sorts what was used or pulled last to the front; of equals what was
// pulled last.
func (p *planner) byLatest(i, j int) int {
	if c := cmp.Compare(p.wanted(j), p.wanted(i)); c != 0 {
		return c
	}
	if c := cmp.Compare(p.pulled[j], p.pulled[i]); c != 0 {
		return c
	}
	// On a fresh install all were pulled at the first look: the record knows better.
	if c := p.view.Images[j].PulledAt.Compare(p.view.Images[i].PulledAt); c != 0 {
		return c
	}
	return cmp.Compare(p.view.Images[i].Key.ID, p.view.Images[j].Key.ID)
}

// wanted is when somebody last wanted image i: now, if it is in use.
func (p *planner) wanted(i int) Moment {
	if p.used[i] != "" {
		return p.now
	}
	return p.last[i]
}

// ripe is when the MinAge of image i is over.
func (p *planner) ripe(i int) Moment { return p.pulled[i].Add(p.rules.MinAge) }
