package main

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/image-custodian/custodian/api/v1/control"
)

func in(d time.Duration) time.Duration { return -d }

// whyInUse is an image that more containers use than are told.
func whyInUse() *control.WhyResponse {
	w := &control.WhyResponse{
		Image: &control.Image{
			ContainerdNamespace: "k8s.io", Id: digest("4f2e81c09ab3d"), Kind: "image",
			Names:    []string{"nvcr.io/nvidia/pytorch:24.10", "nvcr.io/nvidia/pytorch@" + digest("2410"), digest("4f2e81c09ab3d")},
			Platform: "linux/amd64", PulledAt: ago(40 * day), FirstSeen: ago(40 * day), LastUsed: ago(0), InUse: true, Pinned: true,
			ContentBytes: 8.375 * gib, SnapshotBytes: 12 * gib, UniqueBytes: 19.75 * gib, Decision: "keep", Reason: "in-use",
		},
		Names: []*control.NameVerdict{
			{Name: "nvcr.io/nvidia/pytorch:24.10", Reason: "expired", Rule: "default", UnusedFor: durationpb.New(33*day + 2*time.Hour), ExpiresAt: ago(7 * day)},
		},
		Following:   []string{"nvcr.io/nvidia/pytorch@" + digest("2410"), digest("4f2e81c09ab3d")},
		SharedBytes: 640 << 20,
		Sharers: []*control.Sharer{
			{Id: digest("aa"), Name: "nvcr.io/nvidia/cuda:12", Bytes: 600 << 20},
			{Id: digest("bb"), Bytes: 40 << 20},
		},
		HeldBy: []string{"pod ml/train-0"},
	}
	for i := range 13 {
		w.Image.Uses = append(w.Image.Uses, &control.Use{
			ContainerId: digest(fmt.Sprintf("c%x", i)), ContainerName: fmt.Sprintf("worker-%d", i), Pod: fmt.Sprintf("train-%d", i/2), Namespace: "ml", PodUid: fmt.Sprint(i / 2),
			State: []string{"running", "exited", "created"}[i%3], StartedAt: ago(time.Duration(i) * day), Kind: "root",
		})
	}
	w.Image.Uses[1] = &control.Use{ContainerId: digest("b0b"), State: "running", Kind: "root"}
	w.Image.Uses[2].Kind = "image-volume"
	return w
}

func whyNotExpired() *control.WhyResponse {
	return &control.WhyResponse{
		Image: &control.Image{
			ContainerdNamespace: "k8s.io", Id: digest("77b1c0ffee123"), Kind: "image", Names: []string{"docker.io/library/postgres:16"},
			Platform: "linux/arm64/v8", PulledAt: ago(60 * day), LastUsed: ago(29 * day), ContentBytes: 132 << 20, SnapshotBytes: 300 << 20, UniqueBytes: 432 << 20,
			Decision: "keep", Reason: "not-expired", Rule: "default", ExpiresAt: ago(in(3*day + 4*time.Hour + 10*time.Minute)),
		},
		Names: []*control.NameVerdict{{
			Name: "docker.io/library/postgres:16", Reason: "not-expired", Rule: "default",
			UnusedFor: durationpb.New(32*day + 4*time.Hour), ExpiresAt: ago(in(3*day + 4*time.Hour + 10*time.Minute)),
		}},
		Events: []*control.Event{
			{At: ago(61 * day), Kind: "removed", Image: digest("77b1c0ffee123"), Names: []string{"docker.io/library/postgres:16"}, Reason: "pressure", FreedBytes: 431 << 20},
			{At: ago(62 * day), Kind: "failed", Image: digest("77b1c0ffee123"), Reason: "pressure", Detail: "deadline\nexceeded"},
		},
	}
}

// whyTwoNames is an image of which one name is over and the other kept.
func whyTwoNames() *control.WhyResponse {
	return &control.WhyResponse{
		Image: &control.Image{
			ContainerdNamespace: "k8s.io", Id: digest("9f8e7d6c5b4a3"), Kind: "image",
			Names:    []string{"ci.corp:5000/build/pay:c0ffee", "registry.corp/pay:2.2", "registry.corp/pay:latest"},
			Platform: "linux/amd64", PulledAt: ago(6 * day), LastUsed: ago(6 * day),
			ContentBytes: 110 << 20, SnapshotBytes: 300 << 20, UniqueBytes: 36 << 20, Decision: "keep", Reason: "kept", Rule: "release",
		},
		Names: []*control.NameVerdict{
			{Name: "ci.corp:5000/build/pay:c0ffee", Reason: "expired", Rule: "ci", UnusedFor: durationpb.New(6 * time.Hour), ExpiresAt: ago(5*day + 18*time.Hour)},
			{Name: "registry.corp/pay:2.2", Reason: "kept", Rule: "release"},
			{Name: "registry.corp/pay:latest", Reason: "kept-latest", Rule: "50-pay.toml:3", UnusedFor: durationpb.New(14 * day)},
		},
		SharedBytes: 374 << 20,
	}
}

func whyArtifact() *control.WhyResponse {
	return &control.WhyResponse{
		Image: &control.Image{
			ContainerdNamespace: "k8s.io", Id: digest("0ff1ce"), Kind: "artifact", Names: []string{"registry.corp/charts/pay\x1b[2J:1"},
			FirstSeen: ago(2 * day), ContentBytes: 12 << 10, UniqueBytes: 12 << 10, Decision: "keep", Reason: "not-an-image",
		},
		Names: []*control.NameVerdict{{Name: "registry.corp/charts/pay\x1b[2J:1", Reason: "not-an-image"}},
	}
}

func whyIncomplete() *control.WhyResponse {
	w := whyTwoNames()
	w.Image.Decision, w.Image.Reason, w.Image.Rule, w.Image.ExpiresAt = "keep", "view-incomplete", "ci", ago(18*time.Hour)
	w.Names = w.Names[:1]
	w.Missing = []string{"cri: rpc error: deadline exceeded", "kubelet: EOF"}
	return w
}

func whyRemove() *control.WhyResponse {
	w := whyTwoNames()
	w.Image.Decision, w.Image.Reason, w.Image.Rule, w.Image.ExpiresAt = "remove", "expired", "ci", ago(18*time.Hour)
	w.Names = []*control.NameVerdict{w.Names[0], {Name: "ci.corp:5000/build/pay:main", Reason: "expired", Rule: "ci", UnusedFor: w.Names[0].UnusedFor, ExpiresAt: w.Names[0].ExpiresAt}}
	w.Sharers = []*control.Sharer{{Id: digest("aa"), Name: "registry.corp/pay:2.1", Bytes: w.SharedBytes}}
	return w
}

func whyGone() *control.WhyResponse {
	return &control.WhyResponse{Events: []*control.Event{
		{
			At: ago(3*time.Hour + 4*time.Second), Kind: "removed", Image: digest("aa01"), Reason: "expired", Rule: "release", FreedBytes: 36 << 20,
			Names: []string{"registry.corp/pay:2.1", "registry.corp/pay@" + digest("21"), digest("aa01")},
		},
		{At: ago(4 * day), Kind: "removed", Image: digest("aa00"), Names: []string{"registry.corp/pay:2.1"}, Reason: "requested", FreedBytes: 35 << 20},
	}}
}

func whyGoneUnmeasured() *control.WhyResponse {
	return &control.WhyResponse{Events: []*control.Event{{
		At: ago(3 * day), Kind: "removed", Image: digest("aa01"), Reason: "budget", Names: []string{"registry.corp/pay:2.1"},
		Detail: "found removed after a restart; what it freed was not measured",
	}}}
}

func whyGoneByOthers() *control.WhyResponse {
	return &control.WhyResponse{Events: []*control.Event{
		{At: ago(3 * day), Kind: "failed", Image: digest("aa01"), Reason: "expired", Names: []string{"registry.corp/pay:2.1"}, Detail: "busy"},
	}}
}
