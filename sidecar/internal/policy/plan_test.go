package policy

import (
	"fmt"
	"strconv"
	"syscall"
	"testing"
	"time"
)

const (
	hour = Moment(time.Hour)
	day  = 24 * hour
)

// at is a moment in the tests, far from zero.
const now = 1000 * day

func image(id string, names ...string) Image {
	img := Image{Key: Key{"k8s.io", "sha256:" + id}, Kind: KindImage, FromRegistry: true}
	for _, n := range names {
		img.Names = append(img.Names, Name{Name: n, Target: "sha256:t" + id})
	}
	return img
}

func pinned(img Image) Image { img.Names[len(img.Names)-1].Pinned = true; return img }

func unused(since Moment) Memory {
	return Memory{FirstSeen: since, FirstSeenAt: time.Unix(1, 0), Pulled: since}
}

func lastUsed(m Memory, at Moment) Memory { m.LastUse = &at; return m }

func pulled(m Memory, at Moment) Memory { m.Pulled = at; return m }

// Invariants 1, 7 and 8, whatever the view and the rules: one decision an image,
// none without a reason, and nothing goes that is used, held, pinned, kept by a
// rule or too young, or while the view is incomplete. Rules and budget remove no
// more than MaxPerHour, and by age alone later never turns a removal into a keep.
func FuzzPlan(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128}, int64(40*day), int64(31*day), uint8(0), true)
	f.Add([]byte{255, 128, 64, 8, 8, 8, 8}, int64(0), int64(1), uint8(255), false)
	f.Add([]byte{8, 8, 8, 24, 24, 40, 72}, int64(2*hour), int64(hour), uint8(63), true)
	f.Fuzz(func(t *testing.T, shape []byte, age, unusedFor int64, extra uint8, complete bool) {
		if len(shape) > 64 || age < 0 || age > int64(now) || unusedFor > int64(now) {
			return // out of the range of the model
		}
		view := View{Memory: map[Key]Memory{}, Holdings: map[Key]Holding{}, Parts: make([]Part, 8), Disk: Disk{SizeBytes: 100, UsedBytes: 90}}
		for i := range view.Parts {
			view.Parts[i] = Part{Bytes: int64(i), Held: i == 7}
		}
		for i, b := range shape {
			name := "x/n:" + strconv.Itoa(i)
			if b&32 != 0 {
				name = "keep/n:" + strconv.Itoa(i)
			}
			img := image(string(rune('a'+i%26))+string(rune('a'+i/26)), name)
			img.FromRegistry, img.Parts = b&1 == 0, []int32{int32(b % 8), int32(i % 8)}
			if b&2 != 0 {
				img = pinned(img)
			}
			if b&4 != 0 {
				view.Uses = append(view.Uses, Use{ContainerdNamespace: "k8s.io", ImageID: img.Key.ID})
			}
			if b&8 != 0 {
				view.Memory[img.Key] = unused(now - Moment(age))
			}
			if b&16 != 0 {
				view.Holdings[img.Key] = Holding{Reason: Leased}
			}
			view.Images = append(view.Images, img)
		}
		if !complete {
			view.Incomplete = []string{"cri"}
		}
		CountUnique(view.Images, view.Parts)
		byAge := Rules{
			UnusedFor: time.Duration(unusedFor), KeepUnpullable: true, MinAge: time.Hour,
			List: []Rule{{Name: "keep", Images: globs(t, "keep/*"), Keep: true}},
		}
		all := byAge
		if extra&1 != 0 {
			all.Budget = Budget{UnusedBytes: 5, UnusedImages: 2}
		}
		if extra&2 != 0 {
			all.Pressure = Pressure{High: Level{Share: 0.5}, Low: Level{Bytes: 60}}
		}
		if extra&4 != 0 {
			all.MaxPerHour = 3
		}
		if extra&8 != 0 {
			all.Ask = Ask{FreeBytes: 1000}
		}
		if extra&16 != 0 {
			all.List = append(all.List, Rule{Name: "latest", Images: globs(t, "x/*"), KeepLatest: 2})
		}
		if extra&32 != 0 {
			all.Spread = 0.5
		}
		decisions := Plan(view, all, now)
		if len(decisions) != len(view.Images) {
			t.Fatalf("%d decisions for %d images", len(decisions), len(view.Images))
		}
		byRules := 0
		for i, d := range decisions {
			b := shape[i]
			switch {
			case d.Key != view.Images[i].Key || d.Reason == "":
				t.Errorf("decision %d = %+v", i, d)
			case d.Remove && (!complete || b&(1|2|4|16|32) != 0 || b&8 == 0 || age < int64(hour)):
				t.Errorf("image %d (%08b) is removed: %+v", i, b, d)
			}
			if d.Remove && (d.Reason == Expired || d.Reason == OverBudget) {
				byRules++
			}
		}
		if all.MaxPerHour > 0 && byRules > all.MaxPerHour {
			t.Errorf("rules remove %d images in this hour, bound is %d", byRules, all.MaxPerHour)
		}
		if gain := Gain(view, decisions); gain < 0 || gain > 28 {
			t.Errorf("gain %d of 28 bytes", gain)
		}
		now, later := Plan(view, byAge, now), Plan(view, byAge, now+day)
		for i := range now {
			if now[i].Remove && !later[i].Remove {
				t.Errorf("image %d goes now and not later: %+v, %+v", i, now[i], later[i])
			}
		}
	})
}

// A container of what has no manifest for this node keeps it, although it is
// known by its target only, and a rule names it.
func TestForeignInUse(t *testing.T) {
	img := image("t", "reg.io/app:1")
	img.Kind = KindForeign
	view := View{Images: []Image{img}, Memory: map[Key]Memory{img.Key: unused(now - 40*day)}}
	rules := Rules{UnusedFor: time.Hour, List: []Rule{{Name: "all", Images: globs(t, "reg.io/**")}}}
	if d := Plan(view, rules, now)[0]; !d.Remove {
		t.Errorf("unused: %+v", d)
	}
	view.Uses = []Use{{ContainerdNamespace: "k8s.io", ContainerID: "c", ImageID: "sha256:config", RecordName: "reg.io/app:1"}}
	if d := Plan(view, rules, now)[0]; d.Remove || d.Reason != InUse {
		t.Errorf("used: %+v", d)
	}
}

// A rule that keeps a digest keeps it beside a tag, too.
func TestKeepByDigest(t *testing.T) {
	img := image("a", "reg.io/app:1", "reg.io/app@sha256:00", "sha256:a")
	view := View{Images: []Image{img}, Memory: map[Key]Memory{img.Key: unused(now - 40*day)}}
	rules := Rules{UnusedFor: time.Hour, List: []Rule{{Name: "exact", Images: globs(t, "reg.io/app@sha256:00"), Keep: true}}}
	if d := Plan(view, rules, now)[0]; d.Reason != Kept {
		t.Errorf("%+v", d)
	}
	rules.List[0].Images = globs(t, "reg.io/app@sha256:11")
	if d := Plan(view, rules, now)[0]; !d.Remove {
		t.Errorf("%+v", d)
	}
}

// A gap moves deadlines, not the order of disuse; images that were all there at
// the first look are ordered by their records.
func TestOrderAfterAGap(t *testing.T) {
	old, young := image("z", "reg.io/app:1"), image("a", "reg.io/app:2")
	view := View{Images: []Image{old, young}, Watched: now, Memory: map[Key]Memory{
		old.Key: unused(now - 9*day), young.Key: unused(now - 10*day),
	}}
	rules := Rules{UnusedFor: time.Hour, List: []Rule{{Name: "r", KeepLatest: 1}}}
	if d := Plan(view, rules, now); d[0].Reason != KeptLatest || d[1].Reason == KeptLatest {
		t.Errorf("after a gap: %+v", d)
	}
	view.Memory[young.Key] = view.Memory[old.Key]
	view.Images[0].PulledAt = time.Unix(2, 0)
	if d := Plan(view, rules, now); d[0].Reason != KeptLatest || d[1].Reason == KeptLatest {
		t.Errorf("by the record: %+v", d)
	}
}

func TestPressed(t *testing.T) {
	p := Pressure{High: Level{Share: 0.8}, Low: Level{Share: 0.6}}
	for _, c := range []struct {
		used         int64
		before, want bool
	}{{79, false, false}, {80, false, true}, {79, true, true}, {61, true, true}, {60, true, false}} {
		if got := p.Pressed(c.before, Disk{SizeBytes: 100, UsedBytes: c.used}); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	if (Pressure{}).Pressed(true, Disk{SizeBytes: 100, UsedBytes: 99}) {
		t.Error("pressure without levels")
	}
}

// While nobody knows what images take, nothing goes for lack of space.
func TestNotMeasured(t *testing.T) {
	img := image("a", "x/a:1")
	view := View{Images: []Image{img}, Memory: map[Key]Memory{img.Key: unused(now - day)}, Disk: Disk{SizeBytes: 100, UsedBytes: 99}}
	rules := Rules{Pressure: Pressure{High: Level{Bytes: 50}, Low: Level{Bytes: 40}}, Budget: Budget{UnusedBytes: 1}, Ask: Ask{FreeBytes: 1}}
	if d := Plan(view, rules, now)[0]; d.Remove {
		t.Errorf("%+v", d)
	}
	view.Images[0].Parts, view.Parts = []int32{0}, []Part{{Bytes: 10}}
	if d := Plan(view, rules, now)[0]; !d.Remove {
		t.Errorf("%+v", d)
	}
}

// BenchmarkPlan is a large node with rules of every kind.
func BenchmarkPlan(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			view := View{Memory: map[Key]Memory{}, Parts: make([]Part, 10*n), Disk: Disk{SizeBytes: 1 << 40, UsedBytes: 9 << 36}}
			for i := range view.Parts {
				view.Parts[i] = Part{Bytes: 1 << 20, Snapshot: i%2 == 0}
			}
			for i := range n {
				id := fmt.Sprintf("%064x", i)
				repo := "registry.corp/team-" + strconv.Itoa(i%50) + "/app"
				img := image(id, repo+":"+strconv.Itoa(i), repo+"@sha256:"+id, "sha256:"+id)
				for j := range 10 {
					img.Parts = append(img.Parts, int32((7*i+j)%len(view.Parts)))
				}
				view.Images = append(view.Images, img)
				view.Memory[img.Key] = unused(now - Moment(i)*hour)
				if i%4 == 0 {
					view.Uses = append(view.Uses, Use{ContainerdNamespace: "k8s.io", ImageID: img.Key.ID})
				}
			}
			for i := range 250 {
				view.Pods = append(view.Pods, PodSpec{Images: []string{"registry.corp/team-1/app:" + strconv.Itoa(i), "nginx"}})
			}
			view.PodsNamespace = "k8s.io"
			week := 7 * 24 * time.Hour
			rules := Rules{
				UnusedFor: 31 * 24 * time.Hour, Spread: 0.1, MaxPerHour: 120,
				Budget: Budget{UnusedImages: n / 2}, Pressure: Pressure{High: Level{Share: 0.5}, Low: Level{Share: 0.4}},
				List: []Rule{
					{Name: "ci", Images: globs(b, "registry.corp/team-1/**", "ci.corp:5000/build/*"), UnusedFor: &week},
					{Name: "release", Images: globs(b, "registry.corp/team-2?/app"), KeepLatest: 3},
					{Name: "base", Labels: []LabelMatch{{"org.corp.base", "*"}}, Keep: true},
					{Name: "untagged", Untagged: true, UnusedFor: &week},
				},
			}
			b.ReportAllocs()
			var before, after syscall.Rusage
			if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				Plan(view, rules, now)
			}
			if err := syscall.Getrusage(syscall.RUSAGE_SELF, &after); err != nil {
				b.Fatal(err)
			}
			cpu := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
			b.ReportMetric(cpu.Seconds()*1000/float64(b.N), "cpu-ms/op")
		})
	}
}

func globs(tb testing.TB, patterns ...string) (globs []Glob) {
	for _, p := range patterns {
		g, err := ParseGlob(p)
		if err != nil {
			tb.Fatal(err)
		}
		globs = append(globs, g)
	}
	return globs
}
