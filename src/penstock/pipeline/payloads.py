"""Typed rows of raw partitions: JSON lines of a source are parsed, rows of a model are read as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import orjson

from penstock.contract import rows
from penstock.contract.contract import Contract
from penstock.contract.parse import Parsed, parse_many
from penstock.partition import AssetKind
from penstock.pipeline.slices import coalesced
from penstock.raw.layout import holds_lines
from penstock.raw.reader import RawReader
from penstock.raw.seal import Seal


def read_together(
    payloads: Sequence[bytes], contract: Contract, counts: Sequence[int], *, accepted_before: bool = False
) -> Parsed:
    """Read the rows of small payloads of one contract, all at once."""
    if contract.kind is AssetKind.DERIVED:
        return rows.read_many(payloads, contract)
    return parse_many(payloads, contract, counts=counts, accepted_before=accepted_before)


def read_in_blocks(
    reader: RawReader, seal: Seal, contract: Contract, *, accepted_before: bool = False
) -> Iterator[Parsed]:
    """Read the rows of one payload of any size, block by block."""
    line = 1
    if contract.kind is AssetKind.DERIVED:
        for piece in reader.rows(seal):
            yield rows.read_piece(piece, contract, line)
            line += piece.num_rows
        return
    for block in coalesced(reader.stream(seal)):
        yield parse_many([block], contract, first_line=line, accepted_before=accepted_before)
        line += block.count(b"\n")


def lines_of(reader: RawReader, seal: Seal) -> Iterator[bytes]:
    """The rows as JSON lines, for display."""
    if holds_lines(seal.payload):
        for block in reader.stream(seal):
            yield from block.removesuffix(b"\n").split(b"\n")
    else:
        for piece in reader.rows(seal):
            yield from (orjson.dumps(row, default=str) for row in piece.to_pylist())
