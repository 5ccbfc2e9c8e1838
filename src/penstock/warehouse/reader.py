"""Reads the accepted rows of one asset: the heads of its tables without the exceptions, pruned by file statistics."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import UsageError
from penstock.lake import Lake
from penstock.partition import PartitionKey
from penstock.spark_frames import frame_of
from penstock.warehouse.heads import TableHead
from penstock.warehouse.layout import SortKey
from penstock.warehouse.row_filter import Filter
from penstock.warehouse.scan import SCHEMA_VERSION, DataFileLost, ScanTask, VersionScan
from penstock.warehouse.version_union import VersionsConflict, unified
from penstock.warehouse.versions import Versions

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import DataFrame, SparkSession

Explained = Callable[..., AbstractContextManager[None]]  # called with the kinds of errors that damaged files cause


def _not_explained(*_kinds: type[Exception]) -> AbstractContextManager[None]:
    return nullcontext()


class Vouched:
    """The accepted rows of one asset at one moment. Repeated reads return the same rows."""

    def __init__(
        self,
        versions: Versions,
        fields: pa.Schema,
        tables: Sequence[TableHead],
        wanted: Filter,
        explained: Explained | None = None,
    ) -> None:
        """`explained` wraps reads: it may replace an error of the given kinds by one that names damaged files."""
        self._lake = versions.lake
        self._explained = explained or _not_explained
        self._wanted = wanted
        self._versions = versions
        self._fields = fields
        self._heads = tuple(tables)
        self._scans = [VersionScan(versions, head, wanted) for head in tables]
        self._conflict: VersionsConflict | None = None
        try:
            self._schema = self._one_schema()
        except VersionsConflict as conflict:
            self._schema, self._conflict = fields, conflict

    @property
    def schema(self) -> pa.Schema:
        """The columns of all schema versions. Raises VersionsConflict if a column has incompatible types in them;
        `versions` reads such tables.

        >>> ws.read("demo.campaign_daily").schema.names
        """
        if self._conflict is not None:
            raise self._conflict
        return self._schema

    @property
    def versions(self) -> dict[str, Vouched]:
        """The rows by schema version, each with the columns and types of its version.

        >>> ws.read("demo.campaign_daily").versions["v1"].arrow()
        """
        return {
            head.schema_version: Vouched(self._versions, self._fields, [head], self._wanted, self._explained)
            for head in self._heads
        }

    def only(self, *columns: str) -> Vouched:
        """The same rows with these columns.

        >>> ws.read("demo.campaign_daily").only("clicks").arrow()
        """
        wanted = replace(self._wanted, columns=columns)
        return Vouched(self._versions, self._fields, self._heads, wanted, self._explained)

    @property
    def withdrawn_inputs(self) -> tuple[PartitionKey, ...]:
        """The derived partitions of this read with a demoted input. They are not ready, but their rows are returned
        unless the model has `on_demotion: hide`.

        >>> ws.read("models.daily_spend").withdrawn_inputs
        """
        return self._keys(head.withdrawn_inputs for head in self._heads)

    @property
    def hidden_inputs(self) -> tuple[PartitionKey, ...]:
        """The partitions of `withdrawn_inputs` whose rows are left out (`on_demotion: hide`).

        >>> ws.read("models.daily_spend").hidden_inputs
        """
        return self._keys(head.hidden_inputs for head in self._heads)

    def _keys(self, found: Iterable[frozenset[SortKey]]) -> tuple[PartitionKey, ...]:
        keys = {
            PartitionKey(head.asset[0], customer, head.asset[1], day)
            for head, mine in zip(self._heads, found, strict=True)
            for day, customer in mine
            if self._wanted.includes(day, customer)
        }
        return tuple(sorted(keys))

    def arrow(self) -> pa.Table:
        """The rows as an Arrow table.

        >>> ws.read("demo.campaign_daily").arrow().num_rows
        """
        return pa.Table.from_batches(self.batches(), schema=self.schema)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as a stream of batches, file by file; each file is in table order.

        >>> sum(batch.num_rows for batch in ws.read("demo.campaign_daily").batches())
        """
        with self._explained(OSError, pa.ArrowException, DataFileLost):
            for scan in self._scans:
                yield from scan.task.fitted(self.schema)

    def scan_tasks(self) -> list[ScanTask]:
        """One task per data file, for distributed readers.

        >>> len(ws.read("demo.campaign_daily").scan_tasks())
        """
        return [replace(scan.task, files=(path,)) for scan in self._scans for path in scan.files]

    def pandas(self) -> Any:
        """The rows as a pandas DataFrame.

        >>> ws.read("demo.campaign_daily", columns=["clicks"]).pandas()
        """
        return self.arrow().to_pandas()

    def polars(self) -> Any:
        """The rows as a Polars DataFrame. Needs the extra `polars`.

        >>> ws.read("demo.campaign_daily").polars()
        """
        import polars

        return polars.from_arrow(self.arrow())

    def duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """A lazy DuckDB relation. DuckDB opens the data files itself if it can; otherwise, and on a given connection
        (which may have no access to files), it reads them through the lake.

        >>> ws.read("demo.campaign_daily").duckdb().aggregate("sum(clicks)")
        """
        import duckdb

        opens = connection is None and self._lake.opens_by_path
        connection = connection or duckdb.connect()
        with self._explained(duckdb.Error, OSError, pa.ArrowException):
            relations = [scan.relation(connection, self.schema, opens) for scan in self._scans if scan.files]
        if not relations:
            return connection.from_arrow(self.schema.empty_table())
        whole = relations[0]
        for relation in relations[1:]:
            whole = whole.union(relation)
        return whole

    def spark(self, session: SparkSession) -> DataFrame:
        """A Spark DataFrame over the data files. Spark opens them itself if it can; otherwise its Python workers read
        them through the lake.

        >>> ws.read("demo.campaign_daily").spark(spark).count()
        """
        if not _opens(session, self._lake):
            return self._spark_through_lake(session)
        from pyspark.errors import PySparkException

        with self._explained(PySparkException):
            frames = [scan.frame(session, self.schema) for scan in self._scans if scan.files]
        if not frames:
            return frame_of(session, self.schema.empty_table())
        whole = frames[0]
        for frame in frames[1:]:
            whole = whole.unionByName(frame)
        return whole

    def collected(self, frame: DataFrame) -> pa.Table:
        """Collect a DataFrame that is derived from this one. Raises an error that names damaged files.

        >>> ws.read("demo.campaign_daily").collected(ws.read("demo.campaign_daily").spark(spark).limit(10))
        """
        from pyspark.errors import PySparkException

        with self._explained(PySparkException):
            return frame.toArrow()

    def _spark_through_lake(self, session: SparkSession) -> DataFrame:
        from pyspark.sql.pandas.types import from_arrow_schema

        columns, tasks = self.schema, self.scan_tasks()
        if not tasks:
            return frame_of(session, columns.empty_table())

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for task in batch.column("task").to_pylist():
                    yield from pickle.loads(task).fitted(columns)  # noqa: S301 - pickled by the driver below

        table = pa.table({"task": pa.array([pickle.dumps(task) for task in tasks], pa.binary())})
        spread = frame_of(session, table).repartition(len(tasks))
        return spread.mapInArrow(read, from_arrow_schema(columns))

    def _one_schema(self) -> pa.Schema:
        """The columns of this read. Leaves out incompatible versions without rows in it. Raises UsageError for unknown
        columns and VersionsConflict for incompatible versions."""
        known = {f.name: f for columns in [p.schema for p in self._scans] or [self._fields] for f in columns}
        known[SCHEMA_VERSION] = pa.field(SCHEMA_VERSION, pa.string())
        if unknown := [name for name in self._wanted.columns if name not in known]:
            raise UsageError(f"unknown column {', '.join(unknown)} (columns: {', '.join(known)})")
        try:
            columns = self._unified()
        except VersionsConflict:
            with self._explained(OSError, pa.ArrowException, DataFileLost):
                self._scans = [scan for scan in self._scans if scan.holds_rows()]
            columns = self._unified()
        if not self._wanted.columns:
            return columns.append(known[SCHEMA_VERSION])
        found = {**known, **{field.name: field for field in columns}}
        return pa.schema([found[name] for name in self._wanted.columns])

    def _unified(self) -> pa.Schema:
        """The unified columns of all versions, or the selected ones. Raises VersionsConflict."""
        found = [(scan.version, scan.schema) for scan in self._scans] or [("", self._fields)]
        if names := self._wanted.columns:
            found = [(version, pa.schema([f for f in columns if f.name in names])) for version, columns in found]
        return unified(".".join(self._heads[0].asset) if self._heads else "", found)


def _opens(session: SparkSession, lake: Lake) -> bool:
    """Whether Spark can open the files of the lake itself; on S3 only if the session has a Hadoop S3 client."""
    if not lake.url.startswith("s3://"):
        return lake.opens_by_path
    return session.conf.get("spark.hadoop.fs.s3.impl", None) is not None
