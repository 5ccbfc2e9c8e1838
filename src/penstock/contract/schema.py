"""Maps the field types of contracts to types of Arrow, Spark and DuckDB, and to descriptions of their JSON values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import pyarrow as pa

from penstock.config.checks import Field
from penstock.field_types import ArrayOf, DecimalOf, Kind, Simple, StructOf, kind_of

_ARROW = {
    "long": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
# JSON writes dates and times as strings: they are read as strings and converted by `parse_temporal`.
_JSON = {**_ARROW, "date": pa.string(), "timestamp": pa.string()}
_SPARK = {
    "long": "bigint",
    "double": "double",
    "string": "string",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamp",
}
_DUCKDB = {
    "long": "BIGINT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "timestamp": "TIMESTAMP WITH TIME ZONE",
}
_DESCRIPTIONS = {
    "long": "a whole number of at most 64 bits",
    "double": "a number",
    "string": "a string",
    "boolean": "true or false",
    "date": "a date like 2024-06-01",
    "timestamp": "a time like 2024-06-01T12:00:00Z",
}


@cache
def arrow_type(text: str) -> pa.DataType:
    return _arrow(kind_of(text), _ARROW)


@cache
def json_type(text: str) -> pa.DataType:
    """Return the type with which Arrow's JSON parser reads values of this type."""
    return _arrow(kind_of(text), _JSON)


def is_text_in_json(text: str) -> bool:
    """Return whether the type is, or contains, a date or timestamp."""
    return bool(arrow_type(text) != json_type(text))


def _arrow(kind: Kind, simple: Mapping[str, pa.DataType]) -> pa.DataType:
    match kind:
        case Simple(name):
            return simple[name]
        case DecimalOf(precision, scale):
            return pa.decimal128(precision, scale)
        case ArrayOf(element):
            return pa.list_(pa.field("element", _arrow(element, simple)))  # the name that Delta and Spark use
        case StructOf(members):
            return pa.struct([pa.field(name, _arrow(member, simple)) for name, member in members])


def spark_type(text: str) -> str:
    return _spark(kind_of(text))


def _spark(kind: Kind) -> str:
    match kind:
        case Simple(name):
            return _SPARK[name]
        case ArrayOf(element):
            return f"array<{_spark(element)}>"
        case StructOf(members):
            return f"struct<{', '.join(f'`{name}`: {_spark(member)}' for name, member in members)}>"
        case _:
            return str(kind)


def duckdb_type(text: str) -> str:
    return _duckdb(kind_of(text))


def _duckdb(kind: Kind) -> str:
    match kind:
        case Simple(name):
            return _DUCKDB[name]
        case DecimalOf():
            return str(kind).upper()
        case ArrayOf(element):
            return f"{_duckdb(element)}[]"
        case StructOf(members):
            quoted = (f'"{name}" {_duckdb(member)}' for name, member in members)  # a name may be a word of SQL
            return f"STRUCT({', '.join(quoted)})"


def describe_type(kind: Kind) -> str:
    """Describe the expected JSON value, for complaints."""
    match kind:
        case Simple(name):
            return _DESCRIPTIONS[name]
        case DecimalOf():
            return f"a {kind} as number or string"
        case ArrayOf():
            return "a JSON array"
        case StructOf():
            return "a JSON object"


def arrow_schema(fields: Sequence[Field]) -> pa.Schema:
    return pa.schema([pa.field(f.name, arrow_type(f.type)) for f in fields])


def spark_ddl(fields: Sequence[Field]) -> str:
    return ", ".join(f"`{f.name}` {spark_type(f.type)}" for f in fields)


def field_type(kind: pa.DataType) -> str:
    """Return the contract type of a column of a warehouse table; ValueError if there is none."""
    for name, known in _ARROW.items():
        if kind == known or (pa.types.is_timestamp(kind) and name == "timestamp"):
            return name
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{field_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{member.name}: {field_type(member.type)}' for member in kind)}>"
    raise ValueError(f"a contract has no type for {kind}")
