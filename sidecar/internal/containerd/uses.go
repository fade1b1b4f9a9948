package containerd

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// Labels by which the kubelet and the CRI mark what they make.
const (
	labelKind         = "io.cri-containerd.kind"
	labelContainer    = "io.kubernetes.container.name"
	labelPodName      = "io.kubernetes.pod.name"
	labelPodNamespace = "io.kubernetes.pod.namespace"
	labelPodUID       = "io.kubernetes.pod.uid"
)

// maxMessage bounds a list of the CRI: thousands of containers with all that
// their authors annotated.
const maxMessage = 64 << 20

// observeUses joins the containers of the CRI, its sandboxes, and the container
// records of every containerd namespace, of which those of the CRI are a part.
// The snapshot of a container says more about its image than a name, which may
// have moved since; while the snapshots are not known, the name is all that a
// use says of its image.
func (c *Client) observeUses(ctx context.Context, images []policy.Image, upon basis) (uses []policy.Use, err, criErr error) {
	index := policy.NewIndex(images)
	platforms := map[policy.Key]string{}
	for _, img := range images {
		platforms[img.Key] = img.Platform
	}
	for _, ns := range c.cfg.Namespaces {
		records, recordsErr := c.client.ContainerService().List(in(ctx, ns))
		if recordsErr != nil {
			err = errors.Join(err, fmt.Errorf("containers of %s: %w", ns, recordsErr))
			continue
		}
		byID, keys := map[string]policy.Use{}, map[string][]policy.Key{}
		for _, record := range records {
			byID[record.ID] = useOf(ns, record)
			keys[record.ID] = upon[snapshot{ns, record.Snapshotter, record.SnapshotKey}]
		}
		if ns == CRINamespace {
			criErr = c.addCRI(ctx, byID)
		}
		if tasksErr := c.addTasks(in(ctx, ns), byID); tasksErr != nil {
			err = errors.Join(err, fmt.Errorf("tasks of %s: %w", ns, tasksErr))
		}
		for _, u := range byID {
			if u.ImageID == "" && upon != nil {
				u.ImageID = rootOf(index.Root(u), keys[u.ContainerID])
			}
			u.Platform = platforms[policy.Key{ContainerdNamespace: ns, ID: u.ImageID}]
			uses = append(uses, u)
		}
	}
	return uses, err, criErr
}

// rootOf chooses a container's image: the one that its name means, if its
// snapshot lies upon that, else one that the snapshot lies upon. Images that only
// differ in their configuration share their snapshots. Without a snapshot the
// name decides.
func rootOf(named, below []policy.Key) string {
	for _, key := range named {
		if len(below) == 0 || slices.Contains(below, key) {
			return key.ID
		}
	}
	if len(below) > 0 {
		return below[0].ID
	}
	return ""
}

// useOf is what a container record says of a use.
func useOf(ns string, record containers.Container) policy.Use {
	u := policy.Use{
		ContainerdNamespace: ns, ContainerID: record.ID, Kind: policy.UseRoot,
		RecordName: record.Image, RuntimeType: canonicalRuntime(record.Runtime.Name), Snapshotter: record.Snapshotter,
		Container: record.Labels[labelContainer], StartedAt: record.CreatedAt,
		Pod: policy.Pod{
			ID: record.SandboxID, Name: record.Labels[labelPodName],
			Namespace: record.Labels[labelPodNamespace], UID: record.Labels[labelPodUID],
		},
	}
	if record.Labels[labelKind] == "sandbox" {
		u.Kind, u.Pod.ID = policy.UseSandbox, record.ID
	}
	if record.Spec != nil {
		u.Volumes = imageVolumes(record.Spec.GetValue())
	}
	return u
}

// volumeDigest finds the digest in the mount source of an image volume.
var volumeDigest = regexp.MustCompile(`/image-volumes/[0-9a-zA-Z_.-]+/([0-9a-f]{64})(?:/|$)`)

// imageVolumes finds the image volumes among the mounts of an OCI spec. A spec
// that cannot be read has none that we could name.
func imageVolumes(spec []byte) []string {
	if !bytes.Contains(spec, []byte("/image-volumes/")) {
		return nil
	}
	var mounts struct {
		Mounts []struct {
			Source string `json:"source"`
		} `json:"mounts"`
	}
	if err := json.Unmarshal(spec, &mounts); err != nil {
		return nil
	}
	var digests []string
	for _, m := range mounts.Mounts {
		if found := volumeDigest.FindStringSubmatch(m.Source); found != nil {
			digests = append(digests, "sha256:"+found[1])
		}
	}
	return digests
}

// addCRI adds what the CRI says of its containers and sandboxes.
func (c *Client) addCRI(ctx context.Context, byID map[string]policy.Use) error {
	limit := grpc.MaxCallRecvMsgSize(maxMessage)
	sandboxes, err := c.runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{}, limit)
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	list, err := c.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{}, limit)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	handlers, err := c.runtimeHandlers(ctx)
	if err != nil {
		return err
	}
	pods := map[string]*runtimeapi.PodSandbox{}
	for _, s := range sandboxes.GetItems() {
		pods[s.GetId()] = s
		u := byID[s.GetId()]
		u.ContainerdNamespace, u.ContainerID, u.Kind = CRINamespace, s.GetId(), policy.UseSandbox
		u.Pod, u.State = podOf(s), policy.StateRunning
		if s.GetState() == runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
			u.State = policy.StateExited
		}
		u.RuntimeHandler, u.RuntimeType = handlers.of(s.GetRuntimeHandler(), u.RuntimeType)
		u.StartedAt = time.Unix(0, s.GetCreatedAt())
		byID[s.GetId()] = u
	}
	for _, container := range list.GetContainers() {
		u := byID[container.GetId()]
		u.ContainerdNamespace, u.ContainerID, u.Kind = CRINamespace, container.GetId(), policy.UseRoot
		u.Container = cmp.Or(container.GetLabels()[labelContainer], container.GetMetadata().GetName())
		u.Pod = policy.Pod{ID: container.GetPodSandboxId()}
		if pod, ok := pods[u.Pod.ID]; ok {
			u.Pod = podOf(pod)
		}
		u.State = criStates[container.GetState()]
		u.ImageID = imageIDOf(container)
		u.UserName = container.GetImage().GetUserSpecifiedImage()
		u.RuntimeHandler, u.RuntimeType = handlers.of(pods[u.Pod.ID].GetRuntimeHandler(), u.RuntimeType)
		u.StartedAt = time.Unix(0, container.GetCreatedAt())
		byID[container.GetId()] = u
	}
	return nil
}

// criStates counts a container of unknown state as running.
var criStates = map[runtimeapi.ContainerState]policy.UseState{
	runtimeapi.ContainerState_CONTAINER_CREATED: policy.StateCreated,
	runtimeapi.ContainerState_CONTAINER_RUNNING: policy.StateRunning,
	runtimeapi.ContainerState_CONTAINER_EXITED:  policy.StateExited,
	runtimeapi.ContainerState_CONTAINER_UNKNOWN: policy.StateRunning,
}

func podOf(s *runtimeapi.PodSandbox) policy.Pod {
	m := s.GetMetadata()
	return policy.Pod{ID: s.GetId(), UID: m.GetUid(), Name: m.GetName(), Namespace: m.GetNamespace()}
}

// imageIDOf is the image ID in either of the fields that have held it.
func imageIDOf(c *runtimeapi.Container) string {
	for _, id := range []string{c.GetImageId(), c.GetImageRef(), c.GetImage().GetImage()} {
		if strings.HasPrefix(id, "sha256:") {
			return id
		}
	}
	return ""
}

// addTasks tells for containers outside the CRI whether they run.
func (c *Client) addTasks(ctx context.Context, byID map[string]policy.Use) error {
	list, err := c.client.TaskService().List(ctx, &tasks.ListTasksRequest{})
	if err != nil {
		return err
	}
	running := map[string]bool{}
	for _, t := range list.GetTasks() {
		running[t.GetID()] = t.GetStatus() != tasktypes.Status_STOPPED && t.GetStatus() != tasktypes.Status_CREATED
	}
	for id, u := range byID {
		if u.State != "" {
			continue
		}
		u.State = policy.StateCreated
		if running[id] {
			u.State = policy.StateRunning
		}
		byID[id] = u
	}
	return nil
}
