"""The lines that complaints show as examples, read again from their payloads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from penstock.contract.complaint import shortened
from penstock.contract.contract import Contract
from penstock.lake import open_lake
from penstock.pipeline.parse_slices import slice_of
from penstock.pipeline.payloads import lines_of
from penstock.pipeline.slices import Slice
from penstock.pipeline.spark_jobs import Work
from penstock.raw.reader import RawReader

LINES_DDL = "item int, line int, text string"
_LINES = pa.schema([("item", pa.int32()), ("line", pa.int32()), ("text", pa.string())])


def by_item(batches: Iterable[pa.RecordBatch]) -> dict[int, dict[int, str]]:
    """The texts of lines, by item and line."""
    examples: dict[int, dict[int, str]] = {}
    for row in (row for batch in batches for row in batch.to_pylist()):
        examples.setdefault(row["item"], {})[row["line"]] = row["text"]
    return examples


def line_reader(lake: str, contract: Contract, wanted: dict[int, list[int]]) -> Work:
    """Return the worker function that reads the `wanted` lines of each item."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = RawReader(open_lake(lake))
        for batch in batches:
            found = [
                {"item": piece.item, "line": line, "text": text}
                for piece in (slice_of(row, contract) for row in batch.to_pylist())
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
