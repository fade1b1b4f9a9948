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
		{"status-sources.txt", &sidecar{status: badSources()}, "status", 1},
		{"status-none.txt", none, "status", 0},
		{"status-none.json", none, "status -o json", 0},
		{"images.txt", all, "images", 0},
		{"images-size.txt", all, "images --sort size", 0},
		{"images-unique.txt", all, "images --sort unique", 0},
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
		{"why-in-use.txt", &sidecar{why: whyInUse()}, "why pytorch", 0},
		{"why-in-use-wide.txt", &sidecar{why: whyInUse()}, "why pytorch -o wide", 0},
		{"why-not-expired.txt", &sidecar{why: whyNotExpired()}, "why postgres:16", 0},
		{"why-not-expired.json", &sidecar{why: whyNotExpired()}, "why postgres:16 -o json", 0},
		{"why-not-expired.yaml", &sidecar{why: whyNotExpired()}, "explain postgres:16 -o yaml", 0},
		{"why-two-names.txt", &sidecar{why: whyTwoNames()}, "why pay:2.2", 0},
		{"why-artifact.txt", &sidecar{why: whyArtifact()}, "why pay:1", 0},
		{"why-incomplete.txt", &sidecar{why: whyIncomplete()}, "why pay:2.2", 0},
		{"why-remove.txt", &sidecar{why: whyRemove()}, "why pay:2.2", 0},
		{"why-gone.txt", &sidecar{why: whyGone()}, "why registry.corp/pay:2.1", 0},
		{"why-gone.json", &sidecar{why: whyGone()}, "why registry.corp/pay:2.1 -o json", 0},
		{"why-gone-unmeasured.txt", &sidecar{why: whyGoneUnmeasured()}, "why registry.corp/pay:2.1", 0},
		{"why-gone-by-others.txt", &sidecar{why: whyGoneByOthers()}, "why registry.corp/pay:2.1", 0},
		{"plan.txt", &sidecar{plan: somePlan()}, "plan", 0},
		{"plan-wide.txt", &sidecar{plan: somePlan()}, "plan -o wide", 0},
		{"plan.json", &sidecar{plan: somePlan()}, "plan -o json", 0},
		{"plan.yaml", &sidecar{plan: somePlan()}, "plan -o yaml", 0},
		{"plan-reader.txt", &sidecar{plan: unkept(somePlan()), reader: true}, "plan", 0},
		{"plan-reader.json", &sidecar{plan: unkept(somePlan()), reader: true}, "plan -o json", 0},
		{"plan-short.txt", &sidecar{plan: somePlan()}, "plan --free 5.5GiB --filter rule=ci", 0},
		{"plan-ahead.txt", &sidecar{plan: aheadPlan()}, "plan --in 7d", 0},
		{"plan-empty.txt", &sidecar{plan: emptyPlan()}, "plan --free 10GiB", 0},
		{"plan-due-none.txt", &sidecar{plan: emptyPlan()}, "plan", 0},
		{"plan-ahead-none.txt", &sidecar{plan: emptyAhead()}, "plan --in 24h", 0},
		{"plan-incomplete.txt", &sidecar{plan: incompletePlan()}, "plan --free 1GiB", 0},
		{"plan-kept.txt", &sidecar{plans: plans(aheadPlan())}, "plan k3vq7w2a", 0},
		{"plan-kept.json", &sidecar{plans: plans(aheadPlan())}, "plan k3vq7w2a -o json", 0},
		{"plan-kept-incomplete.txt", &sidecar{plans: plans(incompletePlan())}, "plan k3vq7w2a", 0},
		{"plan-list.txt", &sidecar{plans: plans(aheadPlan(), somePlan(), emptyPlan(), incompletePlan())}, "plan --list", 0},
		{"plan-list.json", &sidecar{plans: plans(emptyPlan())}, "plan --list -o json", 0},
		{"plan-list-none.txt", &sidecar{plans: plans()}, "plan --list", 0},
		{"version.txt", all, "version", 0},
		{"version-none.txt", none, "version", 0},
		{"version.json", all, "version -o json", 0},
		{"version.yaml", all, "version -o yaml", 0},
		{"help.txt", all, "--help", 0},
		{"help-images.txt", all, "images --help", 0},
		{"help-uses.txt", all, "uses --help", 0},
		{"help-plan.txt", all, "plan --help", 0},
		{"help-why.txt", all, "why --help", 0},
	} {
		t.Run(c.golden, func(t *testing.T) {
			// The order of a shared answer must not depend on an earlier case.
			s := &sidecar{status: c.sidecar.status, uses: c.sidecar.uses, version: c.sidecar.version, why: c.sidecar.why,
				plan: c.sidecar.plan, plans: c.sidecar.plans, reader: c.sidecar.reader}
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
	for _, m := range []proto.Message{goodStatus(), someImages(), someUses(), aVersion(), whyInUse(), whyGone(), somePlan(), plans(aheadPlan(), nil)} {
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
		renderStatus(&control.StatusResponse{
			Sources: []*control.Source{nil}, Holds: []*control.Hold{nil, {NeedsPerson: true}}, Events: []*control.Event{nil, nil},
		}, wide, now)
		renderImages(&control.ListImagesResponse{Images: []*control.Image{nil, {Uses: []*control.Use{nil}, Names: []string{""}}}}, wide, now)
		for _, asked := range []*control.MakePlanRequest{nil, {}} {
			renderPlan(nil, asked, wide, now)
			renderPlan(&control.Plan{Entries: []*control.Image{nil}}, asked, wide, now)
		}
		renderPlans(&control.ListPlansResponse{Plans: []*control.Plan{nil}}, now)
		renderWhy(nil, "", wide, now)
		renderWhy(&control.WhyResponse{Events: []*control.Event{nil, nil}}, "", wide, now)
		renderWhy(&control.WhyResponse{
			Image: &control.Image{Uses: []*control.Use{nil}}, Names: []*control.NameVerdict{nil, nil}, Following: []string{""},
			Sharers: []*control.Sharer{nil}, SharedBytes: 1, Events: []*control.Event{nil}, Missing: []string{""}, HeldBy: []string{""},
		}, "", wide, now)
		renderUses(&control.ListUsesResponse{Uses: []*control.Use{nil}}, wide, now)
	}
	renderVersion(nil)
	sortImages([]*control.Image{nil, {}}, byLastUsed)
}
