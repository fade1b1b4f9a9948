//go:build e2e && kubelet

package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// TestKubelet holds the promises of StartKubelet on two nodes side by side:
// static pods run, are told of, outlive their kubelet and go; and the machine
// is afterwards as it was.
func TestKubelet(t *testing.T) {
	before := outside(t)
	nodes := make([]*Node, 2)
	for i := range nodes {
		nodes[i] = startNode(t)
	}
	var g errgroup.Group
	for i, n := range nodes {
		g.Go(func() error { return exerciseKubelet(t, n, i == 1) })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	wantOutside(t, "while the kubelets run", before)
	for _, n := range nodes {
		began := time.Now()
		if err := n.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		t.Logf("%s stopped in %v", n.Name, time.Since(began))
		if exists(n.Dir) {
			t.Errorf("node %s: Stop left its directory and did not say so", n.Name)
		}
	}
	wantOutside(t, "when the nodes are gone", before)
}

// startNode gives a node whose end is part of the test.
func startNode(t *testing.T) *Node {
	t.Helper()
	n, err := Start(t.Context(), Options{Log: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return n
}

func exerciseKubelet(t *testing.T, n *Node, kill bool) (err error) {
	ctx := t.Context()
	app, err := n.PushImage(ctx, "team/app:v1", ImageOptions{Layers: 1})
	if err != nil {
		return err
	}
	data, err := n.PushImage(ctx, "data:v1", ImageOptions{Layers: 1})
	if err != nil {
		return err
	}
	began := time.Now()
	k, err := n.StartKubelet(ctx, KubeletOptions{})
	if err != nil {
		return err
	}
	t.Logf("kubelet started in %v", time.Since(began))
	defer func() { // before the node goes
		if err != nil {
			err = fmt.Errorf("%w; the log of the kubelet of %s ends with\n%s", err, n.Name, tail(k.Log))
		}
	}()
	if _, err := n.StartKubelet(ctx, KubeletOptions{}); err == nil {
		t.Error("a second kubelet was started")
	}

	began = time.Now()
	if err := k.PutStaticPod(StaticPod{
		Name: "web", Namespace: "shop", Labels: map[string]string{"app": "web"},
		InitContainers: []ContainerOptions{{Name: "init", Image: app, Command: []string{"/bin/true"}}},
		Containers:     []ContainerOptions{{Image: app, ImageVolumes: map[string]string{"/data": data}}},
	}); err != nil {
		return err
	}
	if err := putScratch(k, app); err != nil {
		return err
	}
	web, scratch := "web-"+n.Name, "scratch-"+n.Name
	if err := awaitContainers(ctx, n, scratch, web); err != nil {
		return err
	}
	t.Logf("two pods ran in %v", time.Since(began))
	containers, err := mainContainers(ctx, n)
	if err != nil {
		return err
	}
	for pod, look := range map[string][]string{
		web:     {"ls", "/data/layer-0"},
		scratch: {"/bin/busybox", "grep", "/scratch tmpfs", "/proc/mounts"},
	} {
		out, err := n.Command(ctx, "crictl", append([]string{"exec", containers[pod]}, look...)...).CombinedOutput()
		if err != nil {
			t.Errorf("the volume of %s: %v\n%s", pod, err, out)
		}
	}
	if err := askKubelet(ctx, k, web, scratch); err != nil {
		return err
	}

	end := k.Stop
	if kill {
		end = k.Kill
	}
	if err := end(); err != nil {
		return err
	}
	if err := k.RemoveStaticPod("web"); err != nil {
		return err
	}
	if err := awaitContainers(ctx, n, scratch, web); err != nil {
		return fmt.Errorf("without a kubelet: %w", err)
	}
	began = time.Now()
	if k, err = n.StartKubelet(ctx, KubeletOptions{Config: "maxPods: 7"}); err != nil {
		return err
	}
	if err := awaitContainers(ctx, n, scratch); err != nil {
		return err
	}
	if err := awaitPods(ctx, k, scratch); err != nil {
		return err
	}
	t.Logf("a new kubelet removed %s in %v", web, time.Since(began))
	return nil
}

// putScratch gives the kubelet a pod with a volume that the kubelet itself
// mounts, and leaves mounted when it ends.
func putScratch(k *Kubelet, image string) error {
	return k.PutManifest("scratch", fmt.Appendf(nil, `
apiVersion: v1
kind: Pod
metadata: {name: scratch, namespace: shop}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: %q, volumeMounts: [{name: scratch, mountPath: /scratch}]}
  volumes: [{name: scratch, emptyDir: {medium: Memory}}]
`, image))
}

// TestKubeletOwnerKilled wants a sweep to find what a dead owner, and with it
// its kubelet, left.
func TestKubeletOwnerKilled(t *testing.T) {
	before := outside(t)
	testOwnerKilled(t, "kubelet")
	wantOutside(t, "after the sweep", before)
}

func init() {
	owners["kubelet"] = func(ctx context.Context, n *Node) error {
		k, err := n.StartKubelet(ctx, KubeletOptions{})
		if err != nil {
			return err
		}
		return errors.Join(putScratch(k, n.Pause), awaitContainers(ctx, n, "scratch-"+n.Name))
	}
}

// TestKubeletImageGC wants the kubelet to remove images when it is told to, and
// only then.
func TestKubeletImageGC(t *testing.T) {
	ctx := t.Context()
	n := startNode(t)
	unused, err := n.PushImage(ctx, "unused:v1", ImageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Pull(ctx, unused); err != nil {
		t.Fatal(err)
	}
	k, err := n.StartKubelet(ctx, KubeletOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(putScratch(k, n.Pause), awaitContainers(ctx, n, "scratch-"+n.Name), k.Stop()); err != nil {
		t.Fatal(err)
	}
	if id, err := n.imageID(ctx, unused); err != nil || id == "" {
		t.Errorf("without image GC: image %q, %v", id, err)
	}
	if _, err := n.StartKubelet(ctx, KubeletOptions{DiskPressure: true}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	err = await(ctx, 30*time.Second, func() error {
		id, err := n.imageID(ctx, unused)
		if err == nil && id != "" {
			err = fmt.Errorf("%s is still there", unused)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if err := awaitContainers(ctx, n, "scratch-"+n.Name); err != nil {
		t.Errorf("a static pod under disk pressure: %v", err)
	}
	t.Logf("removed after %v", time.Since(began))
}

// awaitContainers waits until the main containers of the given pods run, and
// no others.
func awaitContainers(ctx context.Context, n *Node, pods ...string) error {
	return await(ctx, 30*time.Second, func() error {
		containers, err := mainContainers(ctx, n)
		running := slices.Sorted(maps.Keys(containers))
		if err == nil && !slices.Equal(running, pods) {
			err = fmt.Errorf("containers of %q run, want %q", running, pods)
		}
		return err
	})
}

// mainContainers are those that run, by the name of their pod.
func mainContainers(ctx context.Context, n *Node) (map[string]string, error) {
	reply, err := n.Runtime().ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		State:         &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		LabelSelector: map[string]string{"io.kubernetes.container.name": "main"},
	}})
	found := map[string]string{}
	for _, c := range reply.GetContainers() {
		found[c.GetLabels()["io.kubernetes.pod.name"]] = c.GetId()
	}
	return found, err
}

// awaitPods waits until the Pods API tells of the given pods alone.
func awaitPods(ctx context.Context, k *Kubelet, want ...string) error {
	conn, err := grpc.NewClient("unix://"+k.PodsAPISocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	return await(ctx, 30*time.Second, func() error {
		reply, err := podsapi.NewPodsClient(conn).ListPods(ctx, &podsapi.ListPodsRequest{})
		if err != nil {
			return err
		}
		var names []string
		for _, data := range reply.GetPods() {
			var pod corev1.Pod
			if err := pod.Unmarshal(data); err != nil {
				return err
			}
			names = append(names, pod.Name)
		}
		slices.Sort(names)
		if !slices.Equal(names, want) {
			return fmt.Errorf("the Pods API tells of %q, want %q", names, want)
		}
		return nil
	})
}

// askKubelet wants both pods from each of the kubelet's ways to ask.
func askKubelet(ctx context.Context, k *Kubelet, web, scratch string) error {
	if err := awaitPods(ctx, k, scratch, web); err != nil {
		return err
	}
	if len(k.PodsAPISocket) > 107 {
		return fmt.Errorf("%s is too long for a socket", k.PodsAPISocket)
	}
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // it signs for itself
	}}
	for _, url := range []string{k.ReadOnlyURL, k.HTTPSURL} {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/pods", nil)
		if err != nil {
			return err
		}
		reply, err := client.Do(request)
		if err != nil {
			return err
		}
		text, err := io.ReadAll(reply.Body)
		if err := errors.Join(err, reply.Body.Close()); err != nil {
			return err
		}
		for _, pod := range []string{web, scratch} {
			if !strings.Contains(string(text), `"name":"`+pod+`"`) {
				return fmt.Errorf("%s/pods: %s does not tell of %s: %.500s", url, reply.Status, pod, text)
			}
		}
	}
	return nil
}
