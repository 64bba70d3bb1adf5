# Every target has a line after ## that `make help` shows. Sections: the local cluster, checks and tests, what we ship.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

LC := tests/cluster/lc
# Tests that break things have a cluster of their own, beside the one that a person works with (number 0).
TEST_CLUSTER ?= 1

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z][a-z0-9-]*:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- the local cluster

.PHONY: cluster-up cluster-down kubeconfig
NODES ?= 3
cluster-up: ## Start the local Kubernetes, or repair the running one (NODES=3)
	@$(LC) up $(NODES)

cluster-down: ## End the local Kubernetes and leave no trace
	@$(LC) down

kubeconfig: ## Print the path of the local cluster's kubeconfig
	@$(LC) kubeconfig

# --- checks and tests

.PHONY: check test
check: ## Format, lints, unit and property tests, directions, chart: no cluster (under 5 minutes)
	cargo fmt --check
	cargo clippy --locked --lib --bins -- -D warnings
	cargo clippy --locked --all-targets --all-features -- -D warnings -A clippy::pedantic -A clippy::print_stdout -A clippy::print_stderr
	cargo test --locked --lib --bins --test architecture --test bundle --test chart --test crds --test ctl --test docs --test monitoring
	@if cargo deny --version >/dev/null 2>&1; then cargo deny --offline check licenses bans sources; else echo "cargo deny is not installed: licences were not checked"; fi

test: check alerts sim api engine store e2e cluster-test ## Everything that fits 40 minutes; CI runs this

.PHONY: test-all e2e-long chaos
test-all: test olm e2e-long ## The same and the long cases of the election (about 2 hours more)

.PHONY: cluster-test
cluster-test: ## Test the local cluster itself, in one of its own (about 4 minutes)
	@export HELLO_CLUSTER=$(TEST_CLUSTER); trap '$(LC) down' EXIT; trap 'exit 130' INT TERM; \
	$(LC) up; cargo test --locked --features local-cluster --test cluster -- --test-threads=1

.PHONY: alerts
alerts: ## Check the rules that the chart makes with promtool, and try each alert
	@tests/alerts/run

.PHONY: olm
olm: ## Check the bundle for the Operator Lifecycle Manager with the Operator Framework's own validators
	@tests/cluster/build olm
	@$$(. tests/cluster/lib/common.sh && . tests/cluster/lib/artifacts.sh && artifact olm)/olm deploy/olm

.PHONY: dashboards
dashboards: ## Check the JSON of the dashboards against the types that Grafana publishes (needs npm)
	@tests/monitoring/grafana-schema

SEEDS ?= 20000
.PHONY: sim
sim: ## Simulate the election (SEEDS=n FROM=first; SEED=s replays one with its history; MUTATIONS=1: find the mistakes)
	@cargo test --locked --config 'profile.dev.package.hello-operator.opt-level=2' --no-default-features --features mutations --test sim -- --nocapture --test-threads=1 $(if $(MUTATIONS),mutation,nothing)

.PHONY: api
api: ## Test against a real etcd and kube-apiserver, without nodes (FILTER=part of a test's name)
	@tests/cluster/install
	@tests/cluster/build kube etcd
	@cargo test --locked --test api -- $(FILTER)

.PHONY: engine
engine: ## Test the agent's parts against a real PostgreSQL, without Kubernetes
	@tests/engine/install
	@cargo test --locked --test engine

.PHONY: store
store: ## Test destinations of backups against an S3 server and a volume, with faults between (FILTER=part of a test's name)
	@tests/store/install >/dev/null
	@tests/engine/install
	@cargo test --locked --test store -- $(FILTER)

# In a cluster of its own, which ends with the run, however that ends: the tests are a process group (set -m), so that an
# interrupted make ends them and what they started first. HELLO_KEEP=1 leaves the cluster, and what failed in it, for a look.
define in_cluster
export HELLO_CLUSTER=$(TEST_CLUSTER) HELLO_PROFILE=$(PROFILE); set -m; \
	trap '[ -n "$${HELLO_KEEP:-}" ] || $(LC) down' EXIT; \
	trap 'kill -- -$$tests; wait $$tests || true; exit 130' INT TERM; \
	cargo test --locked --features local-cluster $(1) & tests=$$!; wait $$tests
endef

.PHONY: e2e bench bench-failover
e2e e2e-long chaos bench bench-failover: PROFILE := release
e2e: ## Test image and chart on a real cluster with a real PostgreSQL (CASE=part of a test's name PROFILE=quick)
	@tests/store/install >/dev/null
	@tests/cluster/build prometheus alertmanager monitoring-crds collector kstatus
	@$(call in_cluster,--test e2e -- --test-threads=3 $(CASE))

e2e-long: ## What is too long for `make test` (CASE=part of a test's name)
	@tests/store/install >/dev/null
	@tests/cluster/build prometheus alertmanager
	@$(call in_cluster,--test e2e -- --test-threads=1 --ignored $(CASE))

chaos: ## Random faults for some minutes; the seed is printed (MINUTES=60 SEED=)
	@export MINUTES='$(or $(MINUTES),60)' SEED='$(SEED)'; $(call in_cluster,--test e2e -- --test-threads=1 random_faults)

bench: ## Measure the figures that we promise, print them and append them to docs/figures.md (CASE=part of a figure's name)
	@$(call in_cluster,--test bench -- $(CASE))

bench-failover: ## Measure how long clients cannot write (N=10 OPERATOR=0 for none FIGURE=part of a name); docs/figures-failover.md
	@export N='$(N)' OPERATOR='$(OPERATOR)'; $(call in_cluster,--test bench -- 'failover:$(FIGURE)')

.PHONY: bench-backup
bench-backup: ## Measure backup and restore beside pgBackRest and barman-cloud (SIZE=2048 in MB, N=3 rounds, ONLY=part of a tool's name); docs/figures-backup.md
	@tests/engine/install
	@export STORE BARMAN SIZE='$(SIZE)' N='$(N)' ONLY='$(ONLY)'; STORE=$$(tests/store/install); BARMAN=$$(tests/bench/backup/install); \
	cargo test --locked --release --test bench-backup

# --- what we ship

.PHONY: crds
crds: ## Write the CustomResourceDefinitions of the sources into crds/ and the chart
	@cargo run --locked --quiet -- crds | awk '\
	  function flush() { if (name) { printf "%s", text >"crds/" name ".yaml"; close("crds/" name ".yaml") } text = name = "" } \
	  /^---$$/ { flush(); next } \
	  /^  name: / && !name { name = $$2 } \
	  { text = text $$0 "\n" } \
	  END { flush() }'
	@cp crds/*.yaml charts/hello-operator/files/crds/

.PHONY: docs
docs: ## Write docs/fields.md, every field of the resources, from crds/
	@UPDATE_GOLDEN=1 cargo test --locked --quiet --test docs fields::

.PHONY: manifests
manifests: ## Write deploy/operator.yaml, for people without helm, from the chart
	@mkdir -p deploy
	@{ echo "# Hello Operator without helm: kubectl apply --server-side -f deploy/operator.yaml"; \
	  echo "# Rendered from the chart by 'make manifests'; set the image to one that your cluster can pull."; \
	  printf -- '---\napiVersion: v1\nkind: Namespace\nmetadata:\n  name: hello-system\n'; \
	  $$(. tests/cluster/lib/common.sh && . tests/cluster/lib/artifacts.sh && artifact helm)/helm \
	    template hello-operator charts/hello-operator -n hello-system --skip-tests --set crds.keep=false \
	    | sed -e '/helm.sh\/chart:/d' -e '/app.kubernetes.io\/instance:/d' -e 's/managed-by: Helm/managed-by: kubectl/'; } >deploy/operator.yaml

.PHONY: bundle
bundle: ## Write deploy/olm, for the Operator Lifecycle Manager, from deploy/operator.yaml, crds/ and examples/
	@UPDATE_GOLDEN=1 cargo test --locked --quiet --test bundle

.PHONY: demo image
PROFILE ?= quick
demo: ## From nothing to a replicated PostgreSQL on a local cluster; or on yours: CONTEXT=... IMAGE=...
	@CONTEXT='$(CONTEXT)' IMAGE='$(IMAGE)' PROFILE='$(PROFILE)' hack/demo

image: ## Build our image without a container engine, print its name and archive (PROFILE=quick|release TAG=...)
	@hack/image $(PROFILE) $(TAG)
