package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type use struct {
	ContainerID string `json:"container_id"`
	Pod         string `json:"pod"`
	ImageID     string `json:"image_id"`
	State       string `json:"state"`
	Kind        string `json:"kind"`
}

type event struct {
	Kind       string   `json:"kind"`
	Names      []string `json:"names"`
	FreedBytes int64    `json:"freed_bytes"`
}

// ask runs custodianctl for its JSON.
func (s *scene) ask(ctx context.Context, into any, args ...string) error {
	stdout, stderr, code, err := s.custodian.Ctl(ctx, append(args, "-o", "json")...)
	if err != nil {
		return err
	}
	if stdout == "" {
		return fmt.Errorf("custodianctl %s: exit %d: %s", strings.Join(args, " "), code, stderr)
	}
	return json.Unmarshal([]byte(stdout), into)
}

func (s *scene) uses(ctx context.Context) ([]use, error) {
	var list struct{ Uses []use }
	err := s.ask(ctx, &list, "uses")
	return list.Uses, err
}

// lastUsed is the last use of the batch image.
func (s *scene) lastUsed(ctx context.Context) (string, error) {
	var list struct {
		Images []struct {
			LastUsed string `json:"last_used"`
		}
	}
	if err := s.ask(ctx, &list, "images", "--filter", "image="+s.batch); err != nil {
		return "", err
	}
	if len(list.Images) != 1 {
		return "", fmt.Errorf("%d images are named %s", len(list.Images), s.batch)
	}
	return list.Images[0].LastUsed, nil
}

// removal is the event of the batch image's removal; its zero value, if there
// is none yet.
func (s *scene) removal(ctx context.Context) (event, error) {
	var status struct{ Events []event }
	if err := s.ask(ctx, &status, "status"); err != nil {
		return event{}, err
	}
	for _, e := range status.Events {
		if e.Kind == "removed" && slices.Contains(e.Names, s.batch) {
			return e, nil
		}
	}
	return event{}, nil
}

// imagesOfCRI are the names that a kubelet would see.
func (s *scene) imagesOfCRI(ctx context.Context) ([]string, error) {
	list, err := s.node.Images().ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, i := range list.GetImages() {
		names = append(names, i.GetRepoTags()...)
	}
	slices.Sort(names)
	return names, nil
}

// stored is the size of all blobs and committed snapshots, by containerd's word.
func (s *scene) stored(ctx context.Context) (bytes int64, err error) {
	client, err := containerd.New(s.node.ContainerdAddress)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	ctx = namespaces.WithNamespace(ctx, "k8s.io")
	err = client.ContentStore().Walk(ctx, func(i content.Info) error {
		bytes += i.Size
		return nil
	})
	if err != nil {
		return 0, err
	}
	snapshotter := client.SnapshotService("overlayfs")
	return bytes, snapshotter.Walk(ctx, func(ctx context.Context, i snapshots.Info) error {
		if i.Kind != snapshots.KindCommitted {
			return nil
		}
		usage, err := snapshotter.Usage(ctx, i.Name)
		bytes += usage.Size
		return err
	})
}

// complete reports whether the sidecar sees all of the node.
func (s *scene) complete(ctx context.Context) (bool, error) {
	var list struct{ Complete bool }
	err := s.ask(ctx, &list, "images")
	return list.Complete, err
}

// show runs a program before the spectator's eyes.
func (s *scene) show(ctx context.Context, name string, args ...string) error {
	fmt.Printf("\n# %s %s\n", name, strings.Join(args, " "))
	if name == "custodianctl" {
		stdout, stderr, code, err := s.custodian.Ctl(ctx, args...)
		fmt.Print(stdout, stderr)
		if err == nil && code != 0 {
			err = fmt.Errorf("custodianctl %s: exit %d", strings.Join(args, " "), code)
		}
		return err
	}
	cmd := s.node.Command(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

// until waits for something that is due within a minute.
func (s *scene) until(ctx context.Context, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		ok, err := done()
		if err != nil || ok {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited in vain: %s: %w", what, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}
