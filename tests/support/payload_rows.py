"""The rows that a sealed payload must become, computed from its bytes, the contract body and the Delta columns.

This is a second implementation of the row format. It shares no code with Penstock and reads one value at a time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

EXTRA = "_extra"  # the column of fields that the contract keeps and does not name
NOT_OF_THE_PAYLOAD = ("customer_id", "logical_date", "_run_id", "_month")

CanonicalRow = tuple[Any, ...]


def payload_columns(columns: pa.Schema) -> list[pa.Field]:
    """The columns of a Delta table whose values come from the payload."""
    return [field for field in columns if field.name not in NOT_OF_THE_PAYLOAD]


def table_rows(table: pa.Table, columns: list[pa.Field]) -> list[CanonicalRow]:
    """The rows of a Delta table in canonical values, so that they can be counted and compared."""
    values = [table.column(field.name).to_pylist() for field in columns]
    return [_canonical_row(row, columns) for row in zip(*values, strict=True)]


def payload_rows(name: str, payload: bytes, body: Mapping[str, Any], columns: list[pa.Field]) -> list[CanonicalRow]:
    """The same for the rows that the payload holds, read under the contract `body`."""
    if name.endswith(".parquet"):
        table = pq.read_table(pa.BufferReader(payload))
        return table_rows(table, columns)
    return [_line_row(line, body, columns) for line in payload.decode().removesuffix("\n").split("\n") if line]


def _line_row(line: str, body: Mapping[str, Any], columns: list[pa.Field]) -> CanonicalRow:
    row = json.loads(line, parse_float=Decimal)
    defaults = {field["name"]: field.get("default") for field in body["fields"]}
    known = {field.name: field.type for field in columns if field.name != EXTRA}
    values = [
        _unknown_fields(row, known)
        if field.name == EXTRA
        else _typed(row.get(field.name, defaults.get(field.name)), field.type)
        for field in columns
    ]
    return _canonical_row(values, columns)


def _typed(value: Any, kind: pa.DataType) -> Any:
    """A JSON value as the type of its column."""
    if value is None:
        return None
    if pa.types.is_floating(kind):
        return float(value)
    if pa.types.is_decimal(kind):
        return Decimal(str(value))
    if pa.types.is_date(kind):
        return date.fromisoformat(value)
    if pa.types.is_timestamp(kind):
        moment = datetime.fromisoformat(value)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    if pa.types.is_list(kind):
        return [_typed(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {member.name: _typed(value.get(member.name), member.type) for member in kind}
    return value


def _unknown_fields(row: Mapping[str, Any], known: Mapping[str, pa.DataType]) -> dict[str, Any] | None:
    """The fields that the columns do not name, at any depth: under the name of a struct, the number of an element."""
    found = {name: value for name, value in row.items() if name not in known}
    for name, kind in known.items():
        if inside := _unknown_inside(row.get(name), kind):
            found[name] = inside
    return found or None


def _unknown_inside(value: Any, kind: pa.DataType) -> dict[str, Any] | None:
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return _unknown_fields(value, {member.name: member.type for member in kind})
    if pa.types.is_list(kind) and isinstance(value, list):
        inside = {str(at): _unknown_inside(item, kind.value_type) for at, item in enumerate(value)}
        return {at: item for at, item in inside.items() if item} or None
    return None


def _canonical_row(values: Any, columns: list[pa.Field]) -> CanonicalRow:
    return tuple(
        _canonical(json.loads(value, parse_float=Decimal) if field.name == EXTRA and isinstance(value, str) else value)
        for field, value in zip(columns, values, strict=True)
    )


def _canonical(value: Any) -> Any:
    """Equal values become equal and hashable; 1, 1.0 and true stay different."""
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, float):
        return ("double", value.hex())
    if isinstance(value, Decimal):
        return ("decimal", str(value.normalize()))
    if isinstance(value, datetime):
        return ("timestamp", value.astimezone(UTC))
    if isinstance(value, list):
        return tuple(_canonical(item) for item in value)
    if isinstance(value, dict):
        return tuple(sorted((name, _canonical(item)) for name, item in value.items()))
    return value
