package reconcile

import (
	"slices"
	"sync"
	"time"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// claimLimit is how long a claim counts that no event confirms. A container is
// created some milliseconds after its claim; the limit bounds what a claim can
// keep whose end was lost. Less than any sensible start grace, so that a claim
// lost in a crash cannot matter before the plugin has synced.
const claimLimit = 2 * time.Minute

// gate is where claims and removals meet, in memory only. A claim always wins:
// a removal asks the gate before each step.
type gate struct {
	mu     sync.Mutex
	claims map[string]claim // by container ID
	// recording is on during a removal: recent are then all claims since its
	// beginning, also those whose container has come and gone.
	recording bool
	recent    []policy.Use
	// news says that a claim was recorded.
	news chan struct{}
}

type claim struct {
	use   policy.Use
	until policy.Moment
}

func newGate() *gate { return &gate{claims: map[string]claim{}, news: make(chan struct{}, 1)} }

// claim notes that a container is about to use an image.
func (g *gate) claim(u policy.Use, now policy.Moment) {
	g.mu.Lock()
	defer g.mu.Unlock()
	u.State, u.Recorded = policy.StateClaimed, now
	g.claims[u.ContainerID] = claim{u, now.Add(claimLimit)}
	if g.recording {
		g.recent = append(g.recent, u)
		select {
		case g.news <- struct{}{}:
		default:
		}
	}
}

// record turns the recording of claims on or off.
func (g *gate) record(on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.recording, g.recent = on, nil
}

// drop ends the claim of a container: its use is known, or it will never be.
func (g *gate) drop(containerID string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.claims, containerID)
}

// uses are the open claims.
func (g *gate) uses(now policy.Moment) []policy.Use {
	g.mu.Lock()
	defer g.mu.Unlock()
	var uses []policy.Use
	for id, c := range g.claims {
		if c.until < now {
			delete(g.claims, id)
			continue
		}
		uses = append(uses, c.use)
	}
	return uses
}

// claimed reports whether a claim, open or made since the removal began, is
// about the image.
func (g *gate) claimed(img policy.Image, now policy.Moment) bool {
	open := g.uses(now)
	g.mu.Lock()
	defer g.mu.Unlock()
	return usesImage(open, img) || usesImage(g.recent, img)
}

// usesImage reports whether one of the uses is about the image.
func usesImage(uses []policy.Use, img policy.Image) bool {
	index := policy.NewIndex([]policy.Image{img})
	return slices.ContainsFunc(uses, func(u policy.Use) bool {
		return slices.Contains(index.Root(u), img.Key) || slices.Contains(index.Volumes(u), img.Key)
	})
}
