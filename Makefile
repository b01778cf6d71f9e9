# Every target sets itself up: a fresh clone needs Python 3.11+, pip and make, nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The CPU build is what the tests need; a range would pull gigabytes of CUDA. TORCH= leaves it out.
TORCH ?= torch==2.13.0
JOBS ?= 4
# Tests and benches start thousands of processes; where bytecode may not be written, each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo docs test test-all test-clusters test-etcd test-takeover test-frameworks lint format bench sim soak campaign clean

help:
	@echo "make demo      watch a job survive a killed worker and a killed node"
	@echo "make test      lint, types and the whole test suite"
	@echo "make test-all  the test suite on Python 3.11, 3.12 and 3.13"
	@echo "make test-frameworks  Hugging Face's Trainer, Accelerate and Lightning; installs them into the environment"
	@echo "make test-clusters  jobs on a real Slurm, SSH hosts, Docker, Podman, Kubernetes and Ray; needs root on Debian, says what it installs"
	@echo "make test-etcd  elections through real etcd servers; needs root on Debian, says what it installs"
	@echo "make test-takeover  agents that carry the coordinator on, with real processes and networks that fall apart"
	@echo "make docs      build the documentation site into site/; it needs no network to be viewed"
	@echo "make sim       10,000 seeds of each kind of simulated faults against the real machines, 100,000 of takeover; takes hours"
	@echo "make bench     comparisons with torchrun and others, side by side"
	@echo "make soak      long runs with real processes; as root also faults between hosts, for docs/RELIABILITY.md"
	@echo "make campaign  200 schedules of seeded faults on live jobs, on our ring, on gloo and with replicas"
	@echo "make lint      ruff and mypy only;   make format  let ruff rewrite"

setup: $(VENV)/.ready

# The demo needs the package and its page alone; a later `make test` adds the tests' and the linters' packages.
$(VENV)/.demo-ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[page]'
	@touch $@

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@if [ -z '$(TORCH)' ] || ! $(BIN)/python -m pip install --quiet '$(TORCH)'; then \
		echo "no torch for this Python: the tests that need it will skip by name"; fi
	@touch $@

# The site needs the package and mkdocs.
$(VENV)/.docs-ready: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@

demo: $(if $(wildcard $(VENV)/.ready),$(VENV)/.ready,$(VENV)/.demo-ready)
	$(BIN)/python -m holdfast demo

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: lint
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

# torch is tested on one Python, the rest of the suite on all.
test-all:
	@if command -v pyenv >/dev/null; then \
		PYENV_VERSION=$$(pyenv versions --bare | grep -E '^3\.1[123]\.' | paste -sd:); export PYENV_VERSION; fi; \
	for v in 3.11 3.12 3.13; do \
		if ! command -v python$$v >/dev/null || ! python$$v -c '' 2>/dev/null; then \
			echo "== Python $$v: not installed, skipped"; continue; fi; \
		echo "== Python $$v"; \
		torch=; [ $$v = 3.11 ] && torch='$(TORCH)'; \
		$(MAKE) --no-print-directory setup PYTHON=python$$v VENV=.venv-$$v TORCH="$$torch" || exit 1; \
		.venv-$$v/bin/python -m pytest -n $(JOBS) -q || exit 1; \
	done

# `make test` runs what it finds on this machine, and installs nothing system-wide.
test-clusters: setup
	PYTHON=$(BIN)/python tests/clusters.sh

test-etcd: setup
	PYTHON=$(BIN)/python tests/etcd.sh

# torch is named again so that no other comes with them.
test-frameworks: setup
	$(BIN)/python -m pip install --quiet --editable '.[accelerate,lightning]' '$(TORCH)'
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/integrations
	$(BIN)/python -m pytest -n 2 tests/torch/test_examples.py -k 'trainer or accelerate or lightning'

test-takeover: setup
	HOLDFAST_TEST_TAKEOVER=1 $(BIN)/python -m pytest -n 2 tests/rendezvous/test_takeover.py

docs: $(VENV)/.docs-ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "site/ is built; for its search: $(BIN)/python -m http.server -b 127.0.0.1 -d site"

sim: setup
	$(BIN)/python -m holdfast.sim --seeds 10000 --nodes 5:64
	$(BIN)/python -m holdfast.sim --seeds 10000 --training
	$(BIN)/python -m holdfast.sim --seeds 10000 --election
	$(BIN)/python -m holdfast.sim --seeds 100000 --takeover

soak: setup
	$(BIN)/python -m bench.garbage --frames 1000000
	$(BIN)/python -m bench.local_jobs --runs 1000
	$(BIN)/python -m bench.replacements
	$(BIN)/python -m bench.reliability

bench: setup
	$(BIN)/python -m bench

campaign: setup
	$(BIN)/python -m holdfast.chaos --seeds 200
	$(BIN)/python -m holdfast.chaos --seeds 200 --backend gloo
	$(BIN)/python -m holdfast.chaos --seeds 200 --backend replicas

clean:
	rm -rf site .venv .venv-3.* .venv-ray .venv-torchx .venv-torchx.lock build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
