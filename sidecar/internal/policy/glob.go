package policy

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Glob is an anchored pattern of image names: "*" stands for anything without a
// slash, "**" for anything, "?" for one character that is no slash. A pattern
// without a tag or digest means all of them; one without a registry means
// Docker Hub, as "nginx" does elsewhere.
type Glob struct {
	pattern string
	prefix  string // what a match begins with, to rule out most names cheaply
	full    *regexp.Regexp
	// anyTag says that the repository alone may match, digest that a digest is
	// named.
	anyTag, digest bool
}

// ParseGlob compiles a pattern. The error says what is wrong with it.
func ParseGlob(pattern string) (Glob, error) {
	switch {
	case pattern == "":
		return Glob{}, errors.New("an empty pattern matches nothing")
	case len(pattern) > maxPattern:
		return Glob{}, fmt.Errorf("pattern %.20q…: more than %d bytes", pattern, maxPattern)
	case strings.ContainsAny(pattern, " \t\n{}\\") || strings.ContainsAny(withoutIPv6(pattern), "[]"):
		return Glob{}, fmt.Errorf("pattern %q: want an image name with *, ** or ?", pattern)
	case strings.Contains(pattern, "***"):
		return Glob{}, fmt.Errorf("pattern %q: *** means nothing more than **", pattern)
	case pattern == "*":
		return Glob{}, errors.New(`pattern "*": stops at a slash and so matches no name; ** matches all`)
	case strings.Contains(pattern, "://"):
		return Glob{}, fmt.Errorf("pattern %q: an image name has no scheme", pattern)
	}
	g := Glob{pattern: pattern}
	full := pattern
	first, _, _ := strings.Cut(pattern, "/")
	short := first == pattern && !strings.Contains(pattern, "**") // a name of Docker Hub, as "nginx*"
	if !isDigest(pattern) && (short || !strings.ContainsAny(first, "*?")) {
		full = withRegistry(pattern)
	}
	r := parseReference(full)
	g.anyTag, g.digest = r.tag == "" && r.digest == "", r.digest != ""
	g.prefix = full
	if i := strings.IndexAny(full, "*?"); i >= 0 {
		g.prefix = full[:i]
	}
	var err error
	if g.full, err = regexp.Compile("^" + globExpression(full) + "$"); err != nil {
		return Glob{}, fmt.Errorf("pattern %q: %w", pattern, err)
	}
	return g, nil
}

// maxPattern is far above what a name can have.
const maxPattern = 1024

// withoutIPv6 is a pattern without a registry's address in brackets.
func withoutIPv6(pattern string) string {
	if address, rest, ok := strings.Cut(pattern, "]"); ok && strings.HasPrefix(address, "[") {
		return rest
	}
	return pattern
}

func globExpression(pattern string) string {
	var b strings.Builder
	for i := 0; i < len(pattern); i++ {
		switch {
		case strings.HasPrefix(pattern[i:], "**"):
			b.WriteString("(?s:.*)")
			i++
		case pattern[i] == '*':
			b.WriteString("[^/]*")
		case pattern[i] == '?':
			b.WriteString("[^/]")
		default:
			b.WriteString(regexp.QuoteMeta(pattern[i : i+1]))
		}
	}
	return b.String()
}

// Match reports whether the pattern matches a name of the image store.
func (g Glob) Match(name string) bool {
	return g.match(candidate(name))
}

// String is the pattern as it was written.
func (g Glob) String() string { return g.pattern }

// match takes a name that candidate has prepared.
func (g Glob) match(name, repository string) bool {
	if !strings.HasPrefix(name, g.prefix) {
		return false
	}
	return g.full.MatchString(name) || g.anyTag && repository != "" && g.full.MatchString(repository)
}

// names reports whether the pattern says anything about a name, instead of
// taking all that there is.
func (g Glob) names() bool { return strings.Trim(g.pattern, "*?/:@") != "" }

// candidate is a name as patterns see it, and its repository.
func candidate(name string) (full, repository string) {
	if isDigest(name) {
		return name, ""
	}
	full = withRegistry(name)
	return full, parseReference(full).repository
}
