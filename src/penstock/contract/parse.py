"""The fast reading of payloads: many at once into one typed Arrow table, with exact attribution of every row.

Payloads are concatenated with a marker line before each, and parsed in one call: the fixed cost of a call is paid per
batch, not per partition. The markers come back as rows and delimit the payloads, so no payload can shift another's
rows. If a batch does not parse it is halved until the culprits stand alone; those are read again by `explain`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from penstock.contract.complaint import Complaint
from penstock.contract.contract import Contract
from penstock.contract.explain import Fraction, explain, read_row
from penstock.contract.schema import arrow_schema, arrow_type

Numbers = np.ndarray[tuple[int], np.dtype[np.int32]]

_MARKER = "_payload"
_TEXT_IN_JSON = ("date", "timestamp")  # types that JSON writes as strings


@dataclass(frozen=True, slots=True)
class Parsed:
    """Rows of several payloads in payload order: row i belongs to payload `owner[i]`, as its line `line[i]`."""

    table: pa.Table
    owner: Numbers
    line: Numbers
    complaints: dict[int, list[Complaint]]


def parse_many(
    payloads: Sequence[bytes],
    contract: Contract,
    first_line: int = 1,
    *,
    counts: Sequence[int] | None = None,
    accepted_before: bool = False,
) -> Parsed:
    """Typed rows of all payloads that are what the contract says, and complaints about the others.

    `counts` are the line counts, where the caller knows them. Payloads that were accepted before, byte for byte, need
    not be looked at for what upsets Arrow's parser.
    """
    counts = [_line_count(payload) for payload in payloads] if counts is None else counts
    reading = _Reading(payloads, counts, contract, first_line)
    safe = []
    for index, payload in enumerate(payloads):
        if accepted_before or _is_safe_to_parse(payload, counts[index]):
            safe.append(index)
        else:
            reading.read_patiently(index)
    reading.read(safe)
    return reading.result()


def _line_count(payload: bytes) -> int:
    return payload.count(b"\n") + (bool(payload) and not payload.endswith(b"\n"))


def _is_safe_to_parse(payload: bytes, count: int) -> bool:
    """Arrow's parser is fast because it trusts: it crashes on a top-level null and lets bad UTF-8 and NaN through."""
    if not payload:
        return True
    if not payload.startswith(b"{") or payload.count(b"\n{") != count - 1:
        return False
    if b"NaN" in payload or b"Infinity" in payload:
        return False
    try:
        return payload.isascii() or bool(payload.decode("utf-8"))
    except UnicodeDecodeError:
        return False


class _Reading:
    """The payloads of one call, and what has been made of them so far."""

    def __init__(self, payloads: Sequence[bytes], counts: Sequence[int], contract: Contract, first_line: int) -> None:
        self._payloads = payloads
        self._counts = counts
        self._contract = contract
        self._first_line = first_line
        self._pieces: list[tuple[pa.Table, Numbers]] = []
        self._complaints: dict[int, list[Complaint]] = {}

    def read(self, indexes: Sequence[int]) -> None:
        """All of them in one call; if that fails, each half; a single one that fails is read patiently."""
        if not indexes:
            return
        try:
            payloads = [self._payloads[index] for index in indexes]
            counts = [self._counts[index] for index in indexes]
            self._pieces.append(_parse_at_once(payloads, counts, indexes, self._contract))
        except pa.ArrowInvalid:
            if len(indexes) == 1:
                self.read_patiently(indexes[0])
                return
            half = len(indexes) // 2
            self.read(indexes[:half])
            self.read(indexes[half:])

    def read_patiently(self, index: int) -> None:
        """Complaints, or if there is nothing to complain about, the rows: a payload never just disappears."""
        lines = self._payloads[index].removesuffix(b"\n").split(b"\n")
        complaints = explain(lines, self._contract, self._first_line)
        if not complaints:
            lenient = replace(self._contract, missing_fields="ignore")
            try:
                self._pieces.append(_parse_at_once([_plain(lines, self._contract)], [len(lines)], [index], lenient))
            except (pa.ArrowInvalid, TypeError) as error:
                complaints = [Complaint("json", f"the payload does not parse: {error}", 1)]
        if complaints:
            self._complaints[index] = complaints

    def result(self) -> Parsed:
        if not self._pieces:
            empty = np.zeros(0, np.int32)
            return Parsed(arrow_schema(self._contract.fields).empty_table(), empty, empty, self._complaints)
        table = pa.concat_tables([piece for piece, _ in self._pieces])
        owner = np.concatenate([owner for _, owner in self._pieces])
        if np.any(owner[1:] < owner[:-1]):  # payloads that were read patiently go back to their places
            order = np.argsort(owner, kind="stable")
            table, owner = table.take(pa.array(order)), owner[order]
        return Parsed(table, owner, _line_numbers(owner, self._first_line), self._complaints)


def _plain(lines: Sequence[bytes], contract: Contract) -> bytes:
    """The rows once more in the plainest JSON there is, only with the fields of the contract."""
    names = [field.name for field in contract.fields]
    rows = (read_row(line) for line in lines)
    return b"".join(orjson.dumps({n: _as_written(row[n]) for n in names if n in row}) + b"\n" for row in rows)


def _as_written(value: Any) -> Any:
    """Numbers go through as their own digits: what is validated must be what load will read."""
    if isinstance(value, Fraction) or type(value) is int:
        return orjson.Fragment(str(value).encode())
    return value


def _parse_at_once(
    payloads: Sequence[bytes], counts: Sequence[int], indexes: Sequence[int], contract: Contract
) -> tuple[pa.Table, Numbers]:
    text = b"".join(
        part
        for index, payload in zip(indexes, payloads, strict=True)
        for part in (b'{"_payload":%d}\n' % index, payload)
    )
    in_json = [
        pa.field(f.name, pa.string() if f.type in _TEXT_IN_JSON else arrow_type(f.type)) for f in contract.fields
    ]
    table = pa.json.read_json(
        pa.BufferReader(text),
        read_options=pa.json.ReadOptions(use_threads=False, block_size=len(text) + 1),
        parse_options=pa.json.ParseOptions(
            explicit_schema=pa.schema([pa.field(_MARKER, pa.int32()), *in_json]),
            unexpected_field_behavior="error" if contract.unknown_fields == "reject" else "ignore",
        ),
    )
    marker = table.column(_MARKER).combine_chunks()
    is_marker = np.asarray(marker.is_valid())
    owner = np.asarray(marker.fill_null(0))[is_marker][np.cumsum(is_marker) - 1]
    _check_counts(counts, indexes, owner)
    typed = _typed(table.filter(pa.array(~is_marker)).drop_columns([_MARKER]), contract)
    return typed, owner[~is_marker].astype(np.int32)


def _check_counts(counts: Sequence[int], indexes: Sequence[int], owner: Numbers) -> None:
    """Each line must have become exactly one row; the marker is one more."""
    found = np.bincount(owner, minlength=indexes[-1] + 1)[np.asarray(indexes)]
    if not np.array_equal(np.asarray(counts) + 1, found):
        raise pa.ArrowInvalid("some lines hold more or less than one JSON object")


def _typed(table: pa.Table, contract: Contract) -> pa.Table:
    columns = []
    for field in contract.fields:
        column = table.column(field.name)
        columns.append(_cast_text(column, field.type) if field.type in _TEXT_IN_JSON else column)
    if contract.missing_fields == "reject" and any(column.null_count for column in columns):
        # A null and an absent field look alike here; the slow reading tells them apart.
        raise pa.ArrowInvalid("some fields are missing or null")
    return pa.table(columns, schema=arrow_schema(contract.fields))


def _cast_text(column: pa.ChunkedArray, kind: str) -> pa.ChunkedArray:
    wanted = arrow_type(kind)
    if kind == "date":
        return column.cast(wanted)
    try:
        return column.cast(wanted)
    except pa.ArrowInvalid:  # times without an offset are UTC
        return pc.assume_timezone(column.cast(pa.timestamp("us")), "UTC")


def _line_numbers(owner: Numbers, first_line: int) -> Numbers:
    """1, 2, 3, ... starting anew with each payload."""
    if not len(owner):
        return owner
    position = np.arange(len(owner), dtype=np.int32)
    starts = np.concatenate(([True], owner[1:] != owner[:-1]))
    return (position - np.maximum.accumulate(np.where(starts, position, 0)) + first_line).astype(np.int32)
