package main

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode"

	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/image-custodian/custodian/api/v1/control"
)

// Every screen, through a real socket.
func TestScreens(t *testing.T) {
	all := &sidecar{status: goodStatus(), images: someImages(), uses: someUses(), version: aVersion()}
	none := &sidecar{
		status: &control.StatusResponse{}, images: &control.ListImagesResponse{},
		uses: &control.ListUsesResponse{}, version: &control.VersionResponse{},
	}
	plan := goodStatus()
	plan.CleanMode = "plan"
	for _, c := range []struct {
		golden  string
		sidecar *sidecar
		args    string
		code    int
	}{
		{"status.txt", all, "status", 0},
		{"status-wide.txt", all, "status -o wide", 0},
		{"status.json", all, "status -o json", 0},
		{"status.yaml", all, "status -o yaml", 0},
		{"status-held.txt", &sidecar{status: heldStatus()}, "status", 1},
		{"status-held.json", &sidecar{status: heldStatus()}, "status -o json", 1},
		{"status-grace.txt", &sidecar{status: graceStatus()}, "status", 0},
		{"status-plan.txt", &sidecar{status: plan}, "status", 0},
		{"status-none.txt", none, "status", 0},
		{"status-none.json", none, "status -o json", 0},
		{"images.txt", all, "images", 0},
		{"images-size.txt", all, "images --sort size", 0},
		{"images-last-used.txt", all, "images --sort last-used", 0},
		{"images-wide.txt", all, "images -o wide", 0},
		{"images.json", all, "images -o json", 0},
		{"images.yaml", all, "images -o yaml", 0},
		{"images-none.txt", none, "images", 0},
		{"images-none.json", none, "images -o json", 0},
		{"uses.txt", all, "uses", 0},
		{"uses-wide.txt", all, "uses -o wide", 0},
		{"uses.json", all, "uses -o json", 0},
		{"uses.yaml", all, "uses -o yaml", 0},
		{"uses-none.txt", none, "uses", 0},
		{"why.txt", &sidecar{why: whyKept()}, "why docker.io/library/postgres:16", 0},
		{"why.json", &sidecar{why: whyKept()}, "explain postgres:16 -o json", 0},
		{"why-used.txt", &sidecar{why: whyUsed()}, "why pause", 0},
		{"why-held.txt", &sidecar{why: whyHeld()}, "why ui", 0},
		{"why-gone.txt", &sidecar{why: whyGone()}, "why pay:2.1", 0},
		{"why-none.txt", &sidecar{why: &control.WhyResponse{Image: &control.Image{}}}, "why x", 0},
		{"plan.txt", &sidecar{plan: aPlan()}, "plan", 0},
		{"plan.json", &sidecar{plan: aPlan()}, "plan -o json", 0},
		{"plan-kept.txt", &sidecar{plan: aPlan()}, "plan k3q7", 0},
		{"plan-short.txt", &sidecar{plan: askedPlan()}, "plan --free 20GiB --in 1d", 0},
		{"plan-read.txt", &sidecar{plan: aPlan(), readOnly: true}, "plan", 0},
		{"plan-none.txt", &sidecar{plan: &control.Plan{Complete: true, CreatedAt: ago(0)}}, "plan", 0},
		{"plan-doubt.txt", &sidecar{plan: doubtfulPlan()}, "plan", 0},
		{"plan-list.txt", &sidecar{plans: &control.ListPlansResponse{Plans: []*control.Plan{aPlan(), askedPlan()}}}, "plan --list", 0},
		{"plan-list-none.txt", &sidecar{plans: &control.ListPlansResponse{}}, "plan --list", 0},
		{"help-why.txt", all, "why --help", 0},
		{"help-plan.txt", all, "plan --help", 0},
		{"images-unique.txt", all, "images --sort unique", 0},
		{"version.txt", all, "version", 0},
		{"version-none.txt", none, "version", 0},
		{"version.json", all, "version -o json", 0},
		{"version.yaml", all, "version -o yaml", 0},
		{"help.txt", all, "--help", 0},
		{"help-images.txt", all, "images --help", 0},
		{"help-uses.txt", all, "uses --help", 0},
	} {
		t.Run(c.golden, func(t *testing.T) {
			// The order of a shared answer must not depend on an earlier case.
			s := &sidecar{
				status: c.sidecar.status, uses: c.sidecar.uses, version: c.sidecar.version,
				why: c.sidecar.why, plan: c.sidecar.plan, plans: c.sidecar.plans, readOnly: c.sidecar.readOnly,
			}
			if c.sidecar.images != nil {
				s.images = proto.CloneOf(c.sidecar.images)
			}
			got := ctl(t, s, strings.Fields(c.args)...)
			if got.code != c.code || got.stderr != "" {
				t.Errorf("exit %d, want %d; stderr %q", got.code, c.code, got.stderr)
			}
			// The go version of the build is no part of the screen.
			golden(t, c.golden, strings.ReplaceAll(got.stdout, newApp("").build.String(), "0.1.0 (abc1234, go)"))
			for _, r := range got.stdout {
				if r != '\n' && unicode.IsControl(r) {
					t.Errorf("prints %q", r)
				}
			}
		})
	}
}

// JSON and YAML are the same data.
func TestYAMLIsTheJSON(t *testing.T) {
	for _, m := range []proto.Message{goodStatus(), someImages(), someUses(), aVersion(), whyKept(), aPlan()} {
		text, err := encode(m)
		if err != nil {
			t.Fatal(err)
		}
		asYAML, err := yaml.JSONToYAML(text)
		if err != nil {
			t.Fatal(err)
		}
		var a, b any
		if err := json.Unmarshal(text, &a); err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(asYAML, &b); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(a, b) {
			t.Errorf("%T differs", m)
		}
	}
}

// No verb panics on an answer with nothing in it, not even a list element.
func TestNothingSet(t *testing.T) {
	for _, wide := range []bool{false, true} {
		renderStatus(nil, wide, now)
		renderImages(nil, wide, now)
		renderUses(nil, wide, now)
		renderWhy(nil, now)
		renderWhy(&control.WhyResponse{Image: &control.Image{Uses: []*control.Use{nil}}, Names: []*control.NameVerdict{nil}, Sharers: []*control.Sharer{nil}, Events: []*control.Event{nil, {Kind: "removed"}}}, now)
		renderPlan(nil, 0, now)
		renderPlan(&control.Plan{Entries: []*control.Image{nil}}, 1, now)
		renderPlans(&control.ListPlansResponse{Plans: []*control.Plan{nil}}, now)
		renderStatus(&control.StatusResponse{
			Sources: []*control.Source{nil}, Holds: []*control.Hold{nil, {NeedsPerson: true}}, Events: []*control.Event{nil, nil},
		}, wide, now)
		renderImages(&control.ListImagesResponse{Images: []*control.Image{nil, {Uses: []*control.Use{nil}, Names: []string{""}}}}, wide, now)
		renderUses(&control.ListUsesResponse{Uses: []*control.Use{nil}}, wide, now)
	}
	renderVersion(nil)
	sortImages([]*control.Image{nil, {}}, byLastUsed)
}
