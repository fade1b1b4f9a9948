package policy

import (
	"fmt"
	"strconv"
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

// Invariants 1, 7 and 8, whatever the view: one decision an image, none without
// a reason, nothing goes that is used or while the view is incomplete, and
// later never turns a removal back into a keep.
func FuzzPlan(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7}, int64(40*day), int64(31*day), true)
	f.Add([]byte{255, 128, 64}, int64(0), int64(1), false)
	f.Fuzz(func(t *testing.T, shape []byte, age, unusedFor int64, complete bool) {
		if len(shape) > 64 || age < 0 || age > int64(now) {
			return // out of the range of the model
		}
		view := View{Memory: map[Key]Memory{}}
		for i, b := range shape {
			img := image(string(rune('a'+i%26))+string(rune('a'+i/26)), "n")
			img.FromRegistry = b&1 == 0
			if b&2 != 0 {
				img = pinned(img)
			}
			if b&4 != 0 {
				view.Uses = append(view.Uses, Use{ContainerdNamespace: "k8s.io", ImageID: img.Key.ID})
			}
			if b&8 != 0 {
				view.Memory[img.Key] = unused(now - Moment(age))
			}
			view.Images = append(view.Images, img)
		}
		if !complete {
			view.Incomplete = []string{"cri"}
		}
		rules := Rules{UnusedFor: time.Duration(unusedFor), KeepUnpullable: true}
		decisions := Plan(view, rules, now)
		later := Plan(view, rules, now+day)
		if len(decisions) != len(view.Images) {
			t.Fatalf("%d decisions for %d images", len(decisions), len(view.Images))
		}
		for i, d := range decisions {
			b := shape[i]
			switch {
			case d.Key != view.Images[i].Key || d.Reason == "":
				t.Errorf("decision %d = %+v", i, d)
			case d.Remove && (!complete || b&7 != 0 || b&8 == 0):
				t.Errorf("image %d (%08b) is removed: %+v", i, b, d)
			case d.Remove && !later[i].Remove:
				t.Errorf("image %d goes now and not later: %+v, %+v", i, d, later[i])
			}
		}
	})
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
			for b.Loop() {
				Plan(view, rules, now)
			}
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
