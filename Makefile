# Every target does its own set-up: virtual environment, locked dependencies, Java.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-fast check format lint types bench docs lock clean

demo: $(VENV)/.runtime
	@demo/run

# Two at a time, file by file: most of the time goes into starting and waiting.
test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-fast: $(VENV)/.dev
	$(BIN)/python -m pytest tests/unit tests/laws tests/contract

# Mutation testing with the fast tests (docs/testing.md). SAMPLE=400, SEED=1, ARGS="--all --package state".
.PHONY: mutate
mutate: $(VENV)/.dev
	$(BIN)/python scripts/mutate --sample $(or $(SAMPLE),200) --seed $(or $(SEED),7) $(ARGS)

check: lint types test

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy

# The whole way beside a plain script. The control plane alone: .venv/bin/python -m bench.control_plane
bench: $(VENV)/.dev
	$(BIN)/python -m bench $(or $(ARGS),--partitions 10000 --partitions 50000 --output bench-results.jsonl)

docs: $(VENV)/.dev
	$(BIN)/python scripts/generate_docs.py

# Locks name versions and hashes only: no registry is named in them.
lock: $(VENV)/.dev
	$(BIN)/pip install --quiet uv==0.13.7
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --quiet pyproject.toml -o requirements/runtime.lock
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --quiet pyproject.toml --extra postgres --extra s3 --extra polars --extra google-ads --extra http --extra openlineage --group dev -o requirements/dev.lock
	printf 'duckdb==1.5.5\nduckdb-extension-delta==1.5.5\n' | $(BIN)/uv pip compile - --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --quiet -o requirements/delta-reader.lock

$(VENV)/.runtime: requirements/runtime.lock pyproject.toml scripts/setup
	scripts/setup runtime

$(VENV)/.dev: requirements/dev.lock pyproject.toml scripts/setup
	scripts/setup dev

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache demo/workspace
