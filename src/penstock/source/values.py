"""Writes typed values as JSON without losing digits."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any

import orjson


def json_line(row: Mapping[str, Any]) -> bytes:
    """The row as one line. Decimals and large integers keep their digits, bytes become Base64, and NaN and infinity
    become text, which the contract rejects. Raises TypeError for other types."""
    try:
        line = orjson.dumps(row, default=_as_json)
    except TypeError:  # for example an integer of more than 64 bits
        return orjson.dumps(_exact(row), default=_as_json)
    # orjson writes null for NaN and infinity, which could not be distinguished from a missing value
    if b"null" in line and any(type(value) is float and not isfinite(value) for value in row.values()):
        return orjson.dumps(_exact(row), default=_as_json)
    return line


def _as_json(value: Any) -> Any:
    """The values of types that orjson does not support."""
    match value:
        case Decimal():
            return orjson.Fragment(format(value, "f")) if value.is_finite() else str(value)
        case bytes() | bytearray() | memoryview():
            return b64encode(value).decode()
        case datetime():
            return value.isoformat()
        case timedelta():
            return str(value)
        case _:
            raise TypeError(f"JSON cannot hold a value of type {type(value).__name__}")


def _exact(value: Any) -> Any:
    """The same value, with the parts replaced that orjson refuses or changes."""
    match value:
        case bool():
            return value
        case int():
            return orjson.Fragment(str(value))
        case float():
            return value if isfinite(value) else str(value)
        case Mapping():
            return {name: _exact(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_exact(inner) for inner in value]
        case _:
            return value
