package node

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"sigs.k8s.io/yaml"
)

// StaticPod describes a pod of the kubelet. The kubelet appends "-" and the
// node's Name to its name, and pulls its images.
type StaticPod struct {
	Name            string
	Namespace       string // "" is "default"
	Labels          map[string]string
	Annotations     map[string]string
	InitContainers  []ContainerOptions
	Containers      []ContainerOptions // more than one need names
	ImagePullPolicy string             // of images and image volumes; "" is Kubernetes' choice by tag
	RestartPolicy   string             // "" is Always
	HostNetwork     bool
}

// PutStaticPod gives the kubelet a pod, or a new version of one.
func (k *Kubelet) PutStaticPod(p StaticPod) error {
	manifest, err := p.manifest()
	if err != nil {
		return fmt.Errorf("static pod %q: %w", p.Name, err)
	}
	return k.PutManifest(p.Name, manifest)
}

// PutManifest gives the kubelet the YAML of any one pod, for RemoveStaticPod
// under the given name.
func (k *Kubelet) PutManifest(name string, manifest []byte) error {
	// A name with a dot is overlooked: the kubelet sees whole files only.
	part := filepath.Join(k.StaticPodDir, "."+name)
	err := os.WriteFile(part, manifest, 0o644)
	if err == nil {
		err = os.Rename(part, k.manifestFile(name))
	}
	return wrap("static pod", name, err)
}

// RemoveStaticPod takes a pod away from the kubelet, which then stops and
// removes it. One that is not there is no error.
func (k *Kubelet) RemoveStaticPod(name string) error {
	err := os.Remove(k.manifestFile(name))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return wrap("static pod", name, err)
}

func (k *Kubelet) manifestFile(name string) string {
	return filepath.Join(k.StaticPodDir, name+".yaml")
}

func (p StaticPod) manifest() ([]byte, error) {
	var volumes []any
	initContainers := p.containers(p.InitContainers, &volumes)
	containers := p.containers(p.Containers, &volumes)
	return yaml.Marshal(map[string]any{
		"apiVersion": "v1",
		"kind":       "Pod",
		"metadata": map[string]any{
			"name": p.Name, "namespace": cmp.Or(p.Namespace, "default"), "labels": p.Labels, "annotations": p.Annotations,
		},
		"spec": map[string]any{
			"initContainers": initContainers, "containers": containers, "volumes": volumes,
			"restartPolicy": p.RestartPolicy, "hostNetwork": p.HostNetwork,
			// Tests do not wait for half a minute.
			"terminationGracePeriodSeconds": 1,
		},
	})
}

// containers adds what they mount to volumes, under the next free names.
func (p StaticPod) containers(all []ContainerOptions, volumes *[]any) (rendered []any) {
	for _, c := range all {
		var mounts []any
		for _, path := range slices.Sorted(maps.Keys(c.ImageVolumes)) {
			name := fmt.Sprintf("image-%d", len(*volumes))
			*volumes = append(*volumes, map[string]any{
				"name": name, "image": map[string]any{"reference": c.ImageVolumes[path], "pullPolicy": p.ImagePullPolicy},
			})
			mounts = append(mounts, map[string]any{"name": name, "mountPath": path})
		}
		rendered = append(rendered, map[string]any{
			"name": cmp.Or(c.Name, "main"), "image": c.Image, "imagePullPolicy": p.ImagePullPolicy,
			"command": c.Command, "volumeMounts": mounts,
		})
	}
	return rendered
}
