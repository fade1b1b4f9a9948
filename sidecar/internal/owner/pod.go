package owner

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// decodeAll reads the pods of a list. One that cannot be read may need any
// image, so the list is worth nothing then.
func decodeAll(list [][]byte) ([]policy.PodSpec, error) {
	pods := make([]corev1.Pod, len(list))
	for i, data := range list {
		if err := pods[i].Unmarshal(data); err != nil {
			return nil, fmt.Errorf("pod %d of %d: %w", i+1, len(list), err)
		}
	}
	return specs(pods), nil
}

// specs are the pods that have not ended. A pod that is being deleted has not.
func specs(pods []corev1.Pod) []policy.PodSpec {
	var list []policy.PodSpec
	for i := range pods {
		if phase := pods[i].Status.Phase; phase != corev1.PodSucceeded && phase != corev1.PodFailed {
			list = append(list, specOf(&pods[i]))
		}
	}
	slices.SortFunc(list, func(a, b policy.PodSpec) int {
		return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name), cmp.Compare(a.Pod.UID, b.Pod.UID))
	})
	return list
}

func specOf(pod *corev1.Pod) policy.PodSpec {
	spec := policy.PodSpec{Pod: policy.Pod{UID: string(pod.UID), Name: pod.Name, Namespace: pod.Namespace}}
	add := func(image string) {
		if image != "" {
			spec.Images = append(spec.Images, image)
		}
	}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			add(containers[i].Image)
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		add(pod.Spec.EphemeralContainers[i].Image)
	}
	for i := range pod.Spec.Volumes {
		if volume := pod.Spec.Volumes[i].Image; volume != nil {
			add(volume.Reference)
		}
	}
	slices.Sort(spec.Images)
	spec.Images = slices.Compact(spec.Images)
	return spec
}
