"""Finds missing and unreadable data files of a table after a read or a write failed.

Nothing here runs while reads and writes succeed. An unreachable storage is no damage: its own error is raised.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa

from penstock.db import schema
from penstock.db.engine import Database
from penstock.errors import WarehouseError
from penstock.lake import Lake
from penstock.lake.protocol import LakeObjectMissing
from penstock.partition import PartitionKey
from penstock.plural import counted
from penstock.warehouse.format import DataFile
from penstock.warehouse.heads import TableHead
from penstock.warehouse.layout import rebuild_hint
from penstock.warehouse.versions import Versions

_NAMED = 3


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """A data file that cannot be used, with the reason."""

    file: DataFile
    reason: str


def damage_of(database: Database, versions: Versions, heads: Iterable[TableHead]) -> WarehouseError | None:
    """The error for the first of these tables that has damaged files, with the partitions in them; None if there is no
    damage."""
    for head in heads:
        files = versions.contents(head.name, head.location, head.version).files
        if damaged := damaged_files(versions.lake, head.location, files):
            return _error(head.name, damaged, _partitions(database, head.name, [one.file for one in damaged]))
    return None


def damaged_files(lake: Lake, location: str, files: Sequence[DataFile]) -> list[DamagedFile]:
    """The files that are missing or have another size, by one listing. If there are none, reads all files, one at a
    time, up to the first that is unreadable."""
    sizes = {entry.path: entry.size for entry in lake.list(location)}
    found = []
    for file in files:
        size = sizes.get(f"{location}/{file.path}")
        if size is None:
            found.append(DamagedFile(file, "is missing"))
        elif size != file.size:
            found.append(DamagedFile(file, f"has {size:,} bytes instead of {file.size:,}"))
    if found:
        return found
    for file in files:
        if reason := _unreadable(lake, f"{location}/{file.path}"):
            return [DamagedFile(file, reason)]
    return []


def _unreadable(lake: Lake, path: str) -> str | None:
    try:
        data = lake.read(path)
    except LakeObjectMissing:
        return "is missing"
    try:
        for _ in pq.ParquetFile(pa.BufferReader(data)).iter_batches():
            pass
    except (OSError, ValueError, pa.ArrowException) as error:
        return f"cannot be read: {str(error).partition(chr(10))[0]}"
    return None


def _partitions(database: Database, table: str, files: Sequence[DataFile]) -> list[PartitionKey]:
    """The partitions that may have rows in these files, by file statistics."""
    pointer = schema.warehouse_pointer
    statement = sa.select(*(pointer.c[name] for name in schema.KEY)).where(
        pointer.c.table_name == table, pointer.c.hidden_at.is_(None)
    )
    with database.snapshot() as connection:
        keys = [PartitionKey(*row) for row in connection.execute(statement)]
    return sorted(key for key in keys if any(file.may_hold((key.logical_date, key.customer_id)) for file in files))


def _error(table: str, damaged: Sequence[DamagedFile], partitions: Sequence[PartitionKey]) -> WarehouseError:
    first = damaged[0]
    more = f" and {counted(len(damaged) - 1, 'more file is', 'more files are')} damaged" if len(damaged) > 1 else ""
    named = ", ".join(map(str, partitions[:_NAMED]))
    rest = f" and {len(partitions) - _NAMED:,} more" if len(partitions) > _NAMED else ""
    concerned = (
        f"{counted(len(partitions), 'partition is', 'partitions are')} concerned ({named}{rest})"
        if partitions
        else "no partition is"
    )
    return WarehouseError(
        f"table {table}: its data file {first.file.path} {first.reason}{more}; {concerned}: {rebuild_hint(table)}"
    )
