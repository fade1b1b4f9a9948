package main

import (
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
)

func TestLifeOfAContainer(t *testing.T) {
	s := newStage(t)
	s.existing = []*api.Container{s.container("old")}
	s.sidecar.serve(t, s.nodeSocket)
	s.startPlugin()
	s.inSync()
	ctx := t.Context()
	s.must(s.runtime.RunPodSandbox(ctx, &api.RunPodSandboxRequest{Pod: s.pod}))
	s.must(s.create("c1"))
	s.must(s.runtime.PostCreateContainer(ctx, &api.PostCreateContainerRequest{Pod: s.pod, Container: s.container("c1")}))
	s.must(s.runtime.PostStartContainer(ctx, &api.PostStartContainerRequest{Pod: s.pod, Container: s.container("c1")}))
	_, err := s.runtime.StopContainer(ctx, &api.StopContainerRequest{Pod: s.pod, Container: s.container("c1")})
	s.must(err)
	s.must(s.runtime.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: s.pod, Container: s.container("c1")}))
	s.must(s.runtime.RemovePodSandbox(ctx, &api.RemovePodSandboxRequest{Pod: s.pod}))
	want := []string{"POD_STARTED ", "CREATED c1", "STARTED c1", "STOPPED c1", "REMOVED c1", "REMOVED old", "POD_REMOVED "}
	s.eventually("all events", func() bool { return len(s.sidecar.kinds()) >= len(want) })
	if got := s.sidecar.kinds(); !slices.Equal(got, want) {
		t.Errorf("events = %v\nwant     %v", got, want)
	}

	s.sidecar.mu.Lock()
	defer s.sidecar.mu.Unlock()
	if list := s.sidecar.syncs[0]; len(list.GetUses()) != 1 || list.GetUses()[0].GetContainerId() != "old" || list.GetRuntimeVersion() != "v2.4.2" {
		t.Errorf("sync = %v", list)
	}
	u := s.sidecar.admits[0]
	if u.GetImage().GetId() != "sha256:c" || u.GetImage().GetUserName() != "app" || u.GetRuntimeType() != "io.containerd.runc.v2" ||
		u.GetPod().GetNamespace() != "pay" || len(u.GetImageVolumes()) != 1 {
		t.Errorf("admitted %v", u)
	}
	for i, e := range s.sidecar.events {
		if e.GetNumber() != uint64(i+1) {
			t.Errorf("event %d has number %d", i, e.GetNumber())
		}
	}
}

func TestRefusalReachesTheRuntime(t *testing.T) {
	s := newStage(t)
	s.sidecar.serve(t, s.nodeSocket)
	s.startPlugin()
	s.inSync()
	s.sidecar.mu.Lock()
	s.sidecar.refuse = "image reg/app:1: no granted key opens layer 0"
	s.sidecar.mu.Unlock()
	if err := s.create("c1"); err == nil || !strings.Contains(err.Error(), s.sidecar.refuse) {
		t.Errorf("err = %v, want the sidecar's own text", err)
	}
}

// Without a sidecar, with one that hangs, and after that: containers are
// created, at once but for the first that notices, and the plugin stays.
func TestASidecarThatIsAwayOrHangs(t *testing.T) {
	s := newStage(t)
	s.startPlugin()
	s.eventually("registration", func() bool { return s.plugin.ledger.next(1).session != "" })
	s.must(s.create("before"))

	s.sidecar.serve(t, s.nodeSocket)
	s.inSync()
	hang := make(chan struct{})
	s.sidecar.mu.Lock()
	s.sidecar.hang, s.sidecar.asked = hang, 0
	s.sidecar.mu.Unlock()
	began := time.Now()
	for i := range 100 {
		s.must(s.create(strconv.Itoa(i)))
	}
	took := time.Since(began)
	s.sidecar.mu.Lock()
	s.sidecar.hang = nil
	asked := s.sidecar.asked
	s.sidecar.mu.Unlock()
	close(hang)
	t.Logf("100 creates against a hanging sidecar: %v, %d of them asked it", took, asked)
	if asked > 9 { // each waits for the timeout of 100 ms
		t.Errorf("%d of 100 creates waited for a hanging sidecar: more than a second in all", asked)
	}
	if fallbacks := s.plugin.admitter.fallbacks.Load(); fallbacks < 2 {
		t.Errorf("%d answers without the sidecar", fallbacks)
	}
	s.inSync()
	s.must(s.create("after"))
	s.sidecar.mu.Lock()
	defer s.sidecar.mu.Unlock()
	if last := s.sidecar.admits[len(s.sidecar.admits)-1]; last.GetContainerId() != "after" {
		t.Errorf("last admitted %v", last.GetContainerId())
	}
}

// What was not acknowledged is sent again, under the same numbers, also to a
// sidecar that was restarted.
func TestASidecarThatRestarts(t *testing.T) {
	s := newStage(t)
	stop := s.sidecar.serve(t, s.nodeSocket)
	s.startPlugin()
	s.inSync()
	s.sidecar.mu.Lock()
	s.sidecar.failNext = 2
	s.sidecar.mu.Unlock()
	post := func(id string) {
		s.must(s.runtime.PostCreateContainer(t.Context(), &api.PostCreateContainerRequest{Pod: s.pod, Container: s.container(id)}))
	}
	post("c1")
	s.eventually("c1 arrives after two failures", func() bool { return slices.Equal(s.sidecar.kinds(), []string{"CREATED c1"}) })
	stop()
	post("c2")
	s.must(s.create("c3"))
	s.sidecar.serve(t, s.nodeSocket)
	s.eventually("c2 arrives", func() bool { return slices.Equal(s.sidecar.kinds(), []string{"CREATED c1", "CREATED c2"}) })
	s.sidecar.mu.Lock()
	defer s.sidecar.mu.Unlock()
	if n := s.sidecar.events[1].GetNumber(); n != 2 || len(s.sidecar.syncs) != 1 {
		t.Errorf("c2 has number %d; %d syncs, want 1", n, len(s.sidecar.syncs))
	}
}

// A runtime that comes back gets a new stub, and the sidecar a new session.
func TestARuntimeThatRestarts(t *testing.T) {
	s := newStage(t)
	s.sidecar.serve(t, s.nodeSocket)
	s.startPlugin()
	s.inSync()
	first := s.plugin.ledger.next(1).session
	s.wire.cut()
	s.eventually("a new session", func() bool {
		s.sidecar.mu.Lock()
		defer s.sidecar.mu.Unlock()
		return s.sidecar.session != first
	})
	s.must(s.create("c1"))
}

func TestAPanicIsRecovered(t *testing.T) {
	s := newStage(t)
	s.sidecar.serve(t, s.nodeSocket)
	s.startPlugin()
	s.inSync()
	s.plugin.ledger.mu.Lock()
	s.plugin.ledger.uses = nil // the next write to it panics
	s.plugin.ledger.mu.Unlock()
	s.must(s.runtime.PostCreateContainer(t.Context(), &api.PostCreateContainerRequest{Pod: s.pod, Container: s.container("c1")}))
	s.eventually("the panic is counted", func() bool { return s.plugin.sender.panics.Load() == 1 })
	s.must(s.create("c2"))
}

func TestNoRuntimeAtTheStart(t *testing.T) {
	cfg := defaultConfig()
	cfg.NRISocket = filepath.Join(t.TempDir(), "nri.sock")
	err := newPlugin(cfg, new(slog.LevelVar), slog.New(slog.DiscardHandler)).runExternal(t.Context())
	if err == nil || !strings.Contains(err.Error(), cfg.NRISocket) || !strings.Contains(err.Error(), "NRI enabled") {
		t.Errorf("err = %v", err)
	}
}
