package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
	"github.com/containerd/nri/pkg/stub"
)

// noop subscribes to what image-custodian subscribes to, and does nothing.
type noop struct{}

func (noop) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	fmt.Print("r") // ready, for the benchmark
	return nil, nil
}
func (noop) RunPodSandbox(context.Context, *api.PodSandbox) error    { return nil }
func (noop) RemovePodSandbox(context.Context, *api.PodSandbox) error { return nil }
func (noop) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	return nil, nil, nil
}
func (noop) PostCreateContainer(context.Context, *api.PodSandbox, *api.Container) error { return nil }
func (noop) PostStartContainer(context.Context, *api.PodSandbox, *api.Container) error  { return nil }
func (noop) StopContainer(context.Context, *api.PodSandbox, *api.Container) ([]*api.ContainerUpdate, error) {
	return nil, nil
}
func (noop) RemoveContainer(context.Context, *api.PodSandbox, *api.Container) error { return nil }

// silent takes the log of the NRI stub, which says what nobody asked here.
type silent struct{}

func (silent) Debugf(context.Context, string, ...any) {}
func (silent) Infof(context.Context, string, ...any)  {}
func (silent) Warnf(context.Context, string, ...any)  {}
func (silent) Errorf(context.Context, string, ...any) {}

// runNoop is the no-op plugin, until ctx is done.
func runNoop(ctx context.Context, socket string) error {
	nrilog.Set(silent{})
	s, err := stub.New(noop{}, stub.WithPluginName("noop"), stub.WithPluginIdx("10"), stub.WithSocketPath(socket))
	if err != nil {
		return err
	}
	if err := s.Run(ctx); err != nil && !errors.Is(err, context.Canceled) && ctx.Err() == nil {
		return err
	}
	return nil
}
