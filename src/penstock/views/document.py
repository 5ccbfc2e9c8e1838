"""The JSON document: lists, pages, and the conversion of its values to JSON types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import date, datetime
from enum import Enum
from typing import Any, NewType, TypeVar

from penstock.clock import iso

# One JSON object as a command prints it with `--json`. Only this package creates documents; values are
# still Python's (dates, enums), and `encode` converts them.
Document = NewType("Document", dict[str, Any])

T = TypeVar("T")


def listing(items: Sequence[Mapping[str, Any]], total: int) -> Document:
    """A list: its items, and how many there are in all."""
    return Document({"items": list(items), "total": total})


def page(items: Sequence[Mapping[str, Any]], total: int, following: str | None) -> Document:
    """A part of a long list. `next` is the value of `--after` that continues the list; None at its end."""
    return Document({**listing(items, total), "next": following})


def with_next(document: Document, following: str | None) -> Document:
    """The page with another value of `next`."""
    return Document({**document, "next": following})


def paginate(rows: Sequence[T], limit: int, cursor: Callable[[T], Any]) -> tuple[Sequence[T], str | None]:
    """Return the first `limit` rows and the cursor of the last one; None if no more rows follow.

    `rows` must have one row more than `limit` if there are that many.
    """
    first = rows[:limit]
    return first, str(cursor(first[-1])) if len(rows) > limit else None


def encode(document: Document, *, indent: bool = False) -> bytes:
    """Return the document as JSON in UTF-8, with a newline at its end. Times are ISO 8601 in UTC."""
    import orjson

    option = orjson.OPT_APPEND_NEWLINE | (orjson.OPT_INDENT_2 if indent else 0)
    try:
        return orjson.dumps(document, _one_json_value, option | orjson.OPT_PASSTHROUGH_DATETIME)
    except TypeError:  # a key that is not plain text, such as an enum
        return orjson.dumps(_json_value(document), option=option)


def _one_json_value(value: Any) -> Any:
    """Convert a value that orjson does not know; it converts what is inside by further calls."""
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(name): item for name, item in value.items()}
    if isinstance(value, set | frozenset):
        return list(value)
    raise TypeError


def _json_value(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, date):
        return value.isoformat()
    if is_dataclass(value) and not isinstance(value, type):
        return _json_value(asdict(value))
    if isinstance(value, Mapping):
        return {str(name): _json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_json_value(item) for item in value]
    return value
