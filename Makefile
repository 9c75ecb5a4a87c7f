# Every target is one line to the real tool. Needed beforehand: Python 3.11 or newer, make, git.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Many tests wait for other processes, so two per core; more than eight get in each other's way.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(8, 2 * (os.cpu_count() or 1)))')
# uv installs in seconds what pip installs in a minute or more. Both check the hashes of the lock.
UV := $(shell command -v uv 2>/dev/null)
INSTALL := $(if $(UV),$(UV) pip install --compile-bytecode --python $(BIN)/python,$(BIN)/python -m pip --disable-pip-version-check install)
COMPILE := $(BIN)/uv --quiet pip compile pyproject.toml --all-extras --universal --python-version 3.11 \
	--generate-hashes --no-config --no-sources --no-emit-index-url --no-emit-find-links \
	--custom-compile-command "make lock" --group build --constraints requirements/constraints.txt

.PHONY: serve test coverage check browser docs screenshots bench soak sbom audit licences lock clean

serve: $(VENV)/serve.stamp ## run the host; ARGS="--port 9000" hands options on
	$(BIN)/wopr serve $(ARGS)

test: check browser ## format, lint, types, then every test
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

coverage: check browser ## every test, and which branches none of them takes; half as long again
	$(BIN)/pytest -n $(WORKERS) --dist worksteal --cov

check: $(VENV)/dev.stamp ## format, lint and types only
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/basedpyright

browser: ## have a Chromium for the tests of the console
	tests/console/have_chromium.sh

docs: $(VENV)/dev.stamp ## write docs/reference from the code
	$(BIN)/python -m docs.generate

screenshots: $(VENV)/dev.stamp browser ## take docs/images anew from demo data
	$(BIN)/python -m docs.screenshots

bench: $(VENV)/dev.stamp ## measure
	$(BIN)/python -m bench

soak: $(VENV)/dev.stamp ## 30 minutes of load with hostile clients; ARGS="--minutes 2" for a try
	$(BIN)/python -m bench.soak $(ARGS)

sbom: $(VENV)/dev.stamp ## write a CycloneDX SBOM of the locked packages to dist/
	$(BIN)/python -m tools.dependencies sbom dist/wopr.cdx.json

audit: $(VENV)/dev.stamp ## check the locked packages; ADVISORIES=directory of OSV documents
	$(BIN)/python -m tools.dependencies audit $(if $(ADVISORIES),--advisories $(ADVISORIES))

licences: $(VENV)/dev.stamp ## list the licences of the locked packages
	$(BIN)/python -m tools.dependencies licences

lock: $(VENV)/dev.stamp ## choose dependency versions anew
	$(COMPILE) --upgrade --output-file requirements/serve.lock
	$(COMPILE) --upgrade --group dev --constraints requirements/serve.lock --output-file requirements/dev.lock

clean: ## remove what the other targets made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .schemathesis .coverage .coverage.* .bench-*

# Installs a lock, then the project itself, and shows what is under way.
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
	  echo "WOPR needs Python 3.11 or newer; $(PYTHON) is not. Name another: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
