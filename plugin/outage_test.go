package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"

	"github.com/image-custodian/custodian/api/v1/node"
)

// lists are the lists that the sidecar has got, chunks put together.
func (s *sidecar) lists() (lists []*node.SyncRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, chunk := range s.syncs {
		if chunk.GetChunk() == 0 {
			lists = append(lists, &node.SyncRequest{Number: chunk.GetNumber()})
		}
		whole := lists[len(lists)-1]
		whole.Uses = append(whole.Uses, chunk.GetUses()...)
		whole.Ended = append(whole.Ended, chunk.GetEnded()...)
		whole.Last = chunk.GetLast()
	}
	return lists
}

// A thousand containers live and die while the sidecar is away and the outbox
// has room for ten events.
func TestAnOverflowReachesTheSidecar(t *testing.T) {
	s := newStage(t)
	stop := s.sidecar.serve(t, s.nodeSocket)
	s.startPlugin()
	s.inSync()
	stop()
	s.plugin.ledger.mu.Lock()
	s.plugin.ledger.capacity = 10
	s.plugin.ledger.mu.Unlock()
	const containers = 1000
	ctx := t.Context()
	for i := range containers {
		c := &api.Container{Id: fmt.Sprint("c", i), PodSandboxId: "pod1", Image: &api.Image{ConfigDigest: fmt.Sprint("sha256:", i)}}
		s.must(s.plugin.PostCreateContainer(ctx, s.pod, c))
		s.must(s.plugin.PostStartContainer(ctx, s.pod, c))
		_, err := s.plugin.StopContainer(ctx, s.pod, c)
		s.must(err)
		s.must(s.plugin.RemoveContainer(ctx, s.pod, c))
	}
	s.must(s.plugin.PostCreateContainer(ctx, s.pod, s.container("alive")))
	s.sidecar.serve(t, s.nodeSocket)
	var list *node.SyncRequest
	s.eventually("a whole list after the overflow", func() bool {
		lists := s.sidecar.lists()
		list = lists[len(lists)-1]
		return len(lists) > 1 && list.GetLast()
	})
	ended := map[string]bool{}
	for _, e := range list.GetEnded() {
		ended[e.GetImage().GetId()] = e.GetBoottime() > 0
	}
	for i := range containers {
		if !ended[fmt.Sprint("sha256:", i)] {
			t.Fatalf("the end of container %d is lost", i)
		}
	}
	if len(list.GetUses()) != 1 || list.GetUses()[0].GetContainerId() != "alive" || list.GetNumber() != 4*containers+1 {
		t.Errorf("%d uses, number %d", len(list.GetUses()), list.GetNumber())
	}
	s.must(s.plugin.RemoveContainer(ctx, s.pod, s.container("alive")))
	s.eventually("events flow again", func() bool { return slices.Contains(s.sidecar.kinds(), "REMOVED alive") })
}

// A full node is more than one message of NRI and more than one of ours, and
// nothing that a pod's author wrote at length is in it.
func TestAFullNode(t *testing.T) {
	s := newStage(t)
	const containers = 5000
	for i := range containers / 10 { // with few pods, NRI itself fails to split its message
		s.morePods = append(s.morePods, &api.PodSandbox{Id: fmt.Sprint("more", i)})
	}
	for i := range containers {
		s.existing = append(s.existing, &api.Container{
			Id: strconv.Itoa(i), PodSandboxId: "pod1", State: api.ContainerState_CONTAINER_RUNNING,
			Annotations: map[string]string{annotationImageName: "app", "big": strings.Repeat("secret", 170)},
		})
	}
	s.sidecar.serve(t, s.nodeSocket)
	s.startPlugin()
	s.eventually("the whole list", func() bool {
		lists := s.sidecar.lists()
		return len(lists) > 0 && lists[0].GetLast()
	})
	if n := len(s.sidecar.lists()[0].GetUses()); n != containers {
		t.Errorf("%d uses, want %d", n, containers)
	}
	s.sidecar.mu.Lock()
	defer s.sidecar.mu.Unlock()
	for _, chunk := range s.sidecar.syncs {
		data, err := proto.Marshal(chunk)
		s.must(err)
		if len(data) > 1<<20 || strings.Contains(string(data), "secret") {
			t.Fatalf("chunk %d has %d bytes, or an annotation", chunk.GetChunk(), len(data))
		}
	}
}

// After a refusal containerd still stops and removes what was never created,
// and no longer knows its image.
func TestARefusedCreationEndsOnce(t *testing.T) {
	s := newStage(t)
	s.sidecar.refuse = "no"
	s.sidecar.serve(t, s.nodeSocket)
	s.startPlugin()
	s.inSync()
	if err := s.create("c1"); err == nil {
		t.Fatal("not refused")
	}
	nameless := &api.Container{Id: "c1", PodSandboxId: "pod1"}
	_, err := s.runtime.StopContainer(t.Context(), &api.StopContainerRequest{Pod: s.pod, Container: nameless})
	s.must(err)
	s.must(s.runtime.RemoveContainer(t.Context(), &api.RemoveContainerRequest{Pod: s.pod, Container: nameless}))
	s.eventually("the claim is dropped", func() bool { return slices.Equal(s.sidecar.kinds(), []string{"REMOVED c1"}) })
}

// No hook takes the plugin down or hinders the runtime, whatever is wrong.
func TestEveryHookRecovers(t *testing.T) {
	p := newPlugin(defaultConfig(), new(slog.LevelVar), slog.New(slog.DiscardHandler))
	p.ledger, p.admitter = nil, nil
	ctx, pod, c := t.Context(), &api.PodSandbox{}, &api.Container{}
	for name, hook := range map[string]func() error{
		"Configure":           func() error { _, err := p.Configure(ctx, "", "containerd", "2.4.2"); return err },
		"Synchronize":         func() error { _, err := p.Synchronize(ctx, nil, nil); return err },
		"RunPodSandbox":       func() error { return p.RunPodSandbox(ctx, pod) },
		"RemovePodSandbox":    func() error { return p.RemovePodSandbox(ctx, pod) },
		"CreateContainer":     func() error { _, _, err := p.CreateContainer(ctx, pod, c); return err },
		"PostCreateContainer": func() error { return p.PostCreateContainer(ctx, pod, c) },
		"PostStartContainer":  func() error { return p.PostStartContainer(ctx, pod, c) },
		"StopContainer":       func() error { _, err := p.StopContainer(ctx, pod, c); return err },
		"RemoveContainer":     func() error { return p.RemoveContainer(ctx, pod, c) },
	} {
		before := p.sender.panics.Load()
		if err := hook(); err != nil || p.sender.panics.Load() != before+1 {
			t.Errorf("%s: %v, %d panics", name, err, p.sender.panics.Load()-before)
		}
	}
}

// One that is late each time is asked ever more seldom; one that is merely away
// comes back as soon as it answers.
func TestRest(t *testing.T) {
	a := newAdmitter("", slog.New(slog.DiscardHandler))
	for late, want := range map[int]time.Duration{0: 0, 1: 2 * time.Second, 2: 4 * time.Second, 4: 16 * time.Second, 5: 30 * time.Second, 99: 30 * time.Second} {
		if a.late = late; a.rest() != want {
			t.Errorf("after %d late answers: %v, want %v", late, a.rest(), want)
		}
	}
}

// The runtime launches this very test binary as the plugin; TestMain sees to it.
func TestLaunchedByTheRuntime(t *testing.T) {
	dir, socket := t.TempDir(), filepath.Join(t.TempDir(), "node.sock")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{TB: t, sidecar: &sidecar{}}
	s.must(os.Symlink(self, filepath.Join(dir, "10-image-custodian")))
	s.must(os.WriteFile(filepath.Join(dir, "10-image-custodian.conf"), fmt.Appendf(nil, "node_socket = %q\n", socket), 0o600))
	s.sidecar.serve(t, socket)
	synchronize := func(ctx context.Context, cb adaptation.SyncCB) error {
		_, err := cb(ctx, nil, []*api.Container{{Id: "c1", PodSandboxId: "p"}})
		return err
	}
	update := func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil }
	r, err := adaptation.New("containerd", "1.7.35", synchronize, update, adaptation.WithDisabledExternalConnections(),
		adaptation.WithPluginPath(dir), adaptation.WithPluginConfigPath(dir))
	s.must(err)
	s.must(r.Start())
	defer r.Stop()
	s.eventually("the plugin's list", func() bool { return len(s.sidecar.lists()) > 0 })
	s.sidecar.mu.Lock()
	defer s.sidecar.mu.Unlock()
	list := s.sidecar.syncs[0]
	if list.GetRuntimeVersion() != "1.7.35" || len(list.GetUses()) != 1 {
		t.Errorf("sync = %v", list)
	}
}
