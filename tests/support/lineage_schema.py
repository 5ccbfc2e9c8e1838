"""The schema of OpenLineage events, as JSON Schema, from the classes that the standard's client makes from it.

The client validates the objects that a caller builds, not the written documents. These schemas are for the documents:
every object has the required and only known properties, and each facet is validated against the schema that it names in
`_schemaURL`.
"""

from __future__ import annotations

import enum
import importlib
import pkgutil
import types
import typing
from datetime import datetime
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import attrs
import jsonschema
from openlineage.client import generated
from openlineage.client.generated import base

_FORMATS = {
    "eventTime": "date-time",
    "nominalStartTime": "date-time",
    "nominalEndTime": "date-time",
    "runId": "uuid",
    "producer": "uri",
    "_producer": "uri",
    "schemaURL": "uri",
    "_schemaURL": "uri",
}
_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean"}


_CHECKER = jsonschema.FormatChecker(["uuid"])


@_CHECKER.checks("date-time", raises=ValueError)
def _is_moment(text: object) -> bool:
    return datetime.fromisoformat(str(text)).tzinfo is not None


@_CHECKER.checks("uri")
def _is_address(text: object) -> bool:
    return bool(urlsplit(str(text)).scheme)


def validate(event: dict[str, Any]) -> None:
    """Raise jsonschema.ValidationError if the document is not a run event of the standard."""
    jsonschema.validate(event, _standard(), format_checker=_CHECKER)


@cache
def _standard() -> dict[str, Any]:
    known = _facets()
    definitions: dict[str, Any] = {}
    families = (base.RunFacet, base.JobFacet, base.DatasetFacet, base.InputDatasetFacet, base.OutputDatasetFacet)
    for family in families:
        definitions[_name(family)] = _any_of({url: kind for url, kind in known.items() if issubclass(kind, family)})
    todo = [base.RunEvent, *known.values()]
    while todo:
        kind = todo.pop()
        if _name(kind) not in definitions:
            definitions[_name(kind)] = _object(kind, todo)
    return {"$ref": f"#/$defs/{_name(base.RunEvent)}", "$defs": definitions}


def _facets() -> dict[str, type]:
    """Every facet class of the standard by the address of its schema."""
    found: dict[str, type] = {}
    for module in pkgutil.iter_modules(generated.__path__):
        for held in vars(importlib.import_module(f"{generated.__name__}.{module.name}")).values():
            if isinstance(held, type) and issubclass(held, base.BaseFacet) and held.__module__ != base.__name__:
                found[held._get_schema()] = held
    return found


def _any_of(facets: dict[str, type]) -> dict[str, Any]:
    """A facet of a family, validated against the schema that it names, which must be one of the standard."""
    choices = [
        {"if": {"properties": {"_schemaURL": {"const": url}}}, "then": {"$ref": f"#/$defs/{_name(kind)}"}}
        for url, kind in facets.items()
    ]
    address = {"enum": sorted(facets)}
    return {"type": "object", "required": ["_schemaURL"], "properties": {"_schemaURL": address}, "allOf": choices}


def _object(kind: type, todo: list[type]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    fields = attrs.fields(kind)
    properties = {field.name: _typed(hints[field.name], todo, _FORMATS.get(field.name)) for field in fields}
    # The client fills in producer and schema: the standard requires both.
    told = {"producer", "_producer", "schemaURL", "_schemaURL"}
    required = [field.name for field in fields if field.default is attrs.NOTHING or field.name in told]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _typed(hint: Any, todo: list[type], format_name: str | None = None) -> dict[str, Any]:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_typed(part, todo, format_name) for part in parts if part is not type(None)]}
    if origin is list:
        return {"type": "array", "items": _typed(parts[0], todo)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _typed(parts[1], todo)}
    if origin is typing.Literal:
        return {"enum": list(parts)}
    if hint is Any or hint is object:
        return {}
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]} | ({"format": format_name} if format_name else {})
    if issubclass(hint, enum.Enum):
        return {"enum": [member.value for member in hint]}
    todo.append(hint)
    return {"$ref": f"#/$defs/{_name(hint)}"}


def _name(kind: type) -> str:
    return f"{kind.__module__.rpartition('.')[2]}.{kind.__qualname__}"
