# Image Custodian. `make` alone tells what there is.

# sudo drops Go from PATH: find it where it usually is.
GO      ?= $(or $(shell command -v go),/usr/local/go/bin/go)
GOFMT   := $(dir $(GO))gofmt
export PATH := $(dir $(GO)):$(PATH)

VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
REVISION := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
DATE     := $(shell git log -1 --format=%cI 2>/dev/null || echo unknown)
LDFLAGS  := -s -w -X main.version=$(VERSION) -X main.revision=$(REVISION) -X main.date=$(DATE)
TOOLS     = $$('$(CURDIR)/hack/tools/build')
SCRIPTS   = $$(git grep -lE '^\#!/.*sh$$' -- ':!*.go' ':!*.md')
AS_ROOT   = @test "$$(id -u)" = 0 || { echo "make $@ needs root" >&2; exit 1; }

.DEFAULT_GOAL := help

help: ## Tell what there is.
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

build: ## Build the programs into bin/: static and reproducible.
	@for p in plugin:image-custodian-plugin sidecar:image-custodian-sidecar cli:custodianctl; do CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o bin/$${p#*:} ./$${p%:*} || exit 1; done

demo: ## Show the main job on a private real node (as root).
	$(AS_ROOT)
	$(GO) run ./hack/demo

node: ## A shell on a private real node with image-custodian on it (as root).
	$(AS_ROOT)
	$(GO) run ./hack/node/cmd/node

test: unit e2e ## All tests (as root).

unit: ## Unit tests with the race detector; no root, seconds.
	$(GO) test -race $(TESTFLAGS) ./...

e2e: ## End-to-end tests on private real nodes (as root).
	$(AS_ROOT)
	$(GO) test -tags e2e -count=1 -v -timeout 20m ./hack/node/... ./test/e2e/...

e2e-kubelet: ## End-to-end tests with a real kubelet (as root).
	$(AS_ROOT)
	$(GO) test -tags e2e,kubelet -run '^TestKubelet' -count=1 -v -timeout 20m ./hack/node/... ./test/e2e/...

case: ## One end-to-end case: make case N=08 (as root).
	$(AS_ROOT)
	@grep -rq '^func TestCase$(or $(N),-)' test/e2e || { echo "no case '$(N)': make case N=08" >&2; exit 1; }
	$(GO) test -tags e2e -count=1 -v -run '^TestCase$(N)' ./test/e2e/...

bench-hook: ## What the plugin costs a container creation (as root, minutes).
	$(AS_ROOT)
	$(GO) test -run '^$$' -bench 'Hook|Ledger' ./plugin
	$(GO) run ./hack/benchhook $(ARGS)

proto: ## Generate api/v1 from the protos.
	tools="$(TOOLS)" && cd api && PATH="$$tools:$$PATH" sh -ec 'buf lint; for s in node control; do buf generate --template buf.gen.$$s.yaml; done'

fmt: ## Format the code.
	$(GOFMT) -w $$(git ls-files '*.go')

lint: ## golangci-lint, and shellcheck for the scripts.
	tools="$(TOOLS)" && "$$tools/golangci-lint" run ./...
	shellcheck $(SCRIPTS)

vuln: ## Known vulnerabilities in what is called, without a network service.
	hack/check/vulnerabilities

check: lint unit ## The quick gates: linters, unit tests, documents; no root.
	hack/check/docs

clean: ## Remove what was built into the clone.
	rm -rf bin dist .cache

.PHONY: help build demo node test unit e2e e2e-kubelet case bench-hook proto fmt lint vuln check clean
