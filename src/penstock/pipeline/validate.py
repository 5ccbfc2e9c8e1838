"""Validation: seal, digest, types and checks of thousands of slices in one Spark job per contract.

Workers read and parse the payloads; Spark evaluates every check on every row in one grouped aggregation. Each slice
also sends one header row, so that an empty or unreadable one still gets its verdict.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa

from penstock.contract.complaint import Complaint, merged
from penstock.contract.contract import Contract
from penstock.contract.parse import Parsed, parse_many
from penstock.contract.schema import arrow_schema, spark_ddl
from penstock.errors import ConfigError, RawError
from penstock.lake import open_lake
from penstock.partition import AttemptKey, PartitionKey, RunId
from penstock.pipeline.slices import Slice, coalesced, groups
from penstock.pipeline.work import Report, collected, evenly, progress, spread, tasks_for
from penstock.raw.reader import RawReader

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_ITEMS = pa.schema(
    [
        ("item", pa.int32()),
        ("customer_id", pa.string()),
        ("logical_date", pa.date32()),
        ("run_id", pa.string()),
        ("payload_bytes", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class ToValidate:
    """A sealed raw partition, and what the validator must know about the partition's past."""

    attempt: AttemptKey
    payload_bytes: int
    previous_record_count: int | None


@dataclass(frozen=True, slots=True)
class Validated:
    """What the validator found. No complaints means: it may be vouched for."""

    attempt: AttemptKey
    record_count: int
    payload_digest: str | None
    content_digest: str
    complaints: Sequence[Complaint]


def validate(
    spark: SparkSession, lake: str, contract: Contract, items: Sequence[ToValidate], report: Report | None = None
) -> list[Validated]:
    """Judge every item against `contract`, all at once."""
    if not items:
        return []
    rows = _rows(spark, lake, contract, items)
    uniques = _unique_checks(contract)
    with progress(spark, report):
        measured = collected(_measured(rows, contract, uniques[:1])).to_pylist()
        # Each further uniqueness is a grouping of its own, and so a pass of its own.
        further = [collected(_repeats(rows, check)).to_pylist() for check in uniques[1:]]
    by_item = {row["_item"]: row for row in measured}
    repeated = [{row["_item"]: row for row in table} for table in further]
    return [
        _validated(items[index], contract, uniques, by_item[index], [table.get(index) for table in repeated])
        for index in range(len(items))
    ]


def check_expressions(spark: SparkSession, contract: Contract) -> None:
    """Refuse a contract whose checks Spark cannot understand, before any attempt is issued under it."""
    from pyspark.errors import PySparkException

    from penstock.contract.checks import row_checks

    empty = spark.createDataFrame([], spark_ddl(contract.fields))
    for check in row_checks(contract):
        try:
            kind = empty.select(check.broken).schema.fields[0].dataType.simpleString()
        except PySparkException as error:
            words = str(error).partition("\n")[0].partition(" SQLSTATE")[0]
            raise ConfigError(f"queries.{contract.query_name}: the check {check.name} is not valid: {words}") from error
        if kind != "boolean":
            raise ConfigError(
                f"queries.{contract.query_name}: the check {check.name} must be true or false, it is {kind}"
            )


def _unique_checks(contract: Contract) -> list[Any]:
    from penstock.contract.checks import unique_checks

    return unique_checks(contract)


def _rows(spark: SparkSession, lake: str, contract: Contract, items: Sequence[ToValidate]) -> DataFrame:
    """Every row of every slice, typed, with its item and line; and one header row per slice."""
    table = pa.table(
        {
            "item": range(len(items)),
            "customer_id": [item.attempt.partition.customer_id for item in items],
            "logical_date": [item.attempt.partition.logical_date for item in items],
            "run_id": [item.attempt.run_id for item in items],
            "payload_bytes": [item.payload_bytes for item in items],
        },
        schema=_ITEMS,
    )
    tasks = evenly(len(items), tasks_for(spark, len(items)))
    ddl = f"_item int, _line int, _header string, {spark_ddl(contract.fields)}"
    return spread(spark, table, tasks).mapInArrow(_parser(lake, contract), ddl)


def _parser(lake: str, contract: Contract) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = RawReader(open_lake(lake))
        for batch in batches:
            slices = [_slice(row, contract) for row in batch.to_pylist()]
            for group in groups(slices):
                parse = _parse_large if group[0].is_large else _parse_group
                yield from parse(reader, contract, group)

    return work


def _slice(row: dict[str, Any], contract: Contract) -> Slice:
    key = PartitionKey(contract.source, row["customer_id"], contract.query_name, row["logical_date"])
    return Slice(row["item"], AttemptKey(key, RunId(row["run_id"])), row["payload_bytes"])


def _parse_group(reader: RawReader, contract: Contract, group: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
    found = reader.read_many([piece.attempt for piece in group])
    whole = [(piece, *raw) for piece, raw in zip(group, found, strict=True) if not isinstance(raw, RawError)]
    headers: dict[int, dict[str, Any]] = {
        piece.item: {"complaints": [_raw_complaint(raw).as_dict()]}
        for piece, raw in zip(group, found, strict=True)
        if isinstance(raw, RawError)
    }
    parsed = parse_many([payload for _, _, payload in whole], contract)
    for position, (piece, seal, _payload) in enumerate(whole):
        complaints = [complaint.as_dict() for complaint in parsed.complaints.get(position, ())]
        if seal.schema_version != contract.schema_version:
            complaints.append(_version_complaint(seal.schema_version, contract).as_dict())
        headers[piece.item] = {"digest": seal.payload_sha256, "count": seal.record_count, "complaints": complaints}
    numbers = np.array([piece.item for piece, _, _ in whole], dtype=np.int32)
    yield from _batches(contract, parsed, numbers)
    yield _header_batch(contract, headers)


def _parse_large(reader: RawReader, contract: Contract, group: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
    """A slice too large for memory: parsed block by block. Its digest is known, and checked, only at the end."""
    [piece] = group
    number = np.array([piece.item], dtype=np.int32)
    complaints: list[Complaint] = []
    header: dict[str, Any] = {}
    try:
        seal = reader.seal(piece.attempt)
        if seal is None:
            raise RawError(f"{piece.attempt} is not sealed")
        header = {"digest": seal.payload_sha256, "count": seal.record_count}
        if seal.schema_version != contract.schema_version:
            complaints.append(_version_complaint(seal.schema_version, contract))
        line = 1
        for block in coalesced(reader.stream(seal)):
            parsed = parse_many([block], contract, first_line=line)
            complaints += parsed.complaints.get(0, ())
            yield from _batches(contract, parsed, number)
            line += block.count(b"\n")
    except RawError as error:
        complaints.append(_raw_complaint(error))
    yield _header_batch(contract, {piece.item: header | {"complaints": [c.as_dict() for c in merged(complaints)]}})


def _batches(
    contract: Contract, parsed: Parsed, numbers: np.ndarray[Any, np.dtype[np.int32]]
) -> Iterator[pa.RecordBatch]:
    table = parsed.table
    if not table.num_rows:
        return
    columns = {
        "_item": pa.array(numbers[parsed.owner]),
        "_line": pa.array(parsed.line),
        "_header": pa.nulls(table.num_rows, pa.string()),
    }
    columns |= {name: table.column(name) for name in table.column_names}
    yield from pa.table(columns, schema=_row_schema(contract)).combine_chunks().to_batches()


def _header_batch(contract: Contract, headers: dict[int, dict[str, Any]]) -> pa.RecordBatch:
    rows = [{"_item": item, "_header": orjson.dumps(header).decode()} for item, header in headers.items()]
    return pa.RecordBatch.from_pylist(rows, schema=_row_schema(contract))


def _row_schema(contract: Contract) -> pa.Schema:
    ours = [pa.field("_item", pa.int32()), pa.field("_line", pa.int32()), pa.field("_header", pa.string())]
    return pa.schema([*ours, *arrow_schema(contract.fields)])


def _raw_complaint(error: RawError) -> Complaint:
    return Complaint("raw", str(error), 1)


def _version_complaint(found: str, contract: Contract) -> Complaint:
    return Complaint("schema_version", f"extracted as {found}, the contract says {contract.schema_version}", 1)


@dataclass(frozen=True, slots=True)
class _Measure:
    """A value per row, and how values of several rows become one. Merging may happen in any number of steps."""

    name: str
    of_row: Column
    merge: Callable[[Any], Column]


def _measured(rows: DataFrame, contract: Contract, uniques: Sequence[Any]) -> DataFrame:
    """One row per slice: header, row count, digest parts, and for each check the count and first example."""
    from pyspark.sql import functions as F

    measures = _measures(contract)
    per_row = rows.select(
        "_item", "_line", *(m.of_row.alias(m.name) for m in measures), *(F.col(f) for u in uniques for f in u.fields)
    )
    merged_measures = [m.merge(F.col(m.name)).alias(m.name) for m in measures]
    if not uniques:
        return per_row.groupBy("_item").agg(*merged_measures)
    [unique] = uniques
    per_key = per_row.groupBy("_item", *unique.fields).agg(*merged_measures, *_key_counts(unique))
    return per_key.groupBy("_item").agg(*merged_measures, *_repeat_counts(unique))


def _repeats(rows: DataFrame, unique: Any) -> DataFrame:
    """One row per slice that breaks this uniqueness."""
    from pyspark.sql import functions as F

    counted = rows.where(F.col("_header").isNull()).withColumn("_rows", F.lit(1)).groupBy("_item", *unique.fields)
    per_key = counted.agg(*_key_counts(unique)).where(F.col("_again") > 0)
    return per_key.groupBy("_item").agg(*_repeat_counts(unique))


def _key_counts(unique: Any) -> list[Column]:
    """How often each key stands again. As in SQL, keys with a null are not compared."""
    from pyspark.sql import functions as F

    known = reduce(lambda left, right: left & right, (F.col(name).isNotNull() for name in unique.fields))
    again = F.when(known, F.greatest(F.sum("_rows") - 1, F.lit(0))).otherwise(F.lit(0))
    return [again.alias("_again"), F.max("_line").alias("_last_line")]


def _repeat_counts(unique: Any) -> list[Column]:
    from pyspark.sql import functions as F

    example = F.struct(F.col("_last_line"), F.to_json(F.struct(*unique.fields)))
    return [
        F.sum("_again").alias("_repeated"),
        F.min(F.when(F.col("_again") > 0, example)).alias("_repeated_example"),
    ]


def _measures(contract: Contract) -> list[_Measure]:
    from pyspark.sql import functions as F

    from penstock.contract.checks import row_checks

    is_row = F.col("_header").isNull()
    names = [field.name for field in contract.fields]
    # Nulls are hashed as such: without the flags (null, 1) and (1, null) would look the same.
    digest = F.when(is_row, F.xxhash64(*(c for name in names for c in (F.col(name).isNull(), F.col(name)))))
    measures = [
        _Measure("_header_text", F.col("_header"), F.max),
        _Measure("_rows", is_row.cast("bigint"), F.sum),
        _Measure("_xor", digest, F.bit_xor),
        _Measure("_low", digest.bitwiseAND(F.lit(0xFFFFFFFF)), F.sum),
        _Measure("_high", F.shiftrightunsigned(digest, 32), F.sum),
    ]
    for index, check in enumerate(row_checks(contract)):
        broken = is_row & check.broken
        example = F.struct(F.col("_line"), F.to_json(F.struct(*names)))
        measures.append(_Measure(f"_count{index}", broken.cast("bigint"), F.sum))
        measures.append(_Measure(f"_example{index}", F.when(broken, example), F.min))
    return measures


def _validated(
    item: ToValidate,
    contract: Contract,
    uniques: Sequence[Any],
    row: dict[str, Any],
    further: Sequence[dict[str, Any] | None],
) -> Validated:
    from penstock.contract.checks import count_complaints, row_checks

    header = orjson.loads(row["_header_text"])
    complaints = [Complaint(**complaint) for complaint in header["complaints"]]
    readable = not complaints
    for index, check in enumerate(row_checks(contract)):
        if row[f"_count{index}"]:
            complaints.append(_complaint(check, row[f"_count{index}"], row[f"_example{index}"]))
    for check, found in zip(uniques, [row, *further], strict=False):
        if found and found["_repeated"]:
            complaints.append(_complaint(check, found["_repeated"], found["_repeated_example"]))
    count = header.get("count", 0)
    if readable and row["_rows"] != count:
        complaints.append(Complaint("rows", f"{count:,} rows were received, {row['_rows']:,} could be read", 1))
    if readable:  # the number of rows of something unreadable means nothing
        complaints += count_complaints(contract, count, item.previous_record_count)
    return Validated(item.attempt, count, header.get("digest"), _digest(contract, row), complaints)


def _complaint(check: Any, count: int, example: dict[str, Any]) -> Complaint:
    line, text = example.values()
    return Complaint(check.name, check.message, count, line, text)


def _digest(contract: Contract, row: dict[str, Any]) -> str:
    """The same typed rows in any order, under the same schema version, have the same digest."""
    parts = (contract.schema_version, row["_rows"], row["_xor"] or 0, row["_low"] or 0, row["_high"] or 0)
    return hashlib.sha256("|".join(str(part) for part in parts).encode()).hexdigest()
