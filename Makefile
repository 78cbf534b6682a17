.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Targets run one after another, in the order given, also under -j: "make -j clean test" must not race.
.NOTPARALLEL:

PYTHON ?= python3
JOBS ?= 2
# Tests with clusters of their own wait most of the time.
TEST_JOBS ?= 4
SOAK_MINUTES ?= 60
SOAK_FRAMES ?= 10000000
SOAK_COMMANDS ?= 10000000

VENV := .venv
BIN := $(VENV)/bin
# Written last by a setup that went through; holds the directory the environment was made for.
STAMP := $(VENV)/.setup-done

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile
	@printf '\nVariables: PYTHON=%s (interpreter for setup), JOBS=%s and TEST_JOBS=%s (parallel processes), SOAK_MINUTES=%s, SOAK_FRAMES=%s, SOAK_COMMANDS=%s\n' '$(PYTHON)' '$(JOBS)' '$(TEST_JOBS)' '$(SOAK_MINUTES)' '$(SOAK_FRAMES)' '$(SOAK_COMMANDS)'

.PHONY: setup
setup: $(STAMP) java ## Create .venv and install the project with its development tools

# Spark needs Java. Where we may, we install it; elsewhere `tara` says what is missing when it is needed.
.PHONY: java
java:
	@if ! command -v java >/dev/null && [ -z "$$JAVA_HOME" ]; then \
	    if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	        echo "setup: installing Java for Spark"; \
	        apt-get -qq update && apt-get -qq install -y --no-install-recommends \
	            "$$(apt-cache search --names-only '^openjdk-(17|21)-jre-headless$$' | cut -d' ' -f1 | sort | tail -n 1)" >/dev/null; \
	    else \
	        echo "setup: no Java found; Spark needs Java 17 or newer (Debian and Ubuntu: apt install openjdk-17-jre-headless)" >&2; \
	    fi; \
	fi

# Redone when pyproject.toml changed, when the environment's interpreter is gone, and when the tree was
# moved or copied (a virtual environment holds absolute paths).
.PHONY: redo
STALE := $(if $(realpath $(BIN)/python),,redo) $(if $(subst $(CURDIR),,$(file < $(STAMP))),redo)

# An environment without a valid stamp is half-made and is created anew.
$(STAMP): pyproject.toml $(STALE)
	@set -e; \
	if ! { [ "$$(cat $(STAMP) 2>/dev/null)" = "$$(pwd -P)" ] && $(BIN)/python -m pip --version >/dev/null 2>&1; }; then \
	    command -v '$(PYTHON)' >/dev/null || { \
	        echo "setup: no interpreter '$(PYTHON)'; install Python 3.11 or newer, or name one: make setup PYTHON=python3.11" >&2; \
	        exit 1; }; \
	    '$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	        echo "setup: '$(PYTHON)' is $$('$(PYTHON)' --version 2>&1), but Python 3.11 or newer is needed; name one: make setup PYTHON=python3.11" >&2; \
	        exit 1; }; \
	    '$(PYTHON)' -c 'import ensurepip, venv' 2>/dev/null || { \
	        echo "setup: '$(PYTHON)' lacks the venv module; on Debian and Ubuntu: apt install python3-venv" >&2; \
	        exit 1; }; \
	    echo "setup: creating $(VENV)"; \
	    '$(PYTHON)' -m venv --clear $(VENV); \
	fi; \
	rm -f $(STAMP); \
	echo "setup: installing the project and its development tools"; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'; \
	pwd -P > $(STAMP)

.PHONY: demo
demo: setup ## A guided tour: a cluster on local Spark, load, two killed leaders, the proof that nothing was lost
	$(BIN)/tara demo

.PHONY: test
test: lint ## Run the linters, the type checker and the tests
	$(BIN)/pytest -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder

.PHONY: lint
lint: setup ## Run the linters and the type checker
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

.PHONY: format
format: setup ## Format the sources and apply the safe lint fixes
	$(BIN)/ruff check --fix-only --quiet
	$(BIN)/ruff format

.PHONY: soak
soak: setup ## Long campaigns: many simulated seeds, seeded bugs, SOAK_MINUTES of faults and SOAK_FRAMES hostile frames on real clusters
	$(BIN)/tara sim run --seeds 1000 --jobs $(JOBS)
	$(BIN)/tara sim run --f 2 --seeds 200 --jobs $(JOBS)
	$(BIN)/tara sim run --partitions 3 --seeds 200 --jobs $(JOBS)
	$(BIN)/tara sim run --app coordination --seeds 200 --jobs $(JOBS)
	$(BIN)/tara sim mutants
	$(BIN)/tara sim slow --mbit 20 --in-flight 8
	$(BIN)/pytest -m soak
	$(BIN)/tara drill kill kill-twice hang loss workers sites flat
	$(BIN)/tara drill flat --minutes 30 --state-mb 300
	$(BIN)/tara drill storage
	$(BIN)/tara drill memory --kills 50
	$(BIN)/tara drill network --seconds 600
	$(BIN)/tara drill slow-disk --seconds 60
	$(BIN)/tara drill log --commands $(SOAK_COMMANDS)
	$(BIN)/tara drill fuzz --frames $(SOAK_FRAMES)
	$(BIN)/tara drill chaos --minutes $(SOAK_MINUTES)

.PHONY: bench
bench: setup ## The paper's evaluation with the peers beside it, into docs/evaluation.md (BENCH=--quick: less than 20 minutes)
	$(BIN)/tara bench paper $(BENCH)

.PHONY: clean
clean: ## Remove .venv, caches and build results
	rm -rf $(VENV) .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find src evaluation tests -name __pycache__ -type d -prune -exec rm -rf {} +
