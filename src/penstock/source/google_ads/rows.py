"""Converts rows of Google Ads to flat objects: a reader function for each field is created once from its path."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

import orjson

from penstock.config.checks import Field
from penstock.config.values import did_you_mean
from penstock.errors import ConfigError
from penstock.source.google_ads.options import Column

Read = Callable[[Any], Any]

_MICROS = 1_000_000
_WHOLE = ("long", "double", "decimal")
# The types that a field may have in the contract, by the kind of value that Google Ads sends.
_SUITABLE = {
    "a whole number": _WHOLE,
    "a number": ("double", "decimal"),
    "true or false": ("boolean",),
    "text": ("string", "date", "timestamp"),
    "an enum": ("string",),
    "an enum's number": _WHOLE,
    "a list or an object": ("string",),
    "an amount in units": ("decimal",),
}


def row_reader(row_type: Any, fields: Iterable[Field], columns: Mapping[str, Column], enums: str) -> Read:
    """Return a function from a row to a dict. Raises ConfigError for paths that the API version does not have, and for
    types that do not fit."""
    readers: list[tuple[str, Read]] = []
    problems: list[str] = []
    for field in fields:
        column = columns[field.name]
        try:
            read, sent = _reader(row_type.DESCRIPTOR, column, enums)
            _refuse_unsuitable(field, sent)
            readers.append((field.name, read))
        except ConfigError as error:
            problems.append(f"select.{field.name}: {error}")
    if problems:
        raise ConfigError("; ".join(problems))
    return lambda row: {name: read(row) for name, read in readers}


def _refuse_unsuitable(field: Field, sent: str) -> None:
    if field.type.partition("(")[0] not in _SUITABLE[sent]:
        raise ConfigError(f"Google Ads sends {sent}, which does not fit {field.type}: use {_SUITABLE[sent][0]}")
    if sent == "an amount in units" and int(field.type.rstrip(")").partition(",")[2]) < 6:
        raise ConfigError(f"an amount in units has six digits after the point, which do not fit {field.type}")


def _reader(row: Any, column: Column, enums: str) -> tuple[Read, str]:
    """The reader of a path, and the kind of value that it returns."""
    *parents, name = column.path.split(".")
    message = row
    for depth, parent in enumerate(parents):
        message = _field(message, parent, column.path).message_type
        if message is None:
            raise ConfigError(f"{'.'.join(parents[: depth + 1])} has no parts, so {column.path} is not in a row")
    field = _field(message, name, column.path)
    value, owner = attrgetter(column.path), attrgetter(".".join(parents))
    show, sent = _shown(field, column, enums)
    if field.is_repeated:
        return (lambda given: show(value(given))), sent
    if field.has_presence:

        def read(given: Any) -> Any:
            found = value(given)
            # most values are not zero, and HasField costs as much as reading the value
            return show(found) if found or owner(given).HasField(name) else None

        if field.message_type is not None:  # a message is always truthy, sent or not
            return (lambda given: show(value(given)) if owner(given).HasField(name) else None), sent
        return read, sent
    return _by_presence_of_owner(value, show, parents), sent


def _by_presence_of_owner(value: Read, show: Read, parents: list[str]) -> Read:
    """The reader of a field without presence: it was sent if its message was sent."""
    holder: Read = attrgetter(".".join(parents[:-1])) if len(parents) > 1 else _as_it_is
    name = parents[-1]

    def read(given: Any) -> Any:
        found = value(given)
        return show(found) if found or holder(given).HasField(name) else None

    return read


def _field(message: Any, name: str, path: str) -> Any:
    found = message.fields_by_name.get(name)
    if found is None:
        close = did_you_mean(name, message.fields_by_name)
        raise ConfigError(f"this version of Google Ads has no field {path}{close}")
    return found


def _shown(field: Any, column: Column, enums: str) -> tuple[Read, str]:
    if column.unit is not None:
        if field.is_repeated or field.cpp_type not in _kinds(field, "INT32", "INT64"):
            raise ConfigError(f"{column.path} is not an amount in micros, so it cannot be shown as units")
        return _units, "an amount in units"
    if field.is_repeated or field.message_type is not None:
        return _as_json(field, enums), "a list or an object"
    if field.enum_type is not None:
        return (_names(field), "an enum") if enums == "names" else (_as_it_is, "an enum's number")
    if field.cpp_type in _kinds(field, "INT32", "INT64", "UINT32", "UINT64"):
        return _as_it_is, "a whole number"
    if field.cpp_type in _kinds(field, "DOUBLE", "FLOAT"):
        return _as_it_is, "a number"
    if field.cpp_type in _kinds(field, "BOOL"):
        return _as_it_is, "true or false"
    return (_base64 if field.type == field.TYPE_BYTES else _as_it_is), "text"


def _kinds(field: Any, *names: str) -> list[int]:
    return [getattr(field, f"CPPTYPE_{name}") for name in names]


def _as_it_is(value: Any) -> Any:
    return value


def _base64(value: bytes) -> str:
    return b64encode(value).decode()


def _units(micros: int) -> str:
    """Micros as exact text: 1230000 is 1.230000."""
    whole, rest = divmod(abs(micros), _MICROS)
    return f"{'-' if micros < 0 else ''}{whole}.{rest:06d}"


def _names(field: Any) -> Read:
    known = {number: value.name for number, value in field.enum_type.values_by_number.items()}
    return lambda number: known.get(number, str(number))


def _as_json(field: Any, enums: str) -> Read:
    """The reader of a list or an object, which becomes JSON text."""
    from google.protobuf.json_format import MessageToDict

    def part(value: Any) -> Any:
        return MessageToDict(value, preserving_proto_field_name=True, use_integers_for_enums=enums == "numbers")

    if not field.is_repeated:
        return lambda value: orjson.dumps(part(value)).decode()
    if field.message_type is not None:
        each: Read = part
    elif field.enum_type is not None and enums == "names":
        each = _names(field)
    else:
        each = _base64 if field.type == field.TYPE_BYTES else _as_it_is
    return lambda values: orjson.dumps([each(value) for value in values]).decode()
