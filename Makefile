# Every target does its own setup: virtual environment, locked dependencies, Java.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help demo console screenshots test test-fast test-spark-versions test-integrations mutate check format lint types bench docs lock clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS=$$'\t' read -r name what; do printf '  %-20s %s\n' "$$name" "$$what"; done

demo: $(VENV)/.runtime ## run the main job on SQLite, a local lake and local Spark, and show the result
	@demo/run

# PORT=9000 chooses another port.
console: $(VENV)/.runtime ## open the console on the workspace of the demo (PORT=...)
	@PORT=$(or $(PORT),8321) demo/console

# Installs Debian's Chromium if root runs it. The workspace of the demo is copied and stays as it is.
screenshots: $(VENV)/.dev ## take the screenshots of docs/images from the workspace of the demo
	@[ -e demo/workspace/state.db ] || demo/run
	PYTHONPATH=tests $(BIN)/python scripts/make_screenshots.py

# Two test files at a time: most of the time is start-up and waiting.
test: $(VENV)/.dev ## run the whole test suite; starts the servers that it needs
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-fast: $(VENV)/.dev ## run the tests that need no Spark
	$(BIN)/python -m pytest tests/unit tests/laws tests/contract

# The newest version is that of the dev lock, on which all other tests run. VERSIONS=4.0, ARGS="-k order".
test-spark-versions: $(VENV)/.dev ## run the smoke tests on the older versions of Spark (VERSIONS=..., ARGS=...)
	scripts/test-spark-versions $(or $(VERSIONS),4.0 4.1 4.2) -- $(ARGS)

# Every integration with a lock, or NAMES=airflow. ARGS="-k sensor".
test-integrations: $(VENV)/.dev ## run the tests of the integrations, each in its own environment (NAMES=..., ARGS=...)
	scripts/test-integrations $(or $(NAMES),$(patsubst requirements/integration-%.lock,%,$(sort $(wildcard requirements/integration-*.lock)))) -- $(ARGS)

# See docs/testing.md. SAMPLE=400, SEED=1, ARGS="--all --package state".
mutate: $(VENV)/.dev ## run mutation testing with the fast tests (SAMPLE=..., SEED=..., ARGS=...)
	$(BIN)/python scripts/mutate --sample $(or $(SAMPLE),200) --seed $(or $(SEED),7) $(ARGS)

check: lint types test ## run what CI runs: format, lint, types, tests

format: $(VENV)/.dev ## format the code with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lint: $(VENV)/.dev ## check format and lint rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.dev ## check types with mypy
	$(BIN)/mypy

# A whole run compared with a plain script. The control plane alone: .venv/bin/python -m bench.control_plane
bench: $(VENV)/.dev ## measure a whole run, compared with a plain Spark script (ARGS=...)
	$(BIN)/python -m bench $(or $(ARGS),--partitions 10000 --partitions 50000 --output bench-results.jsonl)

docs: $(VENV)/.dev ## write the generated reference pages and build the site in build/site
	$(BIN)/python scripts/generate_docs.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Lock files contain versions and hashes only, and name no registry. The environments with older versions of Spark have
# all other packages in the versions of the dev lock. The environments of integrations have versions of their own. dbt-core
# 1.12 needs a package that downloads its code while it is installed; pip accepts hashes of `mashumaro[msgpack]` only with
# its extra.
lock: $(VENV)/.dev ## lock the dependencies of pyproject.toml with hashes
	$(BIN)/pip install --quiet uv==0.13.7
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --quiet pyproject.toml --extra console -o requirements/runtime.lock
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --quiet pyproject.toml --extra postgres --extra s3 --extra polars --extra google-ads --extra http --extra oauth --extra openlineage --extra connect --extra console --extra oidc --extra client --extra alerts --extra tracing --group dev -o requirements/dev.lock
	printf 'duckdb==1.5.5\nduckdb-extension-delta==1.5.5\n' | $(BIN)/uv pip compile - --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --quiet -o requirements/delta-reader.lock
	grep -E '^[a-z].*==' requirements/dev.lock | grep -v '^pyspark==' | sed 's/ *\\$$//' > $(VENV)/constraints.txt
	for version in 4.0 4.1 4.2; do printf 'pyspark[connect]==%s.*\npytest\npytest-timeout\n' $$version | $(BIN)/uv pip compile pyproject.toml - --constraint $(VENV)/constraints.txt --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --quiet -o requirements/spark-$$version.lock; done
	printf 'dbt-core>=1.10,<1.12\ndbt-duckdb\nduckdb==1.5.5\nduckdb-extension-delta==1.5.5\npytest\npytest-timeout\n' | $(BIN)/uv pip compile - --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --no-strip-extras --quiet -o requirements/integration-dbt.lock
	$(BIN)/uv pip compile --group integrations/dagster/pyproject.toml:test --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --quiet -o requirements/integration-dagster.lock
	printf 'apache-airflow==3.3.*\nhatchling==1.33.0\nhttpx>=0.28.1,<0.29\npytest>=9.2,<10\npytest-timeout>=2.4,<3\n' | $(BIN)/uv pip compile - --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --quiet -o requirements/integration-airflow.lock

$(VENV)/.runtime: requirements/runtime.lock pyproject.toml scripts/setup
	scripts/setup runtime

$(VENV)/.dev: requirements/dev.lock pyproject.toml scripts/setup
	scripts/setup dev

clean: ## remove the virtual environment and build results
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache demo/workspace
