package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

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
			cfg, err := LoadConfig(path)
			if err != nil {
				return err
			}
			return once(cmd.Context(), cfg, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "configuration file (default "+defaultConfigFile+", which may be absent)")
	return cmd
}

// once reads and prints. It writes nothing to the node and keeps nothing, so an
// image that it finds unused counts as unused from now.
func once(ctx context.Context, cfg Config, out io.Writer) (err error) {
	client, err := connect(ctx, cfg, newLogger(cfg))
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
	rules := policy.Rules{UnusedFor: time.Duration(cfg.Clean.UnusedFor), KeepUnpullable: cfg.Clean.KeepUnpullable}
	decisions := policy.Plan(policy.View{Images: obs.Images, Uses: obs.Uses}, rules, 0)

	hostname, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("host name: %w", err)
	}
	fmt.Fprintf(out, "%s   %s %s\n", hostname, versions.Runtime, versions.RuntimeVersion)
	fmt.Fprintf(out, "DISK   %s   %s of %s used\n\n", disk.Path, humanize.IBytes(disk.UsedBytes), humanize.IBytes(disk.SizeBytes))
	if err := printImages(out, obs, decisions, rules); err != nil {
		return err
	}
	if err := obs.Err(); err != nil {
		return fmt.Errorf("the look is incomplete: %w", err)
	}
	return nil
}

func printImages(out io.Writer, obs containerd.Observation, decisions []policy.Decision, rules policy.Rules) error {
	users := usersOf(obs)
	w := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(w, "IMAGE\tID\tSIZE\tUSED BY\tWOULD")
	var total, unused tally
	for i, img := range obs.Images {
		d := decisions[i]
		would := "stay: " + string(d.Reason)
		if d.Expires != nil {
			would = "go, if nobody uses it for " + days(rules.UnusedFor)
			unused.add(img)
		}
		total.add(img)
		fmt.Fprintf(w, "%s\t%.13s\t%s\t%s\t%s\n", firstName(img), strings.TrimPrefix(img.Key.ID, "sha256:"),
			humanize.IBytes(uint64(max(0, img.ContentBytes))), cmp.Or(strings.Join(users[img.Key], ", "), "-"), would)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("table: %w", err)
	}
	_, err := fmt.Fprintf(out, "\n%d images, %s; %d of them unused, %s\n",
		total.images, humanize.IBytes(total.bytes), unused.images, humanize.IBytes(unused.bytes))
	return err
}

// tally counts images and their bytes, a shared blob once.
type tally struct {
	images int
	bytes  uint64
	seen   map[string]bool
}

func (t *tally) add(img policy.Image) {
	if t.seen == nil {
		t.seen = map[string]bool{}
	}
	t.images++
	for _, b := range img.Blobs {
		if !t.seen[b.Digest] {
			t.seen[b.Digest] = true
			t.bytes += uint64(max(0, b.Bytes))
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

func days(d time.Duration) string {
	if d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	return d.String()
}
