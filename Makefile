# Everything a developer does here. `make` alone lists the targets.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
MEMBERS := $(patsubst %/pyproject.toml,%,$(wildcard distributions/*/pyproject.toml plugins/*/pyproject.toml))
# Tests of programs mostly wait: two workers to a processor where there are few.
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n < 4 ? 2 * n : n)))
DEMO_OUT ?= out/quickstart
TORCH ?= 2.13.0
ATHERIS ?= 3.0.0
SECONDS_EACH ?= 600
ORDERS ?= 10
MINUTES ?= 60
PYTHONS ?= $(PYTHON)
NEWEST ?= $(shell for one in python3.14 python3.13 python3.12 \
	$$(ls "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.1[2-9].*/bin/python 2>/dev/null | sort -rV); \
	do $$one -c 'import sys; print(sys.executable)' 2>/dev/null && break; done)
GPU_WHEELS := click msgspec packaging shellingham typer
TESTS ?=

# Flower neither calls home nor looks for updates.
export FLWR_TELEMETRY_ENABLED := 0
export FLWR_DISABLE_UPDATE_CHECK := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Where the environment forbids compiled files, every program that a test starts would compile the project anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

.PHONY: install
install: $(VENV)/.installed ## Create .venv with the locked dependencies and this project in it

$(VENV)/.installed: requirements.lock pyproject.toml $(MEMBERS:%=%/pyproject.toml)
	@test -n "$(PYTHON)" || { echo "make: error: no python3 found; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "make: error: $(PYTHON) is older than 3.11; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "[1/3] virtual environment in $(VENV)"
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@echo "[2/3] locked dependencies (about a minute)"
	@$(BIN)/python -m pip install -qq --require-hashes --requirement requirements.lock
	@echo "[3/3] pharoah, its programs and plug-ins, editable"
	@# First the one that may take programs away which others bring now.
	@$(BIN)/python -m pip install -qq --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m pip install -qq --no-deps --no-build-isolation $(MEMBERS:%=--editable ./%)
	@touch $@

.PHONY: demo
demo: install ## Run a small simulated cloud and write its report
	@# One BLAS thread: the matrices are small, and the cores are used by processes.
	@OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pharoah-sim run --scenario quickstart --out $(DEMO_OUT) --force
	@find $(DEMO_OUT) -maxdepth 1 -name 'report.*' | sort | sed 's/^/report: /'

.PHONY: federation
federation: install ## Run a provider, three trustees and four tenants as processes, one round, and stop them
	@$(BIN)/pharoah-sim federation

.PHONY: test
test: install ## Run the tests; with TESTS=--skipped only those that the last run skipped
	@# One BLAS thread per worker: measured, two workers with two threads each take four times as long.
	@# Databases of tests sync every commit: where there is room in memory, their files lie there.
	@room=$$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print $$4 }' || true); \
	if [[ $${room:-0} -gt 4000000 ]]; then export PYTEST_DEBUG_TEMPROOT=/dev/shm; fi; \
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder $(TESTS)

.PHONY: fuzz
fuzz: install ## Fuzz every decoder of foreign bytes, SECONDS_EACH (600) each
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install -qq --only-binary :all: atheris==$(ATHERIS) \
		|| echo "make: no atheris for this machine: fuzzing without coverage" >&2
	@$(BIN)/python fuzz/run.py --seconds $(SECONDS_EACH)

.PHONY: nightly
nightly: install ## All that is too long for `make test`: the suite in ORDERS (10) orders under load, mutants, fuzz, the audit
	@$(BIN)/python tests/nightly.py --orders $(ORDERS) --seconds $(SECONDS_EACH)

.PHONY: soak
soak: install ## Run a federation through over a year of moved clocks, with every fault: MINUTES (60); report in out/soak
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.soak --minutes $(MINUTES)

.PHONY: newest
newest: install ## Test crypto, protocol and base under the newest Python here, with the same lock; NEWEST=/path names one
	@if [[ -z "$(NEWEST)" ]]; then echo "make: no Python newer than 3.11 was found: NEWEST=/path/to/python3.14"; exit; fi; \
	"$(NEWEST)" -m venv --clear out/newest-venv; \
	$(BIN)/uv --no-config pip sync -q --python out/newest-venv/bin/python --require-hashes requirements.lock; \
	$(BIN)/uv --no-config pip install -q --python out/newest-venv/bin/python pip --no-deps; \
	$(BIN)/uv --no-config pip install -q --python out/newest-venv/bin/python --no-deps --no-build-isolation \
		--editable . $(MEMBERS:%=--editable ./%); \
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 out/newest-venv/bin/python -m pytest -q -n $(WORKERS) --dist loadgroup \
		tests/crypto tests/federation

.PHONY: torch
torch: install ## Add PyTorch to .venv: the example jobs and the tests that run them need it
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python -m pip install -qq torch==$(TORCH)

.PHONY: lint
lint: install ## Check style, types and who may import whom
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

.PHONY: format
format: install ## Let ruff sort imports and lay out the code
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

.PHONY: vectors
vectors: install ## Regenerate the test vectors; fails when they differ from what git holds
	@$(BIN)/python tests/vectors/generate.py
	@git diff --exit-code --stat -- tests/vectors \
		&& test -z "$$(git ls-files --others --exclude-standard -- tests/vectors)" \
		|| { echo "make: error: the vectors changed; review them and add them to git if this is meant" >&2; exit 1; }

.PHONY: gpu
gpu: ## Try on a GPU all that needs one, 8 minutes, no network: PYTHON= one that has PyTorch; report in out/gpu
	@"$(PYTHON)" -m simulation.studies.gpu

.PHONY: gpu-wheels
gpu-wheels: ## Fetch into out/gpu-wheels what `make gpu` needs beside PyTorch, as requirements.lock has it
	@mkdir -p out/gpu-wheels
	@awk -v wanted=' $(GPU_WHEELS) ' '/^[a-z]/ { split($$1, name, "=="); take = index(wanted, " " name[1] " ") } take' \
		requirements.lock > out/gpu-wheels/requirements.txt
	@for version in 3.12 3.13 3.14; do \
		"$(PYTHON)" -m pip download -qq --no-deps --require-hashes --only-binary :all: --python-version $$version \
			--platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
			--dest out/gpu-wheels --requirement out/gpu-wheels/requirements.txt; \
	done
	@du -sh out/gpu-wheels

.PHONY: measured
measured: install ## Measure the quick figures anew, and write docs/measured.md from all of them
	@$(BIN)/python docs/measured.py

.PHONY: screenshots
screenshots: install ## Take the pictures of docs/images anew; needs chromium
	@$(BIN)/python docs/screenshots.py

.PHONY: reference
reference: install ## Write docs/reference/ (commands, settings and schemas, messages, JSON) and out/man from the code
	@$(BIN)/python docs/generate.py
	@$(BIN)/python docs/generate.py --man out/man

.PHONY: report
report: out/docs-venv/.installed ## Print docs/report.md as out/report.pdf, its figures and pages checked
	@out/docs-venv/bin/python -m docs.report out/report.pdf
	@echo "report: out/report.pdf"

.PHONY: docs
docs: reference report ## Build the documents as a site in out/site, links checked, nothing fetched when it is read
	@# Not --quiet, under which --strict counts no warnings.
	@NO_MKDOCS_2_WARNING=1 out/docs-venv/bin/mkdocs build --strict 2>&1 | sed '/^INFO/d'
	@! grep -rlE '<(script|link|img)[^>]* (src|href)="?(https?:)?//' out/site --include='*.html' \
		|| { echo "make: error: these pages load something from elsewhere" >&2; exit 1; }
	@echo "site: out/site/index.html"

out/docs-venv/.installed out/release-venv/.installed: out/%-venv/.installed:
	@"$(PYTHON)" -m venv $(@D)
	@$(@D)/bin/python -m pip install -qq --require-hashes --requirement $<
	@touch $@

out/docs-venv/.installed: docs/requirements.txt
out/release-venv/.installed: distributions/requirements.txt

.PHONY: dist
dist: install out/release-venv/.installed ## Build, check, list and sign all that a release uploads, into dist/: docs/release.md
	@out/release-venv/bin/python distributions/release.py --uv $(BIN)/uv $(if $(KEY),--key "$(KEY)") $(if $(SOURCE_URL),--url "$(SOURCE_URL)")

.PHONY: rooms
rooms: ## Install what is in dist/ into bare environments of PYTHONS, every role, try it, and hold a round across two; network
	@last="$(lastword $(PYTHONS))"; for python in $(PYTHONS); do \
		if [[ "$$python" == "$$last" ]]; then across=(); else across=(--round "$$last"); fi; \
		"$$python" distributions/rooms.py "$${across[@]}"; \
	done

.PHONY: images
images: install ## Build the images of ops/Containerfile and try them, with buildah, as root; BUILD= its options
	@$(BIN)/python distributions/images.py $(BUILD)

.PHONY: lock
lock: install ## Resolve requirements.lock and docs/requirements.txt anew, keeping what still fits
	@$(BIN)/uv pip compile --quiet --group dev pyproject.toml $(MEMBERS:%=%/pyproject.toml) --output-file requirements.lock
	@for group in docs=docs release=distributions; do \
		$(BIN)/uv pip compile --quiet --no-config --group $${group%=*} --universal --python-version 3.11 --generate-hashes \
			--only-binary :all: --no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
			--output-file $${group#*=}/requirements.txt; \
	done

.PHONY: clean
clean: ## Remove the environment, outputs and caches
	rm -rf $(VENV) out build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
