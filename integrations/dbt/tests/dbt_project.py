"""A dbt project on DuckDB, in a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_delta

BIN = Path(sys.executable).parent

_PROJECT = """\
name: shop
version: "1.0"
profile: shop
"""
_PROFILE = """\
shop:
  target: dev
  outputs:
    dev: {type: duckdb, path: dev.duckdb, extensions: ["%s"]}
"""


def delta_extension() -> Path:
    """The file of DuckDB's Delta extension that the PyPI package contains, so that nothing is downloaded."""
    [found] = Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension")
    return found


class DbtProject:
    """Runs dbt in a folder, without usage statistics and without a network."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models = folder / "models"
        self.models.mkdir(parents=True)
        (folder / "dbt_project.yml").write_text(_PROJECT)
        (folder / "profiles.yml").write_text(_PROFILE % delta_extension())

    def dbt(self, *arguments: str, code: int = 0, **environment: str) -> str:
        """The output of a command. Fails unless it ends with this exit code."""
        done = subprocess.run(
            [BIN / "dbt", "--no-use-colors", *arguments],
            cwd=self.folder,
            env={**os.environ, "DBT_SEND_ANONYMOUS_USAGE_STATS": "false", "PYTHONPATH": "", **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def freshness(self, *tables: str, code: int = 0, **environment: str) -> dict[str, dict[str, Any]]:
        """The results of `dbt source freshness` by `source.table`."""
        chosen = [word for table in tables for word in ("--select", f"source:{table}")]
        self.dbt("source", "freshness", *chosen, code=code, **environment)
        results = json.loads((self.folder / "target" / "sources.json").read_text())["results"]
        return {result["unique_id"].removeprefix("source.shop."): result for result in results}

    def rows(self, model: str) -> list[dict[str, Any]]:
        """The rows of a model, read from the database of the project."""
        return self._query(f"SELECT * FROM {model}")

    def types(self, model: str) -> dict[str, str]:
        """The columns of a model with their types."""
        return {row["column_name"]: row["column_type"] for row in self._query(f"DESCRIBE {model}")}

    def _query(self, statement: str) -> list[dict[str, Any]]:
        with duckdb.connect(str(self.folder / "dev.duckdb")) as connection:
            connection.execute(f"LOAD '{delta_extension()}'")
            found = connection.execute(statement)
            names = [column[0] for column in found.description or ()]
            return [dict(zip(names, row, strict=True)) for row in found.fetchall()]
