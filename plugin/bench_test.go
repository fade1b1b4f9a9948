package main

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"
)

// BenchmarkHook is the time that the plugin spends in CreateContainer, the call
// to the sidecar's process boundary included: the primary figure of what it
// costs a node. Budget: p50 0.3 ms, p99 2 ms.
func BenchmarkHook(b *testing.B) {
	s := newStage(b)
	s.sidecar.serve(b, s.nodeSocket)
	s.startPlugin()
	s.inSync()
	c := s.container("c1")
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		if _, _, err := s.plugin.CreateContainer(context.Background(), s.pod, c); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	if n := s.plugin.admitter.fallbacks.Load(); n > 0 {
		b.Errorf("%d hooks were answered without the sidecar", n)
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

// BenchmarkLedger is what the other hooks cost: none of them leaves the process.
func BenchmarkLedger(b *testing.B) {
	p := newPlugin(defaultConfig(), new(slog.LevelVar), slog.New(slog.DiscardHandler))
	p.ledger.begin(nil, nil, 1)
	for b.Loop() {
		p.ledger.created(useIn("c1", "p1", "sha256:a"), 1)
		p.ledger.removed("c1", 2)
	}
}
