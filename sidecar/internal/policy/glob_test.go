package policy

import (
	"strings"
	"testing"

	docker "github.com/distribution/reference"
)

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		pattern string
		yes, no string // names, separated by spaces
	}{
		{"reg.io/a", "reg.io/a reg.io/a:1 reg.io/a@sha256:00 reg.io/a:1@sha256:00", "reg.io/ab:1 reg.io/a/b:1 xreg.io/a:1"},
		{"reg.io/a:1", "reg.io/a:1", "reg.io/a reg.io/a:10 reg.io/a:2"},
		{"reg.io/a:*", "reg.io/a:1", "reg.io/a@sha256:00 reg.io/ab:1"},
		{"reg.io/a:1.?", "reg.io/a:1.2", "reg.io/a:1.27 reg.io/a:1."},
		{"reg.io/*", "reg.io/a:1 reg.io/a@sha256:00", "reg.io/a/b:1"},
		{"reg.io/**", "reg.io/a:1 reg.io/a/b:1", "reg.io:1/a"},
		{"reg.io/**/app", "reg.io/x/app:1 reg.io/x/y/app:2", "reg.io/app:1 reg.io/x/apps:1"},
		{"**", "a reg.io/a:1 sha256:00", ""},
		{"nginx*", "docker.io/library/nginx:1 docker.io/library/nginx-debug:1", "reg.io/nginx:1"},
		{"docker.io/nginx", "docker.io/library/nginx:1 docker.io/nginx:1 nginx:1", "docker.io/x/nginx:1"},
		{"index.docker.io/grafana/*", "docker.io/grafana/loki:3", "docker.io/x/loki:3"},
		{"**/nginx:*", "reg.io/nginx:1 docker.io/library/nginx:2", "reg.io/nginx@sha256:00"},
		{"nginx", "docker.io/library/nginx:1 nginx:1", "reg.io/nginx:1"},
		{"nginx:1.*", "docker.io/library/nginx:1.27", "docker.io/library/nginx:2"},
		{"grafana/*", "docker.io/grafana/loki:3", "docker.io/library/grafana:1"},
		{"localhost/*", "localhost/app:dev", "docker.io/localhost/app:dev"},
		{"localhost:5000/app", "localhost:5000/app:1", "localhost/app:1"},
		{"reg.io:5000/a", "reg.io:5000/a:1", "reg.io:5000/b:1"},
		{"[::1]:5000/a", "[::1]:5000/a:1", "[::2]:5000/a:1"},
		{"REG.io/A+b_c%20", "REG.io/A+b_c%20:1", "reg.io/a+b_c%20:1"},
		{"sha256:*", "sha256:00", "reg.io/a@sha256:00"},
		{"ré.io/*", "ré.io/a:1", "re.io/a:1"},
		{"reg.io/a.b", "reg.io/a.b:1", "reg.io/axb:1"},
	} {
		g, err := ParseGlob(c.pattern)
		if err != nil {
			t.Errorf("%s: %v", c.pattern, err)
			continue
		}
		for _, name := range strings.Fields(c.yes) {
			if !g.Match(name) {
				t.Errorf("%s does not match %s", c.pattern, name)
			}
		}
		for _, name := range strings.Fields(c.no) {
			if g.Match(name) {
				t.Errorf("%s matches %s", c.pattern, name)
			}
		}
	}
	for _, bad := range []string{"", "*", "a b", "***", "https://reg.io/a", "reg.io/[ab]", "reg.io/{a,b}", `a\b`, strings.Repeat("a", maxPattern+1)} {
		if _, err := ParseGlob(bad); err == nil {
			t.Errorf("%q is a pattern", bad)
		}
	}
}

// Names are completed as Docker completes them.
func TestWithRegistry(t *testing.T) {
	for _, name := range []string{
		"nginx", "nginx:1", "grafana/loki", "docker.io/nginx", "docker.io/nginx:1", "index.docker.io/nginx", "docker.io/library/nginx",
		"docker.io/a/b/c:1", "REG/a:1", "localhost/a", "localhost:5000/a:1", "reg.io/a", "reg.io:5000/a/b@sha256:" + strings.Repeat("a", 64),
	} {
		ref, err := docker.ParseDockerRef(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := asNamed(name); got != ref.String() {
			t.Errorf("%s is %s, want %s", name, got, ref)
		}
	}
}

// Whatever is written, a pattern without wildcards matches itself, and none
// panics.
func FuzzGlob(f *testing.F) {
	f.Add("reg.io:5000/a/**:1?", "reg.io:5000/a/b:12")
	f.Add("nginx", "docker.io/library/nginx:latest")
	f.Add("[::1]:5000/é", "sha256:00")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		g, err := ParseGlob(pattern)
		if err != nil {
			return
		}
		g.Match(name)
		if !strings.ContainsAny(pattern, "*?") && !g.Match(pattern) {
			t.Errorf("%q does not match itself", pattern)
		}
	})
}
