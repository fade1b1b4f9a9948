package policy

import (
	"slices"
	"strings"
)

// Index finds the images that a use is about.
type Index struct {
	images []Image
	// known and names are made when first needed: most uses know their image by
	// its ID.
	known map[Key]bool
	names *names
}

type names struct {
	byName   map[Key]Key
	byTarget map[Key][]Key
}

// NewIndex makes an index over images. It may not be used concurrently.
func NewIndex(images []Image) *Index {
	return &Index{images: images}
}

func (x *Index) lookup() *names {
	if x.names != nil {
		return x.names
	}
	x.names = &names{byName: make(map[Key]Key, 3*len(x.images)), byTarget: make(map[Key][]Key, len(x.images))}
	for i := range x.images {
		img := &x.images[i]
		for _, n := range img.Names {
			x.names.byName[Key{img.Key.ContainerdNamespace, n.Name}] = img.Key
			target := Key{img.Key.ContainerdNamespace, n.Target}
			if !slices.Contains(x.names.byTarget[target], img.Key) {
				x.names.byTarget[target] = append(x.names.byTarget[target], img.Key)
			}
		}
	}
	return x.names
}

// Known reports whether the index has an image of this key.
func (x *Index) Known(k Key) bool {
	if x.known == nil {
		x.known = make(map[Key]bool, len(x.images))
		for i := range x.images {
			x.known[x.images[i].Key] = true
		}
	}
	return x.known[k]
}

// Root returns the keys of the image that the use's root file system is from:
// by image ID, and while no image of that ID is known by every name that the use
// has: what has no manifest for this node is known by its target.
func (x *Index) Root(u Use) []Key {
	ns := u.ContainerdNamespace
	var keys []Key
	if u.ImageID != "" {
		keys = append(keys, Key{ns, u.ImageID})
		if x.Known(keys[0]) {
			return keys
		}
	}
	for _, name := range []string{u.RecordName, u.UserName} {
		if key, ok := x.lookup().byName[Key{ns, name}]; ok && name != "" {
			keys = append(keys, key)
		}
	}
	if u.RecordDigest != "" {
		keys = append(keys, x.lookup().byTarget[Key{ns, u.RecordDigest}]...)
	}
	return keys
}

// Volumes returns the keys of the images that the use mounts as image volumes.
// A volume is known by image ID or by a digest that a name points at.
func (x *Index) Volumes(u Use) []Key {
	var keys []Key
	for _, digest := range u.Volumes {
		if !strings.Contains(digest, ":") {
			continue
		}
		keys = append(keys, Key{u.ContainerdNamespace, digest})
		keys = append(keys, x.lookup().byTarget[Key{u.ContainerdNamespace, digest}]...)
	}
	return keys
}
