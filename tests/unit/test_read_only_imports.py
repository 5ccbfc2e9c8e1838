"""Commands that start no Spark import neither Spark, nor pandas, nor a client of a source.

Each of them runs in a process of its own, and Python reports every import.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from penstock.app import load_workspace
from penstock.cli.main import app
from support import long_names
from support.long_names import QUERY, LongNames

REFUSED = {"pandas", "pyspark", "py4j", "google"}

# The arguments of each command that is not marked with *. A new command fails the test until it is listed here.
CALLS: dict[str, str] = {
    "init": "{folder}/new",
    "source new": "kit --folder {folder}/kit",
    "doctor": "",
    "customers list": "",
    "runs list": "",
    "runs show": "{failed_run}",
    "runs cancel": "{open_run} --dry-run",
    "state inspect": "",
    "state history": "{failed}",
    "state retry": "--dry-run",
    "state terminal": "",
    "state mark-terminal": "--dry-run",
    "state clear-terminal": "--dry-run",
    "state pause": "--dry-run",
    "state resume": "--dry-run",
    "state demote": "{served} --reason x --dry-run",
    "state pauses": "",
    "state rollback": "{served} --to {loaded_run} --dry-run",
    "state approve": "{failed} --run {failed_run} --reason x --dry-run",
    "status": "",
    "top": "--once",
    "missing": "",
    "failed": "",
    "stale": "",
    "why": "{failed}",
    "backfill create": "--reprocess --dry-run",
    "backfill list": "",
    "backfill show": "{backfill}",
    "backfill pause": "{backfill} --dry-run",
    "backfill resume": "{backfill} --dry-run",
    "backfill cancel": "{backfill} --dry-run",
    "backfill retry-failed": "{backfill} --dry-run",
    "control breakers": "",
    "control close-breaker": "google_ads --dry-run",
    "control quota": "",
    "tokens create": "kim --role viewer",
    "tokens list": "",
    "alerts list": "",
    "alerts test": "ops",
    "tokens revoke": "kim",
    "tokens logout": "kim",
    "warehouse pointers": "",
    "warehouse loads": "",
    "warehouse vacuum": "--dry-run",
    "backup": "{folder}/copy",
    "read": "{table}",
    "sql": "SELECT(1)",
    "snapshot": "",
    "ready": "{table}",
    "late": "",
    "raw list": "{served}",
    "raw read": "{served}",
    "raw gc": "--dry-run",
    "contract infer": "{served}",
    "contract show": "{query}",
    "contract export": "{query}",
    "contract import": "{folder}/penstock.yaml",
    "ledger tail": "",
    "ledger export": "--dry-run",
    "lineage emit": "{loaded_run}",
    "dbt sources": "--output {folder}/sources.yml",
    "audit list": "",
    "db migrate": "",
    "db roles": "--dry-run",
}

# Calls of commands that are marked with * but have nothing to do for Spark here.
IDLE = ("run --plan", "run {served}")

# What a command may import nevertheless: `doctor` checks that pyspark can be imported.
ALLOWED = {"doctor": {"pyspark", "py4j"}}

# Commands that need what the test refuses, and why.
EXCEPTIONS = {
    "customers sync": "lists accounts through the client of a source",
    "serve": "serves until a signal; tests/acceptance/test_http_server.py checks its imports",
    "warehouse verify": "compares raw files and tables; the manual marks it with *",
}


def commands(path: str = "", command: Any = None) -> Iterator[tuple[str, Any]]:
    command = command or typer.main.get_command(app)
    for name, child in command.commands.items():
        if hasattr(child, "commands"):
            yield from commands(f"{path}{name} ", child)
        else:
            yield f"{path}{name}", child


def starts_spark(command: Any) -> bool:
    return bool(re.search(r"\*\s*(\n\n|$)", command.help.strip()))


def reported(output: str) -> set[str]:
    """The modules in the report of `-X importtime`."""
    return set(re.findall(r"^import time: +\d+ \| +\d+ \| +(\S+)$", output, re.M))


def imported(output: str) -> set[str]:
    """The refused packages among them. An import that fails is reported, too, but not the modules of the package."""
    return {package for package in REFUSED if any(name.startswith(f"{package}.") for name in reported(output))}


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> LongNames:
    return long_names.make(tmp_path_factory.mktemp("imports"))


def test_every_command_that_starts_no_spark_is_called() -> None:
    plain = {path for path, command in commands() if not starts_spark(command)}
    assert plain == set(CALLS) | set(EXCEPTIONS)


@pytest.mark.parametrize("call", [*(f"{path} {rest}".strip() for path, rest in CALLS.items()), *IDLE])
def test_a_command_without_spark_imports_no_pandas_and_no_client(names: LongNames, call: str) -> None:
    facts = {name: str(getattr(names, name)) for name in LongNames.__slots__}
    line = call.format(**facts, query=QUERY, table=f"google_ads.{QUERY}").split()
    where = (
        [] if line[0] in ("init", "source") or line[:2] == ["contract", "import"] else ["--workspace", facts["folder"]]
    )
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "penstock", *line, *where],
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1, 2), done.stderr[-500:]  # 2: for example, this workspace has no `lineage:`
    assert "penstock.cli.main" in reported(done.stderr)
    assert imported(done.stderr) - ALLOWED.get(line[0], set()) == set()


def test_the_check_itself_sees_an_import() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import py4j.version"], capture_output=True, text=True, check=True
    )
    assert imported(done.stderr) == {"py4j"}


def test_a_command_that_only_reads_state_loads_no_arrow_and_no_other_database(names: LongNames, tmp_path: Path) -> None:
    """The first call computes the counts of `status`, the second one finds them."""
    load_workspace(names.folder).status.advance()  # newer events are joined by Arrow
    environ = {**os.environ, "PENSTOCK_CACHE": str(tmp_path)}
    line = [sys.executable, "-X", "importtime", "-m", "penstock", "status", "--workspace", str(names.folder), "--json"]
    for _ in range(2):
        done = subprocess.run(line, capture_output=True, text=True, check=True, env=environ)
    modules = reported(done.stderr)
    refused = (
        "pyarrow",
        "numpy",
        "deltalake",
        "alembic",
        "rich",
        "sqlglot",
        "duckdb",
        "sqlalchemy.dialects.postgresql",
    )
    assert [name for name in refused if name in modules] == []
