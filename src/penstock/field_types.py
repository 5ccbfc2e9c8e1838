"""Field types: their notation in contracts, and which JSON values are valid for them."""

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
# The subset that both Arrow and Python parse: no week dates, no more digits than microseconds have.
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}(:\d{2}(:\d{2}(\.\d{1,6})?)?)?(Z|[+-]\d{2}(:?\d{2})?)?)?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


class Fraction(str):
    """A JSON number with a fraction or exponent, kept as text: a float would change its value."""


@dataclass(frozen=True, slots=True)
class Simple:
    """A type that is only a name."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class DecimalOf:
    """Exact numbers with `precision` digits, `scale` of them after the point."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """A list of values of one type."""

    element: Kind

    def __str__(self) -> str:
        return f"array<{self.element}>"


@dataclass(frozen=True, slots=True)
class StructOf:
    """Named values, each with its own type."""

    members: tuple[tuple[str, Kind], ...]

    def __str__(self) -> str:
        return f"struct<{', '.join(f'{name}: {kind}' for name, kind in self.members)}>"


Kind = Simple | DecimalOf | ArrayOf | StructOf


@cache
def kind_of(text: str) -> Kind:
    """Parse a type as contracts write it. Raises ValueError with the reason."""
    reading = _Parser(text)
    found = reading.kind(1)
    reading.end()
    return found


def is_nested(text: str) -> bool:
    return isinstance(kind_of(text), ArrayOf | StructOf)


class UnknownType(ValueError):
    """A text that is not a type."""


class _Parser:
    """A parser for one type, token by token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _TOKEN.findall(text)
        if "".join(self._tokens) != re.sub(r"\s", "", text):
            raise UnknownType(f"{text!r} is not a type")
        self._at = 0

    def kind(self, depth: int) -> Kind:
        token = self._take()
        if depth > _DEEPEST:
            raise ValueError(f"{self._text!r} is nested more than {_DEEPEST} levels deep")
        if token in SIMPLE:
            return Simple(token)
        if token == "decimal":
            return self._decimal()
        if token == "array":
            self._expect("<")
            element = self.kind(depth + 1)
            self._expect(">")
            return ArrayOf(element)
        if token == "struct":
            return self._struct(depth)
        raise UnknownType(f"{self._text!r} is not a type")

    def end(self) -> None:
        if self._at < len(self._tokens):
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
                raise ValueError(f"{name!r} occurs twice in one struct of {self._text!r}")
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
        token = self._take()
        if not re.fullmatch("[0-9]{1,2}", token):
            raise UnknownType(f"{self._text!r} is not a type")
        return int(token)

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _expect(self, token: str) -> None:
        if self._take() != token:
            raise UnknownType(f"{self._text!r} is not a type")


@cache
def reader(kind: Kind) -> Callable[[Any], bool]:
    """Return a predicate: whether a JSON value other than null is valid for this type, elements and fields included."""
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
    """Whether the text is valid UTF-8: Python allows half of a surrogate pair in a string, UTF-8 does not."""
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
    """Parse a timestamp as UTC; one without an offset is taken as UTC."""
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
    except (ValueError, OverflowError):  # out of the range of `datetime` in UTC
        return False
    return True
