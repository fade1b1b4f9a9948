package policy

import (
	"slices"
	"strings"
)

// reference is a name of the image store in its parts.
type reference struct {
	repository string // as it is written; empty for the record under an image ID
	tag        string
	digest     string
}

// parseReference takes any text: names in the image store follow no grammar that
// all clients share. A colon counts as the beginning of a tag only after the
// last slash, so that a registry's port is none.
func parseReference(name string) reference {
	if isDigest(name) {
		return reference{digest: name}
	}
	name, digest, _ := strings.Cut(name, "@")
	r := reference{repository: name, digest: digest}
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		r.repository, r.tag = name[:i], name[i+1:]
	}
	return r
}

// Tagged reports whether a name of the image store has a tag.
func Tagged(name string) bool { return parseReference(name).tag != "" }

func isDigest(name string) bool {
	return strings.HasPrefix(name, "sha256:") || strings.HasPrefix(name, "sha512:")
}

// withRegistry completes a name as Docker does: what has no registry is of
// Docker Hub, and there of "library" if it has no other owner.
func withRegistry(name string) string {
	if strings.HasPrefix(name, "index.docker.io/") {
		name = name[len("index."):]
	}
	first, rest, ok := strings.Cut(name, "/")
	switch {
	case first == "docker.io" && !strings.Contains(rest, "/"):
		return "docker.io/library/" + rest
	case !ok:
		return "docker.io/library/" + name
	case first == "localhost" || strings.ContainsAny(first, ".:") || strings.ToLower(first) != first:
		return name
	default:
		return "docker.io/" + name
	}
}

// asNamed is the form in which the runtime looks for what a pod's author wrote: a
// digest beats a tag, and with neither the tag is "latest".
func asNamed(name string) string {
	r := parseReference(name)
	switch {
	case r.repository == "":
		return r.digest
	case r.digest != "":
		return withRegistry(r.repository) + "@" + r.digest
	case r.tag != "":
		return withRegistry(r.repository) + ":" + r.tag
	}
	return withRegistry(r.repository) + ":latest"
}

// judged appends to buf the names of an image that rules are asked about: its
// tags. A pull leaves beside the tag a record under the digest, and the CRI one
// under the image ID; these follow the tags. Where a repository has no tag on
// the image, its digest counts; the ID only where there is nothing else.
func judged(buf []string, img *Image) []string {
	var few [8]reference
	refs := few[:0]
	for i := range img.Names {
		refs = append(refs, parseReference(img.Names[i].Name))
	}
	for i, r := range refs {
		if r.tag != "" || r.repository != "" && !slices.ContainsFunc(refs, func(o reference) bool {
			return o.tag != "" && o.repository == r.repository
		}) {
			buf = append(buf, img.Names[i].Name)
		}
	}
	if len(buf) == 0 && len(img.Names) > 0 {
		buf = append(buf, img.Names[0].Name)
	}
	return buf
}
