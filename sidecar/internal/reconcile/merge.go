package reconcile

import (
	"cmp"
	"reflect"
	"slices"
	"time"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// merge adds to old what is newly told. What was known stays where the news is
// silent; an exited container does not run again.
func merge(old, news policy.Use) policy.Use {
	u := news
	u.Container = cmp.Or(news.Container, old.Container)
	u.Pod.ID = cmp.Or(news.Pod.ID, old.Pod.ID)
	u.Pod.UID = cmp.Or(news.Pod.UID, old.Pod.UID)
	u.Pod.Name = cmp.Or(news.Pod.Name, old.Pod.Name)
	u.Pod.Namespace = cmp.Or(news.Pod.Namespace, old.Pod.Namespace)
	u.Kind = cmp.Or(old.Kind, news.Kind)
	// A container never changes its image; a list may have it from a name that
	// has moved since.
	u.ImageID = cmp.Or(old.ImageID, news.ImageID)
	u.UserName = cmp.Or(old.UserName, news.UserName)
	u.RecordName = cmp.Or(old.RecordName, news.RecordName)
	u.RecordDigest = cmp.Or(old.RecordDigest, news.RecordDigest)
	u.RuntimeHandler = cmp.Or(news.RuntimeHandler, old.RuntimeHandler)
	u.RuntimeType = cmp.Or(news.RuntimeType, old.RuntimeType)
	u.Platform = cmp.Or(news.Platform, old.Platform)
	u.Snapshotter = cmp.Or(news.Snapshotter, old.Snapshotter)
	u.Recorded = cmp.Or(old.Recorded, news.Recorded)
	if !old.StartedAt.IsZero() {
		u.StartedAt = old.StartedAt
	}
	if len(news.Volumes) == 0 {
		u.Volumes = old.Volumes
	}
	if old.State == policy.StateExited {
		u.State = policy.StateExited
	}
	return u
}

// anotherLife reports whether a listed container only has the ID of an older one:
// outside the CRI people choose the IDs, and use them again.
func anotherLife(old, listed policy.Use) bool {
	return listed.Pod.ID == "" && old.Pod.ID == "" && !old.StartedAt.IsZero() && !listed.StartedAt.IsZero() &&
		!old.StartedAt.Equal(listed.StartedAt)
}

// raiseImages raises the last use of all images of a use.
func (r *Reconciler) raiseImages(raise map[policy.Key]policy.Moment, u policy.Use, at policy.Moment) {
	for _, id := range append([]string{u.ImageID}, u.Volumes...) {
		if id != "" {
			k := policy.Key{ContainerdNamespace: u.ContainerdNamespace, ID: id}
			raise[k] = max(raise[k], at)
		}
	}
}

// known reports whether all images of a use are known by their IDs, so that its
// end can be held against them.
func (r *Reconciler) known(u policy.Use) bool {
	if u.ImageID == "" {
		return false
	}
	return !slices.ContainsFunc(u.Volumes, func(id string) bool {
		return !r.index.Known(policy.Key{ContainerdNamespace: u.ContainerdNamespace, ID: id})
	})
}

func sameUse(a, b policy.Use) bool {
	return slices.Equal(a.Volumes, b.Volumes) && a.StartedAt.Equal(b.StartedAt) && reflect.DeepEqual(bare(a), bare(b))
}

// bare is the use without the fields that equal content does not make equal.
func bare(u policy.Use) policy.Use {
	u.Volumes, u.StartedAt = nil, time.Time{}
	return u
}

// resolveVolumes turns the digests of image volumes into image IDs where the
// last look knows them, so that the use still names its images when their
// records have moved.
func (r *Reconciler) resolveVolumes(u policy.Use) policy.Use {
	if len(u.Volumes) == 0 {
		return u
	}
	ids := slices.Clone(u.Volumes)
	for i, digest := range ids {
		one := u
		one.Volumes = []string{digest}
		if keys := r.index.Volumes(one); len(keys) > 1 {
			ids[i] = keys[len(keys)-1].ID
		}
	}
	u.Volumes = ids
	return u
}
