package node

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// PodOptions describe a pod sandbox; the zero value is a pod of its own.
type PodOptions struct {
	Name           string // "" is a new one
	Namespace      string // "" is "default"
	UID            string // "" is a new one
	Labels         map[string]string
	Annotations    map[string]string
	RuntimeHandler string // "" is the default; else one of RuntimeHandlers
}

// ContainerOptions describe a container of a pod.
type ContainerOptions struct {
	Name  string // "" is "main"
	Image string // a reference or image ID that has been pulled; Run pulls it
	// Command replaces the one of the image.
	Command []string
	// ImageVolumes: mount path in the container to image, pulled as Image is.
	ImageVolumes map[string]string
}

// Pull pulls ref as the kubelet would, always asking the registry.
func (n *Node) Pull(ctx context.Context, ref string) (imageID string, err error) {
	reply, err := n.Images().PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
	if err != nil {
		return "", fmt.Errorf("pull %q: %w", ref, err)
	}
	return reply.GetImageRef(), nil
}

// imageID is "" for an image that the node does not have.
func (n *Node) imageID(ctx context.Context, ref string) (string, error) {
	reply, err := n.Images().ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
	if err != nil {
		return "", fmt.Errorf("image %q: %w", ref, err)
	}
	return reply.GetImage().GetId(), nil
}

// RunPod creates and starts a pod sandbox, with the labels that the kubelet
// would give it.
func (n *Node) RunPod(ctx context.Context, o PodOptions) (podID string, err error) {
	unique := strings.ToLower(rand.Text())
	meta := &runtimeapi.PodSandboxMetadata{
		Name:      cmp.Or(o.Name, "pod-"+unique[:8]),
		Namespace: cmp.Or(o.Namespace, "default"),
		Uid:       cmp.Or(o.UID, unique),
	}
	labels := map[string]string{
		"io.kubernetes.pod.name":      meta.Name,
		"io.kubernetes.pod.namespace": meta.Namespace,
		"io.kubernetes.pod.uid":       meta.Uid,
	}
	for key, value := range o.Labels {
		labels[key] = value
	}
	config := &runtimeapi.PodSandboxConfig{
		Metadata:     meta,
		Labels:       labels,
		Annotations:  o.Annotations,
		LogDirectory: filepath.Join(n.Dir, "logs", meta.Namespace+"_"+meta.Name+"_"+meta.Uid),
		Linux:        &runtimeapi.LinuxPodSandboxConfig{CgroupParent: n.CgroupParent},
	}
	reply, err := n.Runtime().RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: o.RuntimeHandler})
	if err != nil {
		return "", fmt.Errorf("pod %q: %w", meta.Name, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pods[reply.GetPodSandboxId()] = config
	return reply.GetPodSandboxId(), nil
}

// CreateContainer creates a container in a pod of RunPod. Like the kubelet it
// hands the runtime image IDs, and the given references as what the user
// wrote.
func (n *Node) CreateContainer(ctx context.Context, podID string, o ContainerOptions) (containerID string, err error) {
	n.mu.Lock()
	pod := n.pods[podID]
	n.mu.Unlock()
	if pod == nil {
		return "", fmt.Errorf("pod %q: not one of RunPod", podID)
	}
	name := cmp.Or(o.Name, "main")
	image, err := n.imageSpec(ctx, o.Image)
	if err != nil {
		return "", fmt.Errorf("container %q: %w", name, err)
	}
	config := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name},
		Image:    image,
		Command:  o.Command,
		LogPath:  name + "_0.log",
		Labels: map[string]string{
			"io.kubernetes.container.name": name,
			"io.kubernetes.pod.name":       pod.GetMetadata().GetName(),
			"io.kubernetes.pod.namespace":  pod.GetMetadata().GetNamespace(),
			"io.kubernetes.pod.uid":        pod.GetMetadata().GetUid(),
		},
		Linux: &runtimeapi.LinuxContainerConfig{},
	}
	for path, ref := range o.ImageVolumes {
		spec, err := n.imageSpec(ctx, ref)
		if err != nil {
			return "", fmt.Errorf("container %q: image volume %s: %w", name, path, err)
		}
		config.Mounts = append(config.Mounts, &runtimeapi.Mount{ContainerPath: path, Image: spec, Readonly: true})
	}
	reply, err := n.Runtime().CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: podID, Config: config, SandboxConfig: pod,
	})
	if err != nil {
		return "", fmt.Errorf("container %q: %w", name, err)
	}
	return reply.GetContainerId(), nil
}

// imageSpec names an image that is not there by its reference, so that the
// runtime gives the answer.
func (n *Node) imageSpec(ctx context.Context, ref string) (*runtimeapi.ImageSpec, error) {
	id, err := n.imageID(ctx, ref)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ImageSpec{Image: cmp.Or(id, ref), UserSpecifiedImage: ref}, nil
}

// StartContainer starts a created container.
func (n *Node) StartContainer(ctx context.Context, id string) error {
	_, err := n.Runtime().StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
	return wrap("container", id, err)
}

// StopContainer sends the stop signal, and SIGKILL after timeout (whole
// seconds; 0 kills at once).
func (n *Node) StopContainer(ctx context.Context, id string, timeout time.Duration) error {
	_, err := n.Runtime().StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: int64(timeout / time.Second)})
	return wrap("container", id, err)
}

// RemoveContainer removes a container, by force if it runs.
func (n *Node) RemoveContainer(ctx context.Context, id string) error {
	_, err := n.Runtime().RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
	return wrap("container", id, err)
}

// StopPod kills the containers of a pod and takes its network down.
func (n *Node) StopPod(ctx context.Context, id string) error {
	_, err := n.Runtime().StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	return wrap("pod", id, err)
}

// RemovePod removes a stopped pod and its containers.
func (n *Node) RemovePod(ctx context.Context, id string) error {
	_, err := n.Runtime().RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	return wrap("pod", id, err)
}

// Run brings up a pod with one started container, and pulls what is missing.
// When it fails, what it made so far stays until Stop; pod and container say
// what that is.
func (n *Node) Run(ctx context.Context, p PodOptions, c ContainerOptions) (pod, container string, err error) {
	refs := []string{c.Image}
	for _, ref := range c.ImageVolumes {
		refs = append(refs, ref)
	}
	for _, ref := range refs {
		id, err := n.imageID(ctx, ref)
		if err == nil && id == "" {
			_, err = n.Pull(ctx, ref)
		}
		if err != nil {
			return "", "", err
		}
	}
	if pod, err = n.RunPod(ctx, p); err != nil {
		return "", "", err
	}
	if container, err = n.CreateContainer(ctx, pod, c); err != nil {
		return pod, "", err
	}
	return pod, container, n.StartContainer(ctx, container)
}

func wrap(noun, id string, err error) error {
	if err != nil {
		return fmt.Errorf("%s %q: %w", noun, id, err)
	}
	return nil
}
