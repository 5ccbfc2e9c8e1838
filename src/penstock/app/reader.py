"""The workspace of a consumer: reads and questions, no changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date as Day
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, overload

from penstock.app.context import Context
from penstock.app.data import DataService
from penstock.app.grids import GridService
from penstock.app.partitions import PartitionHandle, PartitionService
from penstock.app.raw_runs import RawService
from penstock.app.readiness import ReadinessService
from penstock.app.status import StatusService
from penstock.clock import Clock, utc_now
from penstock.config.loading import find_workspace, load_settings
from penstock.control.filters import AnyCustomers, AnyDay, ReadOptions, SliceFilters, day_range
from penstock.control.select import Selection
from penstock.db.engine import Database
from penstock.lake import open_lake
from penstock.partition import PartitionKey, RunId
from penstock.source.registry import hooks_of
from penstock.state.records import PartitionView
from penstock.user_cache import UserCache

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from penstock.app.grids import Grid
    from penstock.control.requested_days import RequestedDays
    from penstock.control.why import Why
    from penstock.raw.reader import RawRun
    from penstock.warehouse.reader import Vouched
    from penstock.warehouse.readiness import Coverage
    from penstock.warehouse.snapshots import Snapshot
    from penstock.warehouse.sql import SqlLimits


def open_reader(path: str | Path = ".", clock: Clock = utc_now) -> Reader:
    """The reader of the workspace in (or above) the folder `path`. Raises ConfigError if its database is missing or of
    another version."""
    from penstock.lake.read_only import ReadOnlyLake

    cache = UserCache.of(os.environ)
    context = Context(load_settings(find_workspace(Path(path)), os.environ, hooks_of, cache), clock)
    state = context.settings.state
    context.database = Database(state.url, state.schema_name, read_only=True)
    context.lake = ReadOnlyLake(open_lake(context.settings.lake))
    context.require_schema()
    return Reader(context)


class Reader:
    """Reads the trusted rows of a workspace and answers questions about its partitions.

    It has no method that changes anything. The state database is opened read-only (SQLite `mode=ro`; PostgreSQL
    `default_transaction_read_only`), and the lake refuses to write. A PostgreSQL login with the role `consumer` is
    enough for everything but `why`.
    """

    __slots__ = ("_context", "_data", "_grids", "_partitions", "_raw", "_readiness")

    def __init__(self, context: Context) -> None:
        status = StatusService(context)
        self._context = context
        self._data = DataService(context, status)
        self._grids = GridService(context, status)
        self._partitions = PartitionService(context, status)
        self._raw = RawService(context)
        self._readiness = ReadinessService(context)

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables: `source.query_name`, `models.name`.

        >>> penstock.reader("my-workspace").tables
        """
        return tuple(self._context.require_tables(()))

    def check(self, selection: Selection) -> None:
        """Raise UsageError if the selection names an unknown source, customer or query.

        >>> penstock.reader("my-workspace").check(Selection(customers="1000000001"))
        """
        self._context.ranges(selection)

    @overload
    def read(self, table: str, *, spark: SparkSession, **options: Unpack[ReadOptions]) -> DataFrame: ...

    @overload
    def read(self, table: str, *, spark: None = None, **options: Unpack[ReadOptions]) -> Vouched: ...

    def read(
        self, table: str, *, spark: SparkSession | None = None, **options: Unpack[ReadOptions]
    ) -> Vouched | DataFrame:
        """The rows of `source.query_name`: with `spark` a DataFrame; without it a relation with `.arrow()`,
        `.pandas()`, `.polars()`, `.duckdb()` and `.batches()`. Raises UsageError for the filters that `penstock read`
        refuses.

        >>> penstock.reader("my-workspace").read("demo.campaign_daily", customer="1000000001").pandas()
        """
        return self._data.read(table, spark=spark, **options)

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
        """The rows of a table at this moment; reading the relation twice gives the same rows. A customer or a range of
        days without rows is not an error.

        >>> penstock.reader("my-workspace").vouched("demo.campaign_daily", columns=["clicks"]).arrow()
        """
        return self._data.vouched(
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
        limits: SqlLimits | None = None,
    ) -> pa.RecordBatchReader:
        """The result of one SELECT on DuckDB; tables are named `source.query_name`. `limits` bounds the rows, the
        memory and the threads.

        >>> penstock.reader("my-workspace").sql("SELECT count(*) FROM demo.campaign_daily").read_all()
        """
        return self._data.sql(statement, as_of, opened, schema_versions, limits)

    def spark_sql(
        self,
        statement: str,
        spark: SparkSession | None = None,
        as_of: str | None = None,
        opened: Callable[[Vouched], None] = lambda vouched: None,
        schema_versions: Mapping[str, str] | None = None,
    ) -> pa.RecordBatchReader:
        """The result of one SELECT on Spark.

        >>> penstock.reader("my-workspace").spark_sql("SELECT count(*) FROM demo.campaign_daily", spark)
        """
        return self._data.spark_sql(statement, spark, as_of, opened, schema_versions)

    def session(self) -> SparkSession:
        """The Spark session that the workspace file describes, started if necessary.

        >>> penstock.reader("my-workspace").session()
        """
        return self._context.session(writes=False)

    def coverage(self, table: str, **filters: Unpack[SliceFilters]) -> list[Coverage]:
        """The expected and the ready partitions of each day.

        >>> penstock.reader("my-workspace").coverage("demo.campaign_daily", since="2024-06-01")
        """
        return self._readiness.coverage(table, **filters)

    def ready(self, table: str, *, require: str | int = "all", **filters: Unpack[SliceFilters]) -> bool:
        """Whether every day of a selection can be read, by a rule: `all`, `any`, a number of partitions, or a share
        (`95%`). A day that has not ended is not ready.

        >>> penstock.reader("my-workspace").ready("demo.campaign_daily", date="2024-06-01")
        """
        return self._readiness.ready(table, require=require, **filters)

    def wait_for(
        self,
        table: str | Sequence[str],
        *,
        require: str | int = "all",
        patience: timedelta | float | str,
        **filters: Unpack[SliceFilters],
    ) -> list[Coverage]:
        """Wait until a selection of a table, or of each of several, is ready, at most `patience`: a timedelta, seconds,
        or text such as `10m`. Returns the coverage at that moment.

        >>> penstock.reader("my-workspace").wait_for("demo.campaign_daily", date="2024-06-01", patience="10m")
        """
        return self._readiness.wait_for(table, require=require, patience=patience, **filters)

    def requested_days(self, table: str, **filters: Unpack[SliceFilters]) -> RequestedDays:
        """The days of `coverage`, `ready` and `wait_for`, and the partitions expected on them.

        >>> penstock.reader("my-workspace").requested_days("demo.campaign_daily", since="2024-06-01")
        """
        return self._readiness.requested_days(table, **filters)

    def partitions(
        self, selection: Selection | None = None, *, after: PartitionKey | None = None, limit: int | None = None
    ) -> list[PartitionView]:
        """The expected partitions of a selection with state, last attempt and marks, in key order.

        >>> penstock.reader("my-workspace").partitions(Selection(status="failed"), limit=100)
        """
        return self._partitions.find(selection, after=after, limit=limit)

    def partition(self, key: str) -> PartitionHandle:
        """One partition, for questions about it.

        >>> print(penstock.reader("my-workspace").partition("demo/1000000001/campaign_daily/2024-06-01").why())
        """
        return self._partitions.handle(key)

    def why(self, key: str) -> Why:
        """Why a partition is in its state, what blocks it and what happens next. `print` shows it as text.

        >>> print(penstock.reader("my-workspace").why("demo/1000000001/campaign_daily/2024-06-01"))
        """
        return self._partitions.why(key)

    def grid(self, query: str, *, since: AnyDay | None = None, until: AnyDay | None = None) -> Grid:
        """The display status of a query or model: a row for each customer, a column for each day. A notebook shows it.

        >>> penstock.reader("my-workspace").grid("campaign_daily", since="2024-06-01")
        """
        return self._grids.grid(query, *day_range(None, since, until))

    def settled_until(self, table: str) -> Day | None:
        """The last day of this table that its source no longer changes.

        >>> penstock.reader("my-workspace").settled_until("demo.campaign_daily")
        """
        return self._partitions.settled_until(table)

    def snapshots(self) -> list[Snapshot]:
        """The named snapshots of the warehouse, for `as_of`.

        >>> [snapshot.name for snapshot in penstock.reader("my-workspace").snapshots()]
        """
        return self._data.snapshots.all()

    def withdrawn_since(self, snapshot: str, tables: Sequence[str]) -> int:
        """The number of partitions of these tables that were demoted since a snapshot was taken.

        >>> penstock.reader("my-workspace").withdrawn_since("june-close", ["demo.campaign_daily"])
        """
        return self._data.withdrawn_since(snapshot, tables)

    def raw_runs(self, key: PartitionKey) -> tuple[list[RawRun], RunId | None]:
        """Every run of a partition in the raw sink with its seal, and the trusted run.

        >>> penstock.reader("my-workspace").raw_runs(key)
        """
        return self._raw.runs(key)

    def raw_lines(self, key: PartitionKey) -> Iterator[bytes]:
        """The payload of the trusted run, line by line. Raises ActRefused without one.

        >>> next(penstock.reader("my-workspace").raw_lines(key))
        """
        return self._raw.lines(key)

    def close(self) -> None:
        """Close the database connections.

        >>> penstock.reader("my-workspace").close()
        """
        self._context.database.close()
