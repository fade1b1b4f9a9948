package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	drainTimeout = 20 * time.Second
	// settleTimeout is how long processes may take to end by themselves after
	// containerd did; what is there afterwards was left behind.
	settleTimeout = 2 * time.Second
)

// Stop stops the kubelet, removes all pods and containers, stops containerd and
// takes away everything of the node. It cleans up also when ctx is done already. The
// error names each thing that was left behind by the orderly way and had to
// be killed, unmounted or deleted. Stopping twice is no error.
func (n *Node) Stop(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stopped {
		return nil
	}
	n.stopped = true
	ctx = context.WithoutCancel(ctx)

	// A kubelet would bring back the pods that are removed.
	errs := []error{n.endKubelet(syscall.SIGTERM), n.drain(ctx), n.cleanKubelet(), n.endContainerd(ctx, syscall.SIGTERM)}
	if n.containerd != nil { // does not end
		errs = append(errs, n.endContainerd(ctx, syscall.SIGKILL))
	}
	if n.conn != nil {
		errs = append(errs, n.conn.Close())
	}
	if n.registry != nil {
		n.pushes.CloseIdleConnections()
		errs = append(errs, n.registry.Close())
	}
	left, err := n.clean(ctx, settleTimeout)
	if len(left) > 0 {
		errs = append(errs, fmt.Errorf("left behind: %s", strings.Join(left, "; ")))
	}
	if err == nil {
		err = n.remove()
	} else { // not over a mount; the record stays for the next Sweep
		err = errors.Join(err, n.owner.file.Close())
	}
	errs = append(errs, err)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("stop node %s: %w", n.Name, err)
	}
	return nil
}

// remove ends a node of which only the directory is left.
func (n *Node) remove() error {
	if err := os.RemoveAll(n.Dir); err != nil {
		return errors.Join(err, n.owner.file.Close())
	}
	return n.owner.remove()
}

// drain removes pods, containers and tasks through containerd, which alone
// undoes networks and mounts in order; where a test has killed it, it is
// started once more.
func (n *Node) drain(ctx context.Context) error {
	if !n.booted {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	if n.containerd != nil {
		select {
		case <-n.containerd.exited:
			n.containerd = nil
		default:
		}
	}
	if n.containerd == nil {
		if err := n.startContainerd(ctx); err != nil {
			return err
		}
	}
	return errors.Join(n.removePods(ctx), n.removeTasks(ctx))
}

func (n *Node) removePods(ctx context.Context) error {
	pods, err := n.Runtime().ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	var g errgroup.Group
	g.SetLimit(8)
	for _, pod := range pods.GetItems() {
		g.Go(func() error {
			return errors.Join(n.StopPod(ctx, pod.GetId()), n.RemovePod(ctx, pod.GetId()))
		})
	}
	return g.Wait()
}

// removeTasks removes what was run past CRI, in any containerd namespace.
func (n *Node) removeTasks(ctx context.Context) error {
	client, err := containerd.NewWithConn(n.conn)
	if err != nil {
		return err
	}
	spaces, err := client.NamespaceService().List(ctx)
	if err != nil {
		return fmt.Errorf("list containerd namespaces: %w", err)
	}
	var errs []error
	for _, space := range spaces {
		ctx := namespaces.WithNamespace(ctx, space)
		containers, err := client.Containers(ctx)
		if err != nil {
			errs = append(errs, fmt.Errorf("list containers of %s: %w", space, err))
		}
		for _, c := range containers {
			if err := removeTask(ctx, c); err != nil {
				errs = append(errs, fmt.Errorf("container %s/%s: %w", space, c.ID(), err))
			}
		}
	}
	return errors.Join(errs...)
}

func removeTask(ctx context.Context, c containerd.Container) error {
	task, err := c.Task(ctx, nil)
	if err == nil {
		_, err = task.Delete(ctx, containerd.WithProcessKill)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	err = c.Delete(ctx, containerd.WithSnapshotCleanup)
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return nil
}
