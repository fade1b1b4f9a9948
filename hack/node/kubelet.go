package node

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"text/template"
	"time"

	"sigs.k8s.io/yaml"
)

//go:embed kubelet.yaml
var kubeletTemplate string

// KubeletOptions describe a kubelet on a node; the zero value is a good one.
type KubeletOptions struct {
	// DiskPressure has the kubelet take the disk for full: soon after
	// its start, and every ten seconds, it removes all images that no container
	// uses and no pin holds. It never evicts static pods.
	DiskPressure bool
	// ImageGCHighPercent and ImageGCLowPercent of a used disk are where the
	// kubelet's ordinary collection begins to remove images and where it ends.
	// It looks every five minutes, in vain at its start. 0 is 100 for the
	// first, which means never, and one less than the first for the second.
	ImageGCHighPercent, ImageGCLowPercent int
	// ImageMinimumGCAge is how long the kubelet must have known an image
	// before it removes it, for either reason.
	ImageMinimumGCAge time.Duration
	// Config is YAML (KubeletConfiguration) merged over the generated
	// configuration, key by key.
	Config string
}

// Kubelet is a real kubelet on a node. It has no API server: its pods are the
// static ones that PutStaticPod gives it, and they outlive it.
type Kubelet struct {
	RootDir       string
	StaticPodDir  string
	PodsAPISocket string
	ReadOnlyURL   string // http://127.0.0.1:PORT, for /pods
	HTTPSURL      string // https://127.0.0.1:PORT, which lets everybody do everything
	Log           string // file, over all restarts

	node    *Node
	process *process
}

// StartKubelet starts a kubelet and returns when it serves its pods. A node
// has one at a time; a later one takes over directory and pods of the former.
// Stop ends it with the node.
func (n *Node) StartKubelet(ctx context.Context, o KubeletOptions) (*Kubelet, error) {
	program, err := kubeletProgram(ctx)
	if err != nil {
		return nil, err
	}
	bin, err := program.path(ctx, n.log)
	if err != nil {
		return nil, err
	}
	runc, err := runcWithSeccomp().path(ctx, n.log)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.kubelet != nil {
		return nil, fmt.Errorf("node %s: a kubelet runs already", n.Name)
	}
	if err := n.linkProgram("runc", runc); err != nil {
		return nil, err
	}
	k := n.newKubelet()
	if err := k.start(ctx, bin, o); err != nil {
		return nil, errors.Join(fmt.Errorf("node %s: kubelet: %w", n.Name, err), n.endKubelet(syscall.SIGKILL))
	}
	return k, nil
}

// kubeletProgram is pinned by a module, because Kubernetes names the modules
// of its own tree v0.0.0.
func kubeletProgram(ctx context.Context) (program, error) {
	root, err := repository(ctx)
	if err != nil {
		return program{}, err
	}
	p := program{
		name: "kubelet", pkg: "k8s.io/kubernetes/cmd/kubelet",
		module: filepath.Join(root, "hack", "tools", "kubelet"),
	}
	text, err := os.ReadFile(filepath.Join(p.module, "go.mod"))
	if err != nil {
		return program{}, fmt.Errorf("program %s: %w", p.name, err)
	}
	found := regexp.MustCompile(`\bk8s\.io/kubernetes (v\S+)`).FindSubmatch(text)
	if found == nil {
		return program{}, fmt.Errorf("program %s: %s requires no k8s.io/kubernetes", p.name, p.module)
	}
	p.version = string(found[1])
	p.ldflags = "-X k8s.io/component-base/version.gitVersion=" + p.version
	return p, nil
}

func (n *Node) newKubelet() *Kubelet {
	root := n.kubeletRoot()
	return &Kubelet{
		RootDir:       root,
		StaticPodDir:  filepath.Join(n.Dir, "pods"),
		PodsAPISocket: filepath.Join(root, "pods-api", "pods-api.sock"),
		Log:           filepath.Join(n.Dir, "kubelet.log"),
		node:          n,
	}
}

func (n *Node) kubeletRoot() string { return filepath.Join(n.Dir, "kubelet") }

func (k *Kubelet) start(ctx context.Context, bin string, o KubeletOptions) error {
	if err := k.node.mountKubelet(); err != nil {
		return err
	}
	if err := os.MkdirAll(k.StaticPodDir, 0o755); err != nil {
		return err
	}
	ports, err := freePorts(ctx, 2)
	if err != nil {
		return err
	}
	k.ReadOnlyURL = fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	k.HTTPSURL = fmt.Sprintf("https://127.0.0.1:%d", ports[1])
	config, err := k.config(o, ports[0], ports[1])
	if err != nil {
		return err
	}
	file := filepath.Join(k.node.Dir, "kubelet.yaml")
	if err := os.WriteFile(file, config, 0o644); err != nil {
		return err
	}
	// Else one of an earlier kubelet looks like readiness.
	if err := os.RemoveAll(k.PodsAPISocket); err != nil {
		return err
	}
	if err := k.spawn(bin, "--config", file, "--root-dir", k.RootDir,
		"--cert-dir", filepath.Join(k.RootDir, "pki"), "--hostname-override", k.node.Name,
		// In a configuration file 0 means two minutes.
		"--minimum-image-ttl-duration", o.ImageMinimumGCAge.String()); err != nil {
		return err
	}
	return await(ctx, bootTimeout, func() error { return k.ready(ctx) })
}

// config is the template with KubeletOptions.Config merged over.
func (k *Kubelet) config(o KubeletOptions, readOnlyPort, httpsPort int) ([]byte, error) {
	o.ImageGCHighPercent = cmp.Or(o.ImageGCHighPercent, 100)
	o.ImageGCLowPercent = cmp.Or(o.ImageGCLowPercent, o.ImageGCHighPercent-1)
	t, err := template.New("kubelet.yaml").Parse(kubeletTemplate)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	err = t.Execute(&text, struct {
		*Kubelet
		KubeletOptions
		Dir, ContainerdAddress, CgroupParent string
		ReadOnlyPort, HTTPSPort              int
	}{k, o, k.node.Dir, k.node.ContainerdAddress, k.node.CgroupParent, readOnlyPort, httpsPort})
	if err != nil {
		return nil, err
	}
	var config, extra map[string]any
	if err := yaml.Unmarshal(text.Bytes(), &config); err != nil {
		return nil, fmt.Errorf("generated configuration: %w", err)
	}
	if err := yaml.Unmarshal([]byte(o.Config), &extra); err != nil {
		return nil, fmt.Errorf("KubeletOptions.Config: %w", err)
	}
	merge(config, extra)
	return yaml.Marshal(config)
}

func (k *Kubelet) ready(ctx context.Context) error {
	if k.process.ended() {
		return permanent{fmt.Errorf("%s\n%s", k.process.cmd.ProcessState, tail(k.Log))}
	}
	if _, err := os.Stat(k.PodsAPISocket); err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, k.ReadOnlyURL+"/pods", nil)
	if err != nil {
		return permanent{err}
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	reply, err := client.Do(request)
	if err != nil {
		return err
	}
	if reply.Body.Close(); reply.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", request.URL, reply.Status)
	}
	return nil
}

// Stop stops the kubelet in order. Its pods go on.
func (k *Kubelet) Stop() error { return k.end(syscall.SIGTERM) }

// Kill kills the kubelet with SIGKILL. Its pods go on.
func (k *Kubelet) Kill() error { return k.end(syscall.SIGKILL) }

// end is no error for a kubelet that has been ended before.
func (k *Kubelet) end(signal syscall.Signal) error {
	k.node.mu.Lock()
	defer k.node.mu.Unlock()
	if k.node.kubelet != k {
		return nil
	}
	return k.node.endKubelet(signal)
}

func (n *Node) endKubelet(signal syscall.Signal) error {
	if n.kubelet == nil {
		return nil
	}
	p := n.kubelet.process
	n.kubelet = nil
	return wrap("kubelet of", n.Name, end(&p, signal))
}

// freePorts are ports of the loopback that nobody listens on just now.
func freePorts(ctx context.Context, count int) (ports []int, err error) {
	for range count {
		var lc net.ListenConfig
		listener, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("free port: %w", err)
		}
		defer listener.Close() // at the end: all are different
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
