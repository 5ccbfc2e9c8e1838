"""Reduces checked rows to one summary per slice, in a worker, without a shuffle.

All rows of a slice leave the parsing step consecutively in one task. So one pass is enough: counts and digests are sums
over runs of equal item numbers, and slices that span two batches are continued in the next one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.contract.checks.unique import repeated_keys
from penstock.pipeline.spark_jobs import Work

_NEVER = np.iinfo(np.int32).max

SUMMARY = pa.schema(
    [
        ("item", pa.int32()),
        ("header", pa.string()),
        ("rows", pa.int64()),
        ("hash_xor", pa.int64()),
        ("hash_sum", pa.int64()),
        ("broken", pa.list_(pa.int64())),
        ("first_lines", pa.list_(pa.int32())),
        ("figures", pa.list_(pa.float64())),
    ]
)
SUMMARY_DDL = (
    "item int, header string, rows long, hash_xor long, hash_sum long, broken array<long>, first_lines array<int>,"
    " figures array<double>"
)
_NO_FIGURES = (0.0, 0.0, math.inf, -math.inf)  # count, sum, minimum and maximum of no values


@dataclass(slots=True)
class SliceSummary:
    """The running summary of one slice: for each check, the number of failing rows and the first failing line."""

    checks: int
    measured: int = 0
    header: str | None = None
    rows: int = 0
    hash_xor: int = 0
    hash_sum: int = 0
    broken: list[int] = field(default_factory=list)
    first_lines: list[int] = field(default_factory=list)
    figures: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.broken = [0] * self.checks
        self.first_lines = [_NEVER] * self.checks
        self.figures = [*_NO_FIGURES] * self.measured

    def add(self, check: int, count: int, line: int) -> None:
        self.broken[check] += count
        self.first_lines[check] = min(self.first_lines[check], line)

    def measure(self, number: int, count: float, total: float, least: float, most: float) -> None:
        at = 4 * number
        known = self.figures[at : at + 4]
        self.figures[at : at + 4] = [known[0] + count, known[1] + total, min(known[2], least), max(known[3], most)]

    def as_row(self, item: int) -> dict[str, Any]:
        return {
            "item": item,
            "header": self.header,
            "rows": self.rows,
            "hash_xor": self.hash_xor,
            "hash_sum": _signed(self.hash_sum),
            "broken": self.broken,
            "first_lines": self.first_lines,
            "figures": self.figures,
        }


def summariser(row_checks: int, uniques: Sequence[Sequence[str]], measured: int = 0) -> Work:
    """Return a worker function for batches with the columns _item, _line, _header, _hash, _broken0, _broken1, ...,
    _figure0, ..., and the unique keys.

    Uniqueness is exact: the keys of a slice (only those) are kept until all of them are read.
    """

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        summaries: dict[int, SliceSummary] = {}
        fresh = partial(SliceSummary, row_checks + len(uniques), measured)
        keys = [_Keys(fields) for fields in uniques]
        for batch in batches:
            rows = _headers_taken(batch, summaries, fresh)
            if rows.num_rows:
                _add_rows(rows, summaries, row_checks, fresh)
                for number, unique in enumerate(keys):
                    unique.add(rows, summaries, row_checks + number)
        for number, unique in enumerate(keys):
            unique.finish(summaries, row_checks + number)
        yield pa.RecordBatch.from_pylist([summary.as_row(item) for item, summary in summaries.items()], schema=SUMMARY)

    return work


def _headers_taken(
    batch: pa.RecordBatch, summaries: dict[int, SliceSummary], fresh: Callable[[], SliceSummary]
) -> pa.RecordBatch:
    """Record the headers of the batch, and return its rows without them."""
    header = batch.column("_header")
    if header.null_count == batch.num_rows:
        return batch
    given = batch.filter(header.is_valid())
    for item, text in zip(given.column("_item").to_pylist(), given.column("_header").to_pylist(), strict=True):
        summaries.setdefault(item, fresh()).header = text
    return batch.filter(header.is_null())


def _add_rows(
    rows: pa.RecordBatch, summaries: dict[int, SliceSummary], row_checks: int, fresh: Callable[[], SliceSummary]
) -> None:
    item = np.asarray(rows.column("_item"))
    starts = np.flatnonzero(np.concatenate(([True], item[1:] != item[:-1])))
    counts = np.diff(np.append(starts, len(item))).tolist()
    hashes = np.asarray(rows.column("_hash"))
    xors = np.bitwise_xor.reduceat(hashes, starts).tolist()
    sums = np.add.reduceat(hashes.view(np.uint64), starts).tolist()  # modulo 2**64, on purpose
    found = [summaries.setdefault(number, fresh()) for number in item[starts].tolist()]
    for position, summary in enumerate(found):
        summary.rows += counts[position]
        summary.hash_xor ^= xors[position]
        summary.hash_sum = (summary.hash_sum + sums[position]) % 2**64
    line = np.asarray(rows.column("_line"))
    for check in range(row_checks):
        column = rows.column(f"_broken{check}")
        if not column.true_count:
            continue
        broken = np.asarray(column.cast(pa.int8()))
        numbers = np.add.reduceat(broken.astype(np.int64), starts)
        first = np.minimum.reduceat(np.where(broken, line, _NEVER), starts)
        for position in np.flatnonzero(numbers).tolist():
            found[position].add(check, int(numbers[position]), int(first[position]))
    for number in range(found[0].measured):
        _add_figures(rows.column(f"_figure{number}"), starts, found, number)


def _add_figures(column: pa.Array, starts: Any, found: Sequence[SliceSummary], number: int) -> None:
    values = column.to_numpy(zero_copy_only=False)  # null becomes NaN, which no payload can hold
    there = ~np.isnan(values)
    counts = np.add.reduceat(there.astype(np.float64), starts)
    totals = np.add.reduceat(np.where(there, values, 0.0), starts)
    least = np.minimum.reduceat(np.where(there, values, math.inf), starts)
    most = np.maximum.reduceat(np.where(there, values, -math.inf), starts)
    for position, summary in enumerate(found):
        summary.measure(number, *(float(part[position]) for part in (counts, totals, least, most)))


class _Keys:
    """Rows whose keys must be unique. Keeps the last slice of a batch: the next batch may continue it."""

    def __init__(self, fields: Sequence[str]) -> None:
        self._fields = list(fields)
        self._held: list[pa.Table] = []
        self._item = -1

    def add(self, rows: pa.RecordBatch, summaries: dict[int, SliceSummary], check: int) -> None:
        table = pa.Table.from_batches([rows.select(["_item", "_line", *self._fields])])
        item = np.asarray(rows.column("_item"))
        last = int(item[-1])
        begins = int(np.flatnonzero(item != last)[-1]) + 1 if item[0] != last else 0
        if begins:
            self._count(pa.concat_tables([*self._held, table.slice(0, begins)]), summaries, check)
            self._held = []
        elif self._held and self._item != last:
            self.finish(summaries, check)
        self._held.append(table.slice(begins))
        self._item = last

    def finish(self, summaries: dict[int, SliceSummary], check: int) -> None:
        if self._held:
            self._count(pa.concat_tables(self._held), summaries, check)
        self._held = []

    def _count(self, rows: pa.Table, summaries: dict[int, SliceSummary], check: int) -> None:
        for item, count, line in repeated_keys(rows, self._fields):
            summaries[item].add(check, count, line)


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number
