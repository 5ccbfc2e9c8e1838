"""The page of settings: every key of penstock.yaml, from the classes that parse it."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from enum import Enum
from typing import Any

import annotated_types
from pydantic.fields import FieldInfo

from penstock.config.check_keys import BESIDE_KEYS, CHECK_KEYS
from penstock.config.settings import Settings
from penstock.config.values import Declared, Keeps, KeyDoc, format_duration, named
from penstock.source.demo import DemoOptions
from penstock.source.files import Delivery, FilesOptions
from penstock.source.google_ads.options import Options as GoogleAdsOptions
from penstock.source.google_ads.options import QueryOptions as GoogleAdsQueryOptions
from penstock.source.http_options import HttpOptions, Request
from penstock.source.options import Options
from penstock.source.sql import SqlOptions, SqlQueryOptions

Map = type[Declared] | type[Options]

_INTRODUCTION = """\
The keys of `penstock.yaml`. Unknown keys, wrong types and values that cannot work are refused with their file and line;
`penstock doctor` checks the file.

- `${NAME}` is replaced by the environment variable, `${NAME:-value}` has a default, `$${` is a literal `${`.
- A duration is a number with a unit: `30s`, `5m`, `2h`, `30d`. A rate is `10/s`, `600/m`, `5000/h` or `15000/d`.
- A name consists of lower-case letters, digits and `_`, begins with a letter, and has at most 63 characters.
- Relative paths start at the folder of the file.
"""
_TYPES = {str: "text", int: "whole number", float: "number", bool: "`true` or `false`", date: "date",
          timedelta: "duration", Keeps: "duration", Any: "value"}  # fmt: skip


# By kind: the options of the source, and of its queries.
SOURCES: dict[str, tuple[Map, Map | None]] = {
    "demo": (DemoOptions, None),
    "files": (FilesOptions, Delivery),
    "google_ads": (GoogleAdsOptions, GoogleAdsQueryOptions),
    "http": (HttpOptions, Request),
    "sql": (SqlOptions, SqlQueryOptions),
}
_HEAD = ("| key | type | default | example | meaning |", "|---|---|---|---|---|")


@dataclass(frozen=True, slots=True)
class Section:
    """The keys of one map of the file."""

    title: str  # its places in the file, or the kind of the check
    meaning: str  # of a check; empty for other maps
    model: Map
    documentation: Mapping[str, KeyDoc]

    def undocumented(self) -> list[str]:
        """Keys without documentation, and documentation of keys that do not exist."""
        return sorted(set(_keys(self.model)) ^ set(self.documentation))


def sections() -> list[Section]:
    """Every map of the workspace file but the options of sources, in the order of the file."""
    places: dict[Map, list[str]] = {}
    _collect(Settings, "", places)
    return [_section(model, where) for model, where in places.items()]


def source_sections(kind: str) -> list[Section]:
    """The options of a source of this kind and of its queries, and the maps inside them."""
    of_source, of_query = SOURCES[kind]
    places: dict[Map, list[str]] = {}
    _collect(of_source, "sources.<name>", places)
    if of_query is not None:
        _collect(of_query, "queries.<name>.options", places)
    return [_section(model, where) for model, where in places.items()]


def _section(model: Map, places: Sequence[str]) -> Section:
    if "checks[]" not in places[0]:
        title = " and ".join(f"`{place}`" for place in places if place) or "Top level"
        if typing.get_origin(_annotation(model, "kind")) is typing.Literal:
            title += f", kind `{typing.get_args(_annotation(model, 'kind'))[0]}`"
        return Section(title, "", model, model.documentation)
    kind = str(model.model_fields["kind"].default)
    documentation = CHECK_KEYS.get(kind, {})
    return Section(f"Check `{kind}`", " ".join((model.__doc__ or "").split()), model, documentation)


def check_example(section: Section) -> str:
    """A check of this kind as the file writes it, with the examples of its keys."""
    kind = section.model.model_fields["kind"].default
    written = {key: doc.example for key, doc in section.documentation.items() if _field(section.model, key)}
    if len(written) == 1 and kind in ("required", "unique", "expression"):
        return f"{kind}: {next(iter(written.values()))}"
    return f"{kind}: {{{', '.join(f'{key}: {example}' for key, example in written.items())}}}"


def page() -> str:
    """The page as Markdown."""
    lines = ["# Settings\n", _INTRODUCTION]
    checks: list[str] = []
    for section in sections():
        (checks if section.meaning else lines).extend(_lines(section))
    lines += ["## Checks\n", "A check is a map with its kind as the key. Every kind also accepts these keys:", ""]
    a_check = next(section.model for section in sections() if section.meaning)
    lines += [*_HEAD, *(_row(key, _field(a_check, key), doc) for key, doc in BESIDE_KEYS.items()), "", *checks]
    for kind in SOURCES:
        lines += [
            f"## Options of kind `{kind}`\n",
            *(line for found in source_sections(kind) for line in _lines(found, 3)),
        ]
    return "\n".join(lines)


def _lines(section: Section, level: int = 2) -> list[str]:
    rows = [_row(key, _field(section.model, key), doc) for key, doc in section.documentation.items()]
    if not section.meaning:
        return [f"{'#' * level} {section.title}\n", *_HEAD, *rows, ""]
    return [f"### {section.title}\n", f"{section.meaning} `- {check_example(section)}`", "", *_HEAD, *rows, ""]


def _collect(model: Map, place: str, places: dict[Map, list[str]]) -> None:
    seen = model in places
    places.setdefault(model, []).append(place)
    for key in () if seen else _keys(model):
        for inner, suffix in _models_in(_annotation(model, key)):
            _collect(inner, f"{place}.{key}{suffix}".removeprefix("."), places)


def _keys(model: Map) -> list[str]:
    if issubclass(model, Declared):
        return model.keys_in_yaml()
    return list(model.model_fields)


def _models_in(annotation: Any) -> Iterator[tuple[Map, str]]:
    """The maps inside a type, with how the file leads to them: by name, or by position."""
    if isinstance(annotation, type) and issubclass(annotation, Declared | Options):
        yield annotation, ""
        return
    suffix = {dict: ".<name>", tuple: "[]"}.get(typing.get_origin(annotation), "")
    for argument in typing.get_args(annotation):
        for model, further in _models_in(argument):
            yield model, suffix + further


def _annotation(model: Map, key: str) -> Any:
    field = _field(model, key)
    return None if field is None else field.annotation


def _field(model: Map, key: str) -> FieldInfo | None:
    """The field that a key is parsed into; None for a key that only the file has."""
    fields = {str(field.validation_alias or name): field for name, field in model.model_fields.items()}
    return fields.get(key)


def _row(key: str, field: FieldInfo | None, doc: KeyDoc) -> str:
    kind = doc.type or (_type(field.annotation, field.metadata) if field else "text")
    default = _default(field) if field else ""
    return f"| `{key}` | {kind} | {default} | `{doc.example}` | {doc.meaning} |"


def _type(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        constraints = [
            item for info in arguments[1:] for item in (info.metadata if isinstance(info, FieldInfo) else [info])
        ]
        return _type(arguments[0], constraints)
    if origin in (typing.Union, types.UnionType):
        written = [_type(argument, metadata) for argument in arguments if argument is not types.NoneType]
        return " or ".join(dict.fromkeys(written)) if not _declares(annotation) else "map"
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin is tuple:
        inner = _type(arguments[0])
        return "list of maps" if inner == "map" else f"list of {inner}" if "`" in inner else f"list of {_plural(inner)}"
    if origin is dict:
        return "map of maps" if _declares(annotation) else "map"
    if isinstance(annotation, type) and issubclass(annotation, Declared | Options):
        return "map"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(f"`{value}`" for value in annotation)
    if any(getattr(item, "func", None) is named for item in metadata):
        return "name"
    return f"{_TYPES[annotation]}{_bounds(metadata)}"


def _declares(annotation: Any) -> bool:
    return any(True for _ in _models_in(annotation))


def _plural(kind: str) -> str:
    noun, separator, bounds = kind.partition(",")
    return ("texts" if noun == "text" else f"{noun}s") + separator + bounds


def _bounds(metadata: Sequence[Any]) -> str:
    phrases = {annotated_types.Ge: "at least {0.ge}", annotated_types.Gt: "above {0.gt}", annotated_types.Le: "at most {0.le}",
             annotated_types.Lt: "below {0.lt}"}  # fmt: skip
    found = [phrases[type(item)].format(item) for item in metadata if type(item) in phrases]
    return "".join(f", {bound}" for bound in found)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    value = field.get_default(call_default_factory=True)
    if value is None or value in ("", (), {}) or isinstance(value, Declared | Options):
        return ""
    if isinstance(value, tuple):
        return f"`[{', '.join(_as_written(item) for item in value)}]`"
    return f"`{_as_written(value)}`"


def _as_written(value: object) -> str:
    if isinstance(value, timedelta):
        return format_duration(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
