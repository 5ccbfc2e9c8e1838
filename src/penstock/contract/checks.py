"""Checks as pure functions: a column that is true where a row breaks the check. Spark evaluates all in one pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from pyspark.sql import Column
from pyspark.sql import functions as F

from penstock.contract.contract import Contract
from penstock.contract.schema import spark_type
from penstock.settings import Allowed, Expression, Range, Required, Rows, Shrink, Unique


@dataclass(frozen=True, slots=True)
class RowCheck:
    """A condition on single rows."""

    name: str
    message: str
    broken: Column


@dataclass(frozen=True, slots=True)
class UniqueCheck:
    """A set of fields that must not repeat inside a slice."""

    name: str
    message: str
    fields: tuple[str, ...]


def row_checks(contract: Contract) -> list[RowCheck]:
    """Every condition on single rows, required fields first."""
    required = [_required(field.name) for field in contract.fields if field.required]
    return [*required, *(check for declared in contract.checks for check in _row_checks(declared, contract))]


def unique_checks(contract: Contract) -> list[UniqueCheck]:
    return [
        UniqueCheck(
            check.name or f"unique({', '.join(check.fields)})", f"{_said(check.fields)} is not unique", check.fields
        )
        for check in contract.checks
        if isinstance(check, Unique)
    ]


def _row_checks(check: object, contract: Contract) -> Iterator[RowCheck]:
    match check:
        case Required():
            yield from (_required(name) for name in check.fields)
        case Expression():
            # As in SQL's CHECK, an unknown (null) result does not break the rule.
            broken = F.coalesce(~F.expr(f"({check.expression})"), F.lit(False))
            yield RowCheck(check.name or f"expression({check.expression})", f"not ({check.expression})", broken)
        case Range():
            yield _range(check, contract)
        case Allowed():
            broken = F.coalesce(~F.col(check.field).isin(*check.values), F.lit(False))
            values = ", ".join(str(value) for value in check.values)
            yield RowCheck(check.name or f"allowed({check.field})", f"{check.field} is not one of {values}", broken)
        case Unique() | Rows() | Shrink():
            pass
        case _:
            assert_never(check)  # type: ignore[arg-type]


def _required(name: str) -> RowCheck:
    return RowCheck(f"required({name})", f"{name} is missing", F.col(name).isNull())


def _range(check: Range, contract: Contract) -> RowCheck:
    column = F.col(check.field)
    kind = spark_type(next(field.type for field in contract.fields if field.name == check.field))

    # Bounds on numbers stay numbers: a bound of 0.5 on a long must not become 0.
    def bound(value: object) -> Column:
        return F.lit(value).cast(kind) if kind in ("date", "timestamp") else F.lit(value)

    broken = F.lit(False)
    if check.min is not None:
        broken = broken | (column < bound(check.min))
    if check.max is not None:
        broken = broken | (column > bound(check.max))
    limits = " and ".join(
        f"{word} {value}" for word, value in (("at least", check.min), ("at most", check.max)) if value is not None
    )
    return RowCheck(
        check.name or f"range({check.field})", f"{check.field} is not {limits}", F.coalesce(broken, F.lit(False))
    )


def _said(fields: tuple[str, ...]) -> str:
    return fields[0] if len(fields) == 1 else f"({', '.join(fields)})"
