"""The bytes that a workspace occupies: tables and indexes of the state database, projections and Delta log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from penstock.app import Workspace
from penstock.db.engine import Database

_LARGEST = 100_000  # smaller tables are summed up as `other tables`

# By table, with its indexes. `dbstat` names an index by itself, `sqlite_master` names its table.
_SQLITE = """
SELECT m.tbl_name, sum(CASE WHEN m.type = 'table' THEN s.bytes ELSE 0 END),
    sum(CASE WHEN m.type = 'index' THEN s.bytes ELSE 0 END)
FROM (SELECT name, sum(pgsize) AS bytes FROM dbstat GROUP BY name) s JOIN sqlite_master m ON m.name = s.name
GROUP BY m.tbl_name
"""
_POSTGRESQL = """
SELECT c.relname, pg_table_size(c.oid), pg_indexes_size(c.oid) FROM pg_class c
WHERE c.relkind = 'r' AND c.relnamespace = CAST(:schema AS regnamespace)
"""


@dataclass(frozen=True, slots=True)
class Size:
    """The bytes of one table or of one kind of file."""

    name: str
    total: int
    indexes: int = 0
    files: int | None = None

    def as_dict(self, partitions: int) -> dict[str, Any]:
        known: dict[str, Any] = {"what": self.name, "bytes": self.total}
        if self.indexes:
            known["index_bytes"] = self.indexes
        if self.files is not None:
            known["files"] = self.files
        return known | {"bytes_per_partition": round(self.total / partitions, 1)}


def database_sizes(database: Database) -> Iterator[Size]:
    """The largest tables with their indexes, the others together, and the whole database."""
    with database.snapshot() as connection:
        if database.dialect == "sqlite":
            rows = connection.execute(sa.text(_SQLITE)).all()
        else:
            rows = connection.execute(sa.text(_POSTGRESQL), {"schema": database.schema}).all()
    sizes = sorted((Size(f"table {name}", data + indexes, indexes) for name, data, indexes in rows), key=_bytes)[::-1]
    large = [size for size in sizes if size.total >= _LARGEST]
    yield from large
    yield Size("other tables", sum(size.total for size in sizes) - sum(size.total for size in large))
    if database.dialect == "sqlite":
        path = Path(str(database.url.database))
        log = path.with_name(path.name + "-wal")
        yield Size("state database", path.stat().st_size)
        yield Size("write-ahead log of SQLite", log.stat().st_size if log.exists() else 0)
    else:
        yield Size("state database", sum(size.total for size in sizes))


def lake_sizes(workspace: Workspace) -> Iterator[Size]:
    """Projections that the manifest uses, all files below `projections`, the manifest itself, and Delta logs."""
    lake, [seen, manifest] = workspace.context.lake, workspace.status.projector.head.read()
    stored = {entry.path: entry.size for entry in lake.list("projections")}
    used, files = Counter[str](), Counter[str]()
    for path in manifest.files():
        kind = path.split("/")[1]
        used[kind] += stored[path]
        files[kind] += 1
    for kind in sorted(used):
        yield Size(f"projection {kind}", used[kind], files=files[kind])
    yield Size("manifest of projections", stored[str(seen)])
    yield Size("all files of projections", sum(stored.values()), files=len(stored))
    log = [entry.size for entry in lake.list("warehouse") if "/_delta_log/" in entry.path]
    yield Size("Delta log", sum(log), files=len(log))


def _bytes(size: Size) -> int:
    return size.total
