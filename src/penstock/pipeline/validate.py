"""Validation: seal, digest, types and rules of thousands of slices in one Spark job per contract.

Workers read and parse the payloads and evaluate the plain rules; rows travel to Spark's own engine only for rules that
need it; workers add up what was found. Each slice also sends one header row, so that an empty or unreadable one still
gets its verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa

from penstock.contract.complaint import Complaint, merged, shortened
from penstock.contract.content import content_digest, row_hashes
from penstock.contract.contract import Contract
from penstock.contract.counts import count_complaints
from penstock.contract.parse import Parsed
from penstock.contract.plain import plain, spark_fields
from penstock.contract.rules import Rule, UniqueRule, row_rules, unique_rules
from penstock.contract.schema import arrow_type, spark_ddl, spark_type
from penstock.errors import ConfigError, RawError
from penstock.lake import open_lake
from penstock.partition import AttemptKey, PartitionKey, RunId
from penstock.pipeline.payloads import lines_of, read_in_blocks, read_together
from penstock.pipeline.slices import Slice, groups
from penstock.pipeline.summarise import SUMMARY_DDL, summariser
from penstock.pipeline.work import Report, collected, evenly, progress, spread, tasks_for
from penstock.raw.reader import RawReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ITEMS_PER_TASK = 1000
_LINES = pa.schema([("item", pa.int32()), ("line", pa.int32()), ("text", pa.string())])
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
    rules: list[Rule | UniqueRule] = [*row_rules(contract), *unique_rules(contract)]  # as the summaries count them
    with progress(spark, report):
        summaries = {row["item"]: row for row in collected(_summaries(spark, lake, contract, items)).to_pylist()}
        wanted = {
            index: sorted({line for line, count in zip(row["first_lines"], row["broken"], strict=True) if count})
            for index, row in summaries.items()
            if any(row["broken"])
        }
        examples = _examples(spark, lake, contract, items, wanted)
    return [_validated(item, contract, rules, summaries[index], examples) for index, item in enumerate(items)]


def check_expressions(spark: SparkSession, contract: Contract) -> None:
    """Refuse a contract whose checks Spark cannot understand, before any attempt is issued under it."""
    from pyspark.errors import PySparkException

    from penstock.contract.checks import broken

    empty = spark.createDataFrame([], spark_ddl(contract.fields))
    for rule in row_rules(contract):
        try:
            kind = empty.select(broken(rule, contract)).schema.fields[0].dataType.simpleString()
        except PySparkException as error:
            words = str(error).partition("\n")[0].partition(" SQLSTATE")[0]
            raise ConfigError(f"{contract.place}: the check {rule.name} is not valid: {words}") from error
        if kind != "boolean":
            raise ConfigError(f"{contract.place}: the check {rule.name} must be true or false, it is {kind}")


def _summaries(spark: SparkSession, lake: str, contract: Contract, items: Sequence[ToValidate]) -> DataFrame:
    """One row per slice, nothing shuffled: rows leave a worker only if some rule needs Spark's engine."""
    slices = spread(spark, _item_table(items), _task_numbers(spark, len(items)))
    rules = row_rules(contract)
    add_up = summariser(len(rules), [rule.fields for rule in unique_rules(contract)])
    examine = _Examiner(lake, contract)
    if not examine.for_spark:
        return slices.mapInArrow(lambda batches: add_up(examine(batches)), SUMMARY_DDL)

    from pyspark.sql import functions as F

    from penstock.contract.checks import broken

    flags = [
        (broken(rule, contract) if rule in examine.for_spark else F.col(f"_broken{number}")).alias(f"_broken{number}")
        for number, rule in enumerate(rules)
    ]
    examined = slices.mapInArrow(examine, examine.ddl)
    return examined.select("_item", "_line", "_header", "_hash", *flags, *examine.keys).mapInArrow(add_up, SUMMARY_DDL)


class _Examiner:
    """A worker that parses slices and answers, row by row, what can be said without Spark's engine."""

    def __init__(self, lake: str, contract: Contract) -> None:
        self._lake = lake
        self._contract = contract
        rules = row_rules(contract)
        self.for_spark = [rule for rule in rules if plain(rule, contract) is None]
        self.keys = sorted({name for rule in unique_rules(contract) for name in rule.fields})
        self._plain = [number for number, rule in enumerate(rules) if rule not in self.for_spark]
        wanted = {name for rule in self.for_spark for name in spark_fields(rule, contract)}
        self._fields = [field for field in contract.fields if field.name in wanted or field.name in self.keys]

    @property
    def ddl(self) -> str:
        flags = [f"_broken{number} boolean" for number in self._plain]
        fields = [f"`{field.name}` {spark_type(field.type)}" for field in self._fields]
        return ", ".join(["_item int", "_line int", "_header string", "_hash long", *flags, *fields])

    def _schema(self) -> pa.Schema:
        ours = [("_item", pa.int32()), ("_line", pa.int32()), ("_header", pa.string()), ("_hash", pa.int64())]
        flags = [(f"_broken{number}", pa.bool_()) for number in self._plain]
        return pa.schema([*ours, *flags, *((field.name, arrow_type(field.type)) for field in self._fields)])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = RawReader(open_lake(self._lake))
        for batch in batches:
            slices = [_slice(row, self._contract) for row in batch.to_pylist()]
            for group in groups(slices):
                yield from self._large(reader, group[0]) if group[0].is_large else self._group(reader, group)

    def _group(self, reader: RawReader, group: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
        found = reader.read_many([piece.attempt for piece in group])
        whole = [(piece, *raw) for piece, raw in zip(group, found, strict=True) if not isinstance(raw, RawError)]
        headers: dict[int, dict[str, Any]] = {
            piece.item: {"complaints": [_raw_complaint(raw).as_dict()]}
            for piece, raw in zip(group, found, strict=True)
            if isinstance(raw, RawError)
        }
        counts = [seal.record_count for _, seal, _ in whole]
        parsed = read_together([payload for _, _, payload in whole], self._contract, counts)
        for position, (piece, seal, _payload) in enumerate(whole):
            complaints = [complaint.as_dict() for complaint in parsed.complaints.get(position, ())]
            if seal.schema_version != self._contract.schema_version:
                complaints.append(_version_complaint(seal.schema_version, self._contract).as_dict())
            headers[piece.item] = {"digest": seal.payload_sha256, "count": seal.record_count, "complaints": complaints}
        numbers = np.array([piece.item for piece, _, _ in whole], dtype=np.int32)
        yield from self._rows(parsed, numbers)
        yield self._headers(headers)

    def _large(self, reader: RawReader, piece: Slice) -> Iterator[pa.RecordBatch]:
        """A slice too large for memory: parsed block by block. Its digest is known, and checked, only at the end."""
        number = np.array([piece.item], dtype=np.int32)
        complaints: list[Complaint] = []
        header: dict[str, Any] = {}
        try:
            seal = reader.seal(piece.attempt)
            if seal is None:
                raise RawError(f"{piece.attempt} is not sealed")
            header = {"digest": seal.payload_sha256, "count": seal.record_count}
            if seal.schema_version != self._contract.schema_version:
                complaints.append(_version_complaint(seal.schema_version, self._contract))
            for parsed in read_in_blocks(reader, seal, self._contract):
                complaints += parsed.complaints.get(0, ())
                yield from self._rows(parsed, number)
        except RawError as error:
            complaints.append(_raw_complaint(error))
        yield self._headers({piece.item: header | {"complaints": [c.as_dict() for c in merged(complaints)]}})

    def _rows(self, parsed: Parsed, numbers: np.ndarray[Any, np.dtype[np.int32]]) -> Iterator[pa.RecordBatch]:
        table = parsed.table
        if not table.num_rows:
            return
        columns = {
            "_item": pa.array(numbers[parsed.owner]),
            "_line": pa.array(parsed.line),
            "_header": pa.nulls(table.num_rows, pa.string()),
            "_hash": pa.array(row_hashes(table).view(np.int64)),
        }
        for number, rule in enumerate(row_rules(self._contract)):
            if (evaluate := plain(rule, self._contract)) is not None:
                columns[f"_broken{number}"] = evaluate(table)
        columns |= {field.name: table.column(field.name) for field in self._fields}
        yield from pa.table(columns, schema=self._schema()).combine_chunks().to_batches()

    def _headers(self, headers: Mapping[int, dict[str, Any]]) -> pa.RecordBatch:
        rows = [{"_item": item, "_header": orjson.dumps(header).decode()} for item, header in headers.items()]
        return pa.RecordBatch.from_pylist(rows, schema=self._schema())


def _item_table(items: Sequence[ToValidate], numbers: Sequence[int] | None = None) -> pa.Table:
    return pa.table(
        {
            "item": range(len(items)) if numbers is None else numbers,
            "customer_id": [item.attempt.partition.customer_id for item in items],
            "logical_date": [item.attempt.partition.logical_date for item in items],
            "run_id": [item.attempt.run_id for item in items],
            "payload_bytes": [item.payload_bytes for item in items],
        },
        schema=_ITEMS,
    )


def _task_numbers(spark: SparkSession, items: int) -> list[int]:
    return evenly(items, tasks_for(spark, items, _ITEMS_PER_TASK))


def _slice(row: dict[str, Any], contract: Contract) -> Slice:
    key = PartitionKey(contract.source, row["customer_id"], contract.query_name, row["logical_date"])
    return Slice(row["item"], AttemptKey(key, RunId(row["run_id"])), row["payload_bytes"])


def _raw_complaint(error: RawError) -> Complaint:
    return Complaint("raw", str(error), 1)


def _version_complaint(found: str, contract: Contract) -> Complaint:
    return Complaint("schema_version", f"extracted as {found}, the contract says {contract.schema_version}", 1)


def _examples(
    spark: SparkSession, lake: str, contract: Contract, items: Sequence[ToValidate], wanted: dict[int, list[int]]
) -> dict[tuple[int, int], str]:
    """The text of the named lines: a second, small job that reads only slices with something to show."""
    if not wanted:
        return {}
    numbers = sorted(wanted)
    table = _item_table([items[number] for number in numbers], numbers)
    frame = spread(spark, table, _task_numbers(spark, len(numbers)))
    found = collected(frame.mapInArrow(_line_reader(lake, contract, wanted), "item int, line int, text string"))
    return {(row["item"], row["line"]): row["text"] for row in found.to_pylist()}


def _line_reader(
    lake: str, contract: Contract, wanted: dict[int, list[int]]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = RawReader(open_lake(lake))
        for batch in batches:
            found = [
                {"item": piece.item, "line": line, "text": text}
                for piece in (_slice(row, contract) for row in batch.to_pylist())
                for line, text in _lines(reader, piece, wanted[piece.item])
            ]
            yield pa.RecordBatch.from_pylist(found, schema=_LINES)

    return work


def _lines(reader: RawReader, piece: Slice, numbers: Sequence[int]) -> Iterator[tuple[int, str]]:
    seal = reader.seal(piece.attempt)
    if seal is None:
        return
    left = list(numbers)
    for number, line in enumerate(lines_of(reader, seal), start=1):
        if number == left[0]:
            yield left.pop(0), shortened(line.decode("utf-8", "backslashreplace"))
        if not left:
            return


def _validated(
    item: ToValidate,
    contract: Contract,
    rules: Sequence[Rule | UniqueRule],
    row: dict[str, Any],
    examples: Mapping[tuple[int, int], str],
) -> Validated:
    header = orjson.loads(row["header"])
    complaints = [Complaint(**complaint) for complaint in header["complaints"]]
    readable = not complaints
    for rule, count, line in zip(rules, row["broken"], row["first_lines"], strict=True):
        if count:
            complaints.append(Complaint(rule.name, rule.message, count, line, examples.get((row["item"], line))))
    count = header.get("count", 0)
    if readable and row["rows"] != count:
        complaints.append(Complaint("rows", f"{count:,} rows were received, {row['rows']:,} could be read", 1))
    if readable:  # the number of rows of something unreadable means nothing
        complaints += count_complaints(contract, count, item.previous_record_count)
    digest = content_digest(contract.schema_version, row["rows"], row["hash_xor"], row["hash_sum"] % 2**64)
    return Validated(item.attempt, count, header.get("digest"), digest, complaints)
