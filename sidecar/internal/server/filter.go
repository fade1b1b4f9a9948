package server

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/image-custodian/custodian/api/v1/control"
	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// A matcher says whether a thing has a value under one key.
type matcher[T any] func(thing T, value string) bool

var imageFilters = map[string]matcher[*control.Image]{
	"containerd_namespace": func(i *control.Image, v string) bool { return i.GetContainerdNamespace() == v },
	"image":                matchesImage,
	"untagged":             func(i *control.Image, v string) bool { return strconv.FormatBool(untagged(i)) == v },
	"label":                hasLabel,
	"kind":                 func(i *control.Image, v string) bool { return i.GetKind() == v },
	"rule":                 func(i *control.Image, v string) bool { return i.GetRule() == v },
	"id":                   func(i *control.Image, v string) bool { return hasID(i.GetId(), v) },
	"platform":             func(i *control.Image, v string) bool { return i.GetPlatform() == v },
	"runtime":              func(i *control.Image, v string) bool { return slices.Contains(i.GetRuntimes(), v) },
	"decision":             func(i *control.Image, v string) bool { return i.GetDecision() == v },
	"reason":               func(i *control.Image, v string) bool { return i.GetReason() == v },
	"in_use":               func(i *control.Image, v string) bool { return strconv.FormatBool(i.GetInUse()) == v },
	"pinned":               func(i *control.Image, v string) bool { return strconv.FormatBool(i.GetPinned()) == v },
}

var useFilters = map[string]matcher[*control.Use]{
	"containerd_namespace": func(u *control.Use, v string) bool { return u.GetContainerdNamespace() == v },
	"namespace":            func(u *control.Use, v string) bool { return u.GetNamespace() == v },
	"pod":                  func(u *control.Use, v string) bool { return u.GetPod() == v },
	"image":                func(u *control.Use, v string) bool { return normalised(u.GetImage()) == normalised(v) },
	"image_id":             func(u *control.Use, v string) bool { return hasID(u.GetImageId(), v) },
	"runtime":              func(u *control.Use, v string) bool { return u.GetRuntimeType() == v },
	"state":                func(u *control.Use, v string) bool { return u.GetState() == v },
	"kind":                 func(u *control.Use, v string) bool { return u.GetKind() == v },
}

// matchesImage takes a pattern as in a rule. One that is none matches nothing.
func matchesImage(i *control.Image, pattern string) bool {
	glob, err := policy.ParseGlob(pattern)
	return err == nil && slices.ContainsFunc(i.GetNames(), glob.Match)
}

func untagged(i *control.Image) bool {
	return !slices.ContainsFunc(i.GetNames(), policy.Tagged)
}

// hasLabel takes NAME, or NAME=VALUE with "*" for any text.
func hasLabel(i *control.Image, wanted string) bool {
	name, value, exact := strings.Cut(wanted, "=")
	label, ok := i.GetLabels()[name]
	return ok && (!exact || policy.LabelMatch{Key: name, Value: value}.Match(label))
}

// hasID compares an image ID with one as people type it: with or without
// "sha256:", shortened as crictl prints it.
func hasID(id, typed string) bool {
	typed = strings.TrimPrefix(typed, "sha256:")
	return typed != "" && strings.HasPrefix(strings.TrimPrefix(id, "sha256:"), typed)
}

// maxFilters bounds what each image is held against.
const maxFilters = 16

// filter makes one predicate of "key=value" filters: different keys all have to
// match, of one key any value.
func filter[T any](filters []string, matchers map[string]matcher[T]) (func(T) bool, error) {
	if len(filters) > maxFilters {
		return nil, status.Errorf(codes.InvalidArgument, "%d filters: want at most %d", len(filters), maxFilters)
	}
	wanted := map[string][]string{}
	for _, f := range filters {
		key, value, found := strings.Cut(f, "=")
		if _, known := matchers[key]; !found || !known {
			return nil, status.Errorf(codes.InvalidArgument, "filter %q: want key=value with a key of %s",
				f, strings.Join(slices.Sorted(maps.Keys(matchers)), ", "))
		}
		if key == "image" {
			if _, err := policy.ParseGlob(value); err != nil {
				return nil, status.Errorf(codes.InvalidArgument, "filter %q: %v", f, err)
			}
		}
		wanted[key] = append(wanted[key], value)
	}
	return func(thing T) bool {
		for key, values := range wanted {
			if !slices.ContainsFunc(values, func(v string) bool { return matchers[key](thing, v) }) {
				return false
			}
		}
		return true
	}, nil
}
