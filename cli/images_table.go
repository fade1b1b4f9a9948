package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/image-custodian/custodian/api/v1/control"
)

func renderImages(answer *control.ListImagesResponse, wide bool, now time.Time) string {
	var c columns
	head := []string{"IMAGE", "ID", "SIZE", "UNIQUE", "LAST USED", "USED BY", "DECISION"}
	if wide {
		head = append(head, "PLATFORM", "RUNTIME", "RULE", "NAMES", "PULLED", "CONTAINERD-NS", "CONTENT", "SNAPSHOTS")
	}
	c.add(head...)
	for _, img := range answer.GetImages() {
		c.add(imageRow(img, wide, now)...)
	}
	return c.String() + "\n" + footer(answer)
}

func imageRow(img *control.Image, wide bool, now time.Time) []string {
	lastUsed := "now"
	if !img.GetInUse() {
		lastUsed = age(img.GetLastUsed(), now, "never")
	}
	row := []string{
		nameCell(img), shortID(img.GetId()), size(stored(img)), size(img.GetUniqueBytes()),
		lastUsed, usedBy(img), decisionOf(img, now),
	}
	if wide {
		row = append(row, orDash(img.GetPlatform()), orDash(strings.Join(img.GetRuntimes(), ",")), orDash(img.GetRule()),
			orDash(strings.Join(img.GetNames(), ",")), age(img.GetPulledAt(), now, "-"), orDash(img.GetContainerdNamespace()),
			size(img.GetContentBytes()), size(img.GetSnapshotBytes()))
	}
	return row
}

// nameCell is the name to show, and how many more there are.
func nameCell(img *control.Image) string {
	name, more := namesOf(img)
	name = orDash(shortName(name))
	if more > 0 {
		name += fmt.Sprintf("  +%d", more)
	}
	return name
}

// namesOf is the name to show of an image, and how many more there are that
// somebody gave it. The records that the CRI makes beside a tag, repository@digest
// and the image ID, are no such names.
func namesOf(img *control.Image) (shown string, more int) {
	names := slices.Sorted(slices.Values(img.GetNames()))
	if len(names) == 0 {
		return "", 0
	}
	var given, digests []string
	tagged := map[string]bool{}
	for _, name := range names {
		switch repository, _, byDigest := strings.Cut(name, "@"); {
		case strings.HasPrefix(name, "sha256:"):
		case byDigest:
			digests = append(digests, name)
		default:
			given = append(given, name)
			if i := strings.LastIndex(repository, ":"); i > strings.LastIndex(repository, "/") {
				repository = repository[:i]
			}
			tagged[repository] = true
		}
	}
	for _, name := range digests {
		if repository, _, _ := strings.Cut(name, "@"); !tagged[repository] {
			given = append(given, name)
		}
	}
	if len(given) == 0 {
		return names[0], 0
	}
	return given[0], len(given) - 1
}

// usedBy names the one pod that uses an image, or counts them.
func usedBy(img *control.Image) string {
	pods, containers, bare := map[string]bool{}, map[string]bool{}, map[string]bool{}
	var pod, container string
	for _, u := range img.GetUses() {
		if u.GetPod() == "" {
			container = u.GetContainerId()
			bare[container] = true
			continue
		}
		pod = u.GetNamespace() + "/" + u.GetPod()
		pods[pod+" "+u.GetPodUid()] = true
		containers[u.GetContainerId()] = true
	}
	var parts []string
	switch {
	case len(pods) > 1:
		parts = append(parts, fmt.Sprintf("pods (%d)", len(pods)))
	case len(containers) > 1:
		parts = append(parts, fmt.Sprintf("%s (%d)", pod, len(containers)))
	case len(pods) == 1:
		parts = append(parts, pod)
	}
	switch {
	case len(bare) > 1:
		parts = append(parts, fmt.Sprintf("containers (%d)", len(bare)))
	case len(bare) == 1:
		parts = append(parts, "container "+shortID(container))
	}
	return orDash(strings.Join(parts, ", "))
}

// footer counts the images as the sidecar's status does.
func footer(answer *control.ListImagesResponse) string {
	var inUse, kept, unused, removed int
	for _, img := range answer.GetImages() {
		switch img.GetReason() {
		case "in-use", "image-volume", "sandbox", "pod-spec", "snapshot", "leased":
			inUse++
		case "not-an-image", "pinned", "unpullable", "kept", "kept-latest":
			kept++
		default:
			unused++
		}
		if img.GetDecision() == "remove" {
			removed++
		}
	}
	text := fmt.Sprintf("%s: %d in use, %d kept, %d unused (%d to remove). ID as in crictl images%s\n",
		plural(len(answer.GetImages()), "image"), inUse, kept, unused, removed, moreNames(answer.GetImages()))
	if !answer.GetComplete() {
		text += incomplete
	}
	return text
}

// moreNames explains the +1 of nameCell, if there is any.
func moreNames(images []*control.Image) string {
	if slices.ContainsFunc(images, func(img *control.Image) bool { _, more := namesOf(img); return more > 0 }) {
		return " · +1 one more name (-o wide)"
	}
	return ""
}

const incomplete = "! The view of the node is incomplete, nothing is removed: custodianctl status\n"
