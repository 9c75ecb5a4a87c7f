# Each target calls the real tool. Requirements: Python 3.11 or newer, make, git.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two workers per core, because many tests wait for other processes. With more, tests of response times fail.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(8, 2 * (os.cpu_count() or 1)))')
# uv installs in seconds, pip in a minute or more. Both check the hashes of the lock.
UV := $(shell command -v uv 2>/dev/null)
INSTALL := $(if $(UV),$(UV) pip install --compile-bytecode --python $(BIN)/python,$(BIN)/python -m pip --disable-pip-version-check install)
COMPILE := $(BIN)/uv --quiet pip compile pyproject.toml --all-extras --universal --python-version 3.11 \
	--generate-hashes --no-config --no-sources --no-emit-index-url --no-emit-find-links \
	--custom-compile-command "make lock" --group build --constraints requirements/constraints.txt

# Without bytecode files, every worker would compile all tests, and every started command the program.
export PYTHONDONTWRITEBYTECODE :=

# The fast tests: none of them serves a host or opens a browser.
UNIT := tests/engine tests/protocol tests/security tests/kahn tests/runs tests/feedback tests/agents tests/test_layers.py

.PHONY: serve test unit test-all-pythons coverage tests check style types mypy basedpyright collect browser docs docs-site dist screenshots bench soak sbom audit licences lock clean

serve: $(VENV)/serve.stamp ## start the host; ARGS="--port 9000" passes options
	$(BIN)/wopr serve $(ARGS)

test: $(VENV)/dev.stamp browser style ## check format, lint and types, and run every test
	@# The types are checked beside the tests, in the processor time that those leave.
	@nice -n 19 $(MAKE) --no-print-directory types >$(VENV)/types.txt 2>&1 & types=$$!; \
	  $(MAKE) --no-print-directory tests; tests=$$?; \
	  wait $$types; types=$$?; cat $(VENV)/types.txt; exit $$((tests || types))

tests: collect # run every test
	$(BIN)/pytest -n $(WORKERS) --dist worksteal --durations=20

unit: $(VENV)/dev.stamp ## run the fast tests, which serve no host
	$(BIN)/pytest -n $(WORKERS) --dist worksteal $(UNIT)

test-all-pythons: ## `make test` with every Python from 3.11 to 3.14 that is installed
	@set -e; for version in 3.11 3.12 3.13 3.14; do \
	  if python$$version --version >/dev/null 2>&1; then \
	    echo "== Python $$version"; $(MAKE) test PYTHON=python$$version VENV=.venv-$$version; \
	  else echo "== Python $$version is not installed"; fi; done

coverage: check browser ## run every test and report uncovered branches; takes 1.5 times as long
	$(BIN)/pytest -n $(WORKERS) --dist worksteal --cov

check: $(VENV)/dev.stamp ## check format, lint and types
	@$(MAKE) --no-print-directory --jobs 2 style types

types: mypy basedpyright

style: $(VENV)/dev.stamp
	$(BIN)/ruff format --check
	$(BIN)/ruff check

mypy:
	$(BIN)/mypy

basedpyright:
	$(BIN)/basedpyright

collect: # compile the tests once for all workers
	@$(BIN)/pytest --collect-only --quiet -n 0 > $(VENV)/collected.txt || { cat $(VENV)/collected.txt; exit 1; }

browser: ## find or install a Chromium for the console tests
	tests/console/have_chromium.sh

docs: $(VENV)/dev.stamp ## generate docs/reference from the code
	$(BIN)/python -m docs.generate

docs-site: $(VENV)/dev.stamp ## build the documents as a searchable site in build/site
	$(BIN)/python -m docs.site

dist: $(VENV)/dev.stamp ## build a wheel and an sdist in dist/
	$(BIN)/python -m hatchling build --target wheel --target sdist

screenshots: $(VENV)/dev.stamp browser ## create docs/images again from demo data
	$(BIN)/python -m docs.screenshots

bench: $(VENV)/dev.stamp ## run the benchmarks
	$(BIN)/python -m bench

soak: $(VENV)/dev.stamp ## 30 minutes of load with hostile clients; ARGS="--minutes 2" for a short one
	$(BIN)/python -m bench.soak $(ARGS)

sbom: $(VENV)/dev.stamp ## write a CycloneDX SBOM of the locked packages to dist/
	$(BIN)/python -m tools.dependencies sbom dist/wopr.cdx.json

audit: $(VENV)/dev.stamp ## check the locked packages; ADVISORIES=directory of OSV documents
	$(BIN)/python -m tools.dependencies audit $(if $(ADVISORIES),--advisories $(ADVISORIES))

licences: $(VENV)/dev.stamp ## list the licences of the locked packages
	$(BIN)/python -m tools.dependencies licences

lock: $(VENV)/dev.stamp ## resolve the dependency versions again
	$(COMPILE) --upgrade --output-file requirements/serve.lock
	$(COMPILE) --upgrade --group dev --constraints requirements/serve.lock --output-file requirements/dev.lock

clean: ## remove the files that the other targets made
	rm -rf $(VENV) .venv-* build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .schemathesis .coverage .coverage.* .bench-*

# Install a lock, then the project itself, and show the progress.
define install
	@echo "Setting up $(VENV) with $(if $(UV),uv: some seconds,pip: a minute or more. With uv installed it takes seconds)."
	$(INSTALL) --require-hashes --no-deps --requirement requirements/$(1).lock
	$(INSTALL) --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q src
	@touch $@
endef

$(VENV)/serve.stamp: requirements/serve.lock pyproject.toml | $(BIN)/python
	$(call install,serve)

$(VENV)/dev.stamp: requirements/dev.lock pyproject.toml | $(BIN)/python
	$(call install,dev)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "WOPR needs Python 3.11 or newer, but $(PYTHON) is older. Use another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
