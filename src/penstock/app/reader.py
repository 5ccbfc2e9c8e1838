"""What consumers get: a workspace that can be read and asked, and not changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date as Day
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from penstock.app.explaining import Explaining, PartitionHandle
from penstock.clock import Clock, utc_now
from penstock.config.settings import find_workspace, load_settings
from penstock.control.filters import AnyCustomers, AnyDay, SliceFilters
from penstock.control.select import Selection
from penstock.partition import PartitionKey, RunId
from penstock.source.registry import hooks_of
from penstock.state.records import PartitionView

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from penstock.control.asked_days import AskedDays
    from penstock.control.why import Why
    from penstock.raw.reader import RawRun
    from penstock.warehouse.reader import Vouched
    from penstock.warehouse.readiness import Coverage
    from penstock.warehouse.snapshots import Snapshot


def open_reader(path: str | Path = ".", clock: Clock = utc_now) -> Reader:
    """The workspace in (or above) `path`, to be read; refuses one whose database is missing or of another version."""
    from penstock.db.engine import Database
    from penstock.lake import open_lake
    from penstock.lake.read_only import ReadOnlyLake

    workspace = Explaining(load_settings(find_workspace(Path(path)), os.environ, hooks_of), clock)
    state = workspace.settings.state
    workspace.database = Database(state.url, state.schema_name, read_only=True)
    workspace.lake = ReadOnlyLake(open_lake(workspace.settings.lake))
    workspace.require_schema()
    return Reader(workspace)


class Reader:
    """Reads the vouched rows of a workspace and answers questions about its partitions.

    It has no method that changes anything. The state database is opened read-only (SQLite `mode=ro`; PostgreSQL
    `default_transaction_read_only`), and the lake refuses to write. A PostgreSQL login with the role `consumer` is
    enough for everything but `why`.
    """

    __slots__ = ("_workspace",)

    def __init__(self, workspace: Explaining) -> None:
        self._workspace = workspace

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables that can be read: `source.query_name`, `models.name`."""
        return tuple(sorted(contract.asset for contract in self._workspace.contracts.values()))

    def check(self, selection: Selection) -> None:
        """Raise UsageError if the selection names an unknown source, customer or query."""
        self._workspace.ranges(selection)

    def read(
        self,
        table: str,
        *,
        since: AnyDay | None = None,
        until: AnyDay | None = None,
        date: AnyDay | None = None,
        customers: AnyCustomers | None = None,
        columns: Sequence[str] = (),
        as_of: str | None = None,
        schema_version: str | None = None,
        spark: SparkSession | None = None,
        customer: AnyCustomers | None = None,
    ) -> Vouched | DataFrame:
        """The vouched rows of `source.query_name`: with `spark` a DataFrame, else .arrow(), .batches(), .duckdb().
        Raises UsageError for the filters that `penstock read` refuses; see `SliceFilters`."""
        return self._workspace.read(
            table,
            since=since,
            until=until,
            date=date,
            customers=customers,
            columns=columns,
            as_of=as_of,
            schema_version=schema_version,
            spark=spark,
            customer=customer,
        )

    def vouched(
        self,
        table: str,
        *,
        since: Day | None = None,
        until: Day | None = None,
        customers: AnyCustomers | None = None,
        columns: Sequence[str] = (),
        as_of: str | None = None,
        schema_version: str | None = None,
    ) -> Vouched:
        """The vouched rows of a table at this moment: reading them twice gives the same rows. A customer or a range of
        days without rows is no error here, as in the filters of a query."""
        return self._workspace.vouched(
            table,
            since=since,
            until=until,
            customers=customers,
            columns=columns,
            as_of=as_of,
            schema_version=schema_version,
        )

    def sql(
        self,
        statement: str,
        as_of: str | None = None,
        opened: Callable[[Vouched], None] = lambda vouched: None,
        schema_versions: Mapping[str, str] | None = None,
    ) -> pa.RecordBatchReader:
        """One SELECT over vouched rows, on DuckDB; tables are named `source.query_name`."""
        return self._workspace.sql(statement, as_of, opened, schema_versions)

    def spark_sql(
        self,
        statement: str,
        spark: SparkSession | None = None,
        as_of: str | None = None,
        opened: Callable[[Vouched], None] = lambda vouched: None,
        schema_versions: Mapping[str, str] | None = None,
    ) -> pa.RecordBatchReader:
        """The same on Spark."""
        return self._workspace.spark_sql(statement, spark, as_of, opened, schema_versions)

    def session(self) -> SparkSession:
        """A Spark session as the workspace file describes it."""
        from penstock.pipeline.session import start_session

        return start_session(self._workspace.settings.spark)

    def coverage(self, table: str, **filters: Unpack[SliceFilters]) -> list[Coverage]:
        """Day by day how much of what is expected is ready."""
        return self._workspace.coverage(table, **filters)

    def ready(self, table: str, *, require: str | int = "all", **filters: Unpack[SliceFilters]) -> bool:
        """Whether every day of a slice can be read, by a rule: all, any, a number of partitions, or a share (95%)."""
        return self._workspace.ready(table, require=require, **filters)

    def wait_for(
        self,
        table: str | Sequence[str],
        *,
        require: str | int = "all",
        patience: timedelta | float | str,
        **filters: Unpack[SliceFilters],
    ) -> list[Coverage]:
        """Wait until a slice of a table, or of each of several, is ready, or patience ends: a timedelta, seconds, or
        text such as 10m. Returns the coverage at that moment."""
        return self._workspace.wait_for(table, require=require, patience=patience, **filters)

    def asked_days(self, table: str, **filters: Unpack[SliceFilters]) -> AskedDays:
        """Which days a question about readiness asks for, and which of them are expected."""
        return self._workspace.asked_days(table, **filters)

    def partitions(
        self, selection: Selection | None = None, *, after: PartitionKey | None = None, limit: int | None = None
    ) -> list[PartitionView]:
        """The expected partitions of a selection with state, last attempt and marks, in key order."""
        chosen = selection or Selection()
        ranges = self._workspace.ranges(chosen)
        return self._workspace.reader.views(ranges, status=chosen.status, after=after, limit=limit)

    def partition(self, key: str) -> PartitionHandle:
        """One partition, to ask about it."""
        return self._workspace.partition(key)

    def why(self, key: str) -> Why:
        """Why a partition is as it is, what blocks it and what happens next."""
        return self._workspace.why(PartitionKey.parse(key))

    def settled_until(self, table: str) -> Day | None:
        """The last day of this table that its source will not change any more."""
        return self._workspace.settled_until(table)

    def snapshots(self) -> list[Snapshot]:
        """The named states of the warehouse that can be read `as_of`."""
        return self._workspace.snapshots.all()

    def withdrawn_since(self, snapshot: str, tables: Sequence[str]) -> int:
        """How many partitions of these tables were demoted since a snapshot was taken."""
        return self._workspace.withdrawn_since(snapshot, tables)

    def raw_runs(self, key: PartitionKey) -> tuple[list[RawRun], RunId | None]:
        """Every run of a partition in the raw sink with its seal, and which of them is trusted."""
        return self._workspace.raw_runs(key)

    def raw_lines(self, key: PartitionKey) -> Iterator[bytes]:
        """The payload of the trusted run, line by line."""
        return self._workspace.raw_lines(key)

    def close(self) -> None:
        """Give back the database connections that are kept for the next question."""
        self._workspace.database.close()
