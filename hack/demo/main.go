// Command demo shows the main job of image-custodian on a private real node:
// containers are recorded, the record outlives a kill -9 of the sidecar, and
// one image that nobody uses any more is removed while all others stay. It
// exits with an error if any of this did not happen.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/image-custodian/custodian/hack/node"
)

// Summary is what came of the demo, for programs.
type Summary struct {
	Recorded        int      `json:"recorded"`         // uses of images by containers
	SurvivedRestart bool     `json:"survived_restart"` // none was forgotten, no last use moved
	Removed         []string `json:"removed"`          // names
	Kept            []string `json:"kept"`             // names
	FreedBytes      int64    `json:"freed_bytes"`      // that containerd's stores really lost
}

// summaryFile lies in the clone, under a directory that git ignores.
const summaryFile = ".cache/demo/summary.json"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	began := time.Now()
	bin, err := os.MkdirTemp("", "custodian-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(bin)) }()
	say("Building image-custodian and starting a private node: containerd, runc, CNI, a registry.")
	if err := node.BuildCustodian(ctx, bin); err != nil {
		return err
	}
	n, err := node.Start(ctx, node.Options{Log: os.Stdout})
	if err != nil {
		return err
	}
	summary, err := play(ctx, n, bin)
	// The node's own check that nothing is left is part of the demo.
	if err := errors.Join(err, n.Stop(ctx)); err != nil {
		return err
	}
	say("The node is gone: no process, mount, namespace, cgroup or socket is left.")
	if err := write(summary); err != nil {
		return err
	}
	say("%d uses recorded; the restart forgot none of them; removed %s, kept %s; %d bytes freed. Took %v. Summary: %s",
		summary.Recorded, strings.Join(summary.Removed, ", "), strings.Join(summary.Kept, ", "), summary.FreedBytes, time.Since(began).Round(time.Second), summaryFile)
	return nil
}

func play(ctx context.Context, n *node.Node, bin string) (summary Summary, err error) {
	custodian, err := n.NewCustodian(node.CustodianOptions{
		Bin: bin, Config: "[clean]\nunused_for = \"15s\"\nmin_age = \"0\"\nstart_grace = \"2s\"\n[log]\nlevel = \"info\"\n",
	})
	if err != nil {
		return summary, err
	}
	defer func() { err = errors.Join(err, custodian.Stop()) }()
	say("Starting the sidecar and the NRI plugin. An image goes here 15 s after its last use, instead of 31 d.")
	if err := custodian.Start(ctx); err != nil {
		return summary, err
	}
	s := &scene{node: n, custodian: custodian}
	for _, act := range []func(context.Context) error{s.runPods, s.killSidecar, s.expire} {
		if err := act(ctx); err != nil {
			return s.summary, err
		}
	}
	return s.summary, nil
}

// scene is what one act leaves for the next.
type scene struct {
	node      *node.Node
	custodian *node.Custodian
	batchPod  string
	batch     string // reference of the image that will go
	summary   Summary
}

// runPods runs pods from several images; the pod of one of them ends.
func (s *scene) runPods(ctx context.Context) error {
	say("Running pods from several images, through the CRI as a kubelet would.")
	refs := map[string]string{}
	for _, name := range []string{"shop/web:1.4", "shop/api:2.0", "jobs/batch:7", "ops/tools:3"} {
		ref, err := s.node.PushImage(ctx, name, node.ImageOptions{Layers: 2, LayerSize: 256 << 10})
		if err != nil {
			return err
		}
		if _, err := s.node.Pull(ctx, ref); err != nil {
			return err
		}
		refs[name] = ref
	}
	s.batch = refs["jobs/batch:7"]
	// Nobody uses the tools, but somebody pinned them.
	if err := s.show(ctx, "ctr", "images", "label", refs["ops/tools:3"], "io.cri-containerd.pinned=pinned"); err != nil {
		return err
	}
	for _, pod := range []struct{ name, namespace, image string }{
		{"web-0", "shop", "shop/web:1.4"}, {"web-1", "shop", "shop/web:1.4"},
		{"api-0", "shop", "shop/api:2.0"}, {"batch-28", "jobs", "jobs/batch:7"},
	} {
		id, _, err := s.node.Run(ctx, node.PodOptions{Name: pod.name, Namespace: pod.namespace}, node.ContainerOptions{Name: "main", Image: refs[pod.image]})
		if err != nil {
			return err
		}
		if pod.image == "jobs/batch:7" {
			s.batchPod = id
		}
	}
	if err := s.until(ctx, "four running containers are recorded", func() (bool, error) {
		uses, err := s.uses(ctx)
		running := 0
		for _, u := range uses {
			if u.Kind == "root" && u.State == "running" {
				running++
			}
		}
		s.summary.Recorded = running
		return running == 4, err
	}); err != nil {
		return err
	}
	return errors.Join(s.show(ctx, "custodianctl", "uses"), s.show(ctx, "custodianctl", "images"))
}

// killSidecar kills the sidecar after the batch pod has ended. Nothing that it
// knew may be lost.
func (s *scene) killSidecar(ctx context.Context) error {
	say("The batch pod ends. Then the sidecar is killed with kill -9 and started again.")
	if err := errors.Join(s.node.StopPod(ctx, s.batchPod), s.node.RemovePod(ctx, s.batchPod)); err != nil {
		return err
	}
	var before []use
	if err := s.until(ctx, "the end of the batch pod is recorded", func() (bool, error) {
		var err error
		before, err = s.uses(ctx)
		return !slices.ContainsFunc(before, func(u use) bool { return u.Pod == "batch-28" }), err
	}); err != nil {
		return err
	}
	lastUsed, err := s.lastUsed(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(s.custodian.KillSidecar(), s.custodian.StartSidecar(ctx)); err != nil {
		return err
	}
	after, err := s.uses(ctx)
	if err != nil {
		return err
	}
	again, err := s.lastUsed(ctx)
	if err != nil {
		return err
	}
	s.summary.SurvivedRestart = slices.Equal(before, after) && lastUsed == again && lastUsed != ""
	if !s.summary.SurvivedRestart {
		return fmt.Errorf("the restart changed what is known: before %v, last use %s; after %v, last use %s", before, lastUsed, after, again)
	}
	return s.show(ctx, "custodianctl", "images")
}

// expire waits until the batch image goes, and holds containerd's own lists
// against what is told of it.
func (s *scene) expire(ctx context.Context) error {
	say("Waiting until %s has not been used for 15 s.", s.batch)
	before, err := s.imagesOfCRI(ctx)
	if err != nil {
		return err
	}
	if err := s.until(ctx, "the view is complete", func() (bool, error) { return s.complete(ctx) }); err != nil {
		return err
	}
	if err := errors.Join(s.show(ctx, "custodianctl", "plan", "--in", "1m"), s.show(ctx, "custodianctl", "why", s.batch), s.show(ctx, "crictl", "images")); err != nil {
		return err
	}
	stored, err := s.stored(ctx)
	if err != nil {
		return err
	}
	var removal event
	if err := s.until(ctx, "the image is removed", func() (bool, error) {
		var err error
		removal, err = s.removal(ctx)
		return removal.Kind != "", err
	}); err != nil {
		return err
	}
	after, err := s.imagesOfCRI(ctx)
	if err != nil {
		return err
	}
	for _, name := range before {
		if !slices.Contains(after, name) {
			s.summary.Removed = append(s.summary.Removed, name)
		}
	}
	s.summary.Kept = after
	if !slices.Equal(s.summary.Removed, []string{s.batch}) {
		return fmt.Errorf("removed %v, want exactly %s", s.summary.Removed, s.batch)
	}
	left, err := s.stored(ctx)
	if err != nil {
		return err
	}
	s.summary.FreedBytes = stored - left
	if removal.FreedBytes != s.summary.FreedBytes || s.summary.FreedBytes <= 0 {
		return fmt.Errorf("the sidecar tells of %d freed bytes, containerd's stores lost %d", removal.FreedBytes, s.summary.FreedBytes)
	}
	return errors.Join(s.show(ctx, "crictl", "images"), s.show(ctx, "custodianctl", "why", s.batch), s.show(ctx, "custodianctl", "status"))
}

func write(s Summary) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(summaryFile), 0o755); err != nil {
		return err
	}
	return os.WriteFile(summaryFile, append(data, '\n'), 0o644)
}

func say(format string, args ...any) { fmt.Printf("\n== "+format+"\n", args...) }
