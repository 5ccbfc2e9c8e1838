"""The slow, patient reading of a payload that did not parse: line by line, it says everything that is wrong.

Python row by row on purpose: only payloads that the fast parser refused come here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from penstock.contract.complaint import Complaint, shortened
from penstock.contract.contract import Contract
from penstock.contract.schema import arrow_type, in_words

_LONG = 2**63


class _Findings:
    """Complaints by what they are about, each with its count and first example."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], list[Any]] = {}

    def add(self, check: str, message: str, line: int, example: bytes) -> None:
        entry = self._found.setdefault((check, message), [0, line, example])
        entry[0] += 1

    def complaints(self) -> list[Complaint]:
        return [
            Complaint(check, message, count, line, _shown(example))
            for (check, message), (count, line, example) in self._found.items()
        ]


def explain(lines: Iterable[bytes], contract: Contract, first_line: int = 1) -> list[Complaint]:
    """Every way in which these lines are not rows of the contract."""
    findings = _Findings()
    kinds = {field.name: (field.type, _reader(field.type)) for field in contract.fields}
    for number, line in enumerate(lines, start=first_line):
        try:
            row = read_row(line)
        except (ValueError, RecursionError) as error:
            findings.add("json", f"not valid JSON ({_reason(error)})", number, line)
            continue
        if not isinstance(row, dict):
            findings.add("json", "not a JSON object", number, line)
            continue
        _check_row(row, number, line, contract, kinds, findings)
    return findings.complaints()


class Fraction(str):
    """A JSON number with a fraction or exponent, kept as it is written: a float would change it."""


def read_row(line: bytes) -> Any:
    """One line as strict JSON: UTF-8, no byte order mark, no field twice, no NaN; numbers as they are written."""
    return json.loads(
        line.decode("utf-8"), object_pairs_hook=_unique_keys, parse_constant=_no_constant, parse_float=Fraction
    )


def _check_row(
    row: dict[str, Any],
    number: int,
    line: bytes,
    contract: Contract,
    kinds: dict[str, tuple[str, Callable[[Any], bool]]],
    findings: _Findings,
) -> None:
    for name, value in row.items():
        if name not in kinds:
            if contract.unknown_fields == "reject":
                findings.add("unknown_fields", f"field {shortened(name)!r} is not in the contract", number, line)
        elif value is not None and not kinds[name][1](value):
            findings.add("type", f"{name} is not {in_words(kinds[name][0])}", number, line)
    if contract.missing_fields == "reject":
        for name in kinds:
            if name not in row:
                findings.add("missing_fields", f"field {name!r} is missing", number, line)


def _reader(kind: str) -> Callable[[Any], bool]:
    """Whether a JSON value can be read as this type."""
    match kind:
        case "long":
            return lambda v: isinstance(v, int) and not isinstance(v, bool) and -_LONG <= v < _LONG
        case "double":
            return lambda v: _is_number(v) and _is_finite(v)
        case "string":
            return lambda v: type(v) is str and _is_text(v)
        case "boolean":
            return lambda v: isinstance(v, bool)
        case "date":
            return lambda v: type(v) is str and _parses(date.fromisoformat, v) and len(v) == len("2024-06-01")
        case "timestamp":
            return lambda v: type(v) is str and _parses(datetime.fromisoformat, v)
        case _:
            return lambda v: (_is_number(v) or type(v) is str) and _fits(kind, v)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | Fraction) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _is_text(value: str) -> bool:
    """Half of a surrogate pair is a string to Python, but to nobody else."""
    try:
        return value.isascii() or bool(value.encode("utf-8"))
    except UnicodeEncodeError:
        return False


def _fits(kind: str, value: Any) -> bool:
    wanted = arrow_type(kind)
    try:
        number = Decimal(str(value))
        exponent = int(number.as_tuple().exponent)
    except (InvalidOperation, ValueError):
        return False
    return bool(
        -exponent <= wanted.scale and len(number.as_tuple().digits) + exponent <= wanted.precision - wanted.scale
    )


def _parses(parse: Callable[[str], Any], text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        raise ValueError("a field stands twice in one row")
    return row


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def _shown(line: bytes) -> str:
    return shortened(line.decode("utf-8", "backslashreplace"))
