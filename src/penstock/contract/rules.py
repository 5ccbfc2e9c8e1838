"""The rules that a contract lays on single rows and on keys, in the order in which complaints name them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.config.checks import Allowed, Expression, Range, Required, Severity, Unique
from penstock.contract.contract import Contract


@dataclass(frozen=True, slots=True)
class NotNull:
    """The field must be there."""

    field: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A name and words for people, and what each row must satisfy."""

    name: str
    message: str
    condition: NotNull | Expression | Range | Allowed
    severity: Severity = "reject"


@dataclass(frozen=True, slots=True)
class UniqueRule:
    """A set of fields that must not repeat inside a slice."""

    name: str
    message: str
    fields: tuple[str, ...]
    severity: Severity = "reject"


def row_rules(contract: Contract) -> list[Rule]:
    """Every condition on single rows, required fields first."""
    required = [_required(field.name) for field in contract.fields if field.required]
    return [*required, *(rule for declared in contract.checks for rule in _rules(declared))]


def unique_rules(contract: Contract) -> list[UniqueRule]:
    return [
        UniqueRule(
            check.name or f"unique({', '.join(check.fields)})",
            f"{said(check.fields)} is not unique",
            check.fields,
            check.severity,
        )
        for check in contract.checks
        if isinstance(check, Unique)
    ]


def _rules(check: object) -> Iterator[Rule]:
    match check:
        case Required():
            yield from (_required(name, check.severity) for name in check.fields)
        case Expression():
            name = check.name or f"expression({check.expression})"
            yield Rule(name, f"not ({check.expression})", check, check.severity)
        case Range():
            limits = " and ".join(
                f"{word} {value}"
                for word, value in (("at least", check.min), ("at most", check.max))
                if value is not None
            )
            yield Rule(check.name or f"range({check.field})", f"{check.field} is not {limits}", check, check.severity)
        case Allowed():
            values = ", ".join(str(value) for value in check.values)
            words = f"{check.field} is not one of {values}"
            yield Rule(check.name or f"allowed({check.field})", words, check, check.severity)


def _required(name: str, severity: Severity = "reject") -> Rule:
    return Rule(f"required({name})", f"{name} is missing", NotNull(name), severity)


def said(fields: tuple[str, ...]) -> str:
    return fields[0] if len(fields) == 1 else f"({', '.join(fields)})"
