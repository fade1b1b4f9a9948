// Package custodian_test holds the rules of this repository that no compiler
// knows: who may import whom, and what each package and file owes its reader.
package custodian_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
)

const module = "github.com/image-custodian/custodian/"

// mayImport is the whole of who may import whom, within this module. Imports
// run one way, so that each package can be understood with only what is below
// it in mind.
var mayImport = map[string]struct {
	packages []string
	why      string
}{
	"api/v1/node":                 {nil, "a contract depends on nobody"},
	"api/v1/control":              {nil, "a contract depends on nobody"},
	"plugin":                      {[]string{"api/v1/node"}, "the plugin is thin: it knows only how to speak to the sidecar"},
	"cli":                         {[]string{"api/v1/control"}, "custodianctl shows what the sidecar answers, and knows nothing else"},
	"sidecar/internal/policy":     {nil, "decisions are pure: they depend on nothing that can change under them"},
	"sidecar/internal/state":      {[]string{"sidecar/internal/policy"}, "the state stores facts and draws no conclusions"},
	"sidecar/internal/containerd": {[]string{"sidecar/internal/policy"}, "what talks to containerd decides nothing"},
	"sidecar/internal/owner":      {[]string{"sidecar/internal/policy"}, "what asks the kubelet decides nothing"},
	"sidecar/internal/config":     {[]string{"sidecar/internal/policy"}, "a file becomes rules, and knows nothing of a node"},
	"sidecar/internal/reconcile": {
		[]string{"sidecar/internal/policy", "sidecar/internal/state", "sidecar/internal/containerd"},
		"the loop joins decision, memory and deed, and does not know who is told",
	},
	"sidecar/internal/server": {
		[]string{"api/v1/node", "api/v1/control", "sidecar/internal/reconcile", "sidecar/internal/state", "sidecar/internal/policy"},
		"the services translate; containerd is not their business",
	},
	"sidecar": {
		[]string{"sidecar/internal/config", "sidecar/internal/policy", "sidecar/internal/state", "sidecar/internal/containerd", "sidecar/internal/owner", "sidecar/internal/reconcile", "sidecar/internal/server"},
		"main wires all of the sidecar, and nobody imports it",
	},
	"hack/node":          {nil, "the private node runs the product from outside"},
	"hack/node/cmd/node": {[]string{"hack/node"}, "a shell on the node"},
	"hack/demo":          {[]string{"hack/node"}, "the demo drives the built programs"},
	"hack/benchhook":     {[]string{"hack/node"}, "benchmarks drive the built programs"},
	"test/e2e":           {[]string{"hack/node"}, "end-to-end tests drive the built programs from outside"},
}

// mustNotReach names what may not even be linked in, through anybody: a package,
// or with /... everything below a path.
var mustNotReach = map[string]map[string]string{
	"plugin": {
		"github.com/containerd/containerd/...": "the plugin has no containerd client: it must stay small",
		"google.golang.org/grpc":               "the plugin speaks ttrpc alone: it must stay small",
		"go.etcd.io/bbolt":                     "the plugin keeps nothing",
	},
	"cli": {
		"github.com/containerd/...": "custodianctl speaks only to the sidecar",
		"k8s.io/cri-api/...":        "custodianctl speaks only to the sidecar",
		"go.etcd.io/bbolt":          "custodianctl keeps nothing",
	},
}

// unit is a package of this module: what it links, and what it and its tests
// import.
type unit struct {
	links   *packages.Package
	imports map[string]bool
}

func load(t *testing.T) map[string]*unit {
	t.Helper()
	all, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedImports | packages.NeedDeps, BuildFlags: []string{"-tags=e2e,kubelet"}, Tests: true,
	}, "./...")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]*unit{}
	for _, p := range all {
		if len(p.Errors) > 0 {
			t.Fatalf("%s: %v", p.PkgPath, p.Errors)
		}
		name, below := strings.CutPrefix(p.PkgPath, module)
		if !below || strings.HasSuffix(name, ".test") {
			continue
		}
		name = strings.TrimSuffix(name, "_test")
		if found[name] == nil {
			found[name] = &unit{imports: map[string]bool{}}
		}
		if p.ID == p.PkgPath { // the package without its tests
			found[name].links = p
		}
		for imported := range p.Imports {
			found[name].imports[imported] = true
		}
	}
	return found
}

func TestImports(t *testing.T) {
	found := load(t)
	for name, u := range found {
		rule, known := mayImport[name]
		if !known {
			t.Errorf("%s: no rule says what it may import", name)
			continue
		}
		for imported := range u.imports {
			own, ours := strings.CutPrefix(imported, module)
			if ours && own != name && !slices.Contains(rule.packages, own) {
				t.Errorf("%s imports %s: %s", name, own, rule.why)
			}
		}
	}
	for name := range mayImport {
		if found[name] == nil {
			t.Errorf("a rule names %s, which does not exist", name)
		}
	}
}

func TestLinks(t *testing.T) {
	found := load(t)
	everywhere := map[string]bool{}
	for _, u := range found {
		addLinks(everywhere, u.links)
	}
	for name, rules := range mustNotReach {
		u := found[name]
		if u == nil {
			t.Errorf("a rule names %s, which does not exist", name)
			continue
		}
		linked := map[string]bool{}
		addLinks(linked, u.links)
		for pattern, why := range rules {
			for _, bad := range matching(linked, pattern) {
				t.Errorf("%s links %s: %s", name, bad, why)
			}
			if len(matching(everywhere, pattern)) == 0 {
				t.Errorf("a rule of %s names %s, which nobody here links: has it moved?", name, pattern)
			}
		}
	}
}

func addLinks(links map[string]bool, p *packages.Package) {
	if p == nil || links[p.PkgPath] {
		return
	}
	links[p.PkgPath] = true
	for _, next := range p.Imports {
		addLinks(links, next)
	}
}

func matching(links map[string]bool, pattern string) []string {
	tree, isTree := strings.CutSuffix(pattern, "...")
	var found []string
	for link := range links {
		if link == pattern || isTree && strings.HasPrefix(link, tree) {
			found = append(found, link)
		}
	}
	return found
}

// sources visits each Go file that a person wrote.
func sources(t *testing.T, visit func(file string, parsed *ast.File, lines int)) {
	t.Helper()
	files := token.NewFileSet()
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != "." && strings.HasPrefix(d.Name(), "."):
			return filepath.SkipDir
		case !strings.HasSuffix(file, ".go"):
			return nil
		}
		parsed, err := parser.ParseFile(files, file, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		if !ast.IsGenerated(parsed) {
			visit(file, parsed, files.File(parsed.FileStart).LineCount())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestPackageComments(t *testing.T) {
	comments := map[string]int{}
	sources(t, func(file string, parsed *ast.File, _ int) {
		dir := path.Dir(filepath.ToSlash(file))
		n := comments[dir]
		// A test file may speak for the package only here, where there is no other.
		if parsed.Doc != nil && (dir == "." || !strings.HasSuffix(file, "_test.go")) {
			n++
		}
		comments[dir] = n
	})
	for dir, n := range comments {
		if n != 1 {
			t.Errorf("%s: %d package comments, want one", dir, n)
		}
	}
	for name := range mayImport {
		if _, found := comments[name]; !found && !strings.HasPrefix(name, "api/") {
			t.Errorf("%s: no source found", name)
		}
	}
}

func TestFilesAreSmall(t *testing.T) {
	const limit = 400
	sources(t, func(file string, _ *ast.File, lines int) {
		if lines > limit {
			t.Errorf("%s has %d lines, more than %d: is it still one idea?", file, lines, limit)
		}
	})
}

// TestNoMachineIsNamed holds every file to what is true on all machines: no
// person's home and no folder that this clone happens to lie in.
func TestNoMachineIsNamed(t *testing.T) {
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	machine := regexp.MustCompile(
		`(^|[^\w./-])(/(root|home/\w+|Users/\w+)/|` + regexp.QuoteMeta(here) + `\b)`)
	err = filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains([]string{".git", ".cache", "bin", "dist"}, file) {
				return filepath.SkipDir
			}
			return nil
		}
		if file == ".git" { // of a worktree
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for n, line := range bytes.Split(text, []byte("\n")) {
			if found := machine.Find(line); found != nil {
				t.Errorf("%s:%d names a path of one machine: %s", file, n+1, found)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
