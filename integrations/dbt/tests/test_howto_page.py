"""The commands of docs/howto/dbt.md, run as a reader runs them."""

from __future__ import annotations

import doctest
import os
from pathlib import Path

import pytest
from dbt_project import delta_extension

from support.console_blocks import commands_of, fits, outputs_of
from support.doc_blocks import HOWTO, blocks, files


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = HOWTO / "dbt.md"
    for name, body in files(page).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(body)
    commands = [command for block in blocks(page, "console") for command in commands_of(block)]
    assert {command.split()[0] for command, _ in commands} >= {"penstock", "dbt"}
    monkeypatch.setenv("PATH", os.pathsep.join([os.environ["PENSTOCK_BIN"], os.environ["PATH"]]))
    monkeypatch.setenv("DUCKDB_DELTA", str(delta_extension()))
    monkeypatch.setenv("DBT_SEND_ANONYMOUS_USAGE_STATS", "false")
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE  # dbt prints empty lines
    for (command, expected), found in zip(commands, outputs_of(commands, tmp_path), strict=True):
        assert fits(expected, found, flags), f"{command}\n--- expected\n{expected}\n--- found\n{found}"
