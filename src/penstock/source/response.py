"""Parses one page of a response in a single pass, and keeps each record as the received text."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import orjson

from penstock.errors import DataError

Trail = tuple[str, ...]

_SPACE = re.compile(r"[ \t\n\r]*")
# For parts whose numbers are not used: they may have any length.
_UNTYPED = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)


def trail(dotted: str) -> Trail:
    """The names of a dotted path such as `data.items`; the empty path is the document itself."""
    return tuple(dotted.split(".")) if dotted else ()


class Record(NamedTuple):
    """A record: the text that was received, and its parsed value, with numbers as text."""

    text: str
    value: Any

    def line(self, without: str | None = None) -> bytes:
        """One line of JSON, without the field `without`. The other fields keep all their digits; a record that would
        change is passed on whole, and the validator rejects it."""
        if without is not None and isinstance(self.value, dict) and without in self.value:
            try:
                row = self.exact()
                del row[without]
                return orjson.dumps(row)
            except (ValueError, TypeError):
                pass
        # in valid JSON line breaks occur only between values
        return self.text.replace("\n", " ").encode()

    def exact(self) -> Any:
        """The value with numbers as fragments of JSON that keep all their digits. Raises ValueError if a field occurs
        twice."""
        return _EXACT.decode(self.text)

    @classmethod
    def of_line(cls, line: bytes) -> Record:
        """The record of one line of JSON. Raises DataError if it is not JSON."""
        try:
            text = line.decode("utf-8")
            return cls(text, _UNTYPED.decode(text))
        except (ValueError, RecursionError) as error:
            raise DataError(f"is not valid JSON: {error}") from error


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        raise ValueError("a field occurs twice")
    return row


_EXACT = json.JSONDecoder(
    parse_int=orjson.Fragment,
    parse_float=orjson.Fragment,
    parse_constant=orjson.Fragment,
    object_pairs_hook=_unrepeated,
)


class ResponsePage:
    """The list at the path `records`, and the value at the path `also`, for example the cursor of the next page. Raises
    DataError if there is no list, unless it `is_optional`."""

    def __init__(self, text: str, records: Trail, also: Trail | None = None, *, is_optional: bool = False) -> None:
        self._text = text
        self._wanted = records
        self._also = also
        self._has_list = False
        self.records: list[Record] = []
        self.also: Any = None
        try:
            end = self._value(self._skip(0), ())
        except RecursionError as error:
            raise DataError("is nested too deeply") from error
        except ValueError as error:
            raise DataError(f"is not valid JSON: {error}") from error
        if self._skip(end) != len(text):
            raise DataError(f"is not valid JSON: something follows its end at character {end + 1}")
        if not self._has_list and not is_optional:
            raise DataError(f"has no list at {self._place}")

    @property
    def _place(self) -> str:
        return ".".join(self._wanted) or "its top"

    def _value(self, at: int, where: Trail) -> int:
        """Parse the value that begins at `at`, and return its end."""
        if where == self._wanted:
            return self._list(at)
        if where == self._wanted[: len(where)] and self._text.startswith("{", at):
            return self._object(at, where)
        value, end = _UNTYPED.raw_decode(self._text, at)
        if self._also is not None and where == self._also[: len(where)]:
            self.also = inside(value, self._also[len(where) :])
        return end

    def _object(self, at: int, where: Trail) -> int:
        at = self._skip(at + 1)
        if self._text.startswith("}", at):
            return at + 1
        while True:
            if not self._text.startswith('"', at):
                raise json.JSONDecodeError("expected the name of a field", self._text, at)
            name, at = _UNTYPED.raw_decode(self._text, at)
            at = self._skip(self._after(":", self._skip(at)))
            at = self._skip(self._value(at, (*where, name)))
            if not self._text.startswith(",", at):
                return self._after("}", at)
            at = self._skip(at + 1)

    def _list(self, at: int) -> int:
        if self._has_list:
            raise DataError(f"has two lists at {self._place}")
        if not self._text.startswith("[", at):
            raise DataError(f"has no list at {self._place}, but something else")
        self._has_list = True
        at = self._skip(at + 1)
        if self._text.startswith("]", at):
            return at + 1
        while True:
            value, end = _UNTYPED.raw_decode(self._text, at)
            self.records.append(Record(self._text[at:end], value))
            at = self._skip(end)
            if not self._text.startswith(",", at):
                return self._after("]", at)
            at = self._skip(at + 1)

    def _skip(self, at: int) -> int:
        if not self._text[at : at + 1].isspace():
            return at
        found = _SPACE.match(self._text, at)
        return found.end() if found else at

    def _after(self, mark: str, at: int) -> int:
        if not self._text.startswith(mark, at):
            raise json.JSONDecodeError(f"expected {mark!r}", self._text, at)
        return at + 1


def inside(value: Any, where: Trail) -> Any:
    """The value at a path; a number is a place in a list. None if there is none."""
    for name in where:
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isdecimal() and len(name) < 10 and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value
