# make setup | test | demo | docs | lint | wheel | clean: everything in .venv, from python 3.11 or newer and make alone.

# The first interpreter that is new enough; name another one with `make PYTHON=...`.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
STAMP := .venv/.stamp

EXTRAS := cli,onnx,dev,docs
# make test PAPER='paper[ray]' installs Ray too, and runs the tests that need a cluster.
PAPER := paper

# Packages are installed without bytecode: written once, at the first import, or compiled anew by every process.
unexport PYTHONDONTWRITEBYTECODE
# The site's generator announces its successor at every call.
export NO_MKDOCS_2_WARNING := 1

.PHONY: setup test demo docs lint wheel clean

setup: $(STAMP)

$(STAMP): pyproject.toml paper/pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found; try make PYTHON=/path/to/python" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]' -e '$(PAPER)'
	touch $@

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check --quiet || { echo "run: $(BIN)/ruff format" >&2; exit 1; }
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/mkdocs build --strict --quiet

# The loops are compiled while the linters run, once for both processes of the tests. Two processes of one thread
# each are faster than one of two threads, and do not compete.
test: setup
	@$(BIN)/python scripts/compile_loops.py & loops=$$!; $(MAKE) --no-print-directory lint || { kill $$loops; exit 1; }; wait $$loops
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST)

# One thread: the networks are small, and two threads wait for each other more than they compute.
demo: setup
	OMP_NUM_THREADS=1 $(BIN)/torchldr paper rectangles --quick --save-weights
	$(BIN)/torchldr report
	@echo
	@echo "Above: one table of the paper on a small protocol, its numbers beside ours."
	@echo "Open   out/report.html       everything that was run, here and by us, with figures"
	@echo "Try    $(BIN)/torchldr demo            one matrix fitted by every class, with a picture"
	@echo "       $(BIN)/torchldr paper list      the paper's other tables"
	@echo "       $(BIN)/torchldr bench --quick   where each class beats a dense layer on this machine"
	@echo "Read   docs/getting-started.md"

# Both packages built, checked and tried in a new environment, as a release does it.
wheel:
	PYTHON='$(PYTHON)' scripts/check_wheels.sh

# The site at http://127.0.0.1:8000, built anew when a page changes; `site/index.html` can be opened as a file.
docs: setup
	$(BIN)/mkdocs serve

# What was made here, except for the virtual environment: remove .venv by hand to begin anew.
clean:
	rm -rf build dist out site .pytest_cache .hypothesis .mypy_cache .ruff_cache src/*.egg-info paper/build paper/src/*.egg-info
	find src paper tests examples scripts -name __pycache__ -type d -prune -exec rm -rf {} +
