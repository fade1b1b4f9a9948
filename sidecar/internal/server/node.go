// Package server offers what the sidecar knows and does to other programs: the
// Node service to the plugin (ttrpc, root only) and the Control service to
// people and tools (gRPC). It turns messages into the words of policy and back,
// and decides nothing.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"regexp"
	"sync"
	"time"

	"github.com/distribution/reference"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/image-custodian/custodian/api/v1/node"
	"github.com/image-custodian/custodian/sidecar/internal/policy"
	"github.com/image-custodian/custodian/sidecar/internal/reconcile"
)

// recorder takes the plugin's word.
type recorder interface {
	Admit(ctx context.Context, u policy.Use)
	Report(ctx context.Context, r reconcile.Report) (syncWanted bool, err error)
	Sync(ctx context.Context, s reconcile.Synced) error
}

// NodeService serves node.proto.
type NodeService struct {
	recorder     recorder
	admitTimeout time.Duration
	log          *slog.Logger

	mu      sync.Mutex
	pending *pendingSync
}

// pendingSync is a list whose last chunk has not come.
type pendingSync struct {
	session    string
	generation uint64
	chunks     uint32
	synced     reconcile.Synced
}

// maxPending bounds the uses of one list: far more than a node can run.
const maxPending = 100_000

var _ node.NodeService = (*NodeService)(nil)

// NewNodeService makes the service. admitTimeout is what the plugin is told.
func NewNodeService(r recorder, admitTimeout time.Duration, log *slog.Logger) *NodeService {
	return &NodeService{recorder: r, admitTimeout: admitTimeout, log: log}
}

// Admit implements node.NodeService.
func (s *NodeService) Admit(ctx context.Context, req *node.AdmitRequest) (*node.AdmitResponse, error) {
	if req.GetUse().GetContainerId() == "" {
		return nil, status.Error(codes.InvalidArgument, "admit: no container ID")
	}
	s.recorder.Admit(ctx, useFrom(req.GetUse()))
	return &node.AdmitResponse{}, nil
}

// Report implements node.NodeService.
func (s *NodeService) Report(ctx context.Context, req *node.ReportRequest) (*node.ReportResponse, error) {
	if req.GetSession() == "" {
		return nil, status.Error(codes.InvalidArgument, "report: no session")
	}
	c := req.GetCounters()
	report := reconcile.Report{
		Session: req.GetSession(), Disconnected: req.GetDisconnected(), Plugin: req.GetPluginVersion(),
		Counters: reconcile.Counters{Panics: c.GetPanics(), Fallbacks: c.GetFallbacks(), Registrations: c.GetRegistrations(), Folded: c.GetFolded()},
	}
	for _, e := range req.GetEvents() {
		event, err := eventFrom(e)
		if err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "report: event %d: %v", e.GetNumber(), err)
		}
		report.Events = append(report.Events, event)
	}
	wanted, err := s.recorder.Report(ctx, report)
	if err != nil {
		s.log.Error("report is not durable", "err", err)
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return &node.ReportResponse{SyncWanted: wanted}, nil
}

// Sync implements node.NodeService.
func (s *NodeService) Sync(ctx context.Context, req *node.SyncRequest) (*node.SyncResponse, error) {
	answer := &node.SyncResponse{AdmitTimeout: s.admitTimeout.Nanoseconds()}
	if req.GetSession() == "" {
		return nil, status.Error(codes.InvalidArgument, "sync: no session")
	}
	synced, err := s.collect(req)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	if synced == nil {
		return answer, nil
	}
	if err := s.recorder.Sync(ctx, *synced); err != nil {
		s.log.Warn("sync with the plugin failed", "err", err)
		code := codes.Unavailable
		if errors.Is(err, reconcile.ErrStale) {
			code = codes.FailedPrecondition
		}
		return nil, status.Error(code, err.Error())
	}
	return answer, nil
}

// collect adds a chunk to the pending list and returns the list when it is whole.
func (s *NodeService) collect(req *node.SyncRequest) (*reconcile.Synced, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if req.GetChunk() == 0 {
		s.pending = &pendingSync{session: req.GetSession(), generation: req.GetGeneration(), synced: reconcile.Synced{
			Session: req.GetSession(), Number: req.GetNumber(), Plugin: req.GetPluginVersion(),
			Runtime: req.GetRuntime(), RuntimeVersion: req.GetRuntimeVersion(),
		}}
	}
	p := s.pending
	if p == nil || p.session != req.GetSession() || p.generation != req.GetGeneration() || p.chunks != req.GetChunk() {
		s.pending = nil
		return nil, fmt.Errorf("sync: chunk %d of list %d of session %s does not continue what came before", req.GetChunk(), req.GetGeneration(), req.GetSession())
	}
	p.chunks++
	if len(p.synced.Uses)+len(req.GetUses()) > maxPending {
		s.pending = nil
		return nil, fmt.Errorf("sync: more than %d uses", maxPending)
	}
	for _, u := range req.GetUses() {
		if u.GetContainerId() == "" {
			s.pending = nil
			return nil, errors.New("sync: a use without a container ID")
		}
		p.synced.Uses = append(p.synced.Uses, useFrom(u))
	}
	for _, e := range req.GetEnded() {
		u := useFrom(&node.Use{Image: e.GetImage()})
		p.synced.Ended = append(p.synced.Ended, reconcile.LastUse{Use: u, Boottime: e.GetBoottime()})
	}
	if !req.GetLast() {
		return nil, nil
	}
	s.pending = nil
	return &p.synced, nil
}

var eventKinds = map[node.EventKind]reconcile.EventKind{
	node.EventKind_EVENT_KIND_POD_STARTED: reconcile.PodStarted,
	node.EventKind_EVENT_KIND_POD_REMOVED: reconcile.PodRemoved,
	node.EventKind_EVENT_KIND_CREATED:     reconcile.Created,
	node.EventKind_EVENT_KIND_STARTED:     reconcile.Started,
	node.EventKind_EVENT_KIND_STOPPED:     reconcile.Stopped,
	node.EventKind_EVENT_KIND_REMOVED:     reconcile.Removed,
}

func eventFrom(e *node.Event) (reconcile.Event, error) {
	kind, ok := eventKinds[e.GetKind()]
	if !ok {
		return reconcile.Event{}, fmt.Errorf("kind %v is not known", e.GetKind())
	}
	event := reconcile.Event{
		Number: e.GetNumber(), Kind: kind, Boottime: e.GetBoottime(),
		ContainerID: e.GetContainerId(), PodID: e.GetPod().GetId(),
	}
	if event.Boottime <= 0 { // the plugin could not read its clock
		event.Boottime = math.MaxInt64 // which counts as now
	}
	if kind == reconcile.Created {
		event.Use = useFrom(e.GetUse())
		if event.Use.ContainerID == "" {
			return event, errors.New("a use without a container ID")
		}
	}
	return event, nil
}

var useStates = map[node.UseState]policy.UseState{
	node.UseState_USE_STATE_CREATED: policy.StateCreated,
	node.UseState_USE_STATE_RUNNING: policy.StateRunning,
	node.UseState_USE_STATE_EXITED:  policy.StateExited,
}

// volumeDigest finds the digest in the mount source of an image volume:
// <state>/image-volumes/<sandbox>/<hex>[/subpath].
var volumeDigest = regexp.MustCompile(`/image-volumes/[0-9a-zA-Z_.-]+/([0-9a-f]{64})(?:/|$)`)

func useFrom(u *node.Use) policy.Use {
	img, pod := u.GetImage(), u.GetPod()
	use := policy.Use{
		ContainerdNamespace: reconcile.CRINamespace,
		ContainerID:         u.GetContainerId(),
		Container:           u.GetContainerName(),
		Pod:                 policy.Pod{ID: pod.GetId(), UID: pod.GetUid(), Name: pod.GetName(), Namespace: pod.GetNamespace()},
		Kind:                policy.UseRoot,
		State:               useStates[u.GetState()],
		ImageID:             img.GetId(),
		UserName:            img.GetUserName(),
		RecordName:          img.GetName(),
		RecordDigest:        img.GetDigest(),
		RuntimeHandler:      u.GetRuntimeHandler(),
		RuntimeType:         u.GetRuntimeType(),
	}
	if use.State == "" {
		use.State = policy.StateCreated
	}
	if use.RecordName == "" {
		use.RecordName = normalised(use.UserName)
	}
	for _, source := range u.GetImageVolumes() {
		if m := volumeDigest.FindStringSubmatch(source); m != nil {
			use.Volumes = append(use.Volumes, "sha256:"+m[1])
		}
	}
	return use
}

// normalised is a name as the image store has it; a name that cannot be read
// as a reference (an image ID, for example) stays as it is.
func normalised(name string) string {
	if named, err := reference.ParseDockerRef(name); err == nil {
		return named.String()
	}
	return name
}
