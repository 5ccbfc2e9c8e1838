"""The rules that a contract lays on single rows and on keys, in the order in which complaints name them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.contract.contract import Contract
from penstock.settings import Allowed, Expression, Range, Required, Unique


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


@dataclass(frozen=True, slots=True)
class UniqueRule:
    """A set of fields that must not repeat inside a slice."""

    name: str
    message: str
    fields: tuple[str, ...]


def row_rules(contract: Contract) -> list[Rule]:
    """Every condition on single rows, required fields first."""
    required = [_required(field.name) for field in contract.fields if field.required]
    return [*required, *(rule for declared in contract.checks for rule in _rules(declared))]


def unique_rules(contract: Contract) -> list[UniqueRule]:
    return [
        UniqueRule(
            check.name or f"unique({', '.join(check.fields)})", f"{_said(check.fields)} is not unique", check.fields
        )
        for check in contract.checks
        if isinstance(check, Unique)
    ]


def _rules(check: object) -> Iterator[Rule]:
    match check:
        case Required():
            yield from (_required(name) for name in check.fields)
        case Expression():
            yield Rule(check.name or f"expression({check.expression})", f"not ({check.expression})", check)
        case Range():
            limits = " and ".join(
                f"{word} {value}"
                for word, value in (("at least", check.min), ("at most", check.max))
                if value is not None
            )
            yield Rule(check.name or f"range({check.field})", f"{check.field} is not {limits}", check)
        case Allowed():
            values = ", ".join(str(value) for value in check.values)
            yield Rule(check.name or f"allowed({check.field})", f"{check.field} is not one of {values}", check)


def _required(name: str) -> Rule:
    return Rule(f"required({name})", f"{name} is missing", NotNull(name))


def _said(fields: tuple[str, ...]) -> str:
    return fields[0] if len(fields) == 1 else f"({', '.join(fields)})"
