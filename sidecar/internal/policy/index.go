package policy

import (
	"slices"
	"strings"
)

// Index finds the images that a use is about.
type Index struct {
	byName   map[Key]Key
	byTarget map[Key][]Key
	known    map[Key]bool
}

// NewIndex makes an index over images.
func NewIndex(images []Image) *Index {
	x := &Index{byName: map[Key]Key{}, byTarget: map[Key][]Key{}, known: map[Key]bool{}}
	for _, img := range images {
		x.known[img.Key] = true
		for _, n := range img.Names {
			x.byName[Key{img.Key.ContainerdNamespace, n.Name}] = img.Key
			target := Key{img.Key.ContainerdNamespace, n.Target}
			if !slices.Contains(x.byTarget[target], img.Key) {
				x.byTarget[target] = append(x.byTarget[target], img.Key)
			}
		}
	}
	return x
}

// Known reports whether the index has an image of this key.
func (x *Index) Known(k Key) bool { return x.known[k] }

// Root returns the keys of the image that the use's root file system is from:
// by image ID, or while that is not known by every name that the use has.
func (x *Index) Root(u Use) []Key {
	ns := u.ContainerdNamespace
	if u.ImageID != "" {
		return []Key{{ns, u.ImageID}}
	}
	var keys []Key
	for _, name := range []string{u.RecordName, u.UserName} {
		if key, ok := x.byName[Key{ns, name}]; ok && name != "" {
			keys = append(keys, key)
		}
	}
	if u.RecordDigest != "" {
		keys = append(keys, x.byTarget[Key{ns, u.RecordDigest}]...)
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
		keys = append(keys, x.byTarget[Key{u.ContainerdNamespace, digest}]...)
	}
	return keys
}
