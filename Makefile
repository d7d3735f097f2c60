# serve · test · lint · bench: each sets up what it needs; a second run repeats nothing.
# PYTHON=python3.12 chooses the interpreter, ARGS="--http-port 9000" goes to the command.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
SERVER := backend_src/pagetide_server
INSTALL := $(BIN)/python $(SERVER)/install.py
KERNELS := $(wildcard $(addprefix kernels/pagetide_kernels/,*.py cpu/*.py cpu/*.cpp cpu/*.h))
GPU := $(wildcard /dev/nvidiactl)

ifneq ($(origin PYTHON),file)
export PYTHON_CHOSEN := 1
endif
CHECKER := $(if $(PYTHON_CHOSEN),$(PYTHON),$(firstword $(wildcard $(BIN)/python) $(PYTHON)))
packages = $(shell cat $(1) | grep -c ==)

.PHONY: serve test lint bench bench-peers bench-kernels loadtest simulate fuzz setup setup-dev check clean

serve: setup
	@exec $(BIN)/pagetide serve $(ARGS)

test: setup-dev
	@exec $(BIN)/python -m pytest $(ARGS)

# The scheduler under thousands of seeded worlds and both loops; REPLAY=seed shows one of them step by step.
SEEDS ?= 10000
SEED_START ?= 0
LOOP ?= plain
simulate: setup-dev
	@PYTHONPATH=tests/pagetide exec $(BIN)/python -m simulation.run \
	  $(if $(REPLAY),--replay $(REPLAY) --loop $(LOOP),--seeds $(SEEDS) --seed-start $(SEED_START))

# Broken requests beside good streams, on a real server (docs/robustness.md); ARGS="--count 10000 --seed 1".
fuzz: setup-dev
	@PYTHONPATH=tests/server exec $(BIN)/python -m fuzz $(ARGS)

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup-dev
	@exec $(BIN)/python -m benchmarks.serving $(ARGS)

# Other engines, each in an environment of its own: 6 GB and 7 minutes the first time, then 20 minutes a run.
bench-peers: setup-dev
	@exec $(BIN)/python -m benchmarks.peers $(ARGS)

# Needs a GPU; ARGS=--quick measures a few sizes.
bench-kernels: setup-dev
	@exec $(BIN)/python -m pagetide_kernels.bench $(ARGS)

# Two minutes of mixed clients against a running server; fails if one request fails (docs/loadtest.md).
USERS ?= Completion Chat Cancels LongPrompts
LOADTEST := --headless --only-summary --users 8 --spawn-rate 8 --run-time 2m --stop-timeout 60
loadtest: setup-dev
	@exec $(BIN)/locust -f loadtest/locustfile.py $(LOADTEST) --html loadtest-results/locust.html $(ARGS) $(USERS)

setup: check $(STAMPS)/serve $(STAMPS)/kernels

setup-dev: setup $(STAMPS)/dev

clean:
	rm -rf $(VENV)

check:
	@command -v $(CHECKER) >/dev/null || \
	  { echo "pagetide: $(CHECKER) is missing; apt install python3 python3-venv (3.10 to 3.13)" >&2; exit 1; }
	@$(CHECKER) $(SERVER)/preflight.py $(VENV)

$(STAMPS)/venv: | check
	@echo "Making $(VENV) (10 s)"
	@$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/serve: requirements/serve.txt requirements/wheels.txt requirements/cuda.txt pyproject.toml | $(STAMPS)/venv
	@echo "Installing the server (2 min and 2 GB with the CPU build of torch, 10 min and 8 GB with the CUDA build)"
	@$(INSTALL) "engine packages" $(call packages,requirements/serve.txt) -r requirements/serve.txt
	@$(INSTALL) "tritonserver, xgrammar and the default model" 3 --no-deps -r requirements/wheels.txt
	$(if $(GPU),@$(INSTALL) "CUDA packages" $(call packages,requirements/cuda.txt) -r requirements/cuda.txt)
	@$(INSTALL) "pagetide" 1 --no-deps --no-build-isolation -e .
	@touch $@

$(STAMPS)/dev: requirements/dev.txt requirements/cuda.txt | $(STAMPS)/serve
	@echo "Installing the test tools (30 s)"
	@$(INSTALL) "test tools" $(call packages,requirements/dev.txt requirements/cuda.txt) -r requirements/dev.txt -r requirements/cuda.txt
	@touch $@

$(STAMPS)/kernels: $(KERNELS) | $(STAMPS)/serve
	@echo "Compiling the CPU kernels (20 s)"
	@$(BIN)/python -m pagetide_kernels.build
	@touch $@
