"""Parses many JSON payloads at once into one typed Arrow table and attributes every row to its payload.

Payloads are concatenated with a marker line before each and parsed in one call, so that the fixed cost of a call is
paid per batch, not per partition. The markers come back as rows and delimit the payloads, so no payload can shift the
rows of another. A batch that does not parse is halved until the invalid payloads are isolated; `explain` reads those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.json

from penstock.contract.complaint import Complaint
from penstock.contract.contract import Contract
from penstock.contract.explain import explain, read_row
from penstock.contract.extra import EXTRA, as_written, extra_text
from penstock.contract.schema import arrow_schema, is_text_in_json, json_type
from penstock.contract.temporal import parse_temporal
from penstock.field_types import ArrayOf, Kind, Simple, StructOf, kind_of, moment

Numbers = np.ndarray[tuple[int], np.dtype[np.int32]]

_MARKER = "_payload"


@dataclass(frozen=True, slots=True)
class Parsed:
    """Rows of several payloads in payload order: row i is line `line[i]` of payload `owner[i]`."""

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
    """Return the typed rows of all payloads that match the schema of the contract, and complaints about the others.

    `counts` are the line counts, if the caller knows them. `accepted_before` skips the search for input that Arrow's
    parser does not handle; it is for payloads that were accepted before, byte for byte.
    """
    counts = [_line_count(payload) for payload in payloads] if counts is None else counts
    reading = _Reading(payloads, counts, contract, first_line)
    safe = []
    for index, payload in enumerate(payloads):
        if accepted_before or _is_safe_to_parse(payload, counts[index]):
            safe.append(index)
        else:
            reading.explain_or_parse(index)
    reading.read(safe)
    return reading.result()


def _line_count(payload: bytes) -> int:
    return payload.count(b"\n") + (bool(payload) and not payload.endswith(b"\n"))


def _is_safe_to_parse(payload: bytes, count: int) -> bool:
    """Arrow's parser crashes on a top-level null and accepts invalid UTF-8 and NaN; such payloads go to `explain`."""
    if not payload:
        return True
    if not payload.startswith(b"{") or payload.count(b"\n{") != count - 1:
        return False
    if (b"N" in payload and b"NaN" in payload) or (b"I" in payload and b"Infinity" in payload):  # one letter is faster
        return False
    try:
        return payload.isascii() or bool(payload.decode("utf-8"))
    except UnicodeDecodeError:
        return False


class _Reading:
    """The payloads of one call, with the rows and complaints found so far."""

    def __init__(self, payloads: Sequence[bytes], counts: Sequence[int], contract: Contract, first_line: int) -> None:
        self._payloads = payloads
        self._counts = counts
        self._contract = contract
        self._first_line = first_line
        self._pieces: list[tuple[pa.Table, Numbers]] = []
        self._complaints: dict[int, list[Complaint]] = {}

    def read(self, indexes: Sequence[int]) -> None:
        """Parse the payloads in one call; if that fails, parse each half; explain a single payload that fails."""
        if not indexes:
            return
        try:
            payloads = [self._payloads[index] for index in indexes]
            counts = [self._counts[index] for index in indexes]
            self._pieces.append(_parse_whole(payloads, counts, indexes, self._contract))
        except pa.ArrowInvalid:
            if len(indexes) == 1:
                self.explain_or_parse(indexes[0])
                return
            half = len(indexes) // 2
            self.read(indexes[:half])
            self.read(indexes[half:])

    def explain_or_parse(self, index: int) -> None:
        """Read a payload line by line, and keep its complaints or else its rows: no payload is dropped."""
        lines = self._payloads[index].removesuffix(b"\n").split(b"\n")
        complaints = explain(lines, self._contract, self._first_line)
        if not complaints:
            try:
                self._pieces.append(_parse_rows([read_row(line) for line in lines], index, self._contract))
            except (pa.ArrowInvalid, TypeError) as error:
                complaints = [Complaint("json", f"the payload does not parse: {error}", 1)]
        if complaints:
            self._complaints[index] = complaints

    def result(self) -> Parsed:
        if not self._pieces:
            empty = np.zeros(0, np.int32)
            return Parsed(arrow_schema(self._contract.columns).empty_table(), empty, empty, self._complaints)
        table = pa.concat_tables([piece for piece, _ in self._pieces])
        owner = np.concatenate([owner for _, owner in self._pieces])
        if np.any(owner[1:] < owner[:-1]):  # restore the order: explained payloads were added last
            order = np.argsort(owner, kind="stable")
            table, owner = table.take(pa.array(order)), owner[order]
        return Parsed(table, owner, _line_numbers(owner, self._first_line), self._complaints)


def _parse_whole(
    payloads: Sequence[bytes], counts: Sequence[int], indexes: Sequence[int], contract: Contract
) -> tuple[pa.Table, Numbers]:
    """Return all columns of the contract. Lines are read one by one only for defaults and unknown fields."""
    strict = replace(contract, unknown_fields="reject") if contract.unknown_fields == "keep" else contract
    extras: list[str | None] | None = None
    try:
        table, owner = _parse_at_once(payloads, counts, indexes, strict)
    except pa.ArrowInvalid:
        if strict is contract:
            raise
        table, owner = _parse_at_once(payloads, counts, indexes, replace(contract, unknown_fields="ignore"))
        extras = _extras(_lines(payloads), contract.kinds)
    if any(table.column(name).null_count for name in contract.defaults):
        table = _with_defaults(table, _lines(payloads), contract)
    return _with_extras(table, extras, contract), owner


def _parse_rows(rows: Sequence[dict[str, Any]], index: int, contract: Contract) -> tuple[pa.Table, Numbers]:
    """Parse rows that `read_row` returned: writes them as simple JSON with the fields of the contract only."""
    kinds, defaults = contract.kinds, contract.defaults
    text = b"".join(
        orjson.dumps({n: as_written(_known_part(row.get(n, defaults.get(n)), kind)) for n, kind in kinds.items()})
        + b"\n"
        for row in rows
    )
    lenient = replace(contract, unknown_fields="ignore", missing_fields="ignore")
    table, owner = _parse_at_once([text], [len(rows)], [index], lenient)
    extras = [extra_text(row, kinds) for row in rows] if contract.unknown_fields == "keep" else None
    return _with_extras(table, extras, contract), owner


def _known_part(value: Any, kind: Kind) -> Any:
    """Return the value without members that its type does not have, with times in UTC."""
    match kind:
        case _ if value is None:
            return None
        case ArrayOf(element):
            return [_known_part(item, element) for item in value]
        case StructOf(members):
            return {name: _known_part(value.get(name), member) for name, member in members}
        case Simple("timestamp"):
            return moment(value).isoformat()
        case _:
            return value


def _lines(payloads: Sequence[bytes]) -> list[bytes]:
    """Return the lines of all payloads; each line is one row."""
    return [line for payload in payloads if payload for line in payload.removesuffix(b"\n").split(b"\n")]


def _extras(lines: Sequence[bytes], kinds: dict[str, Kind]) -> list[str | None]:
    try:
        return [extra_text(read_row(line), kinds) for line in lines]
    except (ValueError, RecursionError) as error:
        raise pa.ArrowInvalid(f"unknown fields cannot be kept: {error}") from error


def _with_extras(table: pa.Table, extras: list[str | None] | None, contract: Contract) -> pa.Table:
    if contract.unknown_fields != "keep":
        return table
    column = pa.nulls(table.num_rows, pa.string()) if extras is None else pa.array(extras, pa.string())
    return table.append_column(EXTRA, column)


def _with_defaults(table: pa.Table, lines: Sequence[bytes], contract: Contract) -> pa.Table:
    """Fill fields that a row does not have with their default; an explicit null stays null."""
    stand_in, _ = _parse_rows([{}], 0, replace(contract, unknown_fields="ignore"))
    for name in contract.defaults:
        column = table.column(name)
        empty = np.flatnonzero(np.asarray(column.is_null()))
        try:
            absent = [row for row in empty.tolist() if _lacks(lines[row], name)]
        except (ValueError, RecursionError) as error:  # a part that Arrow ignored is not valid JSON
            raise pa.ArrowInvalid(f"some rows must be parsed line by line: {error}") from error
        if absent:
            order = np.arange(table.num_rows)
            order[absent] = table.num_rows
            chosen = pa.chunked_array([*column.chunks, *stand_in.column(name).chunks]).take(pa.array(order))
            table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), chosen)
    return table


def _lacks(line: bytes, name: str) -> bool:
    """Return whether a row has no such field. The line is parsed only if it contains the name or an escape."""
    if b'"%s"' % name.encode() not in line and b"\\" not in line:
        return True
    return name not in read_row(line)


def _parse_at_once(
    payloads: Sequence[bytes], counts: Sequence[int], indexes: Sequence[int], contract: Contract
) -> tuple[pa.Table, Numbers]:
    """Return the fields of the contract, without defaults and without `_extra`."""
    text = b"".join(
        part
        for index, payload in zip(indexes, payloads, strict=True)
        for part in (b'{"_payload":%d}\n' % index, payload)
    )
    in_json = [pa.field(field.name, json_type(field.type)) for field in contract.fields]
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
    """Raise ArrowInvalid unless each line became exactly one row; the marker is one more."""
    found = np.bincount(owner, minlength=indexes[-1] + 1)[np.asarray(indexes)]
    if not np.array_equal(np.asarray(counts) + 1, found):
        raise pa.ArrowInvalid("some lines hold more or less than one JSON object")


def _typed(table: pa.Table, contract: Contract) -> pa.Table:
    columns = []
    for field in contract.fields:
        column = table.column(field.name)
        if is_text_in_json(field.type):
            column = parse_temporal(column.combine_chunks(), kind_of(field.type))
        columns.append(column)
    if contract.missing_fields == "reject" and any(
        _has_nulls(chunk) for column in columns for chunk in _chunks(column)
    ):
        # Arrow does not distinguish a null from an absent field; `explain` does.
        raise pa.ArrowInvalid("some fields are missing or null")
    return pa.table(columns, schema=arrow_schema(contract.fields))


def _chunks(column: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return list(column.chunks) if isinstance(column, pa.ChunkedArray) else [column]


def _has_nulls(column: pa.Array) -> bool:
    """Return whether the column or anything inside its values is null."""
    if column.null_count:
        return True
    if pa.types.is_struct(column.type):
        return any(_has_nulls(part) for part in column.flatten())
    return pa.types.is_list(column.type) and _has_nulls(column.flatten())


def _line_numbers(owner: Numbers, first_line: int) -> Numbers:
    """Return 1, 2, 3, ... restarting with each payload."""
    if not len(owner):
        return owner
    position = np.arange(len(owner), dtype=np.int32)
    starts = np.concatenate(([True], owner[1:] != owner[:-1]))
    return (position - np.maximum.accumulate(np.where(starts, position, 0)) + first_line).astype(np.int32)
