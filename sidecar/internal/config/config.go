// Package config reads the sidecar's configuration: sidecar.toml and the rules
// files beside it. It tells everything that is wrong at once, with file and line,
// and never takes a file of which it understood only a part.
package config

import (
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// Config is sidecar.toml. conf/sidecar.toml shows every key with its default and
// its meaning.
type Config struct {
	Containerd struct {
		Address    string   `toml:"address"`
		Namespaces []string `toml:"namespaces"`
	} `toml:"containerd"`
	Kubelet struct {
		Pods      string `toml:"pods"`
		Socket    string `toml:"socket"`
		URL       string `toml:"url"`
		TokenFile string `toml:"token_file"`
		CAFile    string `toml:"ca_file"`
	} `toml:"kubelet"`
	Node struct {
		Socket string `toml:"socket"`
	} `toml:"node"`
	Clean struct {
		Mode           policy.Mode `toml:"mode"`
		UnusedFor      Duration    `toml:"unused_for"`
		Spread         Share       `toml:"spread"`
		MinAge         Duration    `toml:"min_age"`
		StartGrace     Duration    `toml:"start_grace"`
		KeepUnpullable bool        `toml:"keep_unpullable"`
		MaxPerHour     int         `toml:"max_per_hour"`
		Pressure       struct {
			High Level `toml:"high"`
			Low  Level `toml:"low"`
		} `toml:"pressure"`
		Budget struct {
			UnusedBytes  Size `toml:"unused_bytes"`
			UnusedImages int  `toml:"unused_images"`
		} `toml:"budget"`
	} `toml:"clean"`
	Rule  []Rule `toml:"rule"`
	Guard struct {
		AdmitTimeout Duration `toml:"admit_timeout"`
	} `toml:"guard"`
	History struct {
		Events int `toml:"events"`
	} `toml:"history"`
	State struct {
		Dir string `toml:"dir"`
	} `toml:"state"`
	Control struct {
		Socket      string `toml:"socket"`
		ReaderGroup string `toml:"reader_group"`
	} `toml:"control"`
	Log struct {
		Level  slog.Level `toml:"level"`
		Format string     `toml:"format"`
	} `toml:"log"`
}

// Default is what an empty file means.
func Default() Config {
	var c Config
	c.Containerd.Namespaces = []string{"k8s.io"}
	c.Kubelet.Pods = "auto"
	c.Kubelet.URL = "https://127.0.0.1:10250/pods"
	c.Node.Socket = "/run/image-custodian/node/node.sock"
	c.Clean.Mode = policy.ModeAuto
	c.Clean.UnusedFor = Duration{31 * day}
	c.Clean.Spread = Share{0.1}
	c.Clean.MinAge = Duration{time.Hour}
	c.Clean.StartGrace = Duration{15 * time.Minute}
	c.Clean.KeepUnpullable = true
	c.Clean.MaxPerHour = 120
	c.Guard.AdmitTimeout = Duration{250 * time.Millisecond}
	c.History.Events = 10000
	c.State.Dir = "/var/lib/image-custodian"
	c.Control.Socket = "/run/image-custodian/control.sock"
	c.Log.Format = "text"
	return c
}

// parse reads sidecar.toml over the defaults.
func parse(file string, data []byte) (Config, []policy.Rule, Faults) {
	c, doc := decode(file, data, Default)
	doc.validate(c)
	rules := doc.rules(c.Rule)
	return c, rules, doc.faults
}

// validate notes every fault of the values.
func (d *document) validate(c Config) {
	check := func(ok bool, key, format string, args ...any) {
		if !ok {
			d.fault(key, key+": "+format, args...)
		}
	}
	check(len(c.Containerd.Namespaces) > 0, "containerd.namespaces", "name at least one")
	for _, ns := range c.Containerd.Namespaces {
		check(isNamespace(ns), "containerd.namespaces", "%q is no containerd namespace", ns)
	}
	check(slices.Contains([]string{"auto", "socket", "https", "none"}, c.Kubelet.Pods), "kubelet.pods", "%q is none of auto, socket, https, none", c.Kubelet.Pods)
	check(!strings.HasPrefix(c.Kubelet.URL, "http:") || c.Kubelet.TokenFile == "", "kubelet.token_file", "a token is sent over https only")
	check(!strings.Contains(c.Kubelet.URL, "@"), "kubelet.url", "holds a user: errors and logs would tell the password")
	for key, path := range map[string]string{
		"node.socket": c.Node.Socket, "control.socket": c.Control.Socket, "state.dir": c.State.Dir,
		"kubelet.socket": c.Kubelet.Socket, "kubelet.token_file": c.Kubelet.TokenFile, "kubelet.ca_file": c.Kubelet.CAFile,
	} {
		optional := path == "" && key[:7] == "kubelet"
		check(optional || filepath.IsAbs(path), key, "%q is not an absolute path", path)
	}
	check(filepath.Dir(c.Node.Socket) != filepath.Dir(c.Control.Socket), "node.socket", "needs a directory of its own, which only root may enter")
	check(slices.Contains(policy.Modes, c.Clean.Mode), "clean.mode", "%q is none of auto, plan, off", c.Clean.Mode)
	check(c.Clean.UnusedFor.Duration >= 0, "clean.unused_for", "is negative")
	check(c.Clean.MinAge.Duration >= 0, "clean.min_age", "is negative")
	check(c.Clean.StartGrace.Duration >= 0, "clean.start_grace", "is negative")
	check(c.Clean.MaxPerHour >= 0, "clean.max_per_hour", "is negative")
	check(c.Clean.Budget.UnusedImages >= 0, "clean.budget.unused_images", "is negative")
	d.pressure(policy.Level(c.Clean.Pressure.High), policy.Level(c.Clean.Pressure.Low))
	check(c.Guard.AdmitTimeout.Duration > 0 && c.Guard.AdmitTimeout.Duration <= 5*time.Second, "guard.admit_timeout", "want more than 0 and at most 5s")
	check(c.History.Events > 0, "history.events", "want at least 1")
	check(c.History.Events <= 0 || c.History.Events > c.Clean.MaxPerHour, "history.events", "want more than clean.max_per_hour, which counts events")
	check(c.Log.Format == "text" || c.Log.Format == "json", "log.format", "%q is none of text, json", c.Log.Format)
}

func (d *document) pressure(high, low policy.Level) {
	zero := policy.Level{}
	switch {
	case (high == zero) != (low == zero):
		d.fault("clean.pressure", "clean.pressure: high and low belong together")
	case (high.Share > 0) != (low.Share > 0):
		d.fault("clean.pressure.low", "clean.pressure.low: write high and low both as a share or both as a size")
	case high != zero && (low.Share >= high.Share && high.Share > 0 || low.Bytes >= high.Bytes && high.Bytes > 0):
		d.fault("clean.pressure.low", "clean.pressure.low: must be below high")
	}
}
