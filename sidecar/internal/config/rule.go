package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// Rule is one [[rule]] as it is written. docs/rules.md tells what each key means.
type Rule struct {
	Name string `toml:"name"`

	Images               []string          `toml:"images"`
	Untagged             bool              `toml:"untagged"`
	Labels               map[string]string `toml:"labels"`
	ContainerdNamespaces []string          `toml:"containerd_namespaces"`

	UnusedFor  *Duration `toml:"unused_for"`
	Keep       bool      `toml:"keep"`
	Pin        bool      `toml:"pin"`
	KeepLatest int       `toml:"keep_latest"`
	Trash      *Duration `toml:"trash"`
	Unpullable bool      `toml:"unpullable"`
}

// Bounds on a file, far above what people write: each image is held against each
// pattern.
const maxRules, maxPatterns = 1000, 5000

// rules turns the rules of a document into those of the policy.
func (d *document) rules(list []Rule) []policy.Rule {
	var rules []policy.Rule
	patterns := 0
	for _, r := range list {
		patterns += len(r.Images)
	}
	if len(list) > maxRules || patterns > maxPatterns {
		d.fault("rule.0", "%d rules with %d patterns: want at most %d and %d", len(list), patterns, maxRules, maxPatterns)
		return nil
	}
	for i, r := range list {
		rules = append(rules, d.rule(r, "rule."+strconv.Itoa(i)))
	}
	return rules
}

func (d *document) rule(r Rule, key string) policy.Rule {
	out := policy.Rule{
		Name: r.Name, Untagged: r.Untagged, ContainerdNamespaces: r.ContainerdNamespaces,
		Keep: r.Keep, Pin: r.Pin, KeepLatest: r.KeepLatest, Unpullable: r.Unpullable,
	}
	if r.UnusedFor != nil {
		out.UnusedFor = &r.UnusedFor.Duration
	}
	if r.Trash != nil {
		out.Trash = &r.Trash.Duration
	}
	if out.Name == "" {
		out.Name = fmt.Sprintf("%s:%d", d.file[strings.LastIndexByte(d.file, '/')+1:], d.lines[key])
	}
	if strings.ContainsFunc(out.Name, func(c rune) bool { return c < ' ' }) || len(out.Name) > 64 {
		d.fault(key+".name", "name: want at most 64 characters in one line")
	}
	if r.Name == policy.DefaultRule {
		d.fault(key+".name", "name: %q is the rule that [clean] unused_for makes", r.Name)
	}
	for _, pattern := range r.Images {
		glob, err := policy.ParseGlob(pattern)
		if err != nil {
			d.fault(key+".images", "images: %v", err)
		}
		out.Images = append(out.Images, glob)
	}
	if r.Images != nil && len(r.Images) == 0 {
		d.fault(key+".images", "images: an empty list matches nothing; leave the key out to match all")
	}
	for _, k := range slices.Sorted(maps.Keys(r.Labels)) {
		if k == "" {
			d.fault(key+".labels", "labels: a label has no name")
		}
		out.Labels = append(out.Labels, policy.LabelMatch{Key: k, Value: r.Labels[k]})
	}
	for _, ns := range r.ContainerdNamespaces {
		if !isNamespace(ns) {
			d.fault(key+".containerd_namespaces", "containerd_namespaces: %q is no containerd namespace", ns)
		}
	}
	d.terms(r, key)
	return out
}

// terms tells what contradicts itself.
func (d *document) terms(r Rule, key string) {
	timed := r.UnusedFor != nil || r.KeepLatest != 0
	switch {
	case r.Keep && r.Pin:
		d.fault(key+".keep", "keep and pin: pin keeps, too; write one of them")
	case (r.Keep || r.Pin) && timed:
		d.fault(key, "keep or pin keeps for ever: unused_for and keep_latest mean nothing beside it")
	case (r.Keep || r.Pin) && r.Unpullable:
		d.fault(key+".unpullable", "unpullable lets images go: it means nothing beside keep or pin")
	case !r.Keep && !r.Pin && !timed && !r.Unpullable && r.Trash == nil:
		d.fault(key, "a rule says what becomes of its images: keep, pin, keep_latest, unused_for, unpullable or trash")
	}
	if r.KeepLatest < 0 {
		d.fault(key+".keep_latest", "keep_latest: is negative")
	}
	if r.UnusedFor != nil && r.UnusedFor.Duration < 0 {
		d.fault(key+".unused_for", "unused_for: is negative")
	}
	if r.Trash != nil && r.Trash.Duration < 0 {
		d.fault(key+".trash", "trash: is negative")
	}
}

func isNamespace(ns string) bool { return ns != "" && !strings.ContainsAny(ns, "/\x00") }
