package server

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/image-custodian/custodian/api/v1/control"
	"github.com/image-custodian/custodian/sidecar/internal/policy"
	"github.com/image-custodian/custodian/sidecar/internal/reconcile"
	"github.com/image-custodian/custodian/sidecar/internal/state"
)

// statusEvents is how many events Status tells.
const statusEvents = 10

// Status implements control.ControlServer.
func (s *ControlService) Status(ctx context.Context, _ *control.StatusRequest) (*control.StatusResponse, error) {
	look, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	disk, err := s.about.Disk(ctx)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	events, err := s.viewer.Events(statusEvents)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	response := &control.StatusResponse{
		Node: s.about.Node, Version: s.about.Version, Runtime: s.about.Runtime, RuntimeVersion: s.about.RuntimeVersion,
		StartedAt: stamp(s.about.Started),
		DiskPath:  disk.Path, DiskSizeBytes: disk.SizeBytes, DiskUsedBytes: disk.UsedBytes,
		CleanMode: string(look.Mode), ContainerdNamespaces: s.about.Namespaces,
		Sources: sourcesTo(look), Holds: holdsTo(look), Config: look.Config, PodsSource: look.PodsKind,
	}
	if look.Complete() {
		response.ViewAt = stamp(look.At)
	}
	tally(response, look)
	for _, e := range events {
		response.Events = append(response.Events, eventTo(e))
	}
	return response, nil
}

// tally counts the images by what is decided about them, and what else fills the
// disk. A part that images share counts once, for the first in the order in use,
// kept, unused.
func tally(out *control.StatusResponse, look *reconcile.Look) {
	counted := make([]bool, len(look.View.Parts))
	var total int64
	add := func(t *control.Tally, img policy.Image) {
		t.Images++
		for _, part := range img.Parts {
			if !counted[part] {
				counted[part] = true
				t.Bytes += size(look.View.Parts[part].Bytes)
				total += look.View.Parts[part].Bytes
			}
		}
	}
	groups := []*control.Tally{{}, {}, {}}
	out.InUse, out.Kept, out.Unused, out.Next = groups[0], groups[1], groups[2], &control.Tally{}
	for g := range groups {
		for i, d := range look.Decisions {
			if group(d) == g {
				add(groups[g], look.View.Images[i])
			}
		}
	}
	out.Fillers = fillers(look, int64(out.GetDiskUsedBytes())-total)
	next := policy.Never
	for _, d := range look.Decisions {
		switch {
		case d.Remove:
			next = min(next, look.Now)
		case group(d) == groupUnused:
			next = min(next, d.Expires)
		}
	}
	if next == policy.Never {
		return
	}
	due := max(next, look.Now, look.GraceEnds)
	going := slices.Clone(look.Decisions)
	for i, d := range going {
		going[i].Remove = d.Remove || group(d) == groupUnused && d.Expires <= due
		if going[i].Remove {
			out.Next.Images++
		}
	}
	out.Next.Bytes = size(policy.Gain(look.View, going))
	out.NextAt = stamp(state.Wall(due, look.Now, look.At))
}

// fillers are what takes bytes beside the images: what is known, and the rest.
func fillers(look *reconcile.Look, notImages int64) []*control.Filler {
	s := look.Sizes
	if s.Parts == nil {
		return nil // not measured
	}
	var list []*control.Filler
	add := func(name string, bytes int64, detail string) {
		if bytes > 0 {
			list = append(list, &control.Filler{Name: name, Bytes: size(bytes), Detail: detail})
			notImages -= bytes
		}
	}
	add("writable-layers", s.WritableLayers, "")
	add("other-namespaces", s.OtherNamespaces, strings.Join(s.Others, ", "))
	add("orphans", s.Orphans, "blobs and layers that no image names")
	add("rest", notImages, "")
	return list
}

const (
	groupInUse = iota
	groupKept
	groupUnused
)

// group sorts a decision into in use, kept for good, or unused and waiting.
func group(d policy.Decision) int {
	switch d.Reason {
	case policy.InUse, policy.ImageVolume, policy.Sandbox, policy.ForPod, policy.Snapshot, policy.Leased:
		return groupInUse
	case policy.NotAnImage, policy.Pinned, policy.Unpullable, policy.Kept, policy.KeptLatest:
		return groupKept
	default:
		return groupUnused
	}
}

func sourcesTo(look *reconcile.Look) []*control.Source {
	var sources []*control.Source
	for _, name := range slices.Sorted(maps.Keys(look.Sources)) {
		s := look.Sources[name]
		source := &control.Source{Name: name, Ok: s.Err == nil, Since: stamp(s.Since)}
		if s.Err != nil {
			source.Error, source.Remedy = s.Err.Error(), remedies[name]
		}
		sources = append(sources, source)
	}
	return sources
}

var remedies = map[string]string{
	reconcile.SourceContainerd:  "systemctl status containerd",
	reconcile.SourceCRI:         "crictl info",
	reconcile.SourceNRI:         "systemctl status image-custodian-plugin, and see that NRI is not disabled in containerd's configuration",
	reconcile.SourceClock:       "set the clock, then all goes on by itself",
	reconcile.SourceSnapshotter: "ctr plugins ls | grep snapshotter",
	reconcile.SourceKubelet:     "systemctl status kubelet, or set [kubelet] pods in sidecar.toml",
	reconcile.SourceConfig:      "mend the file, it is read again at once; check it with image-custodian-sidecar check-config",
}

// holdsTo tells for which causes nothing is removed now. A plugin that has not
// synced yet is no trouble while the start grace lasts anyway.
func holdsTo(look *reconcile.Look) []*control.Hold {
	var holds []*control.Hold
	grace := look.Now < look.GraceEnds
	for _, source := range sourcesTo(look) {
		if !source.GetOk() {
			holds = append(holds, &control.Hold{
				Reason: string(policy.ViewIncomplete), Detail: fmt.Sprintf("%s: %s", source.GetName(), source.GetError()),
				Since: source.GetSince(), NeedsPerson: !grace || source.GetName() != reconcile.SourceNRI,
			})
		}
	}
	if grace {
		holds = append(holds, &control.Hold{
			Reason: string(policy.StartGrace),
			Since:  stamp(state.Wall(look.View.Started, look.Now, look.At)),
			Until:  stamp(state.Wall(look.GraceEnds, look.Now, look.At)),
		})
	}
	slices.SortStableFunc(holds, func(a, b *control.Hold) int { return cmp.Compare(needs(b), needs(a)) })
	return holds
}

func needs(h *control.Hold) int {
	if h.GetNeedsPerson() {
		return 1
	}
	return 0
}

func eventTo(e state.Event) *control.Event {
	return &control.Event{
		At: stamp(e.At), Kind: string(e.Kind), Image: e.Image.ID, Names: e.Names,
		Reason: string(e.Reason), Rule: e.Rule, FreedBytes: size(e.Freed), Detail: e.Detail,
	}
}
