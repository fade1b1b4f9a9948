package node

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// ErrPackagesMissing says that Debian packages are missing and may not be
// installed unasked; the error text holds the line to type.
var ErrPackagesMissing = errors.New("packages are missing")

const (
	busybox      = "/bin/busybox"
	cniPluginDir = "/usr/lib/cni"
)

// debianPackage is recognised by what it brings, so that the same file from
// elsewhere serves as well.
type debianPackage struct {
	name    string
	present func() bool
}

func runtimePackages() []debianPackage {
	return []debianPackage{
		{"containernetworking-plugins", func() bool {
			return exists(cniPluginDir+"/bridge") && exists(cniPluginDir+"/host-local")
		}},
		{"busybox-static", func() bool { return isStatic(busybox) }},
	}
}

// compilerPackages are for a program in C and Go with the given build tags.
func compilerPackages(tags string) []debianPackage {
	packages := []debianPackage{
		{"gcc", func() bool { return runnable("gcc") }},
		{"libc6-dev", func() bool { return exists("/usr/include/stdlib.h") }},
	}
	if tags == "seccomp" {
		packages = append(packages, debianPackage{"libseccomp-dev", func() bool { return exists("/usr/include/seccomp.h") }},
			debianPackage{"pkg-config", func() bool { return runnable("pkg-config") }})
	}
	return packages
}

func runnable(name string) bool {
	_, err := exec.LookPath(name)
	return err == nil
}

// isStatic tells the busybox-static package from busybox: images have no
// dynamic loader.
func isStatic(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return false
		}
	}
	return true
}

// requirePackages fails with ErrPackagesMissing when one is missing; with
// DEPS=install or CI=true in the environment it installs them instead.
func requirePackages(ctx context.Context, log io.Writer, packages []debianPackage) error {
	names := missing(packages)
	if len(names) == 0 {
		return nil
	}
	install := append([]string{"apt-get", "install", "-y", "--no-install-recommends"}, names...)
	if os.Getenv("DEPS") != "install" && os.Getenv("CI") != "true" {
		return fmt.Errorf("%w: %s; install them, as root, with\n\t%s\nor set DEPS=install",
			ErrPackagesMissing, strings.Join(names, " "), strings.Join(install, " "))
	}
	for _, args := range [][]string{{"apt-get", "update"}, install} {
		fmt.Fprintln(log, strings.Join(args, " "))
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Env = overlay(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	if names := missing(packages); len(names) > 0 {
		return fmt.Errorf("%w even after their installation: %s", ErrPackagesMissing, strings.Join(names, " "))
	}
	return nil
}

func missing(packages []debianPackage) []string {
	var names []string
	for _, p := range packages {
		if !p.present() {
			names = append(names, p.name)
		}
	}
	return names
}
