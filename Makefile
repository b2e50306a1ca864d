# make setup | kernels | test | test-all | demo | docs | site | lint | wheel | clean: everything in .venv, from python 3.11 or newer and make alone.

# The first interpreter that is new enough; name another one with `make PYTHON=...`.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
STAMP := .venv/.stamp
LIBRARY := .venv/.library
KERNELS := .venv/.kernels
SOURCES := setup.py $(wildcard src/torchldr/kernels/cpu/*.[ch])
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt

EXTRAS := cli,onnx,dev,docs
# make test PAPER='paper[ray]' installs Ray too, and runs the tests that need a cluster.
PAPER := paper

# Packages are installed without bytecode: written once, at the first import, or compiled anew by every process.
unexport PYTHONDONTWRITEBYTECODE
# The site's generator announces its successor at every call.
export NO_MKDOCS_2_WARNING := 1

.PHONY: setup kernels test test-all demo docs site lint wheel clean

setup: $(STAMP)

# The library with its kernels; then what development needs.
$(LIBRARY): pyproject.toml setup.py constraints.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found; try make PYTHON=/path/to/python" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) -e .
	touch $@ $(KERNELS)

# The CPU's kernels again, after a change of their sources.
kernels: $(KERNELS)

$(KERNELS): $(SOURCES) | $(LIBRARY)
	$(BIN)/python setup.py -q build_ext --inplace
	touch $@

$(STAMP): $(LIBRARY) $(KERNELS) paper/pyproject.toml
	$(INSTALL) -e '.[$(EXTRAS)]' -e '$(PAPER)'
	touch $@

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check --quiet || { echo "run: $(BIN)/ruff format" >&2; exit 1; }
	$(BIN)/lint-imports
	$(BIN)/mypy

# Three processes of one thread each keep two cores busy while one of them waits for a program that it has started.
test: setup
	@$(MAKE) --no-print-directory lint & lint=$$!; \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal $(PYTEST) || { wait $$lint; exit 1; }; wait $$lint

# All combinations of which `make test` runs a share.
test-all:
	@$(MAKE) --no-print-directory test PYTEST="-m '' $(PYTEST)"

# One thread: the networks are small, and two threads wait for each other more than they compute.
demo: setup
	OMP_NUM_THREADS=1 $(BIN)/torchldr paper rectangles --quick --save-weights
	$(BIN)/torchldr report
	@echo
	@echo "Above: one table of the paper by a short protocol, its numbers beside ours."
	@echo "Open   out/report.html       all runs, ours and yours, with figures"
	@echo "Try    $(BIN)/torchldr demo            one matrix fitted by every class, with a picture"
	@echo "       $(BIN)/torchldr paper list      the paper's other tables"
	@echo "       $(BIN)/torchldr bench --quick   where each class beats a dense layer on this machine"
	@echo "Read   docs/index.md"

# Both packages built, checked and tried in a new environment, as a release does it.
wheel:
	PYTHON='$(PYTHON)' scripts/check_wheels.sh

# The site at http://127.0.0.1:8000, rebuilt when a page changes.
docs: setup
	$(BIN)/mkdocs serve

# The site as files: open `site/index.html`.
site: setup
	$(BIN)/mkdocs build --strict --quiet

# Remove build products, except for the virtual environment: remove .venv by hand to start over.
clean:
	rm -rf build dist out site src/torchldr/kernels/cpu/_kernels.so .venv/.kernels .pytest_cache .hypothesis .mypy_cache .ruff_cache src/*.egg-info paper/build paper/src/*.egg-info
	find src paper tests examples scripts -name __pycache__ -type d -prune -exec rm -rf {} +
