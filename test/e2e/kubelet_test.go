//go:build e2e && kubelet

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/image-custodian/custodian/hack/node"
)

// newKubelet starts a node with a kubelet, and on it image-custodian that takes
// the kubelet's pods as configure says.
func newKubelet(t *testing.T, configure func(k *node.Kubelet) string) (*world, *node.Kubelet) {
	w := newIdleWorld(t, node.Options{}, node.CustodianOptions{Bin: bin, Config: quick})
	k, err := w.StartKubelet(w.ctx, node.KubeletOptions{})
	w.must(err)
	w.must(w.custodian.Configure(quick + configure(k)))
	w.must(w.custodian.Start(w.ctx))
	return w, k
}

// waiting is a pod whose first container never ends, so that the others, and the
// images that they name, are only asked for.
func (w *world) waiting(k *node.Kubelet, first, then, volume string) {
	w.t.Helper()
	w.must(k.PutStaticPod(node.StaticPod{
		Name: "web", Namespace: "shop", ImagePullPolicy: "IfNotPresent",
		InitContainers: []node.ContainerOptions{{Name: "wait", Image: first}},
		Containers:     []node.ContainerOptions{{Name: "main", Image: then, ImageVolumes: map[string]string{"/model": volume}}},
	}))
}

// What a pod asks for stays, although no container uses it, as long as the
// kubelet knows the pod, however it is asked. While it does not answer nothing
// goes.
func TestKubeletPodSpecs(t *testing.T) {
	for name, configure := range map[string]func(k *node.Kubelet) string{
		"socket": func(k *node.Kubelet) string {
			return fmt.Sprintf("[kubelet]\npods = \"auto\"\nsocket = %q\n", k.PodsAPISocket)
		},
		"https": func(k *node.Kubelet) string {
			return fmt.Sprintf("[kubelet]\npods = \"https\"\nurl = %q\n", k.ReadOnlyURL+"/pods")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, k := newKubelet(t, configure)
			first, firstID := w.push("init:1")
			then, thenID := w.push("main:1")
			volume, volumeID := w.push("model:1")
			_, unusedID := w.push("unused:1")
			w.waiting(k, first, then, volume)
			w.reason(firstID, "in-use")
			w.reason(thenID, "pod-spec")
			w.reason(volumeID, "pod-spec")
			w.gone(unusedID, "what no pod asks for")
			w.stays(6*time.Second, "what the pod asks for", func() bool { return w.hasImage(thenID) && w.hasImage(volumeID) })
			stdout, _, _, err := w.custodian.Ctl(w.ctx, "why", then)
			w.must(err)
			if !strings.Contains(stdout, "Stays (pod-spec)") || !strings.Contains(stdout, "pod shop/web-") {
				t.Error(stdout)
			}

			w.must(k.Stop())
			w.must(w.custodian.KillSidecar()) // nor is it asked from memory
			w.must(w.custodian.StartSidecar(w.ctx))
			if name == "socket" { // auto: one that was never heard in this run is none
				w.must(w.custodian.KillSidecar())
				w.must(w.custodian.Configure(quick + strings.Replace(configure(k), "auto", "socket", 1)))
				w.must(w.custodian.StartSidecar(w.ctx))
			}
			w.stays(8*time.Second, "what the pod asks for, while the kubelet is away", func() bool { return w.hasImage(thenID) })
			stdout, _, code, err := w.custodian.Ctl(w.ctx, "status")
			w.must(err)
			if code != 1 || !strings.Contains(stdout, "kubelet: pods of the kubelet") {
				t.Errorf("status: exit %d\n%s", code, stdout)
			}

			k, err = w.StartKubelet(w.ctx, node.KubeletOptions{})
			w.must(err)
			w.must(w.custodian.KillSidecar())
			w.must(w.custodian.Configure(quick + configure(k)))
			w.must(w.custodian.StartSidecar(w.ctx))
			w.must(k.RemoveStaticPod("web"))
			w.gone(thenID, "the image of the pod that is gone")
			w.gone(volumeID, "its image volume")
			w.gone(firstID, "the image of its first container")
		})
	}
}
