package server

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/image-custodian/custodian/api/v1/control"
	"github.com/image-custodian/custodian/sidecar/internal/policy"
	"github.com/image-custodian/custodian/sidecar/internal/reconcile"
	"github.com/image-custodian/custodian/sidecar/internal/state"
)

// viewer shows the node as it is.
type viewer interface {
	Latest(ctx context.Context, maxAge time.Duration) (*reconcile.Look, error)
	Session() state.Session
	Events(limit int) ([]state.Event, error)
	SavePlan(plan state.Plan) (state.Plan, error)
	Plans() ([]state.Plan, error)
	Plan(id string) (state.Plan, error)
}

// Disk is the file system that holds the images.
type Disk struct {
	Path                 string
	SizeBytes, UsedBytes uint64
}

// About says what the sidecar is and whom it serves.
type About struct {
	Node                         string
	Version, Revision, GoVersion string
	Runtime, RuntimeVersion, CRI string
	Started                      time.Time
	Namespaces                   []string
	// Disk is asked at each status.
	Disk func(ctx context.Context) (Disk, error)
	// TryRules gives the rules that would be in force if a rules file of this
	// name and text were installed. The error tells every fault of it.
	TryRules func(name, text string) (policy.Rules, error)
}

// ControlService serves control.proto.
type ControlService struct {
	control.UnimplementedControlServer
	viewer viewer
	about  About
}

// NewControlService makes the service.
func NewControlService(v viewer, about About) *ControlService {
	return &ControlService{viewer: v, about: about}
}

// fresh is how old an answer may be: it bounds what a curious reader costs.
const fresh = time.Second

func (s *ControlService) look(ctx context.Context) (*reconcile.Look, error) {
	look, err := s.viewer.Latest(ctx, fresh)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return look, nil
}

// Version implements control.ControlServer.
func (s *ControlService) Version(context.Context, *control.VersionRequest) (*control.VersionResponse, error) {
	return &control.VersionResponse{
		Version: s.about.Version, Revision: s.about.Revision, GoVersion: s.about.GoVersion,
		PluginVersion: s.viewer.Session().Plugin,
		Runtime:       s.about.Runtime, RuntimeVersion: s.about.RuntimeVersion, CriVersion: s.about.CRI,
	}, nil
}

// ListImages implements control.ControlServer.
func (s *ControlService) ListImages(ctx context.Context, req *control.ListImagesRequest) (*control.ListImagesResponse, error) {
	keep, err := filter(req.GetFilters(), imageFilters)
	if err != nil {
		return nil, err
	}
	look, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	response := &control.ListImagesResponse{Complete: look.Complete()}
	for _, img := range imagesOf(look) {
		if keep(img) {
			response.Images = append(response.Images, img)
		}
	}
	return response, nil
}

// ListUses implements control.ControlServer.
func (s *ControlService) ListUses(ctx context.Context, req *control.ListUsesRequest) (*control.ListUsesResponse, error) {
	keep, err := filter(req.GetFilters(), useFilters)
	if err != nil {
		return nil, err
	}
	look, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	response := &control.ListUsesResponse{}
	for _, u := range look.Uses {
		if use := useTo(u); keep(use) {
			response.Uses = append(response.Uses, use)
		}
	}
	return response, nil
}

// imagesOf joins each image of a look with its uses and its decision, in the
// order of their first names.
func imagesOf(look *reconcile.Look) []*control.Image {
	index := policy.NewIndex(look.View.Images)
	uses := map[policy.Key][]*control.Use{}
	for _, u := range look.Uses {
		seen := map[policy.Key]bool{}
		for _, key := range slices.Concat(index.Root(u), index.Volumes(u)) {
			if !seen[key] {
				seen[key] = true
				use := useTo(u)
				if key.ID != u.ImageID && slices.Contains(index.Volumes(u), key) {
					use.Kind = string(policy.UseImageVolume)
				}
				uses[key] = append(uses[key], use)
			}
		}
	}
	images := make([]*control.Image, len(look.View.Images))
	for i, img := range look.View.Images {
		images[i] = imageTo(img, look.Decisions[i], look.View.Memory[img.Key], uses[img.Key], look)
	}
	slices.SortFunc(images, func(a, b *control.Image) int {
		return cmp.Or(strings.Compare(a.GetNames()[0], b.GetNames()[0]), strings.Compare(a.GetContainerdNamespace(), b.GetContainerdNamespace()))
	})
	return images
}

func imageTo(img policy.Image, d policy.Decision, m policy.Memory, uses []*control.Use, look *reconcile.Look) *control.Image {
	out := &control.Image{
		ContainerdNamespace: img.Key.ContainerdNamespace, Id: img.Key.ID, Kind: string(img.Kind),
		Platform: img.Platform, BuiltAt: stamp(img.BuiltAt), PulledAt: stamp(img.PulledAt),
		FirstSeen: stamp(m.FirstSeenAt), LastUsed: stamp(m.LastUseAt),
		Uses: uses, InUse: len(uses) > 0, Pinned: img.Pinned(), Labels: img.Labels,
		ContentBytes: size(img.ContentBytes), SnapshotBytes: size(img.SnapshotBytes), UniqueBytes: size(img.UniqueBytes),
		Decision: "keep", Reason: string(d.Reason), Rule: d.Rule,
	}
	if d.Remove {
		out.Decision = "remove"
	}
	if d.Expires != policy.Never {
		out.ExpiresAt = stamp(state.Wall(d.Expires, look.Now, look.At))
	}
	if out.InUse {
		out.LastUsed = stamp(look.At)
	}
	runtimes := map[string]bool{}
	out.Names, out.Targets = namesTo(img.Names)
	for _, u := range uses {
		if u.GetRuntimeType() != "" {
			runtimes[u.GetRuntimeType()] = true
		}
	}
	out.Runtimes = slices.Sorted(maps.Keys(runtimes))
	return out
}

// namesTo are the names and what they point at. The CRI's own record under the
// image ID is told last: people know the other names.
func namesTo(list []policy.Name) (names, targets []string) {
	pointed := map[string]bool{}
	for _, n := range list {
		names = append(names, n.Name)
		pointed[n.Target] = true
	}
	slices.SortStableFunc(names, func(a, b string) int { return isDigest(a) - isDigest(b) })
	return names, slices.Sorted(maps.Keys(pointed))
}

func size(bytes int64) uint64 { return uint64(max(0, bytes)) }

func isDigest(name string) int {
	if strings.HasPrefix(name, "sha256:") {
		return 1
	}
	return 0
}

func useTo(u policy.Use) *control.Use {
	return &control.Use{
		ContainerdNamespace: u.ContainerdNamespace, ContainerId: u.ContainerID, ContainerName: u.Container,
		Pod: u.Pod.Name, Namespace: u.Pod.Namespace, PodUid: u.Pod.UID, PodId: u.Pod.ID,
		ImageId: u.ImageID, Image: cmp.Or(u.UserName, u.RecordName),
		RuntimeHandler: u.RuntimeHandler, RuntimeType: u.RuntimeType, Platform: u.Platform,
		Snapshotter: u.Snapshotter, State: string(u.State), StartedAt: stamp(u.StartedAt), Kind: string(u.Kind),
	}
}

// stamp leaves a zero time unset.
func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
