"""Computes partitions of models: one Spark query for all of them, its rows sealed as one raw partition each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.config.assets import Model
from penstock.config.checks import RESERVED_FIELDS, Field
from penstock.contract.contract import Contract
from penstock.contract.schema import arrow_schema, spark_type
from penstock.errors import ConfigError, ErrorClass, PenstockError, SparkFailed
from penstock.lake import open_lake
from penstock.partition import ALL_CUSTOMERS, AttemptKey, PartitionKey, RunId, new_ulid
from penstock.pipeline.extract import Extracted
from penstock.pipeline.job_errors import SparkUnavailable, job_error
from penstock.pipeline.spark_jobs import Report, collected, mapped, progress, refusal, tasks_for, translated_errors
from penstock.raw.sink import RawSink, RowsWriter
from penstock.spark_frames import frame_of
from penstock.sql_guard import SparkStatement, SqlRefused, UnknownTable, spark_statement

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

PARTITIONS = "penstock.partitions"  # the requested partitions, as a table for the SQL of a model

_SLICES_PER_TASK = 200
_BROKEN_QUERIES = 60  # enough to isolate a few failing partitions among ten thousand
_TOO_MANY = "too many partitions of its model fail the query: this one was not derived"
_ROW = "_row"
_KEYS = ("logical_date", "customer_id")
_SEALED = pa.schema(
    [
        ("customer_id", pa.string()),
        ("logical_date", pa.date32()),
        ("record_count", pa.int64()),
        ("payload_sha256", pa.string()),
        ("payload_bytes", pa.int64()),
    ]
)
_SEALED_DDL = "customer_id string, logical_date date, record_count long, payload_sha256 string, payload_bytes long"
_TYPES = {
    "tinyint": "long",
    "smallint": "long",
    "int": "long",
    "bigint": "long",
    "float": "double",
    "double": "double",
    "string": "string",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamp",
}

# Classes of SQLSTATE: invalid data, an error in a user-defined function, an error raised on purpose.
_BY_DATA = ("22", "38", "P0")

Inputs = Mapping[str, "DataFrame"]


def fields_of(spark: SparkSession, model: Model, code: str, inputs: Mapping[str, pa.Schema]) -> tuple[Field, ...]:
    """Return the columns of a model without executing it. Raises ConfigError if one cannot be stored."""
    empty = {table: frame_of(spark, schema.empty_table()) for table, schema in inputs.items()}
    with _described(spark, model, code, empty, _as_table([])) as frame:
        found = {column.name: column.dataType for column in frame.schema.fields}
    if repeated := sorted({name for name in frame.columns if frame.columns.count(name) > 1}):
        raise _refused(model, f"it has the column {', '.join(repeated)} twice: give each a name of its own")
    for name in _keys(model):
        if name not in found:
            columns = ", ".join(found) or "none"
            raise _refused(
                model, f"it must have the column {name}, which identifies the partition of a row ({columns})"
            )
    for name, kind in zip(_keys(model), ("date", "string"), strict=False):
        if (actual := found[name].simpleString()) != kind:
            raise _refused(model, f"its column {name} must be a {kind}, it is {actual}")
    fields = tuple(_field(model, name, kind) for name, kind in found.items() if name not in _keys(model))
    if not fields:
        raise _refused(model, "it has no column besides those that identify the partition of a row")
    return fields


def _keys(model: Model) -> tuple[str, ...]:
    """The columns that identify the partition of a row."""
    return _KEYS if model.per_customer else _KEYS[:1]


def _field(model: Model, name: str, kind: DataType) -> Field:
    if name in RESERVED_FIELDS or name.startswith("_"):
        raise _refused(model, f"it has the column {name}, which is reserved: rename it")
    found = _contract_type(kind)
    if found is None:
        reason = f"its column {name} is {kind.simpleString()}, which cannot be stored: cast it to another type"
        raise _refused(model, reason)
    try:
        return Field(name=name, type=found)
    except ValueError as error:
        raise _refused(model, f"its column {name}: {error}") from error


def _contract_type(kind: DataType) -> str | None:
    """The type in the notation of contracts; None if they have no such type."""
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(kind, ArrayType):
        element = _contract_type(kind.elementType)
        return None if element is None else f"array<{element}>"
    if isinstance(kind, StructType):
        members = [(member.name, _contract_type(member.dataType)) for member in kind.fields]
        if any(found is None for _, found in members):
            return None
        return f"struct<{', '.join(f'{name}: {found}' for name, found in members)}>"
    text = kind.simpleString()
    return text if text.startswith("decimal(") else _TYPES.get(text)


def derive(
    spark: SparkSession,
    lake: str,
    model: Model,
    contract: Contract,
    inputs: Inputs,
    attempts: Sequence[AttemptKey],
    report: Report | None = None,
) -> list[Extracted]:
    """Compute these partitions of one model and run in one query. If the rows of one partition fail the query, it is
    repeated with halves of the partitions, each with its own inputs only, to isolate the failing ones."""
    results: list[Extracted] = []
    waiting = [sorted(attempts)]
    broke = 0
    with progress(spark, report):
        while waiting:
            some = waiting.pop()
            if broke == _BROKEN_QUERIES:
                results += [Extracted.failed(one, ErrorClass.TRANSIENT, _TOO_MANY, judged=False) for one in some]
                continue
            try:
                results += _computed(spark, lake, model, contract, _of(model, inputs, some) if broke else inputs, some)
            except _Broken as broken:
                broke += 1
                if len(some) == 1:
                    results.append(Extracted.failed(some[0], ErrorClass.DATA, str(broken)))
                else:
                    half = len(some) // 2
                    waiting += [some[half:], some[:half]]
    return results


def _of(model: Model, inputs: Inputs, attempts: Sequence[AttemptKey]) -> Inputs:
    """The inputs of these partitions, without the inputs of others."""
    from pyspark.sql import functions as F

    days = [attempt.partition.logical_date for attempt in attempts]
    mine = F.col("logical_date").between(min(days) - timedelta(days=model.needs - 1), max(days))
    if model.per_customer:
        mine &= F.col("customer_id").isin(ALL_CUSTOMERS, *{attempt.partition.customer_id for attempt in attempts})
    return {table: frame.where(mine) for table, frame in inputs.items()}


class _Broken(Exception):
    """The query failed on the data of some rows."""


def _computed(
    spark: SparkSession,
    lake: str,
    model: Model,
    contract: Contract,
    inputs: Inputs,
    attempts: Sequence[AttemptKey],
) -> list[Extracted]:
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    asked = _as_table([attempt.partition for attempt in attempts])
    keys = list(_keys(model))
    fields = [F.col(f.name).cast(spark_type(f.type)).alias(f.name) for f in contract.fields]
    nothing = [F.lit(None).cast(spark_type(f.type)).alias(f.name) for f in contract.fields]
    with _described(spark, model, str(contract.options["code"]), inputs, asked) as frame:
        wanted = F.broadcast(frame_of(spark, asked))
        # One marker row for each partition, so that a partition without rows is sealed, too.
        every = wanted.select(*keys, F.lit(False).alias(_ROW), *nothing)
        rows = (
            frame.withColumns({name: _never_null(name) for name in keys})
            .join(wanted, keys, "left_semi")
            .select(*keys, F.lit(True).alias(_ROW), *fields)
        )
        tasks = tasks_for(spark, len(attempts), _SLICES_PER_TASK)
        whole = rows.unionByName(every).repartition(tasks, *keys).sortWithinPartitions(*keys)
        seal = _Sealer(lake, attempts[0].run_id, contract, model.per_customer)
        try:
            found = collected(mapped(whole, seal, _SEALED_DDL))
        except SparkFailed as error:
            cause = error.__cause__
            if isinstance(cause, PySparkException) and (cause.getSqlState() or "").startswith(_BY_DATA):
                raise _Broken(refusal(cause)) from error
            raise
    by_slice = {(row["customer_id"], row["logical_date"]): row for row in found.to_pylist()}
    return [_extracted(a, by_slice[a.partition.customer_id, a.partition.logical_date]) for a in attempts]


def _never_null(name: str) -> Column:
    """The column, with an error for null: a row without a partition must fail the query instead of disappearing."""
    from pyspark.sql import functions as F

    reason = f"it has rows whose {name} is NULL, which belong to no partition: leave them out in its code"
    return F.when(F.col(name).isNull(), F.raise_error(F.lit(reason))).otherwise(F.col(name))


@dataclass(frozen=True, slots=True)
class _Sealer:
    """A worker that gets rows sorted by partition, and seals partition by partition. Pickled: plain values only."""

    lake: str
    run_id: RunId
    contract: Contract
    per_customer: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        lake = open_lake(self.lake)
        sink, columns = RawSink(lake), arrow_schema(self.contract.fields)
        sealed: list[dict[str, Any]] = []
        current: PartitionKey | None = None
        writer: RowsWriter | None = None
        try:
            for batch in batches:
                for key, rows in self._slices(batch):
                    if key != current:
                        if writer is not None and current is not None:
                            sealed.append(self._seal(current, writer))
                        current, writer = key, sink.rows_writer(AttemptKey(key, self.run_id), columns)
                    if writer is not None and rows.num_rows:
                        for piece in pa.Table.from_batches([rows]).cast(columns).combine_chunks().to_batches():
                            writer.write(piece)
            if writer is not None and current is not None:
                sealed.append(self._seal(current, writer))
        finally:
            if writer is not None:
                writer.discard()
        lake.sync()  # sealed data is durable before it is reported
        yield pa.RecordBatch.from_pylist(sealed, schema=_SEALED)

    def _slices(self, batch: pa.RecordBatch) -> Iterator[tuple[PartitionKey, pa.RecordBatch]]:
        """Group neighbouring rows by partition, without the marker rows."""
        days = batch.column("logical_date")
        customers = batch.column("customer_id") if self.per_customer else None
        changes = _changes(days) if customers is None else _changes(days) | _changes(customers)
        starts = np.flatnonzero(changes).tolist()
        names = [field.name for field in self.contract.fields]
        for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
            piece = batch.slice(start, end - start)
            customer = ALL_CUSTOMERS if customers is None else customers[start].as_py()
            key = PartitionKey(self.contract.source, customer, self.contract.query_name, days[start].as_py())
            yield key, piece.filter(piece.column(_ROW)).select(names)

    def _seal(self, key: PartitionKey, writer: RowsWriter) -> dict[str, Any]:
        import pyspark

        seal = writer.seal(
            extracted_at=datetime.now(UTC),
            schema_version=self.contract.schema_version,
            api_version=f"spark-{pyspark.__version__}",
            query_hash=self.contract.fingerprint,
            time_zone="UTC",
        )
        return {
            "customer_id": key.customer_id,
            "logical_date": key.logical_date,
            "record_count": seal.record_count,
            "payload_sha256": seal.payload_sha256,
            "payload_bytes": seal.payload_bytes,
        }


def _changes(column: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """True where a value differs from the previous one; the first value is always True."""
    if len(column) == 0:
        return np.empty(0, np.bool_)
    differs = pc.not_equal(column.slice(1), column.slice(0, len(column) - 1))
    return np.append(True, differs.to_numpy(zero_copy_only=False))


def checked_sql(model: Model, code: str) -> SparkStatement:
    """Check the SQL of a model: one SELECT from the tables that the model declares. Raises ConfigError otherwise."""
    try:
        return spark_statement(code, {*model.depends_on, PARTITIONS})
    except SqlRefused as error:
        hint = ": add it to depends_on" if isinstance(error, UnknownTable) else ""
        raise _refused(model, f"{error}{hint}") from error


@contextmanager
def _described(spark: SparkSession, model: Model, code: str, inputs: Inputs, asked: pa.Table) -> Iterator[DataFrame]:
    """The result of the model as a lazy DataFrame. Its inputs are views with unique names, so that models computed at
    the same time do not see each other's."""
    from pyspark.errors import PySparkException

    checked = None if model.python is not None else checked_sql(model, code)
    partitions = frame_of(spark, asked)
    views = {table: f"penstock_{new_ulid().lower()}" for table in (*inputs, PARTITIONS)}
    try:
        if checked is None:
            yield _called(model, code, inputs, partitions)
            return
        for table, frame in (*inputs.items(), (PARTITIONS, partitions)):
            frame.createOrReplaceTempView(views[table])
        yield spark.sql(checked.text(views))
    except PySparkException as error:
        if isinstance(gone := job_error(error), SparkUnavailable):
            raise gone from error
        raise _refused(model, refusal(error)) from error
    finally:
        if model.python is None:
            for view in views.values():
                with suppress(PenstockError), translated_errors():  # Spark may be gone, which is the error to show
                    spark.catalog.dropTempView(view)


def _called(model: Model, code: str, inputs: Inputs, partitions: DataFrame) -> DataFrame:
    """Call the function `model(inputs, partitions)` of a file and return its result."""
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame

    names: dict[str, Any] = {"__name__": f"penstock_model_{model.name}"}
    try:
        exec(compile(code, model.definition, "exec"), names)  # noqa: S102 - the workspace's own code
        function = names.get("model")
        found = function({**inputs}, partitions) if callable(function) else None
    except PySparkException:
        raise
    except Exception as error:  # user code may raise anything
        raise _refused(model, f"{type(error).__name__}: {error}") from error
    if not isinstance(found, DataFrame):
        raise _refused(model, "the file must define a function model(inputs, partitions) that returns a DataFrame")
    return found


def _as_table(keys: Sequence[PartitionKey]) -> pa.Table:
    return pa.table(
        {
            "logical_date": pa.array([key.logical_date for key in keys], pa.date32()),
            "customer_id": pa.array([key.customer_id for key in keys], pa.string()),
        }
    )


def _extracted(attempt: AttemptKey, row: Mapping[str, Any]) -> Extracted:
    return Extracted(attempt, row["record_count"], row["payload_sha256"], row["payload_bytes"], None, None, None)


def _refused(model: Model, reason: str) -> ConfigError:
    return ConfigError(f"models.{model.name} ({model.definition}): {reason}")
