package main

import (
	"cmp"
	"crypto/rand"
	"maps"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/image-custodian/custodian/api/v1/node"
)

// ledger is what the plugin knows of the containers of one session, and what of
// it the sidecar has not acknowledged. It is the only state that hooks touch;
// its verbs take microseconds.
//
// The queue is bounded. When it is full it is folded: the live uses still say
// what is, each end becomes the last use of its image, and the next thing that
// the sidecar gets is a Sync. So an end is never dropped.
type ledger struct {
	capacity int
	wake     chan struct{}

	mu      sync.Mutex
	session string // empty before the first registration
	over    bool   // the session's connection to the runtime is lost
	told    bool   // and the sidecar knows
	pods    map[string]*node.Pod
	uses    map[string]*node.Use
	number  uint64
	queue   []entry
	// syncDue says that the sidecar needs a Sync before anything else; folding,
	// that events go into ended until that Sync is made.
	syncDue, folding bool
	ended            map[string]*node.LastUse
	generation       uint64
	folded           uint64
}

// entry is a queued event with the image of the container that it is about.
type entry struct {
	event *node.Event
	image *node.Image
}

// maxEnded bounds the images whose ends are folded one by one. Beyond, an end
// counts for every image of the node: later removals, but none too early.
const maxEnded = 10_000

func newLedger(capacity int) *ledger {
	return &ledger{
		capacity: capacity, wake: make(chan struct{}, 1),
		pods: map[string]*node.Pod{}, uses: map[string]*node.Use{}, ended: map[string]*node.LastUse{},
	}
}

// begin starts a new session with what the runtime listed at now. The sidecar
// may never have heard of a container of the session before: an end that it has
// not acknowledged goes along with the new list, and what lived and is no longer
// listed ended now at the latest.
func (l *ledger) begin(pods []*node.Pod, uses []*node.Use, now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, q := range l.queue {
		l.fold(q)
	}
	before := l.uses
	l.session, l.over, l.told, l.number, l.queue = rand.Text(), false, false, 0, nil
	l.syncDue, l.folding = true, false
	l.pods, l.uses = map[string]*node.Pod{}, map[string]*node.Use{}
	for _, p := range pods {
		l.pods[p.GetId()] = p
	}
	for _, u := range uses {
		l.uses[u.GetContainerId()] = u
	}
	for id, u := range before {
		if _, listed := l.uses[id]; !listed && u.GetState() != node.UseState_USE_STATE_EXITED {
			noteEnd(l.ended, endOf(u), now)
		}
	}
	l.poke()
}

// end marks the session as over: nobody watches until the next one begins.
func (l *ledger) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session != "" {
		l.over = true
		l.poke()
	}
}

// poke makes the sender look, though there is nothing new.
func (l *ledger) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *ledger) podStarted(p *node.Pod, now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pods[p.GetId()] = p
	l.add(&node.Event{Kind: node.EventKind_EVENT_KIND_POD_STARTED, Pod: p, Boottime: now}, nil)
}

// podRemoved also ends the containers of the pod that nobody has removed.
func (l *ledger) podRemoved(p *node.Pod, now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(l.uses)) {
		if l.uses[id].GetPod().GetId() == p.GetId() {
			l.remove(id, now)
		}
	}
	delete(l.pods, p.GetId())
	l.add(&node.Event{Kind: node.EventKind_EVENT_KIND_POD_REMOVED, Pod: p, Boottime: now}, nil)
}

func (l *ledger) created(u *node.Use, now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.uses[u.GetContainerId()] = u
	l.add(&node.Event{Kind: node.EventKind_EVENT_KIND_CREATED, ContainerId: u.GetContainerId(), Use: u, Boottime: now}, endOf(u))
}

// started comes after stopped for a process that lived very shortly.
func (l *ledger) started(id string, now int64) {
	l.changeState(id, node.UseState_USE_STATE_RUNNING, node.EventKind_EVENT_KIND_STARTED, now)
}

func (l *ledger) stopped(id string, now int64) {
	l.changeState(id, node.UseState_USE_STATE_EXITED, node.EventKind_EVENT_KIND_STOPPED, now)
}

func (l *ledger) changeState(id string, state node.UseState, kind node.EventKind, now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u, ok := l.uses[id]
	if !ok || u.GetState() == node.UseState_USE_STATE_EXITED {
		return // refused, or ended before it was known to run
	}
	// A use may be on its way to the sidecar: change a copy.
	u = proto.CloneOf(u)
	u.State = state
	l.uses[id] = u
	l.add(&node.Event{Kind: kind, ContainerId: id, Boottime: now}, endOf(u))
}

func (l *ledger) removed(id string, now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(id, now)
}

// remove tells of the end also for a container that was never created: it had
// a claim.
func (l *ledger) remove(id string, now int64) {
	image := endOf(l.uses[id])
	delete(l.uses, id)
	l.add(&node.Event{Kind: node.EventKind_EVENT_KIND_REMOVED, ContainerId: id, Boottime: now}, image)
}

// add queues an event under the next number, or folds it.
func (l *ledger) add(e *node.Event, image *node.Image) {
	l.number++
	e.Number = l.number
	if len(l.queue) >= l.capacity {
		for _, q := range l.queue {
			l.fold(q)
		}
		l.folded += uint64(len(l.queue))
		l.queue, l.folding, l.syncDue = nil, true, true
	}
	if l.folding {
		l.fold(entry{e, image})
		l.folded++
	} else {
		l.queue = append(l.queue, entry{e, image})
	}
	l.poke()
}

// endOf is what a folded end of a use is noted for: its image or, if the use has
// image volumes too, every image; nil for a use that is not known.
func endOf(u *node.Use) *node.Image {
	if len(u.GetImageVolumes()) > 0 {
		return &node.Image{}
	}
	return u.GetImage()
}

// fold keeps of an event what no later list can tell: an end.
func (l *ledger) fold(q entry) {
	kind := q.event.GetKind()
	if q.image != nil && (kind == node.EventKind_EVENT_KIND_STOPPED || kind == node.EventKind_EVENT_KIND_REMOVED) {
		noteEnd(l.ended, q.image, q.event.GetBoottime())
	}
}

func noteEnd(ended map[string]*node.LastUse, image *node.Image, at int64) {
	key := cmp.Or(image.GetId(), image.GetName(), image.GetUserName())
	if _, known := ended[key]; !known && len(ended) >= maxEnded {
		key, image = "", &node.Image{}
	}
	if old, known := ended[key]; known {
		at = max(at, old.GetBoottime())
	}
	ended[key] = &node.LastUse{Image: image, Boottime: at}
}

// outgoing is what the sidecar should get next.
type outgoing struct {
	session    string
	over, told bool
	syncDue    bool
	events     []*node.Event
	more       bool // events are left for the next message
	folded     uint64
}

// next returns the first unacknowledged events, at most limit. They stay until
// acked, and keep their numbers.
func (l *ledger) next(limit int) outgoing {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := outgoing{session: l.session, over: l.over, told: l.told, syncDue: l.syncDue, folded: l.folded}
	size := 0
	for _, q := range l.queue {
		size += proto.Size(q.event)
		if len(out.events) == limit || len(out.events) > 0 && size > maxMessage {
			out.more = true
			break
		}
		out.events = append(out.events, q.event)
	}
	return out
}

// pending reports whether there is something to send, and whether it is so much
// that to wait for more gains nothing.
func (l *ledger) pending() (some, much bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.session == "":
		return false, false
	case l.over:
		return !l.told, true
	default:
		return l.syncDue || len(l.queue) > 0, len(l.queue) >= maxBatch
	}
}

// tell notes that the sidecar knows of the session's end. What it has not
// acknowledged waits for the next session.
func (l *ledger) tell(session string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = l.told || session == l.session
}

// ack drops the events of a session up to a number: they are durable.
func (l *ledger) ack(session string, number uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if session == l.session {
		l.queue = slices.DeleteFunc(l.queue, func(q entry) bool { return q.event.GetNumber() <= number })
	}
}

// wantSync makes a Sync the next thing.
func (l *ledger) wantSync(session string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if session == l.session {
		l.syncDue = true
		l.poke()
	}
}

// list is the content of a Sync.
type list struct {
	session    string
	number     uint64
	generation uint64
	pods       []*node.Pod
	uses       []*node.Use
	ended      []*node.LastUse
}

// makeSync takes the list. The events before it are in it, their ends as last
// uses; those after it are queued again.
func (l *ledger) makeSync() list {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.generation++
	for _, q := range l.queue {
		l.fold(q)
	}
	l.queue, l.folding = nil, false
	ended := slices.Collect(maps.Values(l.ended))
	l.ended = map[string]*node.LastUse{} // handed back by syncDone, if need be
	return list{
		session: l.session, number: l.number, generation: l.generation,
		pods: slices.Collect(maps.Values(l.pods)), uses: slices.Collect(maps.Values(l.uses)),
		ended: ended,
	}
}

// syncDone says what came of a list. One that failed leaves its ends for the
// next.
func (l *ledger) syncDone(s list, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.session != l.session || s.generation != l.generation {
		for _, e := range s.ended {
			noteEnd(l.ended, e.GetImage(), e.GetBoottime())
		}
		return
	}
	if ok {
		l.syncDue = l.folding
		return
	}
	for _, e := range s.ended {
		noteEnd(l.ended, e.GetImage(), e.GetBoottime())
	}
	l.syncDue = true
}
