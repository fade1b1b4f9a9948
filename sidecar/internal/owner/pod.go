package owner

import (
	"cmp"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// A pod is read here field by field, and not by the types of k8s.io/api: these
// would be a tenth of the sidecar's memory on a node, for six fields. The numbers
// are those of k8s.io/api/core/v1/generated.proto and of apimachinery's
// ObjectMeta, which never change; a test holds them against those types.
const (
	podMetadata, podSpec, podStatus              = 1, 2, 3
	metaName, metaNamespace, metaUID             = 1, 3, 5
	specVolumes, specContainers                  = 1, 2
	specInitContainers, specEphemeralContainers  = 20, 34
	containerImage, ephemeralCommon              = 2, 1
	volumeSource, sourceImage, imageVolReference = 2, 30, 1
	statusPhase                                  = 1
)

// pod is what is read of one.
type pod struct {
	spec  policy.PodSpec
	phase string
}

// decodeAll reads the pods of a list. One that cannot be read may need any
// image, so the list is worth nothing then.
func decodeAll(list [][]byte) ([]policy.PodSpec, error) {
	pods := make([]pod, len(list))
	for i, data := range list {
		if err := pods[i].decode(data); err != nil {
			return nil, fmt.Errorf("pod %d of %d: %w", i+1, len(list), err)
		}
	}
	return specs(pods), nil
}

func (p *pod) decode(data []byte) error {
	image := p.addText(containerImage)
	meta := func(n protowire.Number, value []byte) error {
		switch n {
		case metaName:
			p.spec.Pod.Name = string(value)
		case metaNamespace:
			p.spec.Pod.Namespace = string(value)
		case metaUID:
			p.spec.Pod.UID = string(value)
		}
		return nil
	}
	status := func(n protowire.Number, value []byte) error {
		if n == statusPhase {
			p.phase = string(value)
		}
		return nil
	}
	spec := func(n protowire.Number, value []byte) error {
		switch n {
		case specContainers, specInitContainers:
			return fields(value, image)
		case specEphemeralContainers:
			return fields(value, within(ephemeralCommon, image))
		case specVolumes:
			return fields(value, within(volumeSource, within(sourceImage, p.addText(imageVolReference))))
		}
		return nil
	}
	return fields(data, func(n protowire.Number, value []byte) error {
		switch n {
		case podMetadata:
			return fields(value, meta)
		case podSpec:
			return fields(value, spec)
		case podStatus:
			return fields(value, status)
		}
		return nil
	})
}

// addText adds what a field holds to the images of the pod.
func (p *pod) addText(field protowire.Number) visitor {
	return func(n protowire.Number, value []byte) error {
		if n == field && len(value) > 0 {
			p.spec.Images = append(p.spec.Images, string(value))
		}
		return nil
	}
}

// visitor is told of a field that holds text, bytes or a message.
type visitor func(n protowire.Number, value []byte) error

// within visits the fields of one field.
func within(field protowire.Number, visit visitor) visitor {
	return func(n protowire.Number, value []byte) error {
		if n != field {
			return nil
		}
		return fields(value, visit)
	}
}

func fields(data []byte, visit visitor) error {
	for len(data) > 0 {
		n, kind, size := protowire.ConsumeTag(data)
		if size < 0 {
			return protowire.ParseError(size)
		}
		data = data[size:]
		if kind != protowire.BytesType {
			if size = protowire.ConsumeFieldValue(n, kind, data); size < 0 {
				return protowire.ParseError(size)
			}
			data = data[size:]
			continue
		}
		value, size := protowire.ConsumeBytes(data)
		if size < 0 {
			return protowire.ParseError(size)
		}
		data = data[size:]
		if err := visit(n, value); err != nil {
			return err
		}
	}
	return nil
}

// specs are the pods that have not ended. A pod that is being deleted has not.
func specs(pods []pod) []policy.PodSpec {
	var list []policy.PodSpec
	for _, p := range pods {
		if p.phase == "Succeeded" || p.phase == "Failed" {
			continue
		}
		slices.Sort(p.spec.Images)
		p.spec.Images = slices.Compact(p.spec.Images)
		list = append(list, p.spec)
	}
	slices.SortFunc(list, func(a, b policy.PodSpec) int {
		return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name), cmp.Compare(a.Pod.UID, b.Pod.UID))
	})
	return list
}

// podJSON is the same of /pods.
type podJSON struct {
	Metadata struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
		UID       string `json:"uid"`
	} `json:"metadata"`
	Spec struct {
		InitContainers      []containerJSON `json:"initContainers"`
		Containers          []containerJSON `json:"containers"`
		EphemeralContainers []containerJSON `json:"ephemeralContainers"`
		Volumes             []struct {
			Image struct {
				Reference string `json:"reference"`
			} `json:"image"`
		} `json:"volumes"`
	} `json:"spec"`
	Status struct {
		Phase string `json:"phase"`
	} `json:"status"`
}

type containerJSON struct {
	Image string `json:"image"`
}

func (j *podJSON) pod() pod {
	p := pod{phase: j.Status.Phase}
	p.spec.Pod = policy.Pod{UID: j.Metadata.UID, Name: j.Metadata.Name, Namespace: j.Metadata.Namespace}
	for _, c := range slices.Concat(j.Spec.InitContainers, j.Spec.Containers, j.Spec.EphemeralContainers) {
		if c.Image != "" {
			p.spec.Images = append(p.spec.Images, c.Image)
		}
	}
	for _, v := range j.Spec.Volumes {
		if v.Image.Reference != "" {
			p.spec.Images = append(p.spec.Images, v.Image.Reference)
		}
	}
	return p
}
