# Everything a clone needs: Python >= 3.11 and make.  `make` alone lists the targets.

PYTHON ?= python3
VENV   ?= .venv
JOBS   ?= 2

BIN   := $(VENV)/bin
SETUP := $(VENV)/setup.stamp
DEMO  := $(VENV)/demo.stamp
PIP   := $(BIN)/python -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help setup format check-format lint types layers tests docs test nightly demo bench \
        wheel clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(SETUP) ## a virtual environment with everything the other targets need

# The stamps are as old as pyproject.toml allows: change a dependency and it is installed.
$(SETUP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "Smelt needs Python 3.11 or later; name one with: make PYTHON=python3.12 setup")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --editable '.[dev,docs]'
	@touch $@

$(DEMO): $(SETUP)
	$(PIP) install --editable '.[demo]'
	@touch $@

format: $(SETUP) ## rewrite the sources in the house style
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

check-format: $(SETUP)
	$(BIN)/ruff format --check

lint: $(SETUP) ## ruff
	$(BIN)/ruff check

types: $(SETUP) ## pyright, strict
	$(BIN)/pyright

layers: $(SETUP) ## imports go down only
	$(BIN)/lint-imports --no-cache

tests: $(SETUP) ## pytest with doctests, without the nightly forms
	$(BIN)/python -m pytest -q -n $(JOBS)

docs: $(SETUP) ## the documentation in docs/_build/html; a warning is an error
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html

test: check-format lint types layers tests docs ## everything that must be green

nightly: $(SETUP) ## the long forms: whole float32 sweeps, tens of thousands of random programs
	HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest -q -n $(JOBS) -m nightly --timeout 3600

demo: $(DEMO) ## semantic search over the documentation of your own Python
	$(BIN)/smelt demo

bench: $(SETUP) ## Smelt against its peers and the memory floor
	$(BIN)/smelt bench

wheel: $(SETUP) ## dist/*.whl
	$(PIP) wheel --no-deps --wheel-dir dist .

clean: ## remove what was generated
	rm -rf dist build docs/_build docs/reference/generated .pytest_cache .ruff_cache .hypothesis
