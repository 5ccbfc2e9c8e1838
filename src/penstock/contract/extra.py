"""Unknown fields of a row as JSON text, for contracts with `unknown_fields: keep`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from penstock.field_types import ArrayOf, Fraction, Kind, StructOf

EXTRA = "_extra"  # the column that stores them


def extra_text(row: Mapping[str, Any], kinds: Mapping[str, Kind]) -> str | None:
    """Return the fields of a row that are not in `kinds`, or None if there are none. Unknown fields of a struct stay
    under its name, those of an array under the number of the element. Raises ValueError if they cannot be encoded."""
    left = _unknown_fields(row, kinds)
    if not left:
        return None
    try:
        return orjson.dumps(as_written(left), option=orjson.OPT_SORT_KEYS).decode()
    except TypeError as error:  # half a surrogate pair, or nested deeper than orjson goes
        raise ValueError(str(error)) from error


def as_written(value: Any) -> Any:
    """Keep the digits of numbers as they were received, so that validate and load read the same values."""
    if isinstance(value, Fraction) or type(value) is int:
        return orjson.Fragment(str(value).encode())
    if isinstance(value, dict):
        return {name: as_written(item) for name, item in value.items()}
    return [as_written(item) for item in value] if isinstance(value, list) else value


def _unknown_fields(row: Mapping[str, Any], kinds: Mapping[str, Kind]) -> dict[str, Any]:
    found = {name: value for name, value in row.items() if name not in kinds}
    for name, kind in kinds.items():
        if isinstance(kind, ArrayOf | StructOf) and (inside := _inside(row.get(name), kind)):
            found[name] = inside
    return found


def _inside(value: Any, kind: Kind) -> dict[str, Any]:
    if isinstance(kind, StructOf) and isinstance(value, dict):
        return _unknown_fields(value, dict(kind.members))
    if isinstance(kind, ArrayOf) and isinstance(value, list):
        found = {str(number): _inside(item, kind.element) for number, item in enumerate(value)}
        return {number: inside for number, inside in found.items() if inside}
    return {}
