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
		used = fmt.Sprintf("%s of %s used (%.0f %%)", size(s.GetDiskUsedBytes()), size(total),
			100*float64(s.GetDiskUsedBytes())/float64(total))
	}
	p.say("DISK    %-23s  %s", orDash(s.GetDiskPath()), used)
	inUse, kept, unused := s.GetInUse().GetBytes(), s.GetKept().GetBytes(), s.GetUnused().GetBytes()
	p.say("        %-23s  in use %s   kept %s   unused %s",
		"images "+size(inUse+kept+unused), size(inUse), size(kept), size(unused))
	fillers(p, s.GetFillers())
	p.say("")
}

// fillers tells what else fills the disk.
func fillers(p *page, list []*control.Filler) {
	var total uint64
	var parts []string
	for _, f := range list {
		total += f.GetBytes()
		part := strings.ReplaceAll(orDash(f.GetName()), "-", " ") + " " + size(f.GetBytes())
		if f.GetName() == "other-namespaces" && f.GetDetail() != "" {
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
		next = fmt.Sprintf("next: %s, %s, %s   (custodianctl plan --in 24h)", plural(s.GetNext().GetImages(), "image"), size(s.GetNext().GetBytes()), when)
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

func view(p *page, s *control.StatusResponse, now time.Time) {
	complete := "incomplete"
	if looked, ok := at(s.GetViewAt()); ok {
		complete = "complete " + span(now.Sub(looked)) + " ago"
	}
	var sources []string
	for _, source := range s.GetSources() {
		word := "ok"
		if !source.GetOk() {
			word = strings.TrimSpace("FAILED " + age(source.GetSince(), now, ""))
		}
		name := orDash(source.GetName())
		switch {
		case name == "config" && s.GetConfig() != "":
			name += " " + s.GetConfig()
		case name == "kubelet":
			name += " pods"
		}
		sources = append(sources, name+" "+word)
	}
	p.say("VIEW    %-23s  %s", complete, strings.Join(sources, "   "))
}
