package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// program is one upstream program of the node, built from its Go module with
// exactly the dependencies that its release names.
type program struct {
	name    string // of the executable
	pkg     string // of its package main
	version string // of its module
	cgo     bool
	tags    string
	// module is the directory of the module of ours that requires pkg, for
	// what does not build by its version alone.
	module  string
	ldflags string
}

// pinned is the one place that says which releases a node runs.
func pinned() []program {
	const containerd, criTools, runc = "v2.4.2", "v1.37.0", "v1.5.3"
	return []program{
		{name: "containerd", pkg: "github.com/containerd/containerd/v2/cmd/containerd", version: containerd},
		{name: "containerd-shim-runc-v2", pkg: "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2", version: containerd},
		{name: "ctr", pkg: "github.com/containerd/containerd/v2/cmd/ctr", version: containerd},
		{name: "crictl", pkg: "sigs.k8s.io/cri-tools/cmd/crictl", version: criTools},
		// runc enters namespaces in C, before the Go runtime has threads.
		{name: "runc", pkg: "github.com/opencontainers/runc", version: runc, cgo: true},
	}
}

// runcWithSeccomp is what the pods of a kubelet need, which has each sandbox
// filtered. Other nodes go without, and so without its library.
func runcWithSeccomp() program {
	all := pinned()
	p := all[slices.IndexFunc(all, func(p program) bool { return p.name == "runc" })]
	p.tags = "seccomp"
	return p
}

// dir is where the program lives in cache; goVersion is part of the name
// because another compiler makes another program.
func (p program) dir(cache, goVersion string) string {
	parts := []string{p.name, p.version, p.tags, strings.ReplaceAll(goVersion, " ", "_")}
	parts = slices.DeleteFunc(parts, func(part string) bool { return part == "" })
	return filepath.Join(cache, strings.Join(parts, "-"))
}

func (p program) installArgs() []string {
	args := []string{"install", "-trimpath"}
	if p.tags != "" {
		args = append(args, "-tags", p.tags)
	}
	if p.ldflags != "" {
		args = append(args, "-ldflags", p.ldflags)
	}
	if p.module != "" {
		return append(args, p.pkg)
	}
	return append(args, p.pkg+"@"+p.version)
}

func (p program) buildEnv(environ []string, gobin string) []string {
	cgo := "0"
	if p.cgo {
		cgo = "1"
	}
	return overlay(environ,
		// GOBIN refuses cross builds, and flags or a workspace of the caller
		// have no business in an upstream build.
		"GOOS=", "GOARCH=", "GOFLAGS=", "GOWORK=off",
		"GOBIN="+gobin, "CGO_ENABLED="+cgo)
}

// programs returns the path of every pinned program by its name, and builds
// what the cache lacks.
func programs(ctx context.Context, log io.Writer) (map[string]string, error) {
	paths := make(map[string]string)
	for _, p := range pinned() {
		path, err := p.path(ctx, log)
		if err != nil {
			return nil, err
		}
		paths[p.name] = path
	}
	return paths, nil
}

// path is the program in the cache, built if it is not there.
func (p program) path(ctx context.Context, log io.Writer) (string, error) {
	user, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("program cache: %w", err)
	}
	cache := filepath.Join(user, "image-custodian", "programs")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("program cache: %w", err)
	}
	dir := p.dir(cache, runtime.Version())
	if err := p.ensure(ctx, log, dir); err != nil {
		return "", fmt.Errorf("program %s %s: %w", p.name, p.version, err)
	}
	return filepath.Join(dir, p.name), nil
}

// ensure builds the program into dir unless it is there. A lock beside dir
// keeps other processes from doing the same work; dir appears whole or not.
func (p program) ensure(ctx context.Context, log io.Writer, dir string) error {
	if exists(filepath.Join(dir, p.name)) {
		return nil
	}
	lock, err := lockFile(ctx, dir+".lock", func() {
		fmt.Fprintf(log, "waiting for another process to build %s %s\n", p.name, p.version)
	})
	if err != nil {
		return err
	}
	defer lock.Close()
	if exists(filepath.Join(dir, p.name)) {
		return nil
	}

	part := dir + ".part"
	if err := errors.Join(os.RemoveAll(part), os.RemoveAll(dir), os.Mkdir(part, 0o755)); err != nil {
		return err
	}
	goTool, err := goTool()
	if err != nil {
		return err
	}
	if p.cgo {
		if err := requirePackages(ctx, log, compilerPackages(p.tags)); err != nil {
			return err
		}
	}
	args := p.installArgs()
	fmt.Fprintf(log, "building %s: go %s\n", p.name, strings.Join(args, " "))
	cmd := exec.CommandContext(ctx, goTool, args...)
	cmd.Dir = cmp.Or(p.module, part) // away from any other go.mod
	cmd.Env = p.buildEnv(os.Environ(), part)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return os.Rename(part, dir)
}

// goTool finds the go command also where sudo has dropped it from PATH.
func goTool() (string, error) {
	path, err := exec.LookPath("go")
	if err == nil {
		return path, nil
	}
	const usual = "/usr/local/go/bin/go"
	if exists(usual) {
		return usual, nil
	}
	return "", err
}

// repository is the root of this repository, in which the caller has to be.
func repository(ctx context.Context) (string, error) {
	goTool, err := goTool()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	mod, err := exec.CommandContext(ctx, goTool, "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(mod))), nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
