// Package policy decides, for every image of a node, whether it is kept or
// removed, and why. It is pure: it reads no clock, no file and no network, and
// imports nothing of ours. The types here are also the words in which the other
// packages of the sidecar speak to each other.
package policy

import (
	"math"
	"time"
)

// Moment is a point in observed time: how long the sidecar had been able to see
// the node since its state was made. It stands still while nobody watches and
// knows nothing of the wall clock, so a jump of that clock changes no deadline.
type Moment time.Duration

// Never is a moment that does not come.
const Never Moment = math.MaxInt64

// Add returns the moment d after m.
func (m Moment) Add(d time.Duration) Moment { return m + Moment(d) }

// Sub returns how long after o the moment m is.
func (m Moment) Sub(o Moment) time.Duration { return time.Duration(m - o) }

// Key names an image on a node: one image ID in one containerd namespace.
type Key struct {
	ContainerdNamespace string `json:"containerd_namespace"`
	// ID is the digest of the image config of the node's platform, as
	// "sha256:…". For an Artifact or a Foreign record it is the digest that the
	// record points at.
	ID string `json:"id"`
}

// Kind tells images from records that are none.
type Kind string

// The kinds of a record. Only an image can be used by a container of this node.
const (
	KindImage    Kind = "image"
	KindArtifact Kind = "artifact" // the config is no image config
	KindForeign  Kind = "foreign"  // no manifest for this node, or unreadable
)

// Name is one record of an image in containerd's image store.
type Name struct {
	// Name as the store has it: "docker.io/library/nginx:1.27",
	// "docker.io/library/nginx@sha256:…", or "sha256:…" for the record that the
	// CRI keeps under the image ID.
	Name string `json:"name"`
	// Target is the digest that the record points at.
	Target string `json:"target"`
	// Pinned says that the record bears the CRI's pin label.
	Pinned bool `json:"pinned,omitempty"`
	// Updated is containerd's time of the last change. It is compared with an
	// earlier reading to notice a pull; it is never compared with a clock.
	Updated time.Time `json:"updated,omitzero"`
}

// Record is a whole record of the image store: enough to make it again.
type Record struct {
	Name        string            `json:"name"`
	Labels      map[string]string `json:"labels,omitempty"`
	MediaType   string            `json:"media_type"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Image is an image as containerd has it now.
type Image struct {
	Key   Key
	Kind  Kind
	Names []Name // sorted by Name, never empty
	// Platform of the image config, normalised. Example: "linux/arm64/v8".
	Platform string
	// BuiltAt is the creation time in the image config; zero if it has none.
	BuiltAt time.Time
	// PulledAt is the latest wall time of a record, for display.
	PulledAt time.Time
	// Labels are those of the image config; nil if it has none.
	Labels map[string]string
	// ContentBytes are the bytes of its blobs in the content store,
	// SnapshotBytes those of its layers as they are unpacked, in every
	// snapshotter. Both count what other images share, too.
	ContentBytes, SnapshotBytes int64
	// UniqueBytes are what the node would gain without the image: what of it
	// nothing else holds.
	UniqueBytes int64
	// Parts are the indexes in View.Parts of its blobs and snapshots.
	Parts []int32
	// FromRegistry is false if no registry is known to hold the image:
	// imported, built or side-loaded.
	FromRegistry bool
}

// Part is a blob or an unpacked layer that images share.
type Part struct {
	Bytes int64
	// Snapshot tells an unpacked layer from a blob.
	Snapshot bool
	// Held says that something else than the images of the view keeps it: an
	// image of another containerd namespace.
	Held bool
}

// Pinned reports whether any name of the image is pinned: one pins them all.
func (i Image) Pinned() bool {
	for _, n := range i.Names {
		if n.Pinned {
			return true
		}
	}
	return false
}

// UseKind says what a container uses an image for.
type UseKind string

// The kinds of a use.
const (
	UseRoot        UseKind = "root"
	UseImageVolume UseKind = "image-volume"
	UseSandbox     UseKind = "sandbox"
)

// UseState is how far a container has come.
type UseState string

// The states of a use. A claim is a use that was admitted and not confirmed.
const (
	StateClaimed UseState = "claimed"
	StateCreated UseState = "created"
	StateRunning UseState = "running"
	StateExited  UseState = "exited"
)

// Pod is the pod of a container. All fields are empty for a container without.
type Pod struct {
	ID        string `json:"id,omitempty"`
	UID       string `json:"uid,omitempty"`
	Name      string `json:"name,omitempty"`
	Namespace string `json:"namespace,omitempty"`
}

// Use is one container's live use of an image. It ends when the container is
// gone; a container whose process has exited still holds its image.
type Use struct {
	ContainerdNamespace string   `json:"containerd_namespace"`
	ContainerID         string   `json:"container_id"`
	Container           string   `json:"container,omitempty"` // name within the pod
	Pod                 Pod      `json:"pod"`
	Kind                UseKind  `json:"kind"`
	State               UseState `json:"state"`
	// ImageID is empty while it is not known which image it is.
	ImageID string `json:"image_id,omitempty"`
	// UserName is the image as the pod's author wrote it.
	UserName string `json:"user_name,omitempty"`
	// RecordName and RecordDigest are the name that the runtime chose and what
	// it pointed at then.
	RecordName     string `json:"record_name,omitempty"`
	RecordDigest   string `json:"record_digest,omitempty"`
	RuntimeHandler string `json:"runtime_handler,omitempty"`
	RuntimeType    string `json:"runtime_type,omitempty"`
	Platform       string `json:"platform,omitempty"`
	Snapshotter    string `json:"snapshotter,omitempty"`
	// Volumes are the digests of the images mounted as image volumes.
	Volumes []string `json:"volumes,omitempty"`
	// Recorded is when the sidecar came to know of the use.
	Recorded Moment `json:"recorded"`
	// StartedAt is wall time, for display.
	StartedAt time.Time `json:"started_at,omitzero"`
}

// Memory is what the sidecar remembers of an image beyond what containerd says.
type Memory struct {
	// FirstSeen is when the image was first seen on the node, FirstSeenAt the
	// wall time of that, for display.
	FirstSeen   Moment    `json:"first_seen"`
	FirstSeenAt time.Time `json:"first_seen_at"`
	// Pulled is when one of its names was last made or pulled anew.
	Pulled Moment `json:"pulled"`
	// LastUse is when the last use ended; nil if none has since FirstSeen.
	LastUse   *Moment   `json:"last_use,omitempty"`
	LastUseAt time.Time `json:"last_use_at,omitzero"`
	// Names are the records at the last look, to notice a pull.
	Names []Name `json:"names,omitempty"`
}

// PodSpec is a pod that the kubelet knows and that has not ended: what it asks
// for, whether or not containers of it exist.
type PodSpec struct {
	Pod Pod // without ID: the kubelet does not know the sandbox
	// Images are the images as the pod's author wrote them, of init, main and
	// ephemeral containers and of image volumes; sorted, without duplicates.
	Images []string
}

// Holding is something other than a container or a pod that needs an image.
type Holding struct {
	Reason Reason // Snapshot or Leased
	// By names the snapshot or the lease, for a person.
	By string
}

// Disk is the file system that holds the images.
type Disk struct{ SizeBytes, UsedBytes int64 }
