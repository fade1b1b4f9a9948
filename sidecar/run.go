package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/image-custodian/custodian/sidecar/internal/config"
	"github.com/image-custodian/custodian/sidecar/internal/containerd"
	"github.com/image-custodian/custodian/sidecar/internal/owner"
	"github.com/image-custodian/custodian/sidecar/internal/reconcile"
	"github.com/image-custodian/custodian/sidecar/internal/server"
	"github.com/image-custodian/custodian/sidecar/internal/state"
)

const (
	// interval is the longest time between two looks at the node.
	interval = time.Minute
	// pluginSilence is three signs of life of the plugin.
	pluginSilence = 45 * time.Second
	// linger is far longer than a container's creation takes from finding its
	// image to the plugin's hook.
	linger = 3 * time.Second
	// gcPercent trades a little CPU, of which a look a minute needs not much, for
	// memory, of which a node has none to give away.
	gcPercent = 50
	// connectTimeout bounds the first talk with containerd.
	connectTimeout = 10 * time.Second
)

func runCommand() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run until told to stop",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return run(cmd.Context(), path)
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "configuration file (default "+config.DefaultFile+", which may be absent)")
	return cmd
}

func run(ctx context.Context, flag string) (err error) {
	started := wallClock()
	path, optional := config.Path(flag)
	set, ruleFaults, err := config.Load(path, optional)
	if err != nil {
		return err
	}
	cfg := set.Config
	level := &slog.LevelVar{}
	log := newLogger(cfg, level)
	current := &current{set: set}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}

	sockets := server.Sockets{Node: cfg.Node.Socket, Control: cfg.Control.Socket, ReaderGroup: cfg.Control.ReaderGroup}
	srv, err := server.Listen(ctx, sockets)
	if err != nil {
		return err
	}
	served := false
	defer func() {
		if !served {
			err = errors.Join(err, srv.Close())
		}
	}()

	client, err := connect(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	versions, err := client.Versions(ctx)
	if err != nil {
		return err
	}

	store, err := state.Open(state.Options{Dir: cfg.State.Dir, MachineID: machineID(), MaxEvents: cfg.History.Events})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()

	pods, err := newPods(cfg, log)
	if err != nil {
		return err
	}
	rec, err := reconcile.New(reconcile.Config{
		Settings: settings(set, ruleFaults), Pods: pods,
		Interval: interval, PluginSilence: pluginSilence, NotBefore: buildDate(), Wall: wallClock,
		CompareAndDelete: client.CompareAndDelete, Linger: linger,
	}, client, store, log)
	if err != nil {
		return err
	}

	hostname, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("host name: %w", err)
	}
	nodeService := server.NewNodeService(rec, cfg.Guard.AdmitTimeout.Duration, log)
	controlService := server.NewControlService(rec, server.About{
		Node: hostname, Version: version, Revision: revision, GoVersion: runtime.Version(),
		Runtime: versions.Runtime, RuntimeVersion: versions.RuntimeVersion, CRI: versions.CRIVersion,
		Started: started, Namespaces: cfg.Containerd.Namespaces, TryRules: current.try,
		Disk: func(ctx context.Context) (server.Disk, error) {
			d, err := client.Disk(ctx)
			return server.Disk(d), err
		},
	})

	log.Info("image-custodian-sidecar is up", "version", version, "revision", revision,
		"runtime", versions.Runtime, "runtime_version", versions.RuntimeVersion, "state", store.Path(), "new_state", store.Created(), "clean", cfg.Clean.Mode)
	group, ctx := errgroup.WithContext(ctx)
	served = true
	group.Go(func() error { return srv.Serve(ctx, nodeService, controlService) })
	group.Go(func() error { return rec.Run(ctx) })
	group.Go(func() error { return pods.Run(ctx, rec.Wake) })
	group.Go(func() error {
		return config.Watch(ctx, path, set, ruleFaults, hangup(ctx), log, func(set config.Set, ruleFaults, err error) {
			rec.Apply(current.replace(set, ruleFaults, err, log))
			level.Set(current.get().Config.Log.Level)
		})
	})
	err = group.Wait()
	log.Info("image-custodian-sidecar ends", "err", err)
	return err
}

func newPods(cfg config.Config, log *slog.Logger) (*owner.Source, error) {
	return owner.New(owner.Config{
		Mode: owner.Mode(cfg.Kubelet.Pods), Socket: cfg.Kubelet.Socket, URL: cfg.Kubelet.URL,
		TokenFile: cfg.Kubelet.TokenFile, CAFile: cfg.Kubelet.CAFile,
	}, log)
}

func connect(ctx context.Context, cfg config.Config, log *slog.Logger) (*containerd.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	return containerd.Connect(ctx, containerd.Config{Address: cfg.Containerd.Address, Namespaces: cfg.Containerd.Namespaces}, log)
}

// newLogger logs to stderr; level follows the configuration while it runs.
func newLogger(cfg config.Config, level *slog.LevelVar) *slog.Logger {
	if level == nil {
		level = &slog.LevelVar{}
	}
	level.Set(cfg.Log.Level)
	opts := &slog.HandlerOptions{Level: level}
	if cfg.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, opts))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, opts))
}

// machineID tells a state that was copied from another machine. A machine
// without the file has no ID, and its state is taken as its own.
func machineID() string {
	data, err := os.ReadFile("/etc/machine-id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}
