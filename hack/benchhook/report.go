package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"
)

// report prints the quantiles of each side and, for custodian over noop, the
// ratio of the medians with its 95 % interval.
func report(w io.Writer, l load, samples map[string][]time.Duration) {
	fmt.Fprintf(w, "CRI CreateContainer, %d images and %d containers on the node, %d creates a side\n", l.images, l.containers, l.rounds*l.creates)
	for _, name := range []string{"none", "noop", "custodian"} {
		s := slices.Sorted(slices.Values(samples[name]))
		fmt.Fprintf(w, "  %-10s p50 %7.3f ms   p99 %7.3f ms\n", name, ms(quantile(s, 0.50)), ms(quantile(s, 0.99)))
	}
	ratio, low, high := ratioOfMedians(samples["custodian"], samples["noop"])
	verdict := "met"
	if low > 1.03 {
		verdict = "MISSED"
	}
	fmt.Fprintf(w, "  custodian / noop at p50: %.3f, 95 %% interval [%.3f, %.3f]; budget: the interval contains at most 1.03: %s\n", ratio, low, high, verdict)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// quantile of a sorted, non-empty slice, by the nearest rank.
func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// ratioOfMedians with the percentile interval of a bootstrap: both samples are
// drawn again with replacement, a thousand times.
func ratioOfMedians(a, b []time.Duration) (ratio, low, high float64) {
	median := func(s []time.Duration) float64 { return float64(quantile(slices.Sorted(slices.Values(s)), 0.5)) }
	ratio = median(a) / median(b)
	draws := make([]float64, 1000)
	random := rand.New(rand.NewPCG(1, 2)) // the same draws each time
	again := func(s []time.Duration) []time.Duration {
		out := make([]time.Duration, len(s))
		for i := range out {
			out[i] = s[random.IntN(len(s))]
		}
		return out
	}
	for i := range draws {
		draws[i] = median(again(a)) / median(again(b))
	}
	slices.Sort(draws)
	return ratio, draws[25], draws[974]
}

// checkRecorded makes sure that what was measured did its work: every container
// of the load is recorded.
func (b *bench) checkRecorded(ctx context.Context) error {
	stdout, stderr, code, err := b.custodian.Ctl(ctx, "uses", "-o", "json")
	if err != nil || code != 0 {
		return fmt.Errorf("custodianctl uses: exit %d: %s: %w", code, stderr, err)
	}
	var list struct{ Uses []struct{ Kind string } }
	if err := json.Unmarshal([]byte(stdout), &list); err != nil {
		return err
	}
	recorded := 0
	for _, u := range list.Uses {
		if u.Kind == "root" {
			recorded++
		}
	}
	if recorded != b.load.containers {
		return fmt.Errorf("%d containers are recorded, want %d", recorded, b.load.containers)
	}
	return nil
}
