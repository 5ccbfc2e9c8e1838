"""Scans of the data files of one schema version, without withdrawn rows: by Arrow, DuckDB or Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from penstock.errors import WarehouseError
from penstock.lake import Lake
from penstock.lake.protocol import LakeUnavailable
from penstock.spark_frames import frame_of
from penstock.warehouse.files import without
from penstock.warehouse.heads import TableHead, contents_of
from penstock.warehouse.layout import RUN, SortKey, rebuild_hint
from penstock.warehouse.row_filter import Filter
from penstock.warehouse.versions import Versions

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import DataFrame, SparkSession

SCHEMA_VERSION = "schema_version"
_S3_ERROR = "AWS Error"  # part of every message of Arrow's S3 client, which has no error class


class DataFileLost(WarehouseError):
    """A data file of a head is missing or is not valid Parquet."""

    remedy = "`penstock recover --from database` writes the file again from raw."


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Data files of one schema version, to be read in any process. It can be pickled."""

    _lake: Lake
    head: TableHead
    wanted: Filter
    files: tuple[str, ...]  # below the lake's root
    columns: pa.Schema  # of the files

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        head = self.head
        columns = [name for name in self.columns.names if name in names]
        needed = ("customer_id", "logical_date", RUN) if head.withdrawn else ("customer_id", "logical_date")
        hides = bool(head.exceptions or head.withdrawn)
        keys = [name for name in needed if hides and name not in columns]
        for batch in self._scanned(columns + keys):
            rows = pa.Table.from_batches([batch])
            if head.exceptions:
                rows = without(rows, set(head.exceptions))
            if head.withdrawn:
                rows = _without_runs(rows, head.withdrawn)
            rows = rows.select(columns)
            if SCHEMA_VERSION in names:
                version = pa.repeat(pa.scalar(head.schema_version, pa.string()), rows.num_rows)
                rows = rows.append_column(SCHEMA_VERSION, version)
            yield from rows.to_batches()

    def _scanned(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The batches of the files. Raises LakeUnavailable if the storage does not respond, and DataFileLost if a file
        is missing or damaged."""
        try:
            yield from self.dataset().scanner(columns=list(columns), filter=self.wanted.expression()).to_batches()
        except (FileNotFoundError, pa.ArrowInvalid) as error:  # a worker cannot find out which partitions are affected
            raise DataFileLost(
                f"table {self.head.name}: a data file is missing or damaged ({str(error).partition(chr(10))[0]}):"
                f" {rebuild_hint(self.head.name)}"
            ) from error
        except OSError as error:
            if _S3_ERROR not in str(error):
                raise
            raise LakeUnavailable(f"table {self.head.name} cannot be read from {self._lake.url}: {error}") from error

    def fitted(self, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The batches in these columns; columns that the schema version does not have are null."""
        return (_fitted(batch, wanted) for batch in self.batches(wanted.names))

    def dataset(self) -> ds.Dataset:
        filesystem, root = self._lake.filesystem()
        paths = [f"{root}/{path}" for path in self.files]
        return ds.dataset(paths, schema=self.columns, format="parquet", filesystem=filesystem, partitioning=None)


class VersionScan:
    """The accepted rows of one schema version, as a DuckDB relation or a Spark DataFrame."""

    def __init__(self, versions: Versions, head: TableHead, wanted: Filter) -> None:
        contents = contents_of(versions, head)
        self._head = head
        self._wanted = wanted
        self.version = head.schema_version
        self.schema = contents.columns
        self.files = [f"{head.location}/{file.path}" for file in contents.files if wanted.may_match(file)]
        self._uris = [versions.lake.uri(path) for path in self.files]
        self.task = ScanTask(versions.lake, head, wanted, tuple(self.files), self.schema)

    def holds_rows(self) -> bool:
        """Whether the version has visible rows; reads up to the first one."""
        return any(batch.num_rows for batch in self.task.batches(["customer_id"]))

    def relation(
        self, connection: duckdb.DuckDBPyConnection, wanted: pa.Schema, opens: bool
    ) -> duckdb.DuckDBPyRelation:
        rows = self._scan(connection) if opens else self._arrow(connection)
        if self._head.exceptions:
            hidden = connection.from_arrow(_as_table(self._head.exceptions))
            rows = rows.join(hidden, "customer_id, logical_date", "anti")
        if self._head.withdrawn:
            gone = connection.from_arrow(_runs_table(self._head.withdrawn))
            rows = rows.join(gone, f"customer_id, logical_date, {RUN}", "anti")
        columns = []
        for field in wanted:
            if field.name == SCHEMA_VERSION:
                columns.append(f"'{self._head.schema_version}' AS {SCHEMA_VERSION}")
            elif field.name in self.schema.names:
                columns.append(f'"{field.name}"')
            else:
                columns.append(f'NULL AS "{field.name}"')
        return rows.project(", ".join(columns))

    def _arrow(self, connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        """A relation over an Arrow dataset: DuckDB opens no file itself."""
        dataset, expression = self.task.dataset(), self._wanted.expression()
        return connection.from_arrow(dataset if expression is None else dataset.filter(expression))

    def _scan(self, connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        from duckdb import ColumnExpression, ConstantExpression

        rows, wanted = connection.read_parquet(self._uris), self._wanted
        day, customer = ColumnExpression("logical_date"), ColumnExpression("customer_id")
        if wanted.since:
            rows = rows.filter(day >= ConstantExpression(wanted.since))
        if wanted.until:
            rows = rows.filter(day <= ConstantExpression(wanted.until))
        if wanted.customers:
            rows = rows.filter(customer.isin(*(ConstantExpression(name) for name in wanted.customers)))
        return rows

    def frame(self, session: SparkSession, columns: pa.Schema) -> DataFrame:
        """A DataFrame over the files. Uses SQL text, because each Column object needs a call to the JVM."""
        from pyspark.sql import functions as F
        from pyspark.sql.pandas.types import from_arrow_schema

        rows = session.read.schema(from_arrow_schema(self.schema)).parquet(*self._uris)
        if wanted := self._wanted.in_spark():
            rows = rows.where(wanted)
        if self._head.exceptions:
            hidden = frame_of(session, _as_table(self._head.exceptions))
            rows = rows.join(F.broadcast(hidden), ["customer_id", "logical_date"], "left_anti")
        if self._head.withdrawn:
            gone = frame_of(session, _runs_table(self._head.withdrawn))
            rows = rows.join(F.broadcast(gone), ["customer_id", "logical_date", RUN], "left_anti")
        return rows.selectExpr(*(self._in_spark(field) for field in columns))

    def _in_spark(self, field: pa.Field) -> str:
        if field.name == SCHEMA_VERSION:
            return f"'{self._head.schema_version}' AS {SCHEMA_VERSION}"
        known = field.name in self.schema.names
        if known and self.schema.field(field.name).type == field.type:
            return f"`{field.name}`"
        return f"CAST({f'`{field.name}`' if known else 'NULL'} AS {_spark_type(field.type)}) AS `{field.name}`"


def _spark_type(kind: pa.DataType) -> str:
    """The type in Spark SQL, independent of the session's timestamp type and keywords. All our timestamps have a time
    zone."""
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'`{member.name}`: {_spark_type(member.type)}' for member in kind)}>"
    if pa.types.is_list(kind):
        return f"array<{_spark_type(kind.value_type)}>"
    if pa.types.is_timestamp(kind):
        return "timestamp_ltz"
    from pyspark.sql.pandas.types import from_arrow_type

    return str(from_arrow_type(kind).simpleString())


def _fitted(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """The batch in the columns of `wanted`; missing columns are null."""
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in wanted
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _without_runs(rows: pa.Table, runs: frozenset[tuple[date, str, str]]) -> pa.Table:
    """The rows without these runs. Filters by run id first, because most batches contain none of them."""
    affected = pc.is_in(rows[RUN], value_set=pa.array(sorted({run for _, _, run in runs}), pa.string()))
    if not pc.any(affected).as_py():
        return rows
    keys = zip(*(rows[name].to_pylist() for name in ("logical_date", "customer_id", RUN)), strict=True)
    return rows.filter(pa.array([key not in runs for key in keys], pa.bool_()))


def _runs_table(runs: frozenset[tuple[date, str, str]]) -> pa.Table:
    ordered = sorted(runs)
    return pa.table(
        {
            "customer_id": pa.array([customer for _, customer, _ in ordered], pa.string()),
            "logical_date": pa.array([day for day, _, _ in ordered], pa.date32()),
            RUN: pa.array([run for _, _, run in ordered], pa.string()),
        }
    )


def _as_table(keys: frozenset[SortKey]) -> pa.Table:
    ordered = sorted(keys)
    return pa.table(
        {
            "customer_id": pa.array([customer for _, customer in ordered], pa.string()),
            "logical_date": pa.array([day for day, _ in ordered], pa.date32()),
        }
    )
