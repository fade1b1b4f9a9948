package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// DefaultFile may be absent: then the defaults hold.
const DefaultFile = "/etc/image-custodian/sidecar.toml"

// rulesDir lies beside sidecar.toml.
const rulesDir = "rules.d"

// maxFile bounds what is read of a file.
const maxFile = 256 << 10

// Set is the whole configuration: sidecar.toml and the rules files.
type Set struct {
	Config Config
	// Revision identifies what was read, shortened.
	Revision string

	absent bool          // there is no sidecar.toml
	noDir  bool          // there is no rules.d
	own    []policy.Rule // of it
	files  []rulesFile   // by name
}

type rulesFile struct {
	name  string
	rules []policy.Rule
}

// Path is the file that a flag names, or the default, which is optional.
func Path(flag string) (path string, optional bool) {
	if flag == "" {
		return DefaultFile, true
	}
	return flag, false
}

// Load reads a configuration. A file that is optional and not there is empty. The error tells all that is wrong with
// sidecar.toml, ruleFaults all that is wrong with the rules files: while there is
// anything, nothing may be removed by the set.
func Load(path string, optional bool) (set Set, ruleFaults, err error) {
	data, err := read(path)
	absent := errors.Is(err, os.ErrNotExist) && optional
	if absent {
		data, err = nil, nil
	}
	if err != nil {
		return Set{}, nil, fmt.Errorf("configuration: %w", err)
	}
	hash := sha256.New()
	hash.Write(data)
	config, own, faults := parse(path, data)
	if len(faults) > 0 {
		return Set{}, nil, faults.err()
	}
	set = Set{Config: config, absent: absent, own: own}

	names, err := rulesFiles(filepath.Join(filepath.Dir(path), rulesDir))
	if set.noDir = errors.Is(err, os.ErrNotExist); err != nil && !set.noDir {
		return set, err, nil
	}
	for _, name := range names {
		text, err := read(name)
		if err != nil {
			faults = append(faults, Fault{File: name, Text: err.Error()})
			continue
		}
		fmt.Fprintf(hash, "\x00%s\x00%s", name, text)
		rules, found := parseRules(name, text)
		faults = append(faults, found...)
		set.files = append(set.files, rulesFile{filepath.Base(name), rules})
	}
	set.Revision = hex.EncodeToString(hash.Sum(nil))[:6]
	return set, faults.err(), nil
}

// rulesFiles are the *.toml of a directory, by name. Hidden files are left out:
// editors and Kubernetes keep theirs there.
func rulesFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("rules: %w", err)
	}
	var names []string
	for _, e := range entries {
		if filepath.Ext(e.Name()) == ".toml" && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, filepath.Join(dir, e.Name()))
		}
	}
	return names, nil
}

func read(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: is no file", path)
	case info.Size() > maxFile:
		return nil, fmt.Errorf("%s: %d bytes, more than any configuration needs", path, info.Size())
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	// No more than it says that it has: some that say nothing never end.
	data, err := io.ReadAll(io.LimitReader(file, info.Size()))
	return data, errors.Join(err, file.Close())
}

// parseRules reads a rules file: it holds rules and nothing else.
func parseRules(file string, data []byte) ([]policy.Rule, Faults) {
	type rulesOnly struct {
		Rule []Rule `toml:"rule"`
	}
	r, doc := decode(file, data, func() rulesOnly { return rulesOnly{} })
	return doc.rules(r.Rule), doc.faults
}

// Rules are what the set asks for: the rules of sidecar.toml first, then those of
// the files by their names.
func (s Set) Rules() policy.Rules {
	c := s.Config.Clean
	rules := policy.Rules{
		UnusedFor: c.UnusedFor.Duration, MinAge: c.MinAge.Duration, StartGrace: c.StartGrace.Duration,
		KeepUnpullable: c.KeepUnpullable, Spread: c.Spread.Part, MaxPerHour: c.MaxPerHour,
		Budget:   policy.Budget{UnusedBytes: c.Budget.UnusedBytes.Bytes, UnusedImages: c.Budget.UnusedImages},
		Pressure: policy.Pressure{High: policy.Level(c.Pressure.High), Low: policy.Level(c.Pressure.Low)},
		List:     slices.Clone(s.own),
	}
	for _, f := range s.files {
		rules.List = append(rules.List, f.rules...)
	}
	return rules
}

// Try gives the rules as they were if a rules file of this name and text were
// installed. The error tells every fault of the file.
func (s Set) Try(name, text string) (policy.Rules, error) {
	name = filepath.Base(name)
	if filepath.Ext(name) != ".toml" || strings.HasPrefix(name, ".") {
		return policy.Rules{}, fmt.Errorf("rules %q: a rules file is named *.toml", name)
	}
	rules, faults := parseRules(name, []byte(text))
	if len(faults) > 0 {
		return policy.Rules{}, faults.err()
	}
	files := slices.DeleteFunc(slices.Clone(s.files), func(f rulesFile) bool { return f.name == name })
	files = append(files, rulesFile{name, rules})
	slices.SortFunc(files, func(a, b rulesFile) int { return strings.Compare(a.name, b.name) })
	s.files = files
	return s.Rules(), nil
}

// Check tells what is wrong with files, on any machine: each is a sidecar.toml,
// a rules file, or a directory of rules files. A file that holds nothing but
// rules is a rules file. rules is how many each has.
func Check(path string) (rules int, err error) {
	if info, statErr := os.Stat(path); statErr == nil && info.IsDir() {
		names, err := rulesFiles(path)
		if err != nil {
			return 0, err
		}
		var errs []error
		for _, name := range names {
			data, err := read(name)
			if err == nil {
				list, faults := parseRules(name, data)
				rules, err = rules+len(list), faults.err()
			}
			errs = append(errs, err)
		}
		return rules, errors.Join(errs...)
	}
	data, err := read(path)
	if err != nil {
		return 0, err
	}
	var probe document
	probe.locate(data)
	onlyRules := len(probe.lines) > 0
	for key := range probe.lines {
		onlyRules = onlyRules && (key == "rule" || strings.HasPrefix(key, "rule."))
	}
	if onlyRules {
		list, faults := parseRules(path, data)
		return len(list), faults.err()
	}
	_, list, faults := parse(path, data)
	return len(list), faults.err()
}
