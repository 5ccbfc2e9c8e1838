"""The types of fields: how they are written, and which JSON values can be read as them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any

from penstock import partition
from penstock.errors import UsageError

SIMPLE = ("long", "double", "string", "boolean", "date", "timestamp")
WRITTEN = (*SIMPLE, "decimal(p,s)", "array<T>", "struct<name: T, ...>")

_DEEPEST = 16
_LONG = 2**63
_TOKEN = re.compile(r"\s*(\w+|[<>(),:])")
# What both Arrow and Python understand: no week dates, no more digits than microseconds have.
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}(:\d{2}(:\d{2}(\.\d{1,6})?)?)?(Z|[+-]\d{2}(:?\d{2})?)?)?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


class Fraction(str):
    """A JSON number with a fraction or exponent, kept as it is written: a float would change it."""


@dataclass(frozen=True, slots=True)
class Simple:
    """A type that is only a name."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class DecimalOf:
    """Exact numbers of so many digits, of which `scale` stand after the point."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """Any number of values of one type, in their order."""

    element: Kind

    def __str__(self) -> str:
        return f"array<{self.element}>"


@dataclass(frozen=True, slots=True)
class StructOf:
    """Named values, each of its own type."""

    members: tuple[tuple[str, Kind], ...]

    def __str__(self) -> str:
        return f"struct<{', '.join(f'{name}: {kind}' for name, kind in self.members)}>"


Kind = Simple | DecimalOf | ArrayOf | StructOf


@cache
def kind_of(text: str) -> Kind:
    """The type that a contract writes like this; ValueError says what is wrong with it."""
    reading = _Reading(text)
    found = reading.kind(1)
    reading.end()
    return found


def is_nested(text: str) -> bool:
    return isinstance(kind_of(text), ArrayOf | StructOf)


class UnknownType(ValueError):
    """A text that is not a type."""


class _Reading:
    """One type, read word by word."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._words = _TOKEN.findall(text)
        if "".join(self._words) != re.sub(r"\s", "", text):
            raise UnknownType(f"{text!r} is not a type")
        self._at = 0

    def kind(self, depth: int) -> Kind:
        word = self._take()
        if depth > _DEEPEST:
            raise ValueError(f"{self._text!r} is nested more than {_DEEPEST} levels deep")
        if word in SIMPLE:
            return Simple(word)
        if word == "decimal":
            return self._decimal()
        if word == "array":
            self._expect("<")
            element = self.kind(depth + 1)
            self._expect(">")
            return ArrayOf(element)
        if word == "struct":
            return self._struct(depth)
        raise UnknownType(f"{self._text!r} is not a type")

    def end(self) -> None:
        if self._at < len(self._words):
            raise UnknownType(f"{self._text!r} is not a type")

    def _decimal(self) -> DecimalOf:
        self._expect("(")
        precision = self._number()
        self._expect(",")
        scale = self._number()
        self._expect(")")
        if not (1 <= precision <= 38 and scale <= precision):
            raise ValueError(f"{self._text!r} is not possible: decimal(p,s) needs 1 <= p <= 38 and 0 <= s <= p")
        return DecimalOf(precision, scale)

    def _struct(self, depth: int) -> StructOf:
        self._expect("<")
        members: dict[str, Kind] = {}
        while True:
            name = self._name()
            if name in members:
                raise ValueError(f"{name!r} stands twice in one struct of {self._text!r}")
            self._expect(":")
            members[name] = self.kind(depth + 1)
            if self._peek() != ",":
                break
            self._take()
        self._expect(">")
        return StructOf(tuple(members.items()))

    def _name(self) -> str:
        try:
            return partition.name(self._take())
        except UsageError as error:
            raise ValueError(f"in {self._text!r}: {error}") from None

    def _number(self) -> int:
        word = self._take()
        if not re.fullmatch("[0-9]{1,2}", word):
            raise UnknownType(f"{self._text!r} is not a type")
        return int(word)

    def _peek(self) -> str:
        return self._words[self._at] if self._at < len(self._words) else ""

    def _take(self) -> str:
        word = self._peek()
        self._at += 1
        return word

    def _expect(self, word: str) -> None:
        if self._take() != word:
            raise UnknownType(f"{self._text!r} is not a type")


@cache
def reader(kind: Kind) -> Callable[[Any], bool]:
    """Whether a JSON value can be read as this type, null left aside. What is inside arrays and structs counts, too."""
    match kind:
        case ArrayOf(element):
            inside = reader(element)
            return lambda v: isinstance(v, list) and all(item is None or inside(item) for item in v)
        case StructOf(members):
            known = {name: reader(member) for name, member in members}
            return lambda v: (
                isinstance(v, dict)
                and all(item is None or (name in known and known[name](item)) for name, item in v.items())
            )
        case DecimalOf():
            return lambda v: (_is_number(v) or type(v) is str) and _fits(kind, v)
        case Simple(name):
            return _SIMPLE_READERS[name]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Fraction) and not isinstance(value, bool)


def _is_long(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_LONG <= value < _LONG


def _is_double(value: Any) -> bool:
    try:
        return _is_number(value) and math.isfinite(float(value))
    except OverflowError:
        return False


def _is_text(value: Any) -> bool:
    """Half of a surrogate pair is a string to Python, but to nobody else."""
    if type(value) is not str:
        return False
    try:
        return value.isascii() or bool(value.encode("utf-8"))
    except UnicodeEncodeError:
        return False


def _is_date(value: Any) -> bool:
    return type(value) is str and bool(_DATE.fullmatch(value)) and _parses(date.fromisoformat, value)


def _is_timestamp(value: Any) -> bool:
    return type(value) is str and bool(_TIME.fullmatch(value)) and _parses(moment, value)


def moment(text: str) -> datetime:
    """The moment that a timestamp names, in UTC; without an offset it is meant so."""
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


_SIMPLE_READERS: dict[str, Callable[[Any], bool]] = {
    "long": _is_long,
    "double": _is_double,
    "string": _is_text,
    "boolean": lambda value: isinstance(value, bool),
    "date": _is_date,
    "timestamp": _is_timestamp,
}


def _fits(kind: DecimalOf, value: Any) -> bool:
    try:
        number = Decimal(str(value))
        exponent = int(number.as_tuple().exponent)
    except (InvalidOperation, ValueError):
        return False
    return -exponent <= kind.scale and len(number.as_tuple().digits) + exponent <= kind.precision - kind.scale


def _parses(parse: Callable[[str], Any], text: str) -> bool:
    try:
        parse(text)
    except (ValueError, OverflowError):  # a moment so near the end of time that it has no place in UTC
        return False
    return True
