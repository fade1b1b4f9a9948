package policy

import (
	"cmp"
	"slices"
	"time"
)

// removal follows what the node gains as images go: a part is gained when the
// last that holds it goes.
type removal struct {
	view    *View
	holders []int32
	gained  int64
}

func newRemoval(view *View) *removal {
	r := &removal{view: view, holders: make([]int32, len(view.Parts))}
	for i := range view.Images {
		for _, part := range view.Images[i].Parts {
			r.holders[part]++
		}
	}
	return r
}

func (r *removal) remove(img *Image) {
	for _, part := range img.Parts {
		if r.holders[part]--; r.holders[part] == 0 && !r.view.Parts[part].Held {
			r.gained += r.view.Parts[part].Bytes
		}
	}
}

// CountUnique sets UniqueBytes of all images: what each alone holds.
func CountUnique(images []Image, parts []Part) {
	holders := make([]int32, len(parts))
	for i := range images {
		for _, part := range images[i].Parts {
			holders[part]++
		}
	}
	for i := range images {
		images[i].UniqueBytes = 0
		for _, part := range images[i].Parts {
			if holders[part] == 1 && !parts[part].Held {
				images[i].UniqueBytes += parts[part].Bytes
			}
		}
	}
}

// Gain is what the node would gain if all went that the decisions remove.
func Gain(view View, decisions []Decision) int64 {
	r := newRemoval(&view)
	for i, d := range decisions {
		if d.Remove {
			r.remove(&view.Images[i])
		}
	}
	return r.gained
}

// removed is the removal of all that goes by now; it is made when first needed.
func (p *planner) removed() *removal {
	if p.removal == nil {
		p.removal = newRemoval(p.view)
		for i := range p.decisions {
			if p.decisions[i].Remove {
				p.removal.remove(&p.view.Images[i])
			}
		}
	}
	return p.removal
}

// take lets one more image go.
func (p *planner) take(i int, reason Reason) {
	p.removed().remove(&p.view.Images[i])
	p.decisions[i].Remove, p.decisions[i].Reason = true, reason
}

// unused reports whether only the rules' time keeps an image, if anything does.
func (d *Decision) unused() bool {
	switch d.Reason {
	case NotExpired, MinAge, Expired, HourlyLimit:
		return true
	default:
		return d.Remove
	}
}

// candidates are the images that may go before their time: unused, pulled at
// least MinAge ago, and not going yet. The longest unused come first, of these
// the largest.
func (p *planner) candidates() []int {
	var list []int
	for i := range p.decisions {
		d := &p.decisions[i]
		if d.unused() && !d.Remove && p.ripe(i) <= p.now && p.view.Images[i].Kind == KindImage {
			list = append(list, i)
		}
	}
	slices.SortFunc(list, p.byDisuse)
	return list
}

func (p *planner) byDisuse(i, j int) int {
	if c := cmp.Compare(p.last[i], p.last[j]); c != 0 {
		return c
	}
	a, b := &p.view.Images[i], &p.view.Images[j]
	return cmp.Or(
		cmp.Compare(b.UniqueBytes, a.UniqueBytes),
		cmp.Compare(a.Key.ContainerdNamespace, b.Key.ContainerdNamespace),
		cmp.Compare(a.Key.ID, b.Key.ID),
	)
}

// budget lets images go until what is unused fits into the budget.
func (p *planner) budget() {
	b := p.rules.Budget
	if b.UnusedBytes <= 0 && b.UnusedImages <= 0 {
		return
	}
	all := newRemoval(p.view)
	left := 0
	for i := range p.decisions {
		if d := &p.decisions[i]; d.unused() {
			all.remove(&p.view.Images[i])
			if !d.Remove {
				left++
			}
		}
	}
	for _, i := range p.candidates() {
		tooMany := b.UnusedImages > 0 && left > b.UnusedImages
		tooBig := b.UnusedBytes > 0 && all.gained-p.removed().gained > b.UnusedBytes
		if !tooMany && !tooBig {
			return
		}
		p.take(i, OverBudget)
		left--
	}
}

// limit keeps for later what rules and budget would remove beyond MaxPerHour.
func (p *planner) limit() {
	if p.rules.MaxPerHour <= 0 {
		return
	}
	left := p.rules.MaxPerHour
	for _, at := range p.view.Removed {
		if at > p.now.Add(-time.Hour) {
			left--
		}
	}
	var list []int
	for i := range p.decisions {
		if p.decisions[i].Remove {
			list = append(list, i)
		}
	}
	if len(list) <= left {
		return
	}
	slices.SortFunc(list, p.byDisuse)
	for _, i := range list[max(0, left):] {
		p.decisions[i].Remove, p.decisions[i].Reason = false, HourlyLimit
	}
	p.removal = nil
}

// measured reports whether it is known what images take: else nobody knows when
// enough have gone.
func (v *View) measured() bool { return len(v.Parts) > 0 }

// Pressed tells whether pressure lasts: it begins at High and ends at Low.
func (p Pressure) Pressed(before bool, disk Disk) bool {
	high, low := p.High.of(disk.SizeBytes), p.Low.of(disk.SizeBytes)
	return high > 0 && (disk.UsedBytes >= high || before && disk.UsedBytes > low)
}

// pressure lets images go until the file system is down to Low, if it is above
// High or was and is not down yet.
func (p *planner) pressure() {
	high, low := p.rules.Pressure.High.of(p.view.Disk.SizeBytes), p.rules.Pressure.Low.of(p.view.Disk.SizeBytes)
	if high <= 0 || p.view.Disk.UsedBytes < high && !p.view.Pressed || !p.view.measured() {
		return
	}
	for _, i := range p.candidates() {
		if p.view.Disk.UsedBytes-p.removed().gained <= low {
			return
		}
		p.take(i, LowDisk)
	}
}

// request lets images go until a person has what he asks for.
func (p *planner) request() {
	ask := p.rules.Ask
	until := ask.Until.of(p.view.Disk.SizeBytes)
	if ask.FreeBytes <= 0 && until <= 0 || !p.view.measured() {
		return
	}
	among := func(i int) bool { return ask.Among == nil || ask.Among(p.view.Images[i]) }
	removal := newRemoval(p.view)
	for i := range p.decisions {
		if p.decisions[i].Remove && among(i) {
			removal.remove(&p.view.Images[i])
		}
	}
	for _, i := range p.candidates() {
		if removal.gained >= ask.FreeBytes && (until <= 0 || p.view.Disk.UsedBytes-removal.gained <= until) {
			return
		}
		if among(i) {
			removal.remove(&p.view.Images[i])
			p.decisions[i].Remove, p.decisions[i].Reason = true, Requested
		}
	}
}
