package containerd

import (
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// All names of one digest are one image, at every look, however often the same
// target comes.
func TestManyNamesAreOneImage(t *testing.T) {
	s := newStore(t)
	for range 50 {
		s.resolved = map[target]resolved{}
		img := s.image()
		if img.Key != (policy.Key{ContainerdNamespace: "ns", ID: s.id}) || len(img.Names) != 4 || img.Kind != policy.KindImage || img.FromRegistry {
			t.Fatalf("image = %+v", img)
		}
	}
	info := content.Info{Digest: s.target.Digest, Labels: map[string]string{sourceLabel + "reg": "app"}}
	if _, err := s.client.ContentStore().Update(s.ctx, info, "labels."+sourceLabel+"reg"); err != nil {
		t.Fatal(err)
	}
	record, err := s.client.ImageService().Get(s.ctx, s.image().Names[0].Name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.ImageService().Update(s.ctx, record); err != nil { // a pull does
		t.Fatal(err)
	}
	o := Observation{Images: []policy.Image{s.image()}}
	s.measure(s.ctx, &o)
	if !o.Images[0].FromRegistry {
		t.Error("a label that came later is not seen")
	}
}

func TestRemoveAndRestore(t *testing.T) {
	s := newStore(t)
	before := s.names()
	img := s.image()
	h := s.hold(img)
	if err := h.Remove(s.ctx, img.Key, func() bool { return false }); err != nil {
		t.Fatal(err)
	}
	if names := s.names(); len(names) != 0 {
		t.Errorf("left: %v", names)
	}
	s.create("reg/app:2", s.target) // somebody pulls one of the names meanwhile
	if err := h.Restore(s.ctx, img.Key); err != nil {
		t.Fatal(err)
	}
	if after := s.names(); !slices.Equal(before, after) {
		t.Errorf("restored %v, want %v", after, before)
	}
	if freed, err := h.Release(s.ctx); err != nil || len(freed) != 0 {
		t.Errorf("freed = %v, %v; want nothing of an image that is back", freed, err)
	}
	if n := s.leftLeases(); n != 0 {
		t.Errorf("%d leases are left", n)
	}
}

// Before each record, and after the last, a claim has everything put back.
func TestAClaimWinsAtEveryRecord(t *testing.T) {
	for at := range 5 {
		s := newStore(t)
		before := s.names()
		img := s.image()
		h := s.hold(img)
		asked := 0
		err := h.Remove(s.ctx, img.Key, func() bool { asked++; return asked > at })
		if !errors.Is(err, ErrClaimed) || !slices.Equal(before, s.names()) {
			t.Errorf("claim at question %d: %v, records %v", at, err, s.names())
		}
		if _, err := h.Release(s.ctx); err != nil {
			t.Error(err)
		}
	}
}

// Records that are not those of the decision are left alone, and so is the rest.
func TestChangedRecordsAreLeftAlone(t *testing.T) {
	other := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("other"), Size: 5}
	cases := map[string]struct {
		change func(s *store)
		want   error
	}{
		"a tag moved": {func(s *store) {
			if _, err := s.client.ImageService().Update(s.ctx, images.Image{Name: "reg/app:1", Target: other, Labels: map[string]string{"of": "reg/app:1"}}); err != nil {
				s.Fatal(err)
			}
		}, nil},
		"a new name of the same digest": {func(s *store) { s.create("reg/app:3", s.target) }, ErrChanged},
		"pulled again": {func(s *store) {
			if _, err := s.client.ImageService().Update(s.ctx, images.Image{Name: "reg/app:1", Target: s.target, Labels: map[string]string{"of": "reg/app:1"}}); err != nil {
				s.Fatal(err)
			}
		}, ErrChanged},
		"somebody removed a name": {func(s *store) {
			if err := s.client.ImageService().Delete(s.ctx, "reg/app:1"); err != nil {
				s.Fatal(err)
			}
		}, nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			img := s.image()
			h := s.hold(img)
			c.change(s)
			before := s.names()
			err := h.Remove(s.ctx, img.Key, func() bool { return false })
			if !errors.Is(err, c.want) {
				t.Fatalf("err = %v, want %v", err, c.want)
			}
			after := s.names()
			switch {
			case c.want != nil && !slices.Equal(before, after):
				t.Errorf("records %v, had %v", after, before)
			case c.want == nil && name == "a tag moved" && !slices.Equal(after, []string{"reg/app:1"}):
				t.Errorf("records %v, want the moved tag alone", after)
			}
			if _, err := h.Release(s.ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// A tag that moves between the reading and its deletion has all put back.
func TestATagThatMovesAtTheLastMoment(t *testing.T) {
	s := newStore(t)
	img := s.image()
	h := s.hold(img)
	asked := 0
	err := h.Remove(s.ctx, img.Key, func() bool {
		if asked++; asked == 3 {
			other := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("other"), Size: 5}
			if _, err := s.client.ImageService().Update(s.ctx, images.Image{Name: "reg/app:1", Target: other, Labels: map[string]string{"of": "reg/app:1"}}); err != nil {
				t.Error(err)
			}
		}
		return false
	})
	if !errors.Is(err, ErrChanged) || len(s.names()) != 4 {
		t.Errorf("err = %v, records %v", err, s.names())
	}
	if got, err := s.client.ImageService().Get(s.ctx, "reg/app:1"); err != nil || got.Target.Digest != digest.FromString("other") {
		t.Errorf("the moved tag = %v, %v", got.Target.Digest, err)
	}
}

// A deletion whose answer is lost has taken effect: it is undone like the others.
func TestADeletionWithoutAnAnswer(t *testing.T) {
	s := newStore(t)
	before := s.names()
	img := s.image()
	h := s.hold(img)
	s.faults.lostDeletes = 1
	if err := h.Remove(s.ctx, img.Key, func() bool { return false }); !errors.Is(err, errLost) {
		t.Errorf("err = %v", err)
	}
	if after := s.names(); !slices.Equal(before, after) {
		t.Errorf("records %v, had %v", after, before)
	}
	if _, err := h.Release(s.ctx); err != nil {
		t.Error(err)
	}
}

// What a claim brings back and cannot be put back at once is put back by
// Release; while it cannot, the lease stays.
func TestARestoreThatFails(t *testing.T) {
	for name, failures := range map[string]int{"for a moment": 4, "for good": 100} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			before := s.names()
			img := s.image()
			h := s.hold(img)
			s.faults.badCreates = failures
			asked := 0
			err := h.Remove(s.ctx, img.Key, func() bool { asked++; return asked > 4 })
			if !errors.Is(err, ErrClaimed) || !errors.Is(err, ErrNotRestored) {
				t.Errorf("err = %v, want ErrClaimed and ErrNotRestored", err)
			}
			_, err = h.Release(s.ctx)
			if failures == 4 {
				if err != nil || !slices.Equal(before, s.names()) || s.leftLeases() != 0 {
					t.Errorf("%v, records %v, %d leases", err, s.names(), s.leftLeases())
				}
				return
			}
			if !errors.Is(err, ErrNotRestored) || s.leftLeases() != 1 {
				t.Errorf("%v, %d leases; want the content kept", err, s.leftLeases())
			}
		})
	}
}

// Somebody who pulls the image after its last record went has it back.
func TestAPullAfterTheLastRecord(t *testing.T) {
	s := newStore(t)
	before := s.names()
	img := s.image()
	h := s.hold(img)
	asked := 0
	err := h.Remove(s.ctx, img.Key, func() bool {
		if asked++; asked == 5 {
			s.create("reg/app:1", s.target)
		}
		return false
	})
	if !errors.Is(err, ErrChanged) || !slices.Equal(before, s.names()) {
		t.Errorf("err = %v, records %v", err, s.names())
	}
}

func TestDropStaleHolds(t *testing.T) {
	s := newStore(t)
	s.hold(s.image())
	if s.leftLeases() != 1 {
		t.Fatal("no lease was made")
	}
	if err := s.DropStaleHolds(s.ctx); err != nil || s.leftLeases() != 0 {
		t.Errorf("%v, %d leases left", err, s.leftLeases())
	}
}

func TestOrderOfRemoval(t *testing.T) {
	names := []string{"reg:5000/app:1", "reg/app@sha256:" + strings.Repeat("a", 64), "sha256:" + strings.Repeat("b", 64)}
	slices.SortFunc(names, func(a, b string) int { return rank(a) - rank(b) })
	if !strings.HasPrefix(names[0], "sha256:") || !strings.Contains(names[1], "@") {
		t.Errorf("order = %v, want the ID record, then digests, then tags", names)
	}
}

func TestImageVolumes(t *testing.T) {
	hex := strings.Repeat("ab", 32)
	spec := `{"mounts":[{"source":"/etc/hosts"},{"source":"/run/x/image-volumes/sb/` + hex + `"},{"source":"/run/x/image-volumes/sb/` + hex + `/sub"}]}`
	if got := imageVolumes([]byte(spec)); !slices.Equal(got, []string{"sha256:" + hex, "sha256:" + hex}) {
		t.Errorf("volumes = %v", got)
	}
}

func TestConnectFaults(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	for address, want := range map[string]string{
		"/nowhere/containerd.sock": "/nowhere/containerd.sock", "relative.sock": "absolute", t.TempDir(): "no socket", file: file,
	} {
		_, err := Connect(t.Context(), Config{Address: address, Namespaces: []string{CRINamespace}}, slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line with %q", address, err, want)
		}
	}
}

func TestCompareAndDelete(t *testing.T) {
	for version, want := range map[string]bool{"v2.4.2": true, "2.0.0": true, "2.4.2+unknown": true, "v1.7.35": false, "": false, "devel": false} {
		if got := (&Client{versions: Versions{RuntimeVersion: version}}).CompareAndDelete(); got != want {
			t.Errorf("%q: %v", version, got)
		}
	}
}
