"""Infers a contract from rows: the narrowest types that fit, required fields, a key and bounds.

It reads row by row in Python, which is fast enough for one payload on request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice
from typing import Any

from penstock.config.checks import RESERVED_FIELDS
from penstock.contract.explain import read_row
from penstock.errors import DataError
from penstock.field_types import ArrayOf, DecimalOf, Fraction, Kind, Simple, StructOf, reader

MAX_ROWS = 100_000  # further rows rarely change the result
_MAX_DEPTH = 12
_MAX_KEY_FIELDS = 6  # fields that are tried in pairs
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


@dataclass(frozen=True, slots=True)
class Proposal:
    """Fields and checks in the form of the workspace file, and notes on fields that were left out."""

    rows: int
    fields: Sequence[Mapping[str, Any]]
    checks: Sequence[Mapping[str, Any]]
    notes: Sequence[str]
    keeps: bool  # some field has no type, so the query needs unknown_fields: keep

    def as_query(self, source: str) -> dict[str, Any]:
        kept = {"unknown_fields": "keep"} if self.keeps else {}
        return {"source": source, "fields": list(self.fields), "checks": list(self.checks), **kept}


# The types of each shape, narrowest first.
_OF_SHAPE: dict[str, list[Kind]] = {
    "number": [Simple("long"), DecimalOf(38, 0), Simple("double")],
    "text": [Simple("date"), Simple("timestamp"), Simple("string")],
    "truth": [Simple("boolean")],
}
_CANDIDATES: dict[str, Callable[[Any], bool]] = {
    str(kind): reader(kind) for kinds in _OF_SHAPE.values() for kind in kinds
}
_NOUNS = {"number": "numbers", "text": "text", "truth": "true or false", "array": "arrays", "object": "objects"}


@dataclass(slots=True)
class _Seen:
    """Statistics of the values at one path of the rows."""

    count: int = 0  # values that are not null
    shapes: set[str] = field(default_factory=set)
    fits: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(_CANDIDATES, True))
    negative: bool = False
    element: _Seen | None = None
    members: dict[str, _Seen] = field(default_factory=dict)

    def add(self, value: Any) -> None:
        if value is None:
            return
        self.count += 1
        self.shapes.add(_shape(value))
        if isinstance(value, list):
            self.element = self.element or _Seen()
            for item in value:
                self.element.add(item)
        elif isinstance(value, dict):
            for name, item in value.items():
                self.members.setdefault(name, _Seen()).add(item)
        else:
            for name, reads in _CANDIDATES.items():
                self.fits[name] = self.fits[name] and reads(value)
            self.negative = self.negative or str(value).startswith("-")


def infer(lines: Iterable[bytes]) -> Proposal:
    """Return fields and checks that the rows satisfy. Lines that are not JSON objects are skipped and counted in the
    notes. Raises DataError if no field can be inferred."""
    rows, broken = _rows(islice(lines, MAX_ROWS))
    if not rows:
        raise DataError("there is no row to propose a contract from: name a run or a file that has some")
    seen = _Seen()
    for row in rows:
        seen.add(row)
    notes = [f"{broken:,} lines are not JSON objects and were left out"] if broken else []
    kinds = {
        name: None if _is_misnamed(name, name, notes, RESERVED_FIELDS) else _described(found, name, notes, 1)
        for name, found in seen.members.items()
    }
    known = {name: kind for name, kind in kinds.items() if kind is not None}
    if not known:
        raise DataError(f"no field of these rows can be described: {'; '.join(notes)}")
    fields = [
        {"name": name, "type": str(kind), **({"required": True} if seen.members[name].count == len(rows) else {})}
        for name, kind in known.items()
    ]
    keeps = len(known) < len(kinds) or any("is kept in _extra" in note for note in notes)
    return Proposal(len(rows), fields, _checks(rows, known, seen.members), notes, keeps)


def _rows(lines: Iterable[bytes]) -> tuple[list[dict[str, Any]], int]:
    rows, broken = [], 0
    for line in lines:
        try:
            row = read_row(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            broken += 1
    return rows, broken


def _shape(value: Any) -> str:
    if isinstance(value, bool):
        return "truth"
    if isinstance(value, int | Fraction):
        return "number"
    if isinstance(value, list):
        return "array"
    return "object" if isinstance(value, dict) else "text"


def _is_misnamed(name: str, path: str, notes: list[str], reserved: Sequence[str] = ()) -> bool:
    if _NAME.fullmatch(name) and name not in reserved:
        return False
    notes.append(f"{path!r} cannot name a field; it is kept in _extra")
    return True


def _described(seen: _Seen, path: str, notes: list[str], depth: int) -> Kind | None:
    """Return the type of the values; None, and a note, if no type fits."""
    if not seen.count:
        notes.append(f"{path} never has a value; string is a guess")
        return Simple("string")
    if len(seen.shapes) > 1:
        mixed = " and ".join(_NOUNS[shape] for shape in sorted(seen.shapes))
        notes.append(f"{path} mixes {mixed}; it is kept in _extra")
        return None
    [shape] = seen.shapes
    if shape in _OF_SHAPE:
        found = next((kind for kind in _OF_SHAPE[shape] if seen.fits[str(kind)]), None)
    else:
        found = _nested(seen, path, notes, depth)
    if found is None:
        notes.append(f"{path} has values that no type can read; it is kept in _extra")
    return found


def _nested(seen: _Seen, path: str, notes: list[str], depth: int) -> Kind | None:
    if depth >= _MAX_DEPTH:
        return None
    if seen.element is not None:
        element = _described(seen.element, f"{path}[]", notes, depth + 1) if seen.element.count else Simple("string")
        return None if element is None else ArrayOf(element)
    members = [
        (name, _described(part, f"{path}.{name}", notes, depth + 1))
        for name, part in seen.members.items()
        if not _is_misnamed(name, f"{path}.{name}", notes)
    ]
    known = tuple((name, kind) for name, kind in members if kind is not None)
    return StructOf(known) if known else None


def _checks(
    rows: Sequence[Mapping[str, Any]], kinds: Mapping[str, Kind], seen: Mapping[str, _Seen]
) -> list[dict[str, Any]]:
    key = _key(rows, kinds, seen)
    checks: list[dict[str, Any]] = [{"unique": list(key)}] if key else []
    checks += [
        {"range": {"field": name, "min": 0}}
        for name, kind in kinds.items()
        if str(kind) in ("long", "double") and not seen[name].negative and not _is_id(name)
    ]
    return [*checks, {"rows": {"min": 1}}, {"shrink": {"max_drop": 0.5}}]


def _key(
    rows: Sequence[Mapping[str, Any]], kinds: Mapping[str, Kind], seen: Mapping[str, _Seen]
) -> tuple[str, ...] | None:
    """Return a field, else two fields, whose values do not repeat; ids are preferred. None for a single row, which
    proves nothing."""
    if len(rows) < 2:
        return None
    full = [name for name, kind in kinds.items() if seen[name].count == len(rows) and _can_be_key(name, kind)]
    full.sort(key=lambda name: not _is_id(name))
    for names in [*((name,) for name in full), *combinations(full[:_MAX_KEY_FIELDS], 2)]:
        if len({tuple(row[name] for name in names) for row in rows}) == len(rows):
            return names
    return None


def _can_be_key(name: str, kind: Kind) -> bool:
    """Numbers other than ids are excluded: their values may differ by chance."""
    return str(kind) in ("string", "date", "timestamp") or (str(kind) == "long" and _is_id(name))


def _is_id(name: str) -> bool:
    return name == "id" or name.endswith(("_id", "_key", "_number"))
