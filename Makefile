# `make demo` and `make test` set themselves up: a virtual environment in .venv, made once from pyproject.toml and
# constraints.txt and renewed when one of them changes.  For `make demo` alone, it has only what the demo needs.
PYTHON ?= python3
VENV ?= .venv
# More arguments for pytest: files, -k, ...; for `make test` and `make test-newest`.
PYTEST_ARGS ?=
STAMP = $(VENV)/.installed
DEMO_STAMP = $(VENV)/.demo
BIN = $(VENV)/bin
# Tests start hundreds of processes, each of which would compile JAX, and all else that it imports, from source again.
unexport PYTHONDONTWRITEBYTECODE

# Says `--clear` when there is an environment that was made elsewhere (the folder was moved or copied, and what is
# installed points to the old place), whose interpreter is gone, or that is not of the PYTHON of this call.
STALE := $(shell test ! -e $(VENV) || { ! cat $(STAMP) $(DEMO_STAMP) 2>/dev/null | grep -qvxF "$(CURDIR)" && \
  now=$$($(BIN)/python --version 2>/dev/null) && \
  { test "$(origin PYTHON)" != "command line" || test "$$now" = "$$($(PYTHON) --version 2>/dev/null)"; }; } || echo --clear)
# uv is used where it is installed, since it is several times as fast, and else a pip that is there already, if it can
# install elsewhere (22.3). None compiles what may never be imported.
UV := $(shell command -v uv 2>/dev/null)
PIP = $(shell $(PYTHON) -c 'import pip; assert tuple(map(int, pip.__version__.split(".")[:2])) >= (22, 3)' 2>/dev/null && echo yes)
PIP_OPTIONS = --disable-pip-version-check --progress-bar off --no-compile

# `make fuzz`: for how long, which programs (any number; printed when not given), and further arguments.
MINUTES ?= 10
SEED ?=
FUZZ_ARGS ?=

# `make deadlocks`: how many plans.
PLANS ?= 100000

# `make faults`: how many programs over three processes, each with a fault in one of them; `make ends`: how many jobs that
# succeed, whose processes must all end with status 0, and how many that fail while the others wait elsewhere.
RUNS ?= 50

# `make frozen`: the commit to compare with, and further arguments.
REF ?= HEAD
FROZEN_ARGS ?=

# `make launchers`: which of them; RAY_PYTHON is an interpreter that has Ray.
LAUNCHERS ?= plain torchrun openmpi slurm ray_actors

# `make explorer`: of which programs.
PROGRAMS ?= tests/programs/tiny.py tests/programs/uneven.py examples/char_gpt.py

# `make gpu`: further arguments.
GPU_ARGS ?=

# `make grid`: which of its parts, all by default.
GRID ?=

.PHONY: demo test pytest test-newest nightly fuzz deadlocks faults ends launchers frozen grid explorer docs lint bench gpu clean setup $(if $(STALE),$(STAMP) $(DEMO_STAMP))
.DELETE_ON_ERROR:

demo: $(if $(wildcard $(STAMP)),$(STAMP),$(DEMO_STAMP))
	$(BIN)/mpmd-trace run examples/char_gpt.py

test: lint pytest

pytest: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST_ARGS)

# What `make test` leaves out: most generated programs, the benchmarks at their smallest sizes, the docs site; and random
# examples, new ones and twice as many.
nightly: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'nightly or hypothesis' --hypothesis-profile nightly $(PYTEST_ARGS)

# The tests on the newest interpreter present, or with GOAL=setup its environment alone.
GOAL ?= pytest
test-newest:
	@newest=$$(scripts/newest_python); \
	echo "newest interpreter: $$newest"; \
	$(MAKE) $(GOAL) PYTHON="$$newest" VENV=.venv-newest

fuzz: $(STAMP)
	PYTHONPATH=tests:tests/cpp_differential $(BIN)/python -m fuzz.driver --minutes $(MINUTES) \
	  $(if $(SEED),--seed $(SEED)) $(FUZZ_ARGS)

deadlocks: $(STAMP)
	PYTHONPATH=tests $(BIN)/python -m fuzz.deadlocks --plans $(PLANS) $(if $(SEED),--seed $(SEED))

# A walk through the explorer's pages of three programs in a headless Chromium; screenshots in out/explorer-walk/.
explorer: $(STAMP)
	JAX_NUM_CPU_DEVICES=8 PYTHONPATH=tests/cli $(BIN)/python tests/cli/explorer_walk.py $(PROGRAMS)

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open site/index.html"

# Compares modules after every pass and plans with those of a commit (tests/frozen.py; FROZEN_ARGS='--part 1/20').
frozen: $(STAMP)
	$(BIN)/python tests/frozen.py --ref $(REF) $(FROZEN_ARGS)

faults: $(STAMP)
	PYTHONPATH=tests/processes $(BIN)/python -m injections --runs $(RUNS) $(if $(SEED),--seed $(SEED))

ends: $(STAMP)
	PYTHONPATH=tests/processes $(BIN)/python -m ends --runs $(RUNS)
	PYTHONPATH=tests/processes $(BIN)/python -m ends --runs $(RUNS) --faults

# Every launcher of the docs that is installed, with four processes; each says what it needs, and skips without it.
launchers: $(STAMP)
	for launcher in $(LAUNCHERS); do $(BIN)/python tests/launchers/$$launcher.py || exit 1; done

grid: $(STAMP)
	for processes in 2 4; do for size in 1 2; do \
	  $(BIN)/mpmd-trace launch -n $$processes --devices 8 --timeout 600 tests/processes/grid.py --size $$size $(GRID) || exit 1; \
	done; done
	for deal in blocks unevenly; do \
	  $(BIN)/mpmd-trace launch -n 3 --devices 8 --timeout 600 tests/processes/grid.py --deal $$deal $(GRID) || exit 1; \
	done

lint: $(STAMP)
	$(BIN)/ruff check src cli devtools tests examples benchmarks
	$(BIN)/ruff format --check --quiet src cli devtools tests examples benchmarks
	$(BIN)/mypy

# Checks and measurements on the first GPU, in less than seven minutes; results in out/gpu/. Needs a JAX for GPUs in the
# environment: $(BIN)/pip install 'jax[cuda13]'. GPU_ARGS=--rehearse runs them on the CPU.
gpu: $(STAMP)
	$(BIN)/python benchmarks/gpu.py --out out/gpu $(GPU_ARGS)

bench: $(STAMP)
	for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

setup: $(STAMP)

# Make the environment, with `--clear` if it is to be made anew; the second argument says what is downloaded.
define make_environment
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { version=$$($(PYTHON) --version 2>/dev/null || echo "not there"); \
	    echo "mpmd_trace needs Python 3.11 or newer; $(PYTHON) is $$version. Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; \
	    exit 1; }
	@echo "== setting up $(VENV) with $$($(PYTHON) --version) (once; downloads $(2))"
	$(PYTHON) -m venv $(1) $(if $(UV)$(PIP),--without-pip) $(VENV)
endef
INSTALL = $(if $(UV),uv pip,$(if $(PIP),$(PYTHON) -m pip --python $(BIN)/python,$(BIN)/python -m pip)) install \
  $(if $(UV),--python $(BIN)/python,$(PIP_OPTIONS))

$(STAMP): pyproject.toml constraints.txt
	$(call make_environment,$(STALE),some hundred MB)
	$(INSTALL) -c constraints.txt pip -e '.[test]'
	@echo "$(CURDIR)" > $@

# With all versions known, nothing is resolved, and the parts can be installed at the same time.
$(DEMO_STAMP): pyproject.toml constraints.txt
	$(call make_environment,$(STALE),150 MB)
	@grep ' demo 1$$' constraints.txt | $(INSTALL) -q --no-deps -r /dev/stdin pip & \
	  grep ' demo 2$$' constraints.txt | $(INSTALL) -q --no-deps -r /dev/stdin; \
	  status=$$?; wait $$! && exit $$status
	@$(BIN)/python scripts/link_checkout.py
	@echo "$(CURDIR)" > $@

clean:
	rm -rf .venv .venv-newest out site .pytest_cache .mypy_cache .ruff_cache build src/*.egg-info
