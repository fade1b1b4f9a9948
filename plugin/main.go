// Command image-custodian-plugin is the NRI plugin of Image Custodian: it tells
// the sidecar of each container before it exists, and of what becomes of it.
//
// It is thin on purpose, because every container operation of the node waits
// for it: no database, no containerd client, at most one bounded call a hook.
// containerd launches it, or it runs by itself and connects to the NRI socket.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
)

// Set by the linker from git.
var (
	version  = "dev"
	revision = "unknown"
)

func main() {
	path := flag.String("config", "", "configuration file (default "+defaultConfigFile+", which may be absent); not for a plugin that containerd launches")
	showVersion := flag.Bool("version", false, "print the version and exit")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "image-custodian-plugin: unknown argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	if *showVersion {
		fmt.Printf("image-custodian-plugin %s (%s, %s)\n", version, revision, runtime.Version())
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, *path)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "image-custodian-plugin:", strings.ReplaceAll(err.Error(), "\n", "; "))
		os.Exit(1)
	}
}

func run(ctx context.Context, path string) error {
	level := new(slog.LevelVar)
	if os.Getenv("NRI_PLUGIN_SOCKET") != "" {
		log := slog.New(syslogHandler(level))
		err := newPlugin(defaultConfig(), level, log).runLaunched(ctx)
		if err != nil {
			log.Error("image-custodian-plugin ends", "err", err)
		}
		return err
	}
	cfg, err := loadConfig(path)
	if err != nil {
		return err
	}
	level.Set(cfg.Log.Level)
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	return newPlugin(cfg, level, log).runExternal(ctx)
}
