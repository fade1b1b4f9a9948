// Package custodian_test holds the rules of this repository that no compiler
// knows: who may import whom, and what each package and file owes its reader.
package custodian_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
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
	"sidecar/internal/reconcile": {
		[]string{"sidecar/internal/policy", "sidecar/internal/state", "sidecar/internal/containerd"},
		"the loop joins decision, memory and deed, and does not know who is told",
	},
	"sidecar/internal/server": {
		[]string{"api/v1/node", "api/v1/control", "sidecar/internal/reconcile", "sidecar/internal/state", "sidecar/internal/policy"},
		"the services translate; containerd is not their business",
	},
	"sidecar": {
		[]string{"sidecar/internal/policy", "sidecar/internal/state", "sidecar/internal/containerd", "sidecar/internal/reconcile", "sidecar/internal/server"},
		"main wires all of the sidecar, and nobody imports it",
	},
	"hack/node":          {nil, "the private node runs the product from outside"},
	"hack/node/cmd/node": {[]string{"hack/node"}, "a shell on the node"},
	"hack/demo":          {[]string{"hack/node"}, "the demo drives the built programs"},
	"hack/benchhook":     {[]string{"hack/node"}, "benchmarks drive the built programs"},
	"test/e2e":           {[]string{"hack/node"}, "end-to-end tests drive the built programs from outside"},
}

// mustNotReach names what may not even be linked in, through anybody.
var mustNotReach = map[string]map[string]string{
	"plugin": {
		"github.com/containerd/containerd/v2/client": "the plugin has no containerd client: it must stay small",
		"google.golang.org/grpc":                     "the plugin speaks ttrpc alone: it must stay small",
		"go.etcd.io/bbolt":                           "the plugin keeps nothing",
	},
	"cli": {
		"github.com/containerd/containerd/v2/client": "custodianctl speaks only to the sidecar",
		"go.etcd.io/bbolt":                           "custodianctl keeps nothing",
	},
}

func load(t *testing.T) map[string]*packages.Package {
	t.Helper()
	all, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedImports | packages.NeedDeps, BuildFlags: []string{"-tags=e2e"}, Tests: true,
	}, "./...")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]*packages.Package{}
	for _, p := range all {
		if len(p.Errors) > 0 {
			t.Fatalf("%s: %v", p.PkgPath, p.Errors)
		}
		// Of a package and its variants with tests, only the bare one.
		if p.ID == p.PkgPath && p.PkgPath+"/" != module && !strings.HasSuffix(p.PkgPath, ".test") {
			found[strings.TrimPrefix(p.PkgPath, module)] = p
		}
	}
	return found
}

func TestImports(t *testing.T) {
	found := load(t)
	for name, p := range found {
		rule, known := mayImport[name]
		if !known {
			t.Errorf("%s: no rule says what it may import", name)
			continue
		}
		for imported := range p.Imports {
			own, ours := strings.CutPrefix(imported, module)
			if ours && !slices.Contains(rule.packages, own) {
				t.Errorf("%s imports %s: %s", name, own, rule.why)
			}
		}
		reach(t, name, p)
	}
	for name := range mayImport {
		if found[name] == nil {
			t.Errorf("a rule names %s, which does not exist", name)
		}
	}
}

func reach(t *testing.T, name string, root *packages.Package) {
	t.Helper()
	seen := map[string]bool{}
	var visit func(p *packages.Package)
	visit = func(p *packages.Package) {
		if seen[p.PkgPath] {
			return
		}
		seen[p.PkgPath] = true
		if why, bad := mustNotReach[name][p.PkgPath]; bad {
			t.Errorf("%s links %s: %s", name, p.PkgPath, why)
		}
		for _, next := range p.Imports {
			visit(next)
		}
	}
	visit(root)
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
		if strings.HasSuffix(file, "_test.go") && dir != "." {
			return
		}
		if comments[dir] += 0; parsed.Doc != nil {
			comments[dir]++
		}
	})
	if len(comments) < len(mayImport)-2 {
		t.Fatalf("only %d packages found", len(comments))
	}
	for dir, n := range comments {
		if n != 1 {
			t.Errorf("%s: %d package comments, want one", dir, n)
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
