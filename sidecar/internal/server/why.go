package server

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/image-custodian/custodian/api/v1/control"
	"github.com/image-custodian/custodian/sidecar/internal/policy"
	"github.com/image-custodian/custodian/sidecar/internal/reconcile"
	"github.com/image-custodian/custodian/sidecar/internal/state"
)

const (
	maxSharers   = 5
	maxWhyEvents = 10
	// maxSearched bounds the events that are read for those about one image.
	maxSearched = 10000
)

// Why implements control.ControlServer.
func (s *ControlService) Why(ctx context.Context, req *control.WhyRequest) (*control.WhyResponse, error) {
	wanted := strings.TrimSpace(req.GetImage())
	if wanted == "" {
		return nil, status.Error(codes.InvalidArgument, "name an image")
	}
	look, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	response := &control.WhyResponse{}
	i, err := find(look, wanted)
	if err != nil {
		return nil, err
	}
	var key policy.Key
	if i >= 0 {
		key = look.View.Images[i].Key
		explain(response, look, i)
	}
	if err := s.addEvents(response, key, wanted); err != nil {
		return nil, err
	}
	if i < 0 && len(response.GetEvents()) == 0 {
		return nil, status.Errorf(codes.NotFound, "image %q is not on this node, and no event tells of it", wanted)
	}
	return response, nil
}

// find returns the image that is meant, or -1. A full name beats the beginning
// of an ID.
func find(look *reconcile.Look, wanted string) (int, error) {
	var byName, byID []int
	for i, img := range look.View.Images {
		switch {
		case slices.ContainsFunc(img.Names, func(n policy.Name) bool { return meant(n.Name, wanted) }):
			byName = append(byName, i)
		case len(wanted) >= 3 && hasID(img.Key.ID, wanted):
			byID = append(byID, i)
		}
	}
	found := byName
	if len(found) == 0 {
		found = byID
	}
	if cri := slices.DeleteFunc(slices.Clone(found), func(i int) bool {
		return look.View.Images[i].Key.ContainerdNamespace != look.View.PodsNamespace
	}); len(cri) == 1 {
		found = cri // an image in several containerd namespaces: the CRI's is meant
	}
	switch len(found) {
	case 0:
		return -1, nil
	case 1:
		return found[0], nil
	}
	var candidates []string
	for _, i := range found[:min(len(found), 5)] {
		img := look.View.Images[i]
		candidates = append(candidates, img.Key.ContainerdNamespace+": "+img.Key.ID)
	}
	return -1, status.Errorf(codes.InvalidArgument, "%q means %d images, name one by its ID: %s", wanted, len(found), strings.Join(candidates, ", "))
}

// meant compares a name of the store with what a person typed.
func meant(name, typed string) bool {
	return name == typed || name == normalised(typed)
}

func explain(out *control.WhyResponse, look *reconcile.Look, i int) {
	img := look.View.Images[i]
	for _, image := range imagesOf(look) {
		if image.GetId() == img.Key.ID && image.GetContainerdNamespace() == img.Key.ContainerdNamespace {
			out.Image = image
		}
	}
	judged := map[string]bool{}
	for _, v := range policy.Explain(look.View, look.Rules, look.Now, img.Key) {
		judged[v.Name] = true
		verdict := &control.NameVerdict{Name: v.Name, Reason: string(v.Reason), Rule: v.Rule}
		if v.UnusedFor > 0 {
			verdict.UnusedFor = durationpb.New(v.UnusedFor)
		}
		if v.Expires != policy.Never {
			verdict.ExpiresAt = stamp(state.Wall(v.Expires, look.Now, look.At))
		}
		out.Names = append(out.Names, verdict)
	}
	for _, name := range out.GetImage().GetNames() {
		if !judged[name] {
			out.Following = append(out.Following, name)
		}
	}
	if h, ok := look.View.Holdings[img.Key]; ok {
		out.HeldBy = append(out.HeldBy, h.By)
	}
	for _, pod := range look.View.Pods {
		if img.Key.ContainerdNamespace == look.View.PodsNamespace && pod.Wants(img) {
			out.HeldBy = append(out.HeldBy, "pod "+pod.Pod.Namespace+"/"+pod.Pod.Name)
		}
	}
	out.SharedBytes = size(img.ContentBytes + img.SnapshotBytes - img.UniqueBytes)
	out.Sharers = sharers(look, i)
	out.Missing = look.View.Incomplete
}

// sharers are the images that hold the most bytes of image i.
func sharers(look *reconcile.Look, i int) []*control.Sharer {
	own := map[int32]bool{}
	for _, part := range look.View.Images[i].Parts {
		own[part] = true
	}
	var list []*control.Sharer
	for j, other := range look.View.Images {
		var bytes int64
		for _, part := range other.Parts {
			if j != i && own[part] {
				bytes += look.View.Parts[part].Bytes
			}
		}
		if bytes > 0 {
			names, _ := namesTo(other.Names)
			list = append(list, &control.Sharer{Id: other.Key.ID, Name: names[0], Bytes: size(bytes)})
		}
	}
	slices.SortFunc(list, func(a, b *control.Sharer) int {
		return cmp.Or(cmp.Compare(b.GetBytes(), a.GetBytes()), cmp.Compare(a.GetId(), b.GetId()))
	})
	return list[:min(len(list), maxSharers)]
}

// addEvents adds the newest events about an image, or, where it is not here, of
// what was typed.
func (s *ControlService) addEvents(out *control.WhyResponse, key policy.Key, wanted string) error {
	events, err := s.viewer.Events(maxSearched)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	for _, e := range events {
		about := e.Image == key
		if key == (policy.Key{}) {
			about = len(wanted) >= 3 && hasID(e.Image.ID, wanted) ||
				slices.ContainsFunc(e.Names, func(n string) bool { return meant(n, wanted) })
		}
		if about && e.Image.ID != "" && len(out.GetEvents()) < maxWhyEvents {
			out.Events = append(out.Events, eventTo(e))
		}
	}
	return nil
}
