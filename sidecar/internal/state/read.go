package state

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// Format is the version of a file.
type Format struct {
	Schema    int `json:"schema"`
	MinReader int `json:"min_reader"`
}

func key(ns, id string) []byte { return []byte(ns + "\x00" + id) }

func imageKey(k policy.Key) []byte { return key(k.ContainerdNamespace, k.ID) }

func parseImageKey(k []byte) policy.Key {
	ns, id, _ := bytes.Cut(k, []byte{0})
	return policy.Key{ContainerdNamespace: string(ns), ID: string(id)}
}

// start makes the buckets of a new file, or checks and continues an old one.
func (s *Store) start(opts Options) (err error) {
	defer recoverDamage(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	bootID, read, err := systemClock()
	if err != nil {
		return err
	}
	machine := ""
	if opts.MachineID != "" {
		sum := sha256.Sum256([]byte("image-custodian\x00" + opts.MachineID))
		machine = hex.EncodeToString(sum[:])
	}
	return s.db.Update(func(tx *bbolt.Tx) error {
		if meta := tx.Bucket(bucketMeta); meta != nil {
			if err := s.check(meta, machine); err != nil {
				return err
			}
		} else if !s.created {
			if k, _ := tx.Cursor().First(); k != nil {
				return &unusableError{"foreign", fmt.Errorf("bucket %q is not ours", k)}
			}
		}
		for _, b := range [][]byte{bucketMeta, bucketUses, bucketImages, bucketRemovals, bucketEvents, bucketPlans} {
			if _, err := tx.CreateBucketIfNotExists(b); err != nil {
				return fmt.Errorf("bucket %s: %w", b, err)
			}
		}
		var last Reading
		w := writer{tx: tx}
		w.get(bucketMeta, keyClock, &last)
		if w.err != nil {
			return &unusableError{"damaged", w.err}
		}
		s.clock = newClock(last, bootID, read)
		if tx.Bucket(bucketMeta).Get(keyFormat) == nil { // that of a newer program stays
			w.put(bucketMeta, keyFormat, Format{Schema: Schema, MinReader: minReader})
		}
		if machine != "" {
			w.put(bucketMeta, keyMachine, machine)
		}
		return w.err
	})
}

// check refuses, as unusable, what this program may not read.
func (s *Store) check(meta *bbolt.Bucket, machine string) error {
	var format Format
	if err := json.Unmarshal(meta.Get(keyFormat), &format); err != nil {
		return &unusableError{"damaged", fmt.Errorf("format: %w", err)}
	}
	if format.MinReader > Schema {
		return &unusableError{"newer", fmt.Errorf("schema %d wants a program that knows %d, this one knows %d", format.Schema, format.MinReader, Schema)}
	}
	var was string
	if data := meta.Get(keyMachine); data != nil {
		if err := json.Unmarshal(data, &was); err != nil {
			return &unusableError{"damaged", fmt.Errorf("machine: %w", err)}
		}
	}
	if was != "" && machine != "" && was != machine {
		return &unusableError{"other-machine", errors.New("made on a machine with another ID")}
	}
	return nil
}

// Uses returns the live uses.
func (s *Store) Uses() (map[UseKey]policy.Use, error) {
	uses := map[UseKey]policy.Use{}
	err := forEach(s, bucketUses, func(_ []byte, u policy.Use) { uses[KeyOf(u)] = u })
	return uses, err
}

// Images returns what is remembered of each image.
func (s *Store) Images() (map[policy.Key]policy.Memory, error) {
	images := map[policy.Key]policy.Memory{}
	err := forEach(s, bucketImages, func(k []byte, m policy.Memory) { images[parseImageKey(k)] = m })
	return images, err
}

// Removals returns the open intents.
func (s *Store) Removals() (map[policy.Key]Removal, error) {
	removals := map[policy.Key]Removal{}
	err := forEach(s, bucketRemovals, func(k []byte, r Removal) { removals[parseImageKey(k)] = r })
	return removals, err
}

// Session returns the plugin's last session; the zero Session if there was none.
func (s *Store) Session() (session Session, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		w := writer{tx: tx}
		w.get(bucketMeta, keySession, &session)
		return w.err
	})
	return session, err
}

// Events returns the newest events, the newest first, at most limit.
func (s *Store) Events(limit int) (events []Event, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		c := tx.Bucket(bucketEvents).Cursor()
		for k, v := c.Last(); k != nil && len(events) < limit; k, v = c.Prev() {
			var e Event
			if err := json.Unmarshal(v, &e); err != nil {
				return fmt.Errorf("state %s: event %x: %w", s.path, k, err)
			}
			events = append(events, e)
		}
		return nil
	})
	return events, err
}

// RemovedSince returns the moments, from since on, at which images were removed
// for one of the reasons.
func (s *Store) RemovedSince(since policy.Moment, reasons ...policy.Reason) (moments []policy.Moment, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		c := tx.Bucket(bucketEvents).Cursor()
		for k, v := c.Last(); k != nil; k, v = c.Prev() {
			var e Event
			if err := json.Unmarshal(v, &e); err != nil {
				return fmt.Errorf("state %s: event %x: %w", s.path, k, err)
			}
			switch {
			case e.Kind != EventRemoved || e.Moment == 0: // 0: of an older program
			case e.Moment < since:
				return nil
			case slices.Contains(reasons, e.Reason):
				moments = append(moments, e.Moment)
			}
		}
		return nil
	})
	return moments, err
}

func forEach[V any](s *Store, bucket []byte, visit func([]byte, V)) error {
	return s.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucket).ForEach(func(k, data []byte) error {
			var v V
			if err := json.Unmarshal(data, &v); err != nil {
				return fmt.Errorf("state %s: %s %q: %w", s.path, bucket, k, err)
			}
			visit(k, v)
			return nil
		})
	})
}
