package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/image-custodian/custodian/api/v1/control"
)

// page is text for people, line by line. Each line is cleaned as a whole.
type page struct{ strings.Builder }

func (p *page) say(format string, args ...any) {
	p.WriteString(strings.TrimRight(oneLine(fmt.Sprintf(format, args...)), " ") + "\n")
}

func renderStatus(s *control.StatusResponse, wide bool, now time.Time) string {
	p := &page{}
	word := "OK"
	if needsPerson(s) {
		word = "HELD"
	}
	p.say("%s  %s   %s", word, orDash(s.GetNode()), programs(s, now))
	p.say("")
	troubles(p, s, now)
	disk(p, s)
	cleaning(p, s, now)
	view(p, s, now)
	last(p, s.GetEvents(), wide, now)
	return p.String()
}

func programs(s *control.StatusResponse, now time.Time) string {
	parts := []string{"image-custodian " + orDash(s.GetVersion())}
	if runtime := strings.TrimSpace(s.GetRuntime() + " " + s.GetRuntimeVersion()); runtime != "" {
		parts = append(parts, runtime)
	}
	if started, ok := at(s.GetStartedAt()); ok {
		parts = append(parts, "up "+span(now.Sub(started)))
	}
	return strings.Join(parts, " · ")
}

func disk(p *page, s *control.StatusResponse) {
	used := "-"
	if total := s.GetDiskSizeBytes(); total > 0 {
		used = fmt.Sprintf("%s of %s used (%.0f %%)", within(s.GetDiskUsedBytes(), total), size(total),
			100*float64(s.GetDiskUsedBytes())/float64(total))
	}
	p.say("DISK    %-23s  %s", orDash(s.GetDiskPath()), used)
	inUse, kept, unused := s.GetInUse().GetBytes(), s.GetKept().GetBytes(), s.GetUnused().GetBytes()
	images := inUse + kept + unused
	p.say("        %-23s  in use %s   kept %s   unused %s",
		"images "+size(images), within(inUse, images), within(kept, images), within(unused, images))
	others(p, s.GetFillers())
	p.say("")
}

// others tells what fills the disk beside the images.
func others(p *page, fillers []*control.Filler) {
	var total uint64
	for _, f := range fillers {
		total += f.GetBytes()
	}
	var parts []string
	for _, f := range fillers {
		part := strings.ReplaceAll(orDash(f.GetName()), "-", " ") + " " + within(f.GetBytes(), total)
		if f.GetDetail() != "" {
			part += " (" + f.GetDetail() + ")"
		}
		parts = append(parts, part)
	}
	if len(parts) > 0 {
		p.say("        %-23s  %s", "not images "+size(total), strings.Join(parts, "   "))
	}
}

func cleaning(p *page, s *control.StatusResponse, now time.Time) {
	next := "next: nothing"
	if due, ok := at(s.GetNextAt()); ok && s.GetNext().GetImages() > 0 {
		when := "in " + span(due.Sub(now))
		if !due.After(now) {
			when = "due"
		}
		next = fmt.Sprintf("next: %s, %s, %s     (custodianctl plan --in %s)",
			plural(s.GetNext().GetImages(), "image"), size(s.GetNext().GetBytes()), when, horizon(due.Sub(now)))
	}
	mode := orDash(s.GetCleanMode())
	switch s.GetCleanMode() {
	case "plan":
		mode += " (removes nothing)"
	case "off":
		next = "" // nothing is removed, so nothing comes next
	}
	p.say("CLEAN   %-23s  %s", mode, next)
	inUse, kept, unused := s.GetInUse().GetImages(), s.GetKept().GetImages(), s.GetUnused().GetImages()
	images := plural(inUse+kept+unused, "image")
	if namespaces := s.GetContainerdNamespaces(); len(namespaces) > 0 {
		images += " in " + strings.Join(namespaces, ", ")
	}
	p.say("        %-23s  %d in use   %d kept   %d unused", images, inUse, kept, unused)
}

// horizon is a --in with which a plan shows what is so far off.
func horizon(d time.Duration) string {
	const day = 24 * time.Hour
	if d <= day {
		return "24h"
	}
	return fmt.Sprintf("%dd", (d+day-1)/day)
}

func view(p *page, s *control.StatusResponse, now time.Time) {
	complete := "incomplete"
	if looked, ok := at(s.GetViewAt()); ok {
		complete = "complete " + span(now.Sub(looked)) + " ago"
	}
	var sources []string
	pods := false
	for _, source := range s.GetSources() {
		pods = pods || source.GetName() == "kubelet"
		word := "ok"
		if !source.GetOk() {
			word = strings.TrimSpace("FAILED " + age(source.GetSince(), now, ""))
		}
		sources = append(sources, sourceName(source, s)+" "+word)
	}
	if !pods && s.GetPodsSource() != "" {
		sources = append(sources, "kubelet pods "+s.GetPodsSource())
	}
	p.say("VIEW    %-23s  %s", complete, strings.Join(sources, "   "))
}

// sourceName names a source of the view, with what this node has of it.
func sourceName(source *control.Source, s *control.StatusResponse) string {
	switch name := source.GetName(); {
	case name == "config" && s.GetConfig() != "":
		return "config " + s.GetConfig()
	case name == "kubelet" && s.GetPodsSource() != "":
		return "kubelet pods (" + s.GetPodsSource() + ")"
	default:
		return orDash(name)
	}
}
