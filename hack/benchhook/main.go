// Command benchhook measures what the plugin costs the creation of a container:
// CreateContainer through the CRI of a real node without any NRI plugin, with a
// no-op plugin of the same subscription, and with image-custodian, in
// interleaved rounds on one node. Milliseconds are this machine's; the ratio
// with its 95 % interval is what counts.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/image-custodian/custodian/hack/node"
)

// load is what stands on the node while it is measured.
type load struct {
	images, containers, rounds, creates int
	quiet                               time.Duration
}

func main() {
	var l load
	flag.IntVar(&l.images, "images", 2000, "images on the node")
	flag.IntVar(&l.containers, "containers", 200, "containers on the node")
	flag.IntVar(&l.rounds, "rounds", 40, "rounds; each measures every side once, in random order")
	flag.IntVar(&l.creates, "creates", 50, "creates a side and round")
	flag.DurationVar(&l.quiet, "quiet", time.Minute, "how long to watch what both programs take while nothing happens")
	noop := flag.String("noop", "", "be the no-op plugin at this NRI socket (used by the benchmark itself)")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	var err error
	if *noop != "" {
		err = runNoop(ctx, *noop)
	} else {
		err = run(ctx, l)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchhook:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, l load) (err error) {
	bin, err := os.MkdirTemp("", "custodian-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(bin)) }()
	if err := node.BuildCustodian(ctx, bin); err != nil {
		return err
	}
	n, err := node.Start(ctx, node.Options{Log: os.Stderr})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Stop(ctx)) }()
	custodian, err := n.NewCustodian(node.CustodianOptions{Bin: bin, Config: "[log]\nlevel = \"info\"\n"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, custodian.Stop()) }()

	b := &bench{node: n, custodian: custodian, load: l}
	if err := b.prepare(ctx); err != nil {
		return err
	}
	if err := custodian.StartSidecar(ctx); err != nil {
		return err
	}
	samples, err := b.measure(ctx)
	if err != nil {
		return err
	}
	report(os.Stdout, l, samples)
	return errors.Join(b.checkRecorded(ctx), b.quiet(ctx, os.Stdout, l.quiet))
}

// side is one of the things compared.
type side struct {
	name  string
	start func(ctx context.Context) (stop func() error, err error)
}

type bench struct {
	node      *node.Node
	custodian *node.Custodian
	load      load
	image     string
	pod       string
	syncs     int
}

func (b *bench) sides() []side {
	return []side{
		{"none", func(context.Context) (func() error, error) { return func() error { return nil }, nil }},
		{"noop", b.startNoop},
		{"custodian", b.startPlugin},
	}
}

func (b *bench) startPlugin(ctx context.Context) (func() error, error) {
	b.syncs++
	if err := b.custodian.StartPlugin(ctx); err != nil {
		return nil, err
	}
	return b.custodian.StopPlugin, b.custodian.WaitSynced(ctx, b.syncs)
}

// startNoop runs this program again, as a process of its own like the plugin.
func (b *bench) startNoop(ctx context.Context) (stop func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "-noop", b.node.NRISocket)
	cmd.Stderr = os.Stderr
	ready, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := ready.Read(make([]byte, 1)); err != nil {
		return nil, errors.Join(fmt.Errorf("no-op plugin: %w", err), cmd.Process.Kill(), cmd.Wait())
	}
	return func() error {
		return errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait())
	}, nil
}

// measure returns the durations of CreateContainer of each side. The sides of a
// round come in random order, so that a drift of the machine hits all alike.
func (b *bench) measure(ctx context.Context) (map[string][]time.Duration, error) {
	samples := map[string][]time.Duration{}
	sides := b.sides()
	for range b.load.rounds {
		rand.Shuffle(len(sides), func(i, j int) { sides[i], sides[j] = sides[j], sides[i] })
		for _, s := range sides {
			stop, err := s.start(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
			took, err := b.create(ctx, b.load.creates)
			if err := errors.Join(err, stop()); err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
			samples[s.name] = append(samples[s.name], took...)
		}
	}
	return samples, nil
}

// create creates and removes containers; only the creation is timed, and the
// first few of a round are not counted.
func (b *bench) create(ctx context.Context, count int) ([]time.Duration, error) {
	const warm = 3
	var took []time.Duration
	for i := range warm + count {
		began := time.Now()
		id, err := b.node.CreateContainer(ctx, b.pod, node.ContainerOptions{Name: "c" + strconv.Itoa(i), Image: b.image})
		if err != nil {
			return nil, err
		}
		if i >= warm {
			took = append(took, time.Since(began))
		}
		if err := b.node.RemoveContainer(ctx, id); err != nil {
			return nil, err
		}
	}
	return took, nil
}
