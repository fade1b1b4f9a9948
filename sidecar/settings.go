package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"reflect"
	"sync"
	"syscall"

	"github.com/image-custodian/custodian/sidecar/internal/config"
	"github.com/image-custodian/custodian/sidecar/internal/policy"
	"github.com/image-custodian/custodian/sidecar/internal/reconcile"
)

// current is the configuration in force. It changes as files change.
type current struct {
	mu  sync.Mutex
	set config.Set
}

func (c *current) get() config.Set {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.set
}

// try gives the rules as they were with one more rules file.
func (c *current) try(name, text string) (policy.Rules, error) {
	rules, err := c.get().Try(name, text)
	rules.Machine = machineID()
	return rules, err
}

// replace puts a configuration that was read anew in force. One that is wrong
// leaves the old one, and holds removals until it is mended.
func (c *current) replace(set config.Set, ruleFaults, err error, log *slog.Logger) reconcile.Settings {
	c.mu.Lock()
	defer c.mu.Unlock()
	if fault := errors.Join(err, ruleFaults); fault != nil {
		log.Error("the configuration is wrong: the old one stays, and nothing is removed", "err", fault)
		return settings(c.set, fault)
	}
	if !reflect.DeepEqual(needsRestart(c.set.Config), needsRestart(set.Config)) {
		log.Warn("a part of the configuration changes only with a restart: containerd, kubelet, node, guard, history, state, control, log.format")
	}
	log.Info("the configuration was read again", "revision", set.Revision)
	c.set = set
	return settings(set, nil)
}

// needsRestart is a configuration without what changes at once.
func needsRestart(c config.Config) config.Config {
	c.Clean, c.Rule, c.Log.Level = config.Config{}.Clean, nil, 0
	return c
}

func settings(set config.Set, fault error) reconcile.Settings {
	rules := set.Rules()
	rules.Machine = machineID()
	return reconcile.Settings{Mode: set.Config.Clean.Mode, Rules: rules, Revision: set.Revision, Fault: fault}
}

// load reads a configuration of which nothing may be wrong.
func load(flag string) (config.Set, error) {
	set, ruleFaults, err := config.Load(config.Path(flag))
	return set, errors.Join(err, ruleFaults)
}

// hangup tells of each SIGHUP until ctx is done.
func hangup(ctx context.Context) <-chan struct{} {
	signals, asked := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(signals, syscall.SIGHUP)
	go func() {
		defer signal.Stop(signals)
		for {
			select {
			case <-ctx.Done():
				return
			case <-signals:
			}
			select {
			case <-ctx.Done():
				return
			case asked <- struct{}{}:
			}
		}
	}()
	return asked
}
