package main

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/image-custodian/custodian/api/v1/control"
)

const gib = 1 << 30

func ago(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(-d)) }

func digest(hex string) string { return "sha256:" + hex + strings.Repeat("0", 64-len(hex)) }

const day = 24 * time.Hour

func goodStatus() *control.StatusResponse {
	return &control.StatusResponse{
		Node: "edge-0417", Version: "0.1.0", Runtime: "containerd", RuntimeVersion: "2.4.2", StartedAt: ago(12 * day),
		DiskPath: "/var/lib/containerd", DiskSizeBytes: 200 * gib, DiskUsedBytes: 142.25 * gib,
		CleanMode: "auto", ContainerdNamespaces: []string{"k8s.io"},
		InUse:  &control.Tally{Images: 131, Bytes: 61 * gib},
		Kept:   &control.Tally{Images: 22, Bytes: 9 * gib},
		Unused: &control.Tally{Images: 58, Bytes: 15 * gib},
		Next:   &control.Tally{Images: 2, Bytes: gib}, NextAt: ago(-3*time.Hour - time.Minute),
		Sources: []*control.Source{
			{Name: "config", Ok: true, Since: ago(12 * day)},
			{Name: "containerd", Ok: true, Since: ago(12 * day)},
			{Name: "cri", Ok: true, Since: ago(12 * day)},
			{Name: "kubelet", Ok: true, Since: ago(12 * day)},
			{Name: "nri", Ok: true, Since: ago(2 * day)},
		},
		Config: "9c41e0", PodsSource: "socket",
		Fillers: []*control.Filler{
			{Name: "writable-layers", Bytes: 31 * gib}, {Name: "other-namespaces", Bytes: 4.5 * gib, Detail: "moby, default"},
			{Name: "orphans", Bytes: 20 << 20, Detail: "blobs and layers that no image names"}, {Name: "rest", Bytes: 21.75 * gib},
		},
		ViewAt: ago(24 * time.Second),
		Events: []*control.Event{
			{At: ago(2 * time.Hour), Kind: "removed", Image: digest("aa01"), Names: []string{"registry.corp/pay:2.1"}, Reason: "expired", FreedBytes: gib},
			{At: ago(2*time.Hour + time.Second), Kind: "removed", Image: digest("aa02"), Names: []string{"registry.corp/pay:2.0"}, Reason: "expired", FreedBytes: 2 * gib},
			{At: ago(9 * time.Hour), Kind: "removed", Image: digest("aa03"), Names: []string{digest("aa03"), "registry.corp/ui@" + digest("bb03")}, Reason: "expired", FreedBytes: 900},
			{At: ago(26 * time.Hour), Kind: "gap", Detail: "the sidecar was away for 41s"},
			{At: ago(50 * time.Hour), Kind: "failed", Image: digest("aa04"), Reason: "expired", Detail: "deadline exceeded\nwhile deleting"},
			{At: ago(12 * day), Kind: "rebuilt", Detail: "first start"},
		},
	}
}

func heldStatus() *control.StatusResponse {
	s := goodStatus()
	s.Node, s.ViewAt, s.NextAt, s.Next, s.Events = "node-12", nil, nil, nil, nil
	const nri, cri = "the plugin is not connected", "rpc error: deadline exceeded"
	s.Sources[2] = &control.Source{Name: "cri", Error: cri, Since: ago(130 * time.Minute), Remedy: "crictl info"}
	s.Sources[4] = &control.Source{Name: "nri", Error: nri, Since: ago(5 * time.Minute), Remedy: "systemctl status image-custodian-plugin"}
	s.Holds = []*control.Hold{
		{Reason: "view-incomplete", Detail: "cri: " + cri, Since: ago(130 * time.Minute), NeedsPerson: true},
		{Reason: "view-incomplete", Detail: "nri: " + nri, Since: ago(5 * time.Minute), NeedsPerson: true},
	}
	return s
}

func graceStatus() *control.StatusResponse {
	s := goodStatus()
	s.StartedAt, s.Events = ago(3*time.Minute), nil
	s.Holds = []*control.Hold{{Reason: "start-grace", Until: timestamppb.New(now.Add(12 * time.Minute)), Since: ago(3 * time.Minute)}}
	return s
}

// badSources are those that no hold has told yet.
func badSources() *control.StatusResponse {
	s := goodStatus()
	s.Sources, s.Fillers, s.PodsSource, s.Events = []*control.Source{
		{Name: "config", Error: "rules.d/50-ci.toml:3: unused_for: \"6 moons\" is no duration", Since: ago(5 * time.Minute), Remedy: "mend the file, it is read again at once"},
		{Name: "containerd", Ok: true},
		{Name: "kubelet", Error: "Get \"https://127.0.0.1:10250/pods\": EOF", Since: ago(time.Minute), Remedy: "systemctl status kubelet"},
		{Name: "snapshotter", Error: "nydus: context deadline exceeded", Since: ago(2 * time.Hour), Remedy: "ctr plugins ls | grep snapshotter"},
	}, nil, "https", nil
	s.Holds = []*control.Hold{{Reason: "view-incomplete", Since: ago(2 * time.Hour), NeedsPerson: true}}
	return s
}

func someImages() *control.ListImagesResponse {
	pods := func(n int) (uses []*control.Use) {
		for i := range n {
			id := digest(string(rune('a'+i)) + "0")
			uses = append(uses, &control.Use{ContainerdNamespace: "k8s.io", ContainerId: id, Pod: "pod-" + id[7:9], Namespace: "team", PodUid: id, Kind: "sandbox", State: "running"})
		}
		return uses
	}
	return &control.ListImagesResponse{Complete: true, Images: []*control.Image{
		{
			ContainerdNamespace: "k8s.io", Id: digest("0c1d2e3f4a5b6"), Kind: "image",
			Names: []string{"ci.corp:5000/build/ui@" + digest("77aa01")}, Targets: []string{digest("77aa01")},
			Platform: "linux/amd64", PulledAt: ago(9 * time.Hour), FirstSeen: ago(9 * time.Hour), LastUsed: ago(7 * time.Hour),
			ContentBytes: 0.5 * gib, SnapshotBytes: 0.75 * gib, UniqueBytes: 310 << 20, Labels: map[string]string{"stage": "ci", "maintainer": "ui\x1b"}, Decision: "remove", Reason: "expired", Rule: "ci", ExpiresAt: ago(time.Minute),
		},
		{
			ContainerdNamespace: "k8s.io", Id: digest("77b1c0ffee123"), Kind: "image",
			Names:   []string{"docker.io/library/postgres:16", "docker.io/library/postgres@" + digest("16"), "mirror.corp/postgres:16", digest("77b1c0ffee123")},
			Targets: []string{digest("16")}, Platform: "linux/amd64", BuiltAt: ago(60 * day), PulledAt: ago(40 * day), FirstSeen: ago(40 * day),
			LastUsed: ago(29 * day), ContentBytes: 132 << 20, SnapshotBytes: 300 << 20, UniqueBytes: 290 << 20, Decision: "keep", Reason: "not-expired", Rule: "default", ExpiresAt: ago(-2*day - time.Hour),
		},
		{
			ContainerdNamespace: "k8s.io", Id: digest("d00dfeed12345"), Kind: "image", Names: []string{"localhost/tools:dev"},
			Platform: "linux/amd64", FirstSeen: ago(day), ContentBytes: 96<<20 + 500_000, UniqueBytes: 96<<20 + 500_000, Decision: "keep", Reason: "unpullable",
		},
		{
			ContainerdNamespace: "k8s.io", Id: digest("4f2e81c09ab3d"), Kind: "image", Names: []string{"nvcr.io/nvidia/pytorch:24.10"},
			Platform: "linux/amd64", PulledAt: ago(3 * day), FirstSeen: ago(3 * day), LastUsed: ago(0), InUse: true, Pinned: true,
			Uses: []*control.Use{
				{ContainerdNamespace: "k8s.io", ContainerId: "c1", ContainerName: "train", Pod: "train-0", Namespace: "ml", PodUid: "u1", ImageId: digest("4f2e81c09ab3d"), RuntimeType: "io.containerd.runc.v2", State: "running", Kind: "root", StartedAt: ago(day)},
				{ContainerdNamespace: "k8s.io", ContainerId: "c2", ContainerName: "init", Pod: "train-0", Namespace: "ml", PodUid: "u1", ImageId: digest("4f2e81c09ab3d"), RuntimeType: "io.containerd.runc.v2", State: "exited", Kind: "root"},
			},
			Runtimes: []string{"io.containerd.runc.v2"}, ContentBytes: 8.375 * gib, SnapshotBytes: 12 * gib, UniqueBytes: 19.75 * gib, Decision: "keep", Reason: "in-use",
		},
		{
			ContainerdNamespace: "k8s.io", Id: digest("873ed75102791"), Kind: "image", Names: []string{"registry.k8s.io/pause:3.10"},
			InUse: true, Uses: pods(9), ContentBytes: 342 << 10, SnapshotBytes: 400 << 10, UniqueBytes: 742 << 10, Decision: "keep", Reason: "sandbox",
		},
		{
			ContainerdNamespace: "moby", Id: digest("0ff1ce"), Kind: "artifact", Names: []string{"evil\x1b[2J\u202e\nname:1"},
			ContentBytes: 12, Decision: "keep", Reason: "not-an-image", InUse: true,
			Uses: []*control.Use{{ContainerId: digest("b0b")}},
		},
		{
			ContainerdNamespace: "k8s.io", Id: digest("9f8e7d6c5b4a3"), Kind: "image", Names: []string{"registry.corp/pay:2.2"},
			Platform: "linux/amd64", PulledAt: ago(6 * day), FirstSeen: ago(6 * day), LastUsed: ago(6 * day),
			ContentBytes: 110 << 20, SnapshotBytes: 300 << 20, UniqueBytes: 36 << 20, Decision: "keep", Reason: "kept", Rule: "release",
		},
		{}, // a message with nothing set
	}}
}

func someUses() *control.ListUsesResponse {
	return &control.ListUsesResponse{Uses: []*control.Use{
		{
			ContainerdNamespace: "k8s.io", ContainerId: digest("c0ffee")[7:], ContainerName: "api", Pod: "pay-7c9f", Namespace: "pay", PodUid: "5f0c",
			PodId: "9a", ImageId: digest("a1b2c3d4e5f60"), Image: "registry.corp/pay@" + digest("23"), RuntimeHandler: "kata",
			RuntimeType: "io.containerd.kata.v2", Platform: "linux/arm64/v8", Snapshotter: "overlayfs", State: "running", StartedAt: ago(7 * time.Hour), Kind: "root",
		},
		{ContainerdNamespace: "k8s.io", ContainerId: "9a", Pod: "pay-7c9f", Namespace: "pay", PodUid: "5f0c", PodId: "9a", ImageId: digest("873ed75102791"), Image: "registry.k8s.io/pause:3.10", RuntimeType: "io.containerd.runc.v2", State: "running", StartedAt: ago(45 * time.Second), Kind: "sandbox"},
		{ContainerdNamespace: "k8s.io", ContainerId: "9b", ContainerName: "model", Pod: "infer-0", Namespace: "ml", ImageId: digest("4f2e81c09ab3d"), Image: "models\x07/llm:7b", State: "claimed", Kind: "image-volume"},
		{},
	}}
}

func aVersion() *control.VersionResponse {
	return &control.VersionResponse{
		Version: "0.1.0", Revision: "43abb43", GoVersion: "go1.26.6", PluginVersion: "0.1.0",
		Runtime: "containerd", RuntimeVersion: "2.4.2", CriVersion: "v1",
	}
}
