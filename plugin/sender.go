package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/containerd/ttrpc"

	"github.com/image-custodian/custodian/api/v1/node"
)

const (
	// linger gathers the events of one pod into one message.
	linger = 200 * time.Millisecond
	// signOfLife is the longest time between two messages of a live session.
	signOfLife = 15 * time.Second
	// maxBatch and maxMessage bound the events of one Report.
	maxBatch   = 256
	maxMessage = 1 << 20
	// syncChunk keeps a Sync far below the 4 MiB of ttrpc: a use has at most some
	// 80 KiB, of bounded strings.
	syncChunk = 32
	// sendTimeout bounds one message; it waits for the sidecar's disk.
	sendTimeout = 10 * time.Second
	// farewellTimeout bounds the last words of a plugin that is stopped.
	farewellTimeout = time.Second
)

// sender brings the ledger to the sidecar, one message after the other.
type sender struct {
	socket   string
	ledger   *ledger
	admitter *admitter // is told the timeout, tells its counter
	log      *slog.Logger

	runtime, runtimeVersion atomic.Value // string
	panics, registrations   atomic.Uint64

	client *ttrpc.Client // nil = not connected
	lost   error         // the last failure that was logged
}

// run sends until ctx is done, and then says once that nobody watches any more.
func (s *sender) run(ctx context.Context) {
	defer func() { closeClient(s.client, s.log) }()
	pause := newBackoff(100*time.Millisecond, 5*time.Second)
	for {
		timer := time.NewTimer(signOfLife)
		some, much := s.ledger.pending()
		if s.lost != nil || some {
			timer.Reset(0)
		}
		select {
		case <-ctx.Done():
			timer.Stop()
			s.ledger.end()
			bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewellTimeout)
			defer cancel()
			s.note(s.farewell(bye))
			return
		case <-s.ledger.wake:
		case <-timer.C:
		}
		timer.Stop()
		if !much {
			sleep(ctx, linger)
		}
		if err := s.flush(ctx); err != nil && ctx.Err() == nil {
			s.note(err)
			closeClient(s.client, s.log)
			s.client = nil
			pause.wait(ctx)
			continue
		}
		s.note(nil)
		pause.reset()
	}
}

// note logs a failure when it begins and when it ends, not each time.
func (s *sender) note(err error) {
	switch {
	case err != nil && (s.lost == nil || s.lost.Error() != err.Error()):
		s.log.Warn("the sidecar is away, events are kept", "err", err)
	case err == nil && s.lost != nil:
		s.log.Info("the sidecar is back")
	}
	s.lost = err
}

// farewell sends the rest of a session that is over.
func (s *sender) farewell(ctx context.Context) error {
	for {
		if some, _ := s.ledger.pending(); !some {
			return nil
		}
		if err := s.flush(ctx); err != nil {
			return err
		}
	}
}

// flush sends what is due, at most one batch.
func (s *sender) flush(ctx context.Context) error {
	if s.client == nil {
		// A sidecar that was restarted hears from the plugin at once.
		client, err := connect(ctx, s.socket, ttrpc.WithOnClose(s.ledger.poke))
		if err != nil {
			return err
		}
		s.client = client
	}
	out := s.ledger.next(maxBatch)
	switch {
	case out.session == "" || out.over && out.told:
		return nil
	case out.syncDue && !out.over:
		return s.sync(ctx)
	}
	wanted, err := s.report(ctx, out)
	if err != nil {
		return err
	}
	switch {
	case wanted && !out.over:
		s.ledger.wantSync(out.session)
		return nil
	case !wanted && len(out.events) > 0:
		s.ledger.ack(out.session, out.events[len(out.events)-1].GetNumber())
	}
	if out.over && (wanted || !out.more) {
		s.ledger.tell(out.session)
	}
	return nil
}

func (s *sender) report(ctx context.Context, out outgoing) (wanted bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	answer, err := node.NewNodeClient(s.client).Report(ctx, &node.ReportRequest{
		Session: out.session, Events: out.events, Disconnected: out.over && !out.more, PluginVersion: version,
		Counters: &node.Counters{
			Panics: s.panics.Load(), Fallbacks: s.admitter.fallbacks.Load(),
			Registrations: s.registrations.Load(), Folded: out.folded,
		},
	})
	if err != nil {
		return false, fmt.Errorf("report: %w", err)
	}
	return answer.GetSyncWanted(), nil
}

// sync sends the whole list, in chunks.
func (s *sender) sync(ctx context.Context) (err error) {
	l := s.ledger.makeSync()
	defer func() { s.ledger.syncDone(l, err == nil) }()
	for _, chunk := range s.chunks(l) {
		if err := s.sendChunk(ctx, chunk); err != nil {
			return fmt.Errorf("sync: %w", err)
		}
	}
	s.log.Info("the sidecar is in sync", "session", l.session, "uses", len(l.uses))
	return nil
}

func (s *sender) chunks(l list) []*node.SyncRequest {
	var chunks []*node.SyncRequest
	for len(chunks) == 0 || len(l.uses)+len(l.pods)+len(l.ended) > 0 {
		chunk := &node.SyncRequest{
			Session: l.session, Number: l.number, Generation: l.generation, Chunk: uint32(len(chunks)),
			Runtime: text(&s.runtime), RuntimeVersion: text(&s.runtimeVersion), PluginVersion: version,
		}
		chunk.Uses, l.uses = take(l.uses)
		chunk.Pods, l.pods = take(l.pods)
		chunk.Ended, l.ended = take(l.ended)
		chunks = append(chunks, chunk)
	}
	chunks[len(chunks)-1].Last = true
	return chunks
}

func take[T any](all []T) (first, rest []T) {
	n := min(syncChunk, len(all))
	return all[:n], all[n:]
}

func text(v *atomic.Value) string {
	s, _ := v.Load().(string)
	return s
}

func (s *sender) sendChunk(ctx context.Context, chunk *node.SyncRequest) error {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	answer, err := node.NewNodeClient(s.client).Sync(ctx, chunk)
	if err != nil {
		return err
	}
	if t := answer.GetAdmitTimeout(); t > 0 {
		s.admitter.timeout.Store(t)
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
