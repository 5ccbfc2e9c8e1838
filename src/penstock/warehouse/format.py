"""The protocol of a table format: how the tables of a lake are created, opened, committed to and vacuumed.

`delta.py` implements it. Another format is one new module that `table_format` returns. Every format must provide
atomic commits, a fence against publishers that lost their lease, and a record of each publication in its commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Protocol

from penstock.errors import WarehouseError
from penstock.lake import Lake
from penstock.warehouse.layout import SortKey, table_schema

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a table, with the bounds by which readers decide whether to open it."""

    path: str
    month: str
    size: int
    records: int
    first: SortKey
    last: SortKey
    customers: tuple[str, str]

    def may_hold(self, key: SortKey) -> bool:
        return self.first[0] <= key[0] <= self.last[0] and self.customers[0] <= key[1] <= self.customers[1]


@dataclass(frozen=True, slots=True)
class FileStatistics:
    """The number of rows in a file, and the smallest and largest value of each key column."""

    records: int
    days: tuple[date, date]
    customers: tuple[str, str]


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A data file that is written but belongs to no table version yet. `stats` is the format's own encoding."""

    path: str
    size: int
    records: int
    month: str
    stats: str


@dataclass(frozen=True, slots=True)
class Commit:
    """One version of a table: the publications that it records, and whether it adds or removes files."""

    version: int
    publications: tuple[str, ...]
    changes_files: bool


class Table(Protocol):
    """A table at one version. A commit fails if another process committed since this object was opened."""

    @property
    def name(self) -> str:
        """`source.query_name.schema_version`."""

    @property
    def path(self) -> str:
        """The folder of the table below the root of the lake."""

    @property
    def version(self) -> int: ...

    def arrow_schema(self) -> pa.Schema:
        """The columns of the table."""

    def files(self) -> list[DataFile]:
        """Every file of this version. Raises WarehouseError if a file has no statistics."""

    def has_published(self, batch_id: str, at: int | None = None) -> bool:
        """Whether this version contains the commit of a publication. `at` is the version that is expected to be that
        commit, which makes the search shorter."""

    def history(self) -> Iterator[Commit]:
        """Every commit up to this version, oldest first."""

    def fence(self) -> Table:
        """Commit nothing but a new fence, so that the commits of all processes that opened the table before fail.
        Returns the table at the new version. Raises LeaseLost if another process committed first."""

    def publish(self, batch_id: str, add: Sequence[StagedFile], remove: Sequence[str], now: datetime) -> int:
        """Add and remove files and record the publication, in one atomic commit. Returns the new version. Raises
        LeaseLost if another process committed first."""

    def vacuum(self, keep: Sequence[int], retention_hours: int, *, dry_run: bool) -> list[str]:
        """Delete the files that no version in `keep` contains and that left the table before the retention time.
        Returns their paths. Raises WarehouseError if the log cannot be read."""


class TableFormat(Protocol):
    """The tables of one lake in one storage format. Locations are folders below the root of the lake."""

    def exists(self, location: str) -> bool: ...

    def create(self, location: str, fields: pa.Schema) -> None:
        """Create the table if it does not exist. The caller holds the table's lease."""

    def open(self, name: str, location: str, version: int | None = None) -> Table:
        """The table at a version, by default the newest. Raises WarehouseError if it cannot be opened."""

    def reset(self, location: str) -> None:
        """Delete the log of a damaged table, so that `create` starts a new one. Data files stay."""

    def locations(self) -> set[str]:
        """The folders of all tables in the warehouse of the lake."""

    def newest_version(self, location: str) -> int:
        """The highest version in the log, by a listing; -1 if there is none."""

    def commits_after(self, location: str, version: int, until: int | None = None) -> Iterator[Commit]:
        """The commits with a higher version, in order, up to `until` or to the first version without a log entry. A
        missing entry before `until` counts as a commit that changes files and records no publication."""

    def commits_at(self, versions: Sequence[tuple[str, int]]) -> list[Commit | None]:
        """The commits at these locations and versions; None for each that has no log entry."""

    def encode_statistics(self, statistics: FileStatistics) -> str:
        """The statistics of a staged file as the format stores them."""


def table_format(lake: Lake) -> TableFormat:
    """The format of the tables in this lake."""
    from penstock.warehouse.delta import DeltaFormat

    return DeltaFormat(lake)


def require_columns(table: Table, fields: pa.Schema) -> None:
    """Raise WarehouseError unless the table has the columns of this contract. A Delta commit accepts files of any
    schema, so this check precedes every publication."""
    expected = table_schema(fields)
    found = table.arrow_schema()
    if {f.name: f.type for f in found} != {f.name: f.type for f in expected}:
        raise WarehouseError(
            f"table {table.name} has the columns {found.names}, the contract has {expected.names}:"
            " give the query a new schema_version"
        )
