"""Whether the projections of a workspace equal a rebuild from the ledger alone. This check needs Penstock itself."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from penstock.app import Workspace
from penstock.config.loading import load_settings
from penstock.projections.system_tables import system_table
from penstock.source.registry import hooks_of
from support.checker import places

_TABLES = ("partition_status", "runs")
_OF_A_SWEEP = ("stale_since", "stale_reason_code")  # found by looking, not folded from events


def check_projections(folder: Path) -> list[str]:
    """Compare `partition_status` and `runs` before and after `ledger rebuild`, as sets of rows.

    A workspace on SQLite and a local folder is copied first, and not changed. Any other is rebuilt in place, which
    readers do not notice."""
    state, lake, _ = places(folder)
    if not state.startswith("sqlite") or "://" in lake:
        return _compared(folder)
    with TemporaryDirectory(prefix="penstock-check-") as name:
        return _compared(_copied(folder, Path(name), Path(state.removeprefix("sqlite:///")), Path(lake)))


def _compared(folder: Path) -> list[str]:
    ws = _opened(folder)
    try:
        before = {name: _rows(ws, name) for name in _TABLES}
        ws.ledger.rebuild()
        after = {name: _rows(ws, name) for name in _TABLES}
    finally:
        ws.context.database.close()
    return [
        f"{name}: {(before[name] - after[name]).total()} rows are not in a rebuild,"
        f" {(after[name] - before[name]).total()} rows of a rebuild are missing, e.g."
        f" {next(iter((before[name] - after[name]) or (after[name] - before[name])))}"
        for name in _TABLES
        if before[name] != after[name]
    ]


def _opened(folder: Path) -> Workspace:
    """The workspace, whatever variables its file needs: the ledger is read without any of them."""
    names = re.findall(r"\$\{(\w+)\}", (folder / "penstock.yaml").read_text())
    return Workspace(load_settings(folder, {**dict.fromkeys(names, "unset"), **os.environ}, hooks_of))


def _rows(ws: Workspace, name: str) -> Counter[Any]:
    rows = system_table(name, ws.status.current()).arrow().to_pylist()
    return Counter(tuple((k, str(v)) for k, v in row.items() if k not in _OF_A_SWEEP) for row in rows)


def _copied(folder: Path, to: Path, state: Path, lake: Path) -> Path:
    """The workspace's own files, its database, and the part of its lake that projections depend on."""
    for path in folder.iterdir():
        if path.is_file() and not path.name.startswith(state.name):
            shutil.copy2(path, to / path.name)
        elif path.is_dir() and path != lake and "penstock.yaml" not in (found.name for found in path.iterdir()):
            shutil.copytree(path, to / path.name, symlinks=True, ignore_dangling_symlinks=True)
    database, storage = to / state.relative_to(folder), to / lake.relative_to(folder)
    with closing(sqlite3.connect(state)) as source, closing(sqlite3.connect(database)) as target:
        source.backup(target)
    for part in ("projections", "ledger"):
        if (lake / part).is_dir():
            shutil.copytree(lake / part, storage / part)
    return to
