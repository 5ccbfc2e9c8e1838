"""Explains why a payload does not parse: reads it line by line and returns every complaint.

It parses row by row in Python, which is slow. Only payloads that the Arrow parser refused are read here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.contract.complaint import Complaint, shortened
from penstock.contract.contract import Contract
from penstock.contract.extra import extra_text
from penstock.contract.schema import describe_type
from penstock.field_types import ArrayOf, Fraction, Kind, StructOf, reader

_MAX_COMPLAINTS = 100  # different complaints about one payload; further ones are only counted


class _Findings:
    """Complaints by check and message, each with its count and first example."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], list[Any]] = {}

    def add(self, check: str, message: str, line: int, example: bytes) -> None:
        about = (check, message)
        if about not in self._found and len(self._found) >= _MAX_COMPLAINTS:
            about = ("more", f"more than {_MAX_COMPLAINTS} different complaints, only the first are listed")
        entry = self._found.setdefault(about, [0, line, example])
        entry[0] += 1

    def complaints(self) -> list[Complaint]:
        return [
            Complaint(check, message, count, line, _shown(example))
            for (check, message), (count, line, example) in self._found.items()
        ]


def explain(lines: Iterable[bytes], contract: Contract, first_line: int = 1) -> list[Complaint]:
    """Return a complaint for each way in which the lines violate the schema of the contract."""
    findings = _Findings()
    examiner = _RowExaminer(contract, findings)
    for number, line in enumerate(lines, start=first_line):
        try:
            row = read_row(line)
            if isinstance(row, dict):
                examiner.examine(row, number, line)
            else:
                findings.add("json", "not a JSON object", number, line)
        except (ValueError, RecursionError) as error:
            findings.add("json", f"not valid JSON ({_reason(error)})", number, line)
    return findings.complaints()


def read_row(line: bytes) -> Any:
    """Parse one line as strict JSON. Raises ValueError for text that is not UTF-8, a byte order mark, a repeated field
    or NaN. Numbers keep their digits."""
    text = line.decode("utf-8")
    if text.startswith("\ufeff"):
        raise ValueError("Unexpected UTF-8 BOM")
    return _STRICT.decode(text)


class _RowExaminer:
    """Compares rows with the schema of the contract. Its policies apply inside structs as well."""

    def __init__(self, contract: Contract, findings: _Findings) -> None:
        self._contract = contract
        self._kinds = contract.kinds
        self._optional = set(contract.defaults)
        self._findings = findings
        self._place = (0, b"")

    def examine(self, row: Mapping[str, Any], number: int, line: bytes) -> None:
        self._place = (number, line)
        self._members(self._kinds, row, "", self._optional)
        if self._contract.unknown_fields == "keep":
            try:
                extra_text(row, self._kinds)
            except ValueError as error:
                self._add("unknown_fields", f"unknown fields cannot be kept: {error}")

    def _add(self, check: str, message: str) -> None:
        self._findings.add(check, message, *self._place)

    def _members(
        self, kinds: Mapping[str, Kind], row: Mapping[str, Any], path: str, optional: Iterable[str] = ()
    ) -> None:
        for name, value in row.items():
            if name in kinds:
                self._value(kinds[name], value, f"{path}{name}")
            elif self._contract.unknown_fields == "reject":
                self._add("unknown_fields", f"field {shortened(path + name)!r} is not in the contract")
        if self._contract.missing_fields == "reject":
            for name in kinds:
                if name not in row and name not in optional:
                    self._add("missing_fields", f"field {path + name!r} is missing")

    def _value(self, kind: Kind, value: Any, path: str) -> None:
        """The path of every element is `items[]`, so that a thousand wrong elements are one complaint."""
        match kind:
            case _ if value is None:
                return
            case ArrayOf(element) if isinstance(value, list):
                for item in value:
                    self._value(element, item, f"{path}[]")
            case StructOf(members) if isinstance(value, dict):
                self._members(dict(members), value, f"{path}.")
            case _ if isinstance(kind, ArrayOf | StructOf) or not reader(kind)(value):
                self._add("type", f"{path} is not {describe_type(kind)}")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        raise ValueError("a field stands twice in one row")
    return row


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


_STRICT = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_no_constant, parse_float=Fraction)


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def _shown(line: bytes) -> str:
    return shortened(line.decode("utf-8", "backslashreplace"))
