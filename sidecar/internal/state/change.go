package state

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// UseKey names a use.
type UseKey struct {
	ContainerdNamespace string
	ContainerID         string
}

// KeyOf is the key of a use.
func KeyOf(u policy.Use) UseKey { return UseKey{u.ContainerdNamespace, u.ContainerID} }

// Session is the plugin's session and how far its events are durable.
type Session struct {
	ID     string `json:"id"`
	Number uint64 `json:"number"`
	// Watched is since when, without a gap, somebody watched every container:
	// before it one may have come and gone unseen.
	Watched policy.Moment `json:"watched"`
	// Over says that the plugin lost the runtime: nobody watches.
	Over           bool   `json:"over,omitempty"`
	Plugin         string `json:"plugin,omitempty"`
	Runtime        string `json:"runtime,omitempty"`
	RuntimeVersion string `json:"runtime_version,omitempty"`
}

// Event is something worth telling a person later.
type Event struct {
	At     time.Time     `json:"at"`
	Kind   EventKind     `json:"kind"`
	Image  policy.Key    `json:"image,omitzero"`
	Names  []string      `json:"names,omitempty"`
	Reason policy.Reason `json:"reason,omitempty"`
	Rule   string        `json:"rule,omitempty"`
	Freed  int64         `json:"freed,omitempty"` // bytes
	Detail string        `json:"detail,omitempty"`
	// Moment is At in observed time; for EventRemoved.
	Moment policy.Moment `json:"moment,omitempty"`
}

// EventKind is the kind of an event.
type EventKind string

// The kinds of events.
const (
	EventRemoved EventKind = "removed" // an image was removed by us
	EventFailed  EventKind = "failed"  // a removal failed
	EventGap     EventKind = "gap"     // containers may have come and gone unseen
	EventRebuilt EventKind = "rebuilt" // the state was made anew
)

// Removal is the intent to remove an image.
type Removal struct {
	Names  []string      `json:"names"`
	Reason policy.Reason `json:"reason"`
	Rule   string        `json:"rule,omitempty"`
	Bytes  int64         `json:"bytes"`
	// Records are all records of the image, so that the intent can undo.
	Records []policy.Record `json:"records,omitempty"`
}

// Change is a set of writes that become durable together. Its parts are carried
// out in the order of its fields.
type Change struct {
	PutUses []policy.Use
	// EndUses ends uses at a moment: each is deleted and its images' last use
	// raised. A use that is not there is left out.
	EndUses map[UseKey]policy.Moment
	// RaiseLastUse raises last uses of images; an earlier moment changes nothing.
	RaiseLastUse map[policy.Key]policy.Moment

	PutImages  map[policy.Key]policy.Memory
	DropImages []policy.Key

	PutRemovals   map[policy.Key]Removal
	ClearRemovals []policy.Key

	// PutPlan keeps a plan. The newest MaxPlans stay, for PlanAge of wall time.
	PutPlan *Plan

	Session *Session
	Events  []Event
	// At is the wall time of the change, for display.
	At time.Time
}

var (
	bucketMeta     = []byte("meta")
	bucketUses     = []byte("uses")
	bucketImages   = []byte("images")
	bucketRemovals = []byte("removals")
	bucketEvents   = []byte("events")
	bucketPlans    = []byte("plans")

	keyFormat  = []byte("format")
	keyMachine = []byte("machine")
	keyClock   = []byte("clock")
	keySession = []byte("session")
)

// Commit makes a change durable, and the clock with it. When it returns an
// error nothing of the change is stored.
func (s *Store) Commit(c Change) error {
	err := s.db.Update(func(tx *bbolt.Tx) error {
		w := writer{tx: tx, at: c.At}
		for _, u := range c.PutUses {
			w.require(u.ContainerID != "", "a use has no container")
			w.put(bucketUses, key(u.ContainerdNamespace, u.ContainerID), u)
		}
		for k, at := range c.EndUses {
			w.endUse(k, at)
		}
		for k, at := range c.RaiseLastUse {
			w.raise(k, at)
		}
		for k, m := range c.PutImages {
			w.require(k.ID != "", "an image has no ID")
			w.put(bucketImages, imageKey(k), m)
		}
		for _, k := range c.DropImages {
			w.delete(bucketImages, imageKey(k))
		}
		for k, r := range c.PutRemovals {
			w.put(bucketRemovals, imageKey(k), r)
		}
		for _, k := range c.ClearRemovals {
			w.delete(bucketRemovals, imageKey(k))
		}
		if c.PutPlan != nil {
			w.putPlan(*c.PutPlan)
		}
		if c.Session != nil {
			w.put(bucketMeta, keySession, c.Session)
		}
		w.appendEvents(c.Events, s.maxEvents)
		w.put(bucketMeta, keyClock, s.clock.reading())
		return w.err
	})
	if err != nil {
		return fmt.Errorf("state %s: %w", s.path, err)
	}
	return nil
}

// writer carries the first error, so that a change reads as a list.
type writer struct {
	tx  *bbolt.Tx
	at  time.Time
	err error
}

func (w *writer) put(bucket, k []byte, v any) {
	if w.err != nil {
		return
	}
	data, err := json.Marshal(v)
	if err != nil {
		w.err = fmt.Errorf("%s %q: %w", bucket, k, err)
		return
	}
	if w.err = w.tx.Bucket(bucket).Put(k, data); w.err != nil {
		w.err = fmt.Errorf("%s %q: %w", bucket, k, w.err)
	}
}

func (w *writer) delete(bucket, k []byte) {
	if w.err == nil {
		w.err = w.tx.Bucket(bucket).Delete(k)
	}
}

// require refuses a change that Check would call a fault of the file.
func (w *writer) require(ok bool, fault string) {
	if !ok && w.err == nil {
		w.err = errors.New(fault)
	}
}

// get reports whether there is a value; it decodes it into v.
func (w *writer) get(bucket, k []byte, v any) bool {
	if w.err != nil {
		return false
	}
	data := w.tx.Bucket(bucket).Get(k)
	if data == nil {
		return false
	}
	if err := json.Unmarshal(data, v); err != nil {
		w.err = fmt.Errorf("%s %q: %w", bucket, k, err)
		return false
	}
	return true
}

func (w *writer) endUse(k UseKey, at policy.Moment) {
	var u policy.Use
	bk := key(k.ContainerdNamespace, k.ContainerID)
	if !w.get(bucketUses, bk, &u) {
		return
	}
	w.delete(bucketUses, bk)
	for _, id := range append([]string{u.ImageID}, u.Volumes...) {
		if id != "" {
			w.raise(policy.Key{ContainerdNamespace: k.ContainerdNamespace, ID: id}, at)
		}
	}
}

// raise also notes an image that no look has seen yet: a container can come and
// go between two looks.
func (w *writer) raise(k policy.Key, at policy.Moment) {
	m := policy.Memory{FirstSeen: at, FirstSeenAt: w.at, Pulled: at}
	w.get(bucketImages, imageKey(k), &m)
	if m.LastUse != nil && *m.LastUse >= at {
		return
	}
	m.LastUse, m.LastUseAt = &at, w.at
	w.put(bucketImages, imageKey(k), m)
}

func (w *writer) appendEvents(events []Event, limit int) {
	if w.err != nil || len(events) == 0 {
		return
	}
	b := w.tx.Bucket(bucketEvents)
	for _, e := range events {
		n, err := b.NextSequence()
		if err != nil {
			w.err = err
			return
		}
		w.put(bucketEvents, binary.BigEndian.AppendUint64(nil, n), e)
	}
	c := b.Cursor()
	for k, _ := c.First(); k != nil && w.err == nil; k, _ = c.First() {
		if b.Sequence()-binary.BigEndian.Uint64(k) < uint64(limit) {
			return
		}
		w.err = c.Delete()
	}
}
