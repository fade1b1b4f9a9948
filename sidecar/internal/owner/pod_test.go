package owner

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

func marshal(t testing.TB, p *corev1.Pod) []byte {
	t.Helper()
	data, err := p.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// All that a pod mounts or runs is named once, in order.
func TestImages(t *testing.T) {
	p := aPod("a", corev1.PodPending, "reg/main:1", "reg/main:1")
	p.Spec.InitContainers = []corev1.Container{{Image: "reg/init:1"}}
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Image: "debug"}}}
	p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "reg/model:1"}}}, {}}
	got, err := decodeProto([][]byte{marshal(t, p)})
	want := []policy.PodSpec{spec("a", "debug", "reg/init:1", "reg/main:1", "reg/model:1")}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

func TestOrder(t *testing.T) {
	var list [][]byte
	var want []string
	for _, id := range []string{"a/z/1", "b/a/1", "b/a/2", "b/b/0"} {
		part := strings.Split(id, "/")
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: part[0], Name: part[1], UID: types.UID(part[2])}}
		p.Spec.Containers = []corev1.Container{{Image: "x"}}
		list, want = slices.Insert(list, 0, marshal(t, p)), append(want, id)
	}
	specs, err := decodeProto(list)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range specs {
		got = append(got, s.Pod.Namespace+"/"+s.Pod.Name+"/"+s.Pod.UID)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// One pod that cannot be read spoils the list, and is named.
func TestBadPod(t *testing.T) {
	good := marshal(t, aPod("good", corev1.PodRunning, "x"))
	unnamed, imageless := aPod("", corev1.PodRunning, "x"), aPod("b", corev1.PodRunning)
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"nothing":     {nil, "no name"},
		"cut off":     {good[:len(good)-1], `"ns/good"`},
		"no name":     {marshal(t, unnamed), "no name"},
		"no image":    {marshal(t, imageless), `"ns/b": it names no image`},
		"another one": {[]byte("garbage"), "pod 2 of 2"},
	} {
		list, err := decodeProto([][]byte{good, c.data})
		if list != nil || err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "pod 2 of 2") {
			t.Errorf("%s: %v, %v", name, list, err)
		}
	}
}

// Whatever the kubelet sends, it is read without a panic, and a pod that is read
// says who it is and what it needs.
func FuzzDecode(f *testing.F) {
	p := aPod("a", corev1.PodRunning, "x")
	f.Add(marshal(f, p))
	f.Add(marshal(f, p)[:20])
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	text, err := json.Marshal(p)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(fmt.Appendf(nil, `{"kind":"PodList","items":[%s]}`, text))
	f.Add([]byte(`{"kind":"PodList","items":[null]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		fromSocket, _ := decodeProto([][]byte{data}) // most are no pod
		if len(fromSocket) > 1 {
			t.Errorf("%d pods", len(fromSocket))
		}
		fromHTTPS, _ := decodeJSON(data)
		for _, s := range slices.Concat(fromSocket, fromHTTPS) {
			if s.Pod.Name == "" || s.Pod.UID == "" || len(s.Images) == 0 || !slices.IsSorted(s.Images) {
				t.Errorf("%+v", s)
			}
		}
	})
}

// The numbers of the fields are those of the types of Kubernetes, in both
// encodings, whatever else a pod says.
func TestFieldNumbers(t *testing.T) {
	p := aPod("web", corev1.PodRunning, "main:1")
	p.Labels, p.Spec.NodeName, p.Spec.Priority = map[string]string{"a": "b"}, "n1", new(int32)
	p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "IMAGE", Value: "none:1"}}
	p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "init:1", Command: []string{"x"}}}
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{TargetContainerName: "c", EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e", Image: "debug:1"}}}
	p.Spec.Volumes = []corev1.Volume{
		{Name: "v", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "model:1", PullPolicy: corev1.PullAlways}}},
		{Name: "w", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x"}}},
	}
	p.Status.Message = "none"
	want := []policy.PodSpec{spec("web", "debug:1", "init:1", "main:1", "model:1")}
	got, err := decodeProto([][]byte{marshal(t, p)})
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	text, err := json.Marshal(corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList"}, Items: []corev1.Pod{*p}})
	if err != nil {
		t.Fatal(err)
	}
	got, err = decodeJSON(text)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
}
