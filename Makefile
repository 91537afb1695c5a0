# `make build` and `make test` are the two commands of the README; nothing else is needed on an empty machine.
PYTHON ?= python3
BIN := .venv/bin
# numpy's own threads would wait for each other, busily, beside the engines that are measured.
export OPENBLAS_NUM_THREADS := 1

.PHONY: build test test-all check measured
.DELETE_ON_ERROR:

# Exit code 5 says that a larger budget lay too close to the limit to call; the chosen one is certain all the same.
build: .venv/compiler
	$(BIN)/essm-deploy build --target cpu --max-latency 10ms || test $$? -eq 5

test: .venv/dev
	$(BIN)/python -m pytest -m "not slow"

test-all: .venv/dev
	$(BIN)/python -m pytest -m slow

# On a quiet machine: what is recorded is what readers compare with.
measured: .venv/dev
	$(BIN)/python -m tests.benchmarks.record

check: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/compiler: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[compiler]'
	touch $@

# torch first: its pinned build decides what the others find.
.venv/dev: .venv/compiler
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@
