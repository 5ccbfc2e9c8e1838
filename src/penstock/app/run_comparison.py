"""Compares the rows of two runs of a partition: which rows were added, removed and changed.

Rows are JSON lines. With key fields, a removed and an added row with the same key are one changed row. Without them,
rows are compared as a whole. Neither the order of lines nor the order of fields in a row matters. Numbers are compared
exactly and by value: 1 and 1.0 are equal, and no digit is lost.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

UNPARSED = "(line)"  # the only field of a line that is no JSON object
_LONGEST_PLAIN = 40  # digits of a whole number that is written without an exponent


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A row that was added (without `left`), removed (without `right`) or changed. Values are JSON texts by field."""

    left: Mapping[str, str] | None
    right: Mapping[str, str] | None
    changed_fields: tuple[str, ...]  # of a changed row: the fields with other values; otherwise empty

    @property
    def kind(self) -> str:
        return "added" if self.left is None else "removed" if self.right is None else "changed"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences of two runs: the totals of all, and the first of them in the order of their keys."""

    key: tuple[str, ...]  # the fields that identify a row; empty if rows are compared as a whole
    same: int
    added: int
    removed: int
    changed: int
    rows: Sequence[RowDifference]

    @property
    def different(self) -> int:
        return self.added + self.removed + self.changed

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of the listed rows: first the key, then the others in the order of the rows."""
        named = [name for row in self.rows for name in (*(row.left or ()), *(row.right or ()))]
        first = [name for name in self.key if name in set(named)]
        return tuple(dict.fromkeys((*first, *named)))


class _Line(NamedTuple):
    """A line, a text that is equal for equal rows, and the key of the row."""

    content: bytes
    canonical: str
    key: tuple[str, ...] | None  # None if the row lacks a field of the key

    @property
    def order(self) -> tuple[Any, ...]:
        return (self.key is None, [(len(text), text) for text in self.key or ()], self.canonical, self.content)


def compare_lines(
    left: Iterable[bytes], right: Iterable[bytes], key: Sequence[str] = (), limit: int | None = None
) -> Comparison:
    """Compare the rows of two runs. `key` names the fields that identify a row; a row that lacks one of them is
    compared as a whole. Returns at most `limit` differences. Only lines that differ are parsed."""
    waiting = Counter(left)
    only_right: Counter[bytes] = Counter()
    same = 0
    for line in right:
        if waiting[line] > 0:
            waiting[line] -= 1
            same += 1
        else:
            only_right[line] += 1
    removed, added, more = _without_equal(_parsed(+waiting, key), _parsed(only_right, key))
    changed, removed, added = _paired(removed, added)
    found: list[tuple[_Line | None, _Line | None]] = [*changed, *((one, None) for one in removed)]
    found += [(None, one) for one in added]
    found.sort(key=lambda pair: min(one.order for one in pair if one is not None))
    rows = [_difference(*pair) for pair in found[:limit]]
    return Comparison(tuple(key), same + more, len(added), len(removed), len(changed), rows)


def _parsed(lines: Mapping[bytes, int], key: Sequence[str]) -> list[_Line]:
    return [one for line, count in lines.items() for one in [_line(line, key)] * count]


def _line(content: bytes, key: Sequence[str]) -> _Line:
    values = {name: _canonical(value) for name, value in row_of(content).items()}
    whole = "{" + ", ".join(f"{_quoted(name)}: {values[name]}" for name in sorted(values)) + "}"
    has_key = bool(key) and all(name in values for name in key)
    return _Line(content, whole, tuple(values[name] for name in key) if has_key else None)


def row_of(content: bytes) -> dict[str, Any]:
    """The fields of a line. A line that is no JSON object is a row with the one field `UNPARSED`."""
    try:
        row = json.loads(content, parse_float=Decimal, parse_constant=_refuse)
        _canonical(row)  # a value that is nested too deeply cannot be compared
    except (ValueError, ArithmeticError, RecursionError):
        row = None
    return row if isinstance(row, dict) else {UNPARSED: content.decode("utf-8", "backslashreplace")}


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


def _without_equal(left: Iterable[_Line], right: Iterable[_Line]) -> tuple[list[_Line], list[_Line], int]:
    """The rows that only one side has, and the number of rows that both have although their lines differ."""
    old, new = _by_canonical(left), _by_canonical(right)
    both = {text: min(len(old[text]), len(new[text])) for text in old.keys() & new.keys()}
    removed = [row for text, rows in old.items() for row in rows[both.get(text, 0) :]]
    added = [row for text, rows in new.items() for row in rows[both.get(text, 0) :]]
    return removed, added, sum(both.values())


def _by_canonical(rows: Iterable[_Line]) -> dict[str, list[_Line]]:
    found: dict[str, list[_Line]] = {}
    for row in sorted(rows, key=lambda row: row.content):
        found.setdefault(row.canonical, []).append(row)
    return found


def _paired(
    removed: Sequence[_Line], added: Sequence[_Line]
) -> tuple[list[tuple[_Line, _Line]], list[_Line], list[_Line]]:
    """Removed and added rows of the same key as pairs, and the rows without a partner. If a key repeats, its rows are
    paired in the order of their values, so that the result does not depend on the order of lines."""
    old, new = _by_key(removed), _by_key(added)
    pairs: list[tuple[_Line, _Line]] = []
    single_old, single_new = old.pop(None, []), new.pop(None, [])
    for key, rows in old.items():
        others = new.pop(key, [])
        pairs += zip(rows, others, strict=False)
        single_old += rows[len(others) :]
        single_new += others[len(rows) :]
    return pairs, single_old, single_new + [row for rows in new.values() for row in rows]


def _by_key(rows: Iterable[_Line]) -> dict[tuple[str, ...] | None, list[_Line]]:
    found: dict[tuple[str, ...] | None, list[_Line]] = {}
    for row in sorted(rows, key=lambda row: (row.canonical, row.content)):
        found.setdefault(row.key, []).append(row)
    return found


def _difference(left: _Line | None, right: _Line | None) -> RowDifference:
    old = None if left is None else row_of(left.content)
    new = None if right is None else row_of(right.content)
    changed: tuple[str, ...] = ()
    if old is not None and new is not None:
        names = dict.fromkeys((*old, *new))
        changed = tuple(n for n in names if n not in old or n not in new or _canonical(old[n]) != _canonical(new[n]))
    return RowDifference(_texts(old), _texts(new), changed)


def _texts(row: Mapping[str, Any] | None) -> dict[str, str] | None:
    return None if row is None else {name: json_text(value) for name, value in row.items()}


def _canonical(value: Any) -> str:
    """A text that is equal for equal JSON values."""
    match value:
        case dict():
            return "{" + ", ".join(f"{_quoted(name)}: {_canonical(value[name])}" for name in sorted(value)) + "}"
        case list():
            return "[" + ", ".join(map(_canonical, value)) + "]"
        case bool() | str() | None:
            return _quoted(value)
        case _:
            return _canonical_number(value)


def _canonical_number(value: int | Decimal) -> str:
    sign, digits, exponent = Decimal(value).as_tuple()
    assert isinstance(exponent, int)  # constants such as NaN are refused
    text = "".join(map(str, digits)).lstrip("0")
    significant = text.rstrip("0")
    if not significant:
        return "0"
    exponent += len(text) - len(significant)
    minus = "-" if sign else ""
    if exponent >= 0 and len(significant) + exponent <= _LONGEST_PLAIN:
        return f"{minus}{significant}{'0' * exponent}"
    return f"{minus}{significant}e{exponent}"


def json_text(value: Any) -> str:
    """A value as JSON. Numbers keep their digits."""
    match value:
        case dict():
            return "{" + ", ".join(f"{_quoted(name)}: {json_text(inner)}" for name, inner in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(json_text, value)) + "]"
        case Decimal():
            return str(value)
        case _:
            return _quoted(value)


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
