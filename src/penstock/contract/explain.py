"""The slow, patient reading of a payload that did not parse: line by line, it says everything that is wrong.

Python row by row on purpose: only payloads that the fast parser refused come here.
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

_MOST = 100  # different complaints about one payload; who has more reads the first of them first


class _Findings:
    """Complaints by what they are about, each with its count and first example."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], list[Any]] = {}

    def add(self, check: str, message: str, line: int, example: bytes) -> None:
        about = (check, message)
        if about not in self._found and len(self._found) >= _MOST:
            about = ("more", f"more than {_MOST} different complaints, only the first are listed")
        entry = self._found.setdefault(about, [0, line, example])
        entry[0] += 1

    def complaints(self) -> list[Complaint]:
        return [
            Complaint(check, message, count, line, _shown(example))
            for (check, message), (count, line, example) in self._found.items()
        ]


def explain(lines: Iterable[bytes], contract: Contract, first_line: int = 1) -> list[Complaint]:
    """Every way in which these lines are not rows of the contract."""
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
    """One line as strict JSON: UTF-8, no byte order mark, no field twice, no NaN; numbers as they are written."""
    text = line.decode("utf-8")
    if text.startswith("\ufeff"):
        raise ValueError("Unexpected UTF-8 BOM")
    return _STRICT.decode(text)


class _RowExaminer:
    """Holds rows against the contract. Its policies hold inside structs as they do outside."""

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
                self._add("unknown_fields", f"what is not in the contract cannot be kept: {error}")

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
        """The path says `items[]` for whichever element, so that a thousand wrong ones are one complaint."""
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
