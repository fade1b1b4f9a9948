package node

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestKubeletProgram(t *testing.T) {
	t.Parallel()
	p, err := kubeletProgram(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(p.version, "v1.") || !strings.Contains(p.ldflags, p.version) {
		t.Errorf("kubelet %q, built with %q", p.version, p.ldflags)
	}
	if args := strings.Join(p.installArgs(), " "); strings.Contains(args, "@") {
		t.Errorf("go %s: installed past the module that pins it", args)
	}
}

func TestKubeletConfig(t *testing.T) {
	t.Parallel()
	k := newNode("icn-1", "/tmp/icn-1").newKubelet()
	config := func(o KubeletOptions) map[string]any {
		t.Helper()
		text, err := k.config(o, 1, 2)
		if err != nil {
			t.Fatal(err)
		}
		var c map[string]any
		if err := yaml.Unmarshal(text, &c); err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := config(KubeletOptions{Config: "maxPods: 7\nauthorization: {webhook: {cacheAuthorizedTTL: 1s}}"})
	want := map[string]any{
		"staticPodPath": "/tmp/icn-1/pods", "cgroupRoot": "/icn-1", "readOnlyPort": 1.0, "port": 2.0,
		"imageGCHighThresholdPercent": 100.0, "imageGCLowThresholdPercent": 99.0, "maxPods": 7.0,
	}
	for key, value := range want {
		if c[key] != value {
			t.Errorf("%s = %v, want %v", key, c[key], value)
		}
	}
	if a, _ := c["authorization"].(map[string]any); a["mode"] != "AlwaysAllow" || a["webhook"] == nil {
		t.Errorf("authorization = %v, want the node's and the caller's settings", a)
	}
	c = config(KubeletOptions{ImageGCHighPercent: 2, ImageGCLowPercent: 1})
	if c["imageGCHighThresholdPercent"] != 2.0 || c["imageGCLowThresholdPercent"] != 1.0 {
		t.Errorf("image GC from %v to %v", c["imageGCHighThresholdPercent"], c["imageGCLowThresholdPercent"])
	}
	full, _ := config(KubeletOptions{DiskPressure: true})["evictionHard"].(map[string]any)
	if never, ok := c["evictionHard"].(map[string]any); !ok || len(never) != 0 || len(full) != 2 {
		t.Errorf("evictionHard = %v, under pressure %v", c["evictionHard"], full)
	}
	if _, err := k.config(KubeletOptions{Config: "maxPods: ["}, 1, 2); err == nil {
		t.Error("faulty YAML of the caller was accepted")
	}
}

func TestStaticPodManifest(t *testing.T) {
	t.Parallel()
	text, err := StaticPod{
		Name: "web", ImagePullPolicy: "Never",
		InitContainers: []ContainerOptions{{Name: "init", Image: "a", ImageVolumes: map[string]string{"/v": "v"}}},
		Containers:     []ContainerOptions{{Image: "b", Command: []string{"c"}, ImageVolumes: map[string]string{"/w": "w"}}},
	}.manifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"name: web", "namespace: default", "name: main", "imagePullPolicy: Never", "pullPolicy: Never", "- c\n",
		"reference: v", "name: image-0", "mountPath: /v", "reference: w", "name: image-1", "mountPath: /w",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the manifest lacks %q:\n%s", want, text)
		}
	}
}
