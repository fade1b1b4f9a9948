package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/image-custodian/custodian/sidecar/internal/config"
	"github.com/image-custodian/custodian/sidecar/internal/containerd"
	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

func onceCommand() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "once",
		Short: "Look at this node once, with nothing installed: disk, images, who uses them, what would go",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			set, err := load(path)
			if err != nil {
				return err
			}
			return once(cmd.Context(), set, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "configuration file (default "+config.DefaultFile+", which may be absent)")
	return cmd
}

// once reads and prints. It writes nothing to the node and keeps nothing, so an
// image that it finds unused counts as unused from now.
func once(ctx context.Context, set config.Set, out io.Writer) (err error) {
	client, err := connect(ctx, set.Config, newLogger(set.Config, nil))
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, client.Close()) }()
	versions, err := client.Versions(ctx)
	if err != nil {
		return err
	}
	disk, err := client.Disk(ctx)
	if err != nil {
		return err
	}
	obs := client.Observe(ctx)
	pods, err := podsOf(ctx, set.Config, newLogger(set.Config, nil))
	if err != nil {
		return err
	}
	rules := set.Rules()
	rules.Pressure, rules.Budget, rules.Spread = policy.Pressure{}, policy.Budget{}, 0 // what holds on every node
	decisions := policy.Plan(policy.View{
		Images: obs.Images, Parts: obs.Sizes.Parts, Uses: obs.Uses, Holdings: obs.Holdings,
		Pods: pods, PodsNamespace: containerd.CRINamespace,
	}, rules, 0)

	hostname, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("host name: %w", err)
	}
	fmt.Fprintf(out, "%s   %s %s\n", hostname, versions.Runtime, versions.RuntimeVersion)
	fmt.Fprintf(out, "DISK   %s   %s of %s used\n\n", disk.Path, humanize.IBytes(disk.UsedBytes), humanize.IBytes(disk.SizeBytes))
	if err := printImages(out, obs, decisions); err != nil {
		return err
	}
	if err := obs.Err(); err != nil {
		return fmt.Errorf("the look is incomplete: %w", err)
	}
	return nil
}

// podsOf asks the kubelet once.
func podsOf(ctx context.Context, cfg config.Config, log *slog.Logger) ([]policy.PodSpec, error) {
	source, err := newPods(cfg, log)
	if err != nil {
		return nil, err
	}
	return source.Pods(ctx)
}

func printImages(out io.Writer, obs containerd.Observation, decisions []policy.Decision) error {
	users := usersOf(obs)
	w := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(w, "IMAGE\tID\tSIZE\tUSED BY\tWOULD")
	var total, unused tally
	for i, img := range obs.Images {
		d := decisions[i]
		would := "stay: " + string(d.Reason)
		if d.Expires != policy.Never {
			would = "go, if nobody uses it for " + days(d.Expires.Sub(0)) + " (" + d.Rule + ")"
			unused.add(obs, img)
		}
		total.add(obs, img)
		fmt.Fprintf(w, "%s\t%.13s\t%s\t%s\t%s\n", firstName(img), strings.TrimPrefix(img.Key.ID, "sha256:"),
			humanize.IBytes(uint64(max(0, img.ContentBytes+img.SnapshotBytes))), cmp.Or(strings.Join(users[img.Key], ", "), "-"), would)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("table: %w", err)
	}
	_, err := fmt.Fprintf(out, "\n%d images, %s; %d of them unused, %s\n",
		total.images, humanize.IBytes(total.bytes), unused.images, humanize.IBytes(unused.bytes))
	return err
}

// tally counts images and their bytes, a shared blob or layer once.
type tally struct {
	images int
	bytes  uint64
	seen   map[int32]bool
}

func (t *tally) add(obs containerd.Observation, img policy.Image) {
	if t.seen == nil {
		t.seen = map[int32]bool{}
	}
	t.images++
	for _, part := range img.Parts {
		if !t.seen[part] {
			t.seen[part] = true
			t.bytes += uint64(max(0, obs.Sizes.Parts[part].Bytes))
		}
	}
}

// usersOf names for each image the pods, or else containers, that use it.
func usersOf(obs containerd.Observation) map[policy.Key][]string {
	index := policy.NewIndex(obs.Images)
	users := map[policy.Key][]string{}
	for _, u := range obs.Uses {
		user := u.ContainerID
		if u.Pod.Name != "" {
			user = u.Pod.Namespace + "/" + u.Pod.Name
		}
		for _, key := range slices.Concat(index.Root(u), index.Volumes(u)) {
			if !slices.Contains(users[key], user) {
				users[key] = append(users[key], user)
			}
		}
	}
	return users
}

// firstName prefers what people know over the CRI's record under the image ID.
func firstName(img policy.Image) string {
	for _, n := range img.Names {
		if !strings.HasPrefix(n.Name, "sha256:") {
			return n.Name
		}
	}
	return img.Names[0].Name
}

// days rounds what is long.
func days(d time.Duration) string {
	if d >= 2*day {
		return fmt.Sprintf("%dd", d.Round(day)/day)
	}
	return d.Round(time.Second).String()
}

const day = 24 * time.Hour
