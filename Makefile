# `make demo` and `make test` set themselves up: a virtual environment in .venv, made once from
# pyproject.toml and constraints.txt and renewed when one of them changes.
PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
STAMP = $(VENV)/.installed
BIN = $(VENV)/bin

.PHONY: demo test test-newest lint bench clean setup
.DELETE_ON_ERROR:

demo: $(STAMP)
	$(BIN)/mpmd-trace run examples/char_gpt.py

test: $(STAMP)
	$(BIN)/ruff check src tests examples benchmarks
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

test-newest:
	@newest=$$(scripts/newest_python); \
	echo "newest interpreter: $$newest"; \
	$(MAKE) test PYTHON="$$newest" VENV=.venv-newest

lint: $(STAMP)
	$(BIN)/ruff check src tests examples benchmarks
	$(BIN)/mypy

bench: $(STAMP)
	for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "mpmd_trace needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "== setting up $(VENV) with $$($(PYTHON) --version) (once; some minutes on a slow line)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off -c constraints.txt -e '.[test]'
	@touch $@

clean:
	rm -rf .venv .venv-newest out .pytest_cache .mypy_cache .ruff_cache build src/*.egg-info
