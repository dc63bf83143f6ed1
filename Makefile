# What a person types here. Everything installs into .venv and node_modules of this folder.
#
#   make demo                run everything on this machine, with simulated GPUs; Ctrl-C stops all of it
#   make demo ENGINE=vllm    the same in front of real vLLM on the CPU (after `make real-engine`)
#   make test lint bench     what they say
#   make compile             the router's hot path as machine code (needs a C compiler; falls back when the code changes)
#   make bench-scale         one console in front of 200 reporting hosts
#
# `make demo` reads PORT (8000), HOST (127.0.0.1), DATA_DIR (data) and TRAFFIC (1; 0 sends none).

PYTHON ?= $(shell tools/find-python)
VENV := .venv
ENGINE_HOME := $(or $(REAL_ENGINE_HOME),$(HOME)/.cache/real-engine)
RUN := $(VENV)/bin/python
TESTS ?= tests
.DEFAULT_GOAL := help
.PHONY: help compile install install-python install-npm test-tools demo test test-browser test-whole-demo test-compiled lint real-engine test-real-engine bench bench-scale clean

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

# Whatever becomes of one part, the others run. Most tests wait for processes, so there are more of them at once than
# cores; the two parts that start whole demos run side by side, each told when it is over.
test: install test-tools
	@failed=0; \
	SWITCHYARD_PLAIN_PYTHON=1 $(RUN) -m pytest -n 3 --dist loadfile -m "not real_engine and not browser and not whole_demo" $(TESTS) || failed=1; \
	$(MAKE) --no-print-directory -k -j2 -Otarget test-browser test-whole-demo || failed=1; \
	$(MAKE) --no-print-directory test-compiled || failed=1; \
	exit $$failed

test-browser:
	$(RUN) -m pytest -m browser $(TESTS)

test-whole-demo:
	$(RUN) -m pytest -m whole_demo $(TESTS)

test-compiled: compile
	$(RUN) -m pytest -n 2 --dist loadfile tests/routing tests/gateway

real-engine:
	@real-engine/setup.sh

test-real-engine: install real-engine
	@tools/once "$(ENGINE_HOME)/guidellm/.requirements.sha256" tests/real_engine/guidellm-requirements.txt -- \
		tools/install-guidellm "$(ENGINE_HOME)" "$(ENGINE_HOME)/guidellm"
	$(RUN) -m pytest -m real_engine $(TESTS)

compile: install-python
	@$(RUN) tools/compile-router
	@echo "The router's hot path is machine code from its next start on."

bench: install compile
	@tools/once out/bench-venv/.requirements.sha256 tests/benchmark/requirements.txt -- \
		tools/install-bench "$(PYTHON)" out/bench-venv
	@$(RUN) -m tests.benchmark.compare

bench-scale: install-python
	@$(RUN) -m tests.benchmark.scale

clean:
	rm -rf out .mypy_cache .ruff_cache .pytest_cache .hypothesis
