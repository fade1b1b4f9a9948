package main

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/image-custodian/custodian/api/v1/control"
)

func (a *app) imagesVerb() *cobra.Command {
	var wanted filters
	by := byName
	cmd := &cobra.Command{
		Use:   "images",
		Short: "The images of this node, who uses them and what becomes of them",
		Long: `The images of this node, who uses them and what becomes of them.

SIZE is what an image takes on this node: its content as it was pulled and its
layers as they are unpacked. What images share counts in each. UNIQUE is what
the node would gain without it.

` + imageFilterHelp,
		Example: `  custodianctl images --filter decision=remove
  custodianctl images --filter untagged=true --filter label=stage=ci
  custodianctl images --sort unique -o wide`,
		Args: cobra.NoArgs,
		RunE: a.ask(func(ctx context.Context, cmd *cobra.Command, client control.ControlClient, _ []string) error {
			answer, err := client.ListImages(ctx, &control.ListImagesRequest{Filters: wanted})
			if err != nil {
				return err
			}
			sortImages(answer.GetImages(), by)
			return a.print(cmd.OutOrStdout(), answer, func(wide bool) string { return renderImages(answer, wide, a.now()) })
		}),
	}
	cmd.Flags().Var(&wanted, "filter", "only images that match, may be repeated")
	cmd.Flags().Var(&by, "sort", "name, size or unique (largest first) or last-used (never used, then longest ago, first)")
	complete(cmd, "filter", imageFilters...)
	complete(cmd, "sort", orders...)
	return cmd
}

// imageFilters are the keys that the sidecar knows for images.
var imageFilters = []string{
	"containerd_namespace=", "image=", "untagged=", "label=", "id=", "kind=", "platform=", "runtime=",
	"decision=", "reason=", "rule=", "in_use=", "pinned=",
}

const imageFilterHelp = `Filters of different keys all have to match, of one key any. Keys:
containerd_namespace, image (a pattern as in a rule), untagged, label (NAME or
NAME=VALUE), id, kind, platform, runtime, decision, reason, rule, in_use, pinned.`

// order is how images are sorted.
type order string

const (
	byName     order = "name"
	bySize     order = "size"
	byUnique   order = "unique"
	byLastUsed order = "last-used"
)

var orders = []string{string(byName), string(bySize), string(byUnique), string(byLastUsed)}

// String, Set and Type make it a flag.
func (o *order) String() string { return string(*o) }

// Set takes one of orders.
func (o *order) Set(value string) error {
	chosen, err := choose(value, orders)
	*o = order(chosen)
	return err
}

// Type names the value in the help.
func (o *order) Type() string { return "order" }

// sortImages sorts in place; what is equal stays in the order of the names.
func sortImages(images []*control.Image, by order) {
	slices.SortStableFunc(images, func(a, b *control.Image) int {
		names := cmp.Or(cmp.Compare(firstName(a), firstName(b)), cmp.Compare(a.GetContainerdNamespace(), b.GetContainerdNamespace()))
		switch by {
		case bySize:
			return cmp.Or(cmp.Compare(stored(b), stored(a)), names)
		case byUnique:
			return cmp.Or(cmp.Compare(b.GetUniqueBytes(), a.GetUniqueBytes()), names)
		case byLastUsed:
			return cmp.Or(lastUse(a).Compare(lastUse(b)), names)
		default:
			return names
		}
	})
}

// lastUse is the zero time for an image that was never used. One in use is used
// for longer than any clock can say.
func lastUse(img *control.Image) time.Time {
	if img.GetInUse() {
		return time.Unix(1<<40, 0)
	}
	t, _ := at(img.GetLastUsed())
	return t
}

func firstName(img *control.Image) string {
	if shown, _ := namesOf(img); shown != "" {
		return shown
	}
	return img.GetId()
}

// stored is what an image takes on this node.
func stored(img *control.Image) uint64 { return img.GetContentBytes() + img.GetSnapshotBytes() }
