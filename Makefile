# What a person types here. Everything installs into .venv and node_modules of this folder.
#
#   make demo                run everything on this machine, with simulated GPUs; Ctrl-C stops all of it
#   make demo ENGINE=vllm    the same in front of real vLLM on the CPU (after `make real-engine`)
#   make test lint bench     what they say
#   make bench-scale         one console in front of 200 reporting hosts
#
# `make demo` reads PORT (8000), HOST (127.0.0.1), DATA_DIR (data) and TRAFFIC (1; 0 sends none).

PYTHON ?= $(shell tools/find-python)
VENV := .venv
RUN := $(VENV)/bin/python
TESTS ?= tests
.DEFAULT_GOAL := help
.PHONY: help install install-python install-npm test-tools demo test lint real-engine test-real-engine bench bench-scale clean

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

install: install-python install-npm

# An unchanged lock file makes both a no-op: the hash of what was installed is kept beside it.
install-python:
	@tools/once $(VENV)/.requirements.sha256 requirements.lock -- tools/install-python "$(PYTHON)" $(VENV)

install-npm:
	@tools/once node_modules/.package-lock.sha256 package-lock.json -- tools/install-npm

test-tools:
	@tools/install-test-tools

demo: install
	@exec $(RUN) manage.py demo

lint: install-python
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy

# Two runs, whatever becomes of the first: what shares nothing runs on two cores; what starts whole demos has the
# machine to itself.
test: install test-tools
	@failed=0; \
	tools/run-tests $(RUN) -m pytest -n 2 --dist loadfile -m "not real_engine and not browser and not whole_demo" $(TESTS) || failed=1; \
	tools/run-tests $(RUN) -m pytest -m "browser or whole_demo" $(TESTS) || failed=1; \
	exit $$failed

real-engine:
	@real-engine/setup.sh

test-real-engine: install real-engine
	tools/run-tests $(RUN) -m pytest -m real_engine $(TESTS)

bench: install
	@tools/once out/bench-venv/.requirements.sha256 tests/benchmark/requirements.txt -- \
		tools/install-bench "$(PYTHON)" out/bench-venv
	@$(RUN) -m tests.benchmark.compare

bench-scale: install-python
	@$(RUN) -m tests.benchmark.scale

clean:
	rm -rf out .mypy_cache .ruff_cache .pytest_cache .hypothesis
