package owner

import (
	"cmp"
	"encoding/json"
	"errors"
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

// decodeProto reads what the Pods API lists: each a v1.Pod.
func decodeProto(list [][]byte) ([]policy.PodSpec, error) {
	return decodeList(list, (*pod).decode)
}

// decodeJSON reads what /pods answers: a v1.PodList.
func decodeJSON(data []byte) ([]policy.PodSpec, error) {
	var list struct {
		Kind  string            `json:"kind"`
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("no list of pods: %w", err)
	}
	if list.Kind != "PodList" {
		return nil, fmt.Errorf("no list of pods, but of kind %.40q", list.Kind)
	}
	return decodeList(list.Items, (*pod).decodeJSON)
}

// decodeList reads the pods that have not ended. One that cannot be read may
// need any image, so the list is worth nothing then.
func decodeList[B ~[]byte](list []B, decode func(*pod, B) error) ([]policy.PodSpec, error) {
	var specs []policy.PodSpec
	for i, data := range list {
		var p pod
		err := decode(&p, data)
		if err == nil {
			err = p.check()
		}
		if err != nil {
			return nil, fmt.Errorf("pod %d of %d, %.300q: %w", i+1, len(list), p.spec.Pod.Namespace+"/"+p.spec.Pod.Name, err)
		}
		if p.phase == "Succeeded" || p.phase == "Failed" {
			continue // one that is being deleted has not ended
		}
		slices.Sort(p.spec.Images)
		p.spec.Images = slices.Compact(p.spec.Images)
		specs = append(specs, p.spec)
	}
	slices.SortFunc(specs, func(a, b policy.PodSpec) int {
		return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name), cmp.Compare(a.Pod.UID, b.Pod.UID))
	})
	return specs, nil
}

// check holds a pod to what each pod of a kubelet has. One that lacks it was
// read in another form than it was written in.
func (p *pod) check() error {
	switch {
	case p.spec.Pod.Name == "", p.spec.Pod.UID == "":
		return errors.New("it has no name or no UID")
	case len(p.spec.Images) == 0:
		return errors.New("it names no image")
	}
	return nil
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

// podJSON is the same of /pods.
type podJSON struct {
	Metadata metaJSON `json:"metadata"`
	Spec     specJSON `json:"spec"`
	Status   struct {
		Phase string `json:"phase"`
	} `json:"status"`
}

type metaJSON struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	UID       string `json:"uid"`
}

type specJSON struct {
	InitContainers      []containerJSON `json:"initContainers"`
	Containers          []containerJSON `json:"containers"`
	EphemeralContainers []containerJSON `json:"ephemeralContainers"`
	Volumes             []volumeJSON    `json:"volumes"`
}

type containerJSON struct {
	Image string `json:"image"`
}

type volumeJSON struct {
	Image struct {
		Reference string `json:"reference"`
	} `json:"image"`
}

func (p *pod) decodeJSON(data json.RawMessage) error {
	var j podJSON
	err := json.Unmarshal(data, &j) // what could be read names the pod
	p.phase = j.Status.Phase
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
	return err
}
