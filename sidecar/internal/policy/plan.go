package policy

import (
	"slices"
	"time"
)

// Reason is the one machine-readable cause of a decision. The set is closed.
type Reason string

// Reasons to keep an image whatever the rules say, in the order in which the
// first that holds is given.
const (
	NotAnImage  Reason = "not-an-image"
	InUse       Reason = "in-use"
	ImageVolume Reason = "image-volume"
	Sandbox     Reason = "sandbox"
	ForPod      Reason = "pod-spec"
	Snapshot    Reason = "snapshot"
	Leased      Reason = "leased"
	Pinned      Reason = "pinned"
	Unpullable  Reason = "unpullable"
)

// Reasons that come from the rules.
const (
	Kept       Reason = "kept"
	KeptLatest Reason = "kept-latest"
	NotExpired Reason = "not-expired"
	MinAge     Reason = "min-age"
	Expired    Reason = "expired"
	OverBudget Reason = "budget"
	LowDisk    Reason = "pressure"
	Requested  Reason = "requested"
)

// Reasons to keep, for now, what the rules let go. All but the first hold every
// removal of the node.
const (
	HourlyLimit    Reason = "max-per-hour"
	StartGrace     Reason = "start-grace"
	ViewIncomplete Reason = "view-incomplete"
)

// View is all that a decision depends on.
type View struct {
	Images []Image
	// Parts are what Image.Parts point at.
	Parts []Part
	// Uses are those that the state knows, those that the runtime lists and the
	// open claims; duplicates do no harm.
	Uses []Use
	// Pods are those that the kubelet knows; they use images of
	// PodsNamespace.
	Pods          []PodSpec
	PodsNamespace string
	Holdings      map[Key]Holding
	Memory        map[Key]Memory
	// Watched is the end of the last time when nobody watched the node: a use
	// may have ended then unseen, so disuse of no image counts from before.
	Watched Moment
	// Started is the latest start of the sidecar or of the runtime.
	Started Moment
	// Incomplete names what the view lacks; empty = the view is complete.
	Incomplete []string
	// Disk is needed for Pressure and for a share in Ask.
	Disk Disk
	// Pressed says that the file system was above Pressure.High and has not come
	// down to Low since.
	Pressed bool
	// Removed are the moments of the last hour at which rules removed images.
	Removed []Moment
}

// Decision says what becomes of one image, and why.
type Decision struct {
	Key    Key
	Remove bool
	Reason Reason
	// Rule is the rule that decided; empty for a reason that no rule gave.
	Rule string
	// Expires is when the image goes if nothing else keeps it then; Never if
	// the rules do not ask for it.
	Expires Moment
	// Pin says that a rule asks for the CRI's pin.
	Pin bool
	// Trash is how long it can be restored by the rule's word; nil = as
	// configured.
	Trash *time.Duration
}

// Plan decides for each image of the view. The result has exactly one decision
// per image, in the order of view.Images. Any doubt keeps: an image without
// memory counts as seen just now, and an incomplete view removes nothing.
func Plan(view View, rules Rules, now Moment) []Decision {
	p := newPlanner(&view, &rules, now)
	p.decide()
	p.budget()
	p.limit()
	p.pressure()
	p.request()
	p.hold()
	return p.decisions
}

// planner is one run of Plan.
type planner struct {
	view  *View
	rules *Rules
	now   Moment

	latest    map[ranked]bool
	decisions []Decision
	removal   *removal
	// Of each image: why it is in use, from when it counts as unused, when it
	// was pulled.
	used          []Reason
	since, pulled []Moment
	// last is since without what a gap makes equal: for order, not for time.
	last []Moment
	// asked are the names that rules are asked about, of all images; those of
	// image i begin at first[i].
	asked    []asked
	first    []int32
	verdicts []Verdict // used anew for each image
}

// asked is a name with the rule that decides about it; nil = the default rule.
type asked struct {
	name, repository string
	rule             *Rule
}

func newPlanner(view *View, rules *Rules, now Moment) *planner {
	n := len(view.Images)
	p := &planner{
		view: view, rules: rules, now: now, decisions: make([]Decision, n),
		used: make([]Reason, n), since: make([]Moment, n), pulled: make([]Moment, n), last: make([]Moment, n),
	}
	used := usedBy(view)
	for i := range view.Images {
		key := view.Images[i].Key
		mem := view.Memory[key]
		if mem.FirstSeenAt.IsZero() {
			mem = Memory{FirstSeen: now, Pulled: now}
		}
		p.used[i], p.last[i], p.pulled[i] = used[key], mem.UnusedSince(), mem.Pulled
		p.since[i] = max(p.last[i], view.Watched)
	}
	p.ask()
	p.latest = p.rankLatest()
	return p
}

// ask finds the rule for each name.
func (p *planner) ask() {
	p.first = make([]int32, len(p.view.Images)+1)
	p.asked = make([]asked, 0, len(p.view.Images)+len(p.view.Images)/4)
	var names []string
	for i := range p.view.Images {
		img := &p.view.Images[i]
		names = judged(names[:0], img)
		for _, name := range names {
			full, repository := candidate(name)
			p.asked = append(p.asked, asked{name, repository, p.rules.find(img, name, full, repository)})
		}
		p.askDigests(img)
		p.first[i+1] = int32(len(p.asked))
	}
}

// askDigests asks about the names that follow others, too, where a rule that
// keeps names their very digest.
func (p *planner) askDigests(img *Image) {
	if !p.rules.byDigest() {
		return
	}
	for _, n := range img.Names {
		full, repository := candidate(n.Name)
		rule := p.rules.find(img, n.Name, full, repository)
		if rule == nil || !rule.Keep && !rule.Pin {
			continue
		}
		if slices.ContainsFunc(rule.Images, func(g Glob) bool { return g.digest && g.match(full, repository) }) {
			p.asked = append(p.asked, asked{n.Name, repository, rule})
		}
	}
}

func (p *planner) decide() {
	for i := range p.view.Images {
		img := &p.view.Images[i]
		verdicts := p.judge(i)
		last := lasting(verdicts)
		d := &p.decisions[i]
		*d = Decision{Key: img.Key, Expires: Never, Pin: last.pin, Trash: last.trash}
		if d.Reason = p.always(i, verdicts); d.Reason != "" {
			continue
		}
		d.Rule, d.Reason, d.Expires = last.Rule, last.Reason, last.Expires
		d.Remove = d.Reason == Expired
	}
}

// always is the reason to keep an image whatever the rules say; empty = none.
func (p *planner) always(i int, verdicts []Verdict) Reason {
	img := &p.view.Images[i]
	switch {
	case img.Kind != KindImage && !anyRule(verdicts):
		return NotAnImage
	case p.used[i] != "":
		return p.used[i]
	case p.view.Holdings[img.Key].Reason != "":
		return p.view.Holdings[img.Key].Reason
	case img.Pinned():
		return Pinned
	case p.rules.KeepUnpullable && img.Kind == KindImage && !img.FromRegistry && !allUnpullable(verdicts):
		return Unpullable
	}
	return ""
}

func anyRule(verdicts []Verdict) bool {
	for _, v := range verdicts {
		if v.Reason != NotAnImage {
			return true
		}
	}
	return false
}

func allUnpullable(verdicts []Verdict) bool {
	for _, v := range verdicts {
		if !v.unpullable {
			return false
		}
	}
	return true
}

// hold keeps for now all that would go, while there is doubt about the whole.
func (p *planner) hold() {
	var reason Reason
	switch {
	case len(p.view.Incomplete) > 0:
		reason = ViewIncomplete
	case p.now < p.view.Started.Add(p.rules.StartGrace):
		reason = StartGrace
	default:
		return
	}
	for i := range p.decisions {
		if d := &p.decisions[i]; d.Remove {
			d.Remove, d.Reason = false, reason
		}
	}
}

// spread is how much longer than asked this image stays on this node, by an
// FNV-1a hash of the machine and the image.
func (r *Rules) spread(k Key, unusedFor time.Duration) time.Duration {
	if r.Spread <= 0 {
		return 0
	}
	hash := uint64(14695981039346656037)
	for _, part := range [...]string{r.Machine, "\x00", k.ContainerdNamespace, "\x00", k.ID} {
		for i := range len(part) {
			hash = (hash ^ uint64(part[i])) * 1099511628211
		}
	}
	share := float64(hash>>11) / (1 << 53)
	return time.Duration(share * r.Spread * float64(unusedFor))
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

// usedBy gives for each image in use the strongest reason of its uses: a
// container's root, then a volume, then the sandbox, then what a pod asks for. A
// use whose image ID is not known counts for every image that bears its name.
func usedBy(view *View) map[Key]Reason {
	used := make(map[Key]Reason, len(view.Uses))
	index := NewIndex(view.Images)
	// What is no image for this node is known by its target, which no use tells.
	oddKinds := slices.ContainsFunc(view.Images, func(i Image) bool { return i.Kind != KindImage })
	for i := range view.Uses {
		u := &view.Uses[i]
		reason := InUse
		if u.Kind == UseSandbox {
			reason = Sandbox
		}
		if u.ImageID != "" && !oddKinds {
			note(used, Key{u.ContainerdNamespace, u.ImageID}, reason)
		} else {
			for _, key := range index.Root(*u) {
				note(used, key, reason)
			}
		}
		if len(u.Volumes) == 0 {
			continue
		}
		for _, key := range index.Volumes(*u) {
			note(used, key, ImageVolume)
		}
	}
	wanted := wanted{}
	for _, pod := range view.Pods {
		for _, name := range pod.Images {
			wanted.add(name)
		}
	}
	for i := range view.Images {
		if img := &view.Images[i]; img.Key.ContainerdNamespace == view.PodsNamespace && wanted.means(img) {
			note(used, img.Key, ForPod)
		}
	}
	return used
}

// wanted are names as pods' authors write them.
type wanted struct{ names, digests map[string]bool }

func (w *wanted) add(name string) {
	if w.names == nil {
		w.names, w.digests = map[string]bool{}, map[string]bool{}
	}
	if isDigest(name) {
		w.digests[name] = true
	} else {
		w.names[asNamed(name)] = true
	}
}

// means reports whether one of the names means the image.
func (w *wanted) means(img *Image) bool {
	if len(w.digests) > 0 && w.digests[img.Key.ID] {
		return true
	}
	for i := range img.Names {
		n := &img.Names[i]
		if len(w.names) > 0 && w.names[n.Name] || len(w.digests) > 0 && w.digests[n.Target] {
			return true
		}
	}
	return false
}

// Wants reports whether a pod asks for the image, which must be in the
// containerd namespace of the CRI.
func (p PodSpec) Wants(img Image) bool {
	var wanted wanted
	for _, name := range p.Images {
		wanted.add(name)
	}
	return wanted.means(&img)
}

func note(used map[Key]Reason, key Key, reason Reason) {
	if old, ok := used[key]; !ok || strength(reason) > strength(old) {
		used[key] = reason
	}
}

func strength(r Reason) int {
	switch r {
	case InUse:
		return 4
	case ImageVolume:
		return 3
	case Sandbox:
		return 2
	default:
		return 1
	}
}
