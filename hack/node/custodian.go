package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Programs of image-custodian, by the folder that each is built from.
var custodianPrograms = map[string]string{
	"./plugin":  "image-custodian-plugin",
	"./sidecar": "image-custodian-sidecar",
	"./cli":     "custodianctl",
}

// BuildCustodian builds the programs of this repository into dir, as they are
// shipped; with a tag such as "faults" it builds them for tests.
func BuildCustodian(ctx context.Context, dir string, tags ...string) error {
	goTool, err := goTool()
	if err != nil {
		return fmt.Errorf("build image-custodian: %w", err)
	}
	root, err := repository(ctx)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for folder, name := range custodianPrograms {
		args := []string{"build", "-trimpath", "-tags", strings.Join(tags, ","), "-o", filepath.Join(dir, name), folder}
		cmd := exec.CommandContext(ctx, goTool, args...)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}

// CustodianOptions describe an image-custodian on a node.
type CustodianOptions struct {
	// Bin is the directory that BuildCustodian built into.
	Bin string
	// Config is TOML (conf/sidecar.toml) merged over a configuration that
	// points at the node.
	Config string
	// Env is added to the environment of the sidecar.
	Env []string
}

// Custodian is an image-custodian on a node: an external plugin and a sidecar,
// each started and stopped by itself. Stop it before the node.
type Custodian struct {
	Dir           string
	Socket        string // control.sock
	ReadSocket    string
	NodeSocket    string
	StateFile     string
	SidecarConfig string // file
	PluginConfig  string // file
	SidecarLog    string // file, over all restarts
	PluginLog     string // file

	node    *Node
	options CustodianOptions
	sidecar *process
	plugin  *process
}

// NewCustodian writes the configuration of an image-custodian on the node and
// starts nothing.
func (n *Node) NewCustodian(o CustodianOptions) (*Custodian, error) {
	dir := filepath.Join(n.Dir, "ic")
	c := &Custodian{
		Dir: dir, node: n, options: o,
		Socket: filepath.Join(dir, "control.sock"), ReadSocket: filepath.Join(dir, "read.sock"),
		NodeSocket: filepath.Join(dir, "node", "node.sock"), StateFile: filepath.Join(dir, "state", "state.db"),
		SidecarConfig: filepath.Join(dir, "sidecar.toml"), PluginConfig: filepath.Join(dir, "plugin.toml"),
		SidecarLog: filepath.Join(dir, "sidecar.log"), PluginLog: filepath.Join(dir, "plugin.log"),
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return c, errors.Join(c.Configure(o.Config),
		os.WriteFile(c.PluginConfig, []byte(c.PluginTOML()), 0o644))
}

// PluginTOML is the plugin's configuration, also for one that containerd
// launches.
func (c *Custodian) PluginTOML() string {
	return fmt.Sprintf("node_socket = %q\nnri_socket = %q\n[log]\nlevel = \"debug\"\n", c.NodeSocket, c.node.NRISocket)
}

// Configure replaces what is merged over the sidecar's configuration, from its
// next start on.
func (c *Custodian) Configure(text string) error {
	base := fmt.Sprintf(`
[containerd]
address = %q
[kubelet]
pods = "none"
[node]
socket = %q
[state]
dir = %q
[control]
socket = %q
[log]
level = "debug"
`, c.node.ContainerdAddress, c.NodeSocket, filepath.Dir(c.StateFile), c.Socket)
	merged, err := mergeTOML(base, text)
	if err != nil {
		return fmt.Errorf("sidecar configuration: %w", err)
	}
	return os.WriteFile(c.SidecarConfig, merged, 0o644)
}

// Env is the node's environment in which custodianctl finds the sidecar.
func (c *Custodian) Env() []string {
	return overlay(c.node.Env(), "CUSTODIAN_SOCKET="+c.Socket,
		"PATH="+c.options.Bin+":"+filepath.Join(c.node.Dir, "bin")+":"+os.Getenv("PATH"))
}

// Start starts the sidecar and the plugin and waits until they have synced.
func (c *Custodian) Start(ctx context.Context) error {
	if err := c.StartSidecar(ctx); err != nil {
		return err
	}
	if err := c.StartPlugin(ctx); err != nil {
		return err
	}
	return c.WaitSynced(ctx, 1)
}

// StartSidecar starts the sidecar and waits until it answers.
func (c *Custodian) StartSidecar(ctx context.Context) error {
	p, err := c.spawn(c.SidecarLog, append(c.Env(), c.options.Env...), "image-custodian-sidecar", "run", "--config", c.SidecarConfig)
	if err != nil {
		return err
	}
	c.sidecar = p
	return await(ctx, 20*time.Second, func() error {
		if p.ended() {
			return permanent{fmt.Errorf("sidecar: %s\n%s", p.cmd.ProcessState, tail(c.SidecarLog))}
		}
		_, stderr, code, err := c.Ctl(ctx, "version")
		if err == nil && code != 0 {
			err = errors.New(stderr)
		}
		return err
	})
}

// StartPlugin starts the external plugin.
func (c *Custodian) StartPlugin(context.Context) (err error) {
	c.plugin, err = c.spawn(c.PluginLog, c.Env(), "image-custodian-plugin", "--config", c.PluginConfig)
	return err
}

// WaitSynced waits until the running sidecar, over all its starts, has synced
// with plugins at least count times.
func (c *Custodian) WaitSynced(ctx context.Context, count int) error {
	return await(ctx, 30*time.Second, func() error {
		log, err := os.ReadFile(c.SidecarLog)
		if err != nil {
			return err
		}
		if got := bytes.Count(log, []byte(`"synced with the plugin"`)); got < count {
			return fmt.Errorf("%d of %d syncs\nsidecar: %s\nplugin: %s", got, count, tail(c.SidecarLog), tail(c.PluginLog))
		}
		return nil
	})
}

// KillSidecar kills the sidecar with SIGKILL, KillPlugin the plugin.
func (c *Custodian) KillSidecar() error { return end(&c.sidecar, syscall.SIGKILL) }

// KillPlugin kills the plugin with SIGKILL.
func (c *Custodian) KillPlugin() error { return end(&c.plugin, syscall.SIGKILL) }

// StopSidecar stops the sidecar in order; an exit code other than 0 is an error.
func (c *Custodian) StopSidecar() error { return end(&c.sidecar, syscall.SIGTERM) }

// StopPlugin stops the plugin in order; an exit code other than 0 is an error.
func (c *Custodian) StopPlugin() error { return end(&c.plugin, syscall.SIGTERM) }

// Signal sends a signal to the sidecar, for SIGSTOP and SIGCONT.
func (c *Custodian) Signal(s syscall.Signal) error { return c.sidecar.cmd.Process.Signal(s) }

// SidecarPID and PluginPID are the processes, 0 for one that does not run.
func (c *Custodian) SidecarPID() int { return c.sidecar.pid() }

// PluginPID is the plugin's process, 0 if it does not run.
func (c *Custodian) PluginPID() int { return c.plugin.pid() }

// Stop stops what runs.
func (c *Custodian) Stop() error { return errors.Join(c.StopPlugin(), c.StopSidecar()) }

// Ctl runs custodianctl. err says that it could not be run; code is its answer.
func (c *Custodian) Ctl(ctx context.Context, args ...string) (stdout, stderr string, code int, err error) {
	return c.Run(ctx, "custodianctl", args...)
}

// Run runs a program of image-custodian to its end.
func (c *Custodian) Run(ctx context.Context, program string, args ...string) (stdout, stderr string, code int, err error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.options.Bin, program), args...)
	cmd.Env = c.Env()
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return out.String(), errOut.String(), exit.ExitCode(), ctx.Err()
	}
	return out.String(), errOut.String(), 0, err
}

func (c *Custodian) spawn(logFile string, env []string, program string, args ...string) (*process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(c.options.Bin, program), args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, log, log
	p, err := spawn(cmd)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", program, err)
	}
	return p, nil
}

// SetEnv replaces what is added to the sidecar's environment, from its next
// start on.
func (c *Custodian) SetEnv(env ...string) { c.options.Env = env }

// Forget lets go of a sidecar that ended by itself, as a test expected.
func (c *Custodian) Forget() error {
	if c.sidecar == nil || !c.sidecar.ended() {
		return errors.New("the sidecar has not ended")
	}
	c.sidecar = nil
	return nil
}
