"""Parses slices in a worker, and evaluates row by row the checks that need no Spark engine.

Each slice also yields one header row, so that an empty or unreadable one still gets its verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa

from penstock.contract.complaint import Complaint, merged
from penstock.contract.content import row_hashes
from penstock.contract.contract import Contract
from penstock.contract.evaluation import row_rules, stats_fields, unique_checks
from penstock.contract.parse import Parsed
from penstock.contract.schema import arrow_type, spark_type
from penstock.contract.slice_stats import as_numbers
from penstock.errors import RawError
from penstock.lake import open_lake
from penstock.partition import AttemptKey, PartitionKey, RunId
from penstock.pipeline.parsed_cache import CacheBudget, CacheWriter
from penstock.pipeline.payloads import read_in_blocks, read_together
from penstock.pipeline.prefetch import prefetched
from penstock.pipeline.slices import Slice, groups
from penstock.raw.reader import RawReader
from penstock.raw.seal import Seal

if TYPE_CHECKING:
    from pyspark.sql import Column

Items = np.ndarray[Any, np.dtype[np.int32]]


class SliceParser:
    """A worker function for work items; its results have the columns of `ddl`. `also` are additional fields to return;
    `cache` is the budget of one task for parsed rows."""

    def __init__(
        self, lake: str, contract: Contract, also: Sequence[str] = (), cache: CacheBudget | None = None
    ) -> None:
        self._lake = lake
        self._contract = contract
        self._cache = cache
        self._rules = row_rules(contract)
        self.for_spark = [rule for rule in self._rules if rule.arrow_rule(contract) is None]
        self.keys = sorted({name for check in unique_checks(contract) for name in check.fields})
        self.figures = [f"_figure{number}" for number in range(len(stats_fields(contract)))]
        self._plain = [number for number, rule in enumerate(self._rules) if rule not in self.for_spark]
        wanted = {name for rule in self.for_spark for name in rule.spark_fields(contract)} | {*self.keys, *also}
        self._fields = [field for field in contract.columns if field.name in wanted]

    @property
    def ddl(self) -> str:
        flags = [f"_broken{number} boolean" for number in self._plain]
        figures = [f"{name} double" for name in self.figures]
        fields = [f"`{field.name}` {spark_type(field.type)}" for field in self._fields]
        return ", ".join(["_item int", "_line int", "_header string", "_hash long", *flags, *figures, *fields])

    @property
    def schema(self) -> pa.Schema:
        ours = [("_item", pa.int32()), ("_line", pa.int32()), ("_header", pa.string()), ("_hash", pa.int64())]
        flags = [(f"_broken{number}", pa.bool_()) for number in self._plain]
        figures = [(name, pa.float64()) for name in self.figures]
        fields = [(field.name, arrow_type(field.type)) for field in self._fields]
        return pa.schema([*ours, *flags, *figures, *fields])

    def columns(self) -> list[Column]:
        """The input columns of the summaries: Spark evaluates its own rules, the other columns pass through."""
        from pyspark.sql import functions as F

        flags = [
            (rule.spark_rule(self._contract) if rule in self.for_spark else F.col(f"_broken{number}")).alias(
                f"_broken{number}"
            )
            for number, rule in enumerate(self._rules)
        ]
        names = ("_item", "_line", "_header", "_hash", *self.figures, *self.keys)
        return [*(F.col(name) for name in names), *flags]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        lake = open_lake(self._lake)
        reader = RawReader(lake)

        def read(group: Sequence[Slice]) -> list[tuple[Seal, bytes] | RawError]:
            return [] if group[0].is_large else reader.read_many([piece.attempt for piece in group])

        with CacheWriter(self._cache) as cache:
            for batch in batches:
                slices = [slice_of(row, self._contract) for row in batch.to_pylist()]
                for group, found in prefetched(lake, groups(slices), read):
                    yield from self._large(reader, group[0]) if group[0].is_large else self._group(group, found, cache)

    def _group(
        self, group: Sequence[Slice], found: Sequence[tuple[Seal, bytes] | RawError], cache: CacheWriter
    ) -> Iterator[pa.RecordBatch]:
        whole = [(piece, *raw) for piece, raw in zip(group, found, strict=True) if not isinstance(raw, RawError)]
        headers: dict[int, dict[str, Any]] = {
            piece.item: {"complaints": [_raw_complaint(raw).as_dict()]}
            for piece, raw in zip(group, found, strict=True)
            if isinstance(raw, RawError)
        }
        counts = [seal.record_count for _, seal, _ in whole]
        parsed = read_together([payload for _, _, payload in whole], self._contract, counts)
        places = cache.write(parsed.table, np.searchsorted(parsed.owner, np.arange(len(whole))).tolist())
        for position, (piece, seal, _payload) in enumerate(whole):
            complaints = [*parsed.complaints.get(position, ()), *self._version_complaints(seal)]
            headers[piece.item] = header(seal.payload_sha256, seal.record_count, complaints)
            if (place := places[position]) is not None:
                headers[piece.item]["block"] = list(place)
        numbers = np.array([piece.item for piece, _, _ in whole], dtype=np.int32)
        yield from self.rows(parsed, numbers)
        yield self.headers(headers)

    def _large(self, reader: RawReader, piece: Slice) -> Iterator[pa.RecordBatch]:
        """Parse a slice that is too large for memory block by block. Its digest is verified at the end."""
        number = np.array([piece.item], dtype=np.int32)
        complaints: list[Complaint] = []
        facts: dict[str, Any] = {}
        try:
            seal = reader.seal(piece.attempt)
            if seal is None:
                raise RawError(f"{piece.attempt} is not sealed")
            facts = header(seal.payload_sha256, seal.record_count, ())
            complaints += self._version_complaints(seal)
            for parsed in read_in_blocks(reader, seal, self._contract):
                complaints += parsed.complaints.get(0, ())
                yield from self.rows(parsed, number)
        except RawError as error:
            complaints.append(_raw_complaint(error))
        yield self.headers({piece.item: facts | {"complaints": [c.as_dict() for c in merged(complaints)]}})

    def _version_complaints(self, seal: Seal) -> list[Complaint]:
        expected = self._contract.schema_version
        if seal.schema_version == expected:
            return []
        return [Complaint("schema_version", f"extracted as {seal.schema_version}, the contract has {expected}", 1)]

    def rows(self, parsed: Parsed, numbers: Items) -> Iterator[pa.RecordBatch]:
        """The results of parsed rows; payload i is the item `numbers[i]`."""
        table = parsed.table
        if not table.num_rows:
            return
        columns = {
            "_item": pa.array(numbers[parsed.owner]),
            "_line": pa.array(parsed.line),
            "_header": pa.nulls(table.num_rows, pa.string()),
            "_hash": pa.array(row_hashes(table).view(np.int64)),
        }
        for number, rule in enumerate(self._rules):
            if (evaluate := rule.arrow_rule(self._contract)) is not None:
                columns[f"_broken{number}"] = evaluate(table)
        for column, field in zip(self.figures, stats_fields(self._contract), strict=True):
            columns[column] = as_numbers(table.column(field))
        columns |= {field.name: table.column(field.name) for field in self._fields}
        yield from pa.table(columns, schema=self.schema).combine_chunks().to_batches()

    def headers(self, headers: Mapping[int, dict[str, Any]]) -> pa.RecordBatch:
        rows = [{"_item": item, "_header": orjson.dumps(facts).decode()} for item, facts in headers.items()]
        return pa.RecordBatch.from_pylist(rows, schema=self.schema)


def header(digest: str, count: int, complaints: Sequence[Complaint]) -> dict[str, Any]:
    """The facts about a slice as a whole."""
    return {"digest": digest, "count": count, "complaints": [complaint.as_dict() for complaint in complaints]}


def slice_of(row: dict[str, Any], contract: Contract) -> Slice:
    key = PartitionKey(contract.source, row["customer_id"], contract.query_name, row["logical_date"])
    return Slice(row["item"], AttemptKey(key, RunId(row["run_id"])), row["payload_bytes"])


def _raw_complaint(error: RawError) -> Complaint:
    return Complaint("raw", str(error), 1)
