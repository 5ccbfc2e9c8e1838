"""One field type, four spellings: the contract's, Arrow's, Spark's, and what a JSON value of it looks like."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from penstock.settings import Field

_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")

_ARROW = {
    "long": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_SPARK = {
    "long": "bigint",
    "double": "double",
    "string": "string",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamp",
}
_IN_WORDS = {
    "long": "a whole number of at most 64 bits",
    "double": "a number",
    "string": "a string",
    "boolean": "true or false",
    "date": "a date like 2024-06-01",
    "timestamp": "a time like 2024-06-01T12:00:00Z",
}


def arrow_type(kind: str) -> pa.DataType:
    if match := _DECIMAL.fullmatch(kind):
        return pa.decimal128(int(match[1]), int(match[2]))
    return _ARROW[kind]


def spark_type(kind: str) -> str:
    return kind if kind.startswith("decimal") else _SPARK[kind]


def in_words(kind: str) -> str:
    """What the contract expects, for a person who reads a complaint."""
    return f"a {kind} as number or string" if kind.startswith("decimal") else _IN_WORDS[kind]


def arrow_schema(fields: Sequence[Field]) -> pa.Schema:
    return pa.schema([pa.field(f.name, arrow_type(f.type)) for f in fields])


def spark_ddl(fields: Sequence[Field]) -> str:
    return ", ".join(f"`{f.name}` {spark_type(f.type)}" for f in fields)
