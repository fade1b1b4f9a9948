package main

import (
	"strings"
	"unicode/utf8"

	"github.com/containerd/nri/pkg/api"

	"github.com/image-custodian/custodian/api/v1/node"
)

// What is forwarded is a fixed set of bounded fields: the author of a pod
// chooses many of them, and can make none of them large.
const (
	maxString  = 1024
	maxVolumes = 64
)

// annotationImageName holds the image as the pod's author wrote it.
const annotationImageName = "io.kubernetes.cri.image-name"

// labelRuntimeType is what containerd tells of a sandbox's runtime.
const labelRuntimeType = "oci_runtime_type"

func podOf(p *api.PodSandbox) *node.Pod {
	return &node.Pod{
		Id: bounded(p.GetId()), Uid: bounded(p.GetUid()),
		Name: bounded(p.GetName()), Namespace: bounded(p.GetNamespace()),
	}
}

func useOf(p *api.PodSandbox, c *api.Container, now int64) *node.Use {
	img := c.GetImage() // absent up to containerd 2.3
	use := &node.Use{
		ContainerId: bounded(c.GetId()), ContainerName: bounded(c.GetName()), Pod: podOf(p),
		Image: &node.Image{
			UserName: bounded(c.GetAnnotations()[annotationImageName]),
			Name:     bounded(img.GetName()), Digest: bounded(img.GetDigest()), Id: bounded(img.GetConfigDigest()),
		},
		RuntimeHandler: bounded(p.GetRuntimeHandler()),
		RuntimeType:    canonicalRuntime(bounded(p.GetLabels()[labelRuntimeType])),
		State:          stateOf(c.GetState()), SeenBoottime: now,
	}
	if use.GetPod().GetId() == "" {
		use.Pod.Id = bounded(c.GetPodSandboxId())
	}
	for _, m := range c.GetMounts() {
		if len(use.ImageVolumes) < maxVolumes && isImageVolume(m.GetSource(), c.GetPodSandboxId()) {
			use.ImageVolumes = append(use.ImageVolumes, bounded(m.GetSource()))
		}
	}
	return use
}

// isImageVolume tells the mounts that the runtime made of images,
// <state>/image-volumes/<sandbox>/<hex of the digest>[/subpath], from those of
// a pod's author who likes the name: they must not use up the room.
func isImageVolume(source, sandbox string) bool {
	_, rest, found := strings.Cut(source, "/image-volumes/"+sandbox+"/")
	digest, _, _ := strings.Cut(rest, "/")
	return found && sandbox != "" && len(digest) == 64 && strings.Trim(digest, "0123456789abcdef") == ""
}

func stateOf(s api.ContainerState) node.UseState {
	switch s {
	case api.ContainerState_CONTAINER_RUNNING, api.ContainerState_CONTAINER_PAUSED:
		return node.UseState_USE_STATE_RUNNING
	case api.ContainerState_CONTAINER_STOPPED:
		return node.UseState_USE_STATE_EXITED
	default:
		return node.UseState_USE_STATE_CREATED
	}
}

// legacyRunc are the names under which runc has been known.
var legacyRunc = map[string]bool{
	"io.containerd.runtime.v1.linux": true,
	"io.containerd.runc.v1":          true,
	"runc":                           true,
}

func canonicalRuntime(name string) string {
	if legacyRunc[name] {
		return "io.containerd.runc.v2"
	}
	return name
}

// bounded makes a string valid UTF-8, as protobuf wants it, of limited size.
func bounded(s string) string {
	if len(s) > maxString {
		s = s[:maxString]
	}
	if utf8.ValidString(s) {
		return s
	}
	return strings.ToValidUTF8(s, "")
}
