"""rows: the number of rows of a partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.config.checks import CheckKind, Rows
from penstock.contract.checks.base import CountCheck
from penstock.plural import counted

# operator of the standard, bounds that it sets, and what to add to its number
_ODCS_OPERATORS: tuple[tuple[str, tuple[str, ...], int], ...] = (
    ("mustBe", ("min", "max"), 0),
    ("mustBeGreaterOrEqualTo", ("min",), 0),
    ("mustBeGreaterThan", ("min",), 1),
    ("mustBeLessOrEqualTo", ("max",), 0),
    ("mustBeLessThan", ("max",), -1),
)


class RowsCheck(CountCheck[Rows]):
    __slots__ = ()

    @property
    def default_name(self) -> str:
        return "rows"

    def problems(self, count: int, previous: int | None) -> Iterator[str]:
        check = self.declared
        if check.min is not None and count < check.min:
            yield f"{counted(count, 'row')}, at least {check.min:,} expected"
        if check.max is not None and count > check.max:
            yield f"{counted(count, 'row')}, at most {check.max:,} expected"

    def to_odcs(self) -> dict[str, Any]:
        return {"type": "library", "metric": "rowCount", **self._odcs_bounds()}

    def _odcs_bounds(self) -> dict[str, Any]:
        check = self.declared
        if check.min is None:
            return {"mustBeLessOrEqualTo": check.max}
        if check.max is None:
            return {"mustBeGreaterOrEqualTo": check.min}
        return {"mustBe": check.min} if check.min == check.max else {"mustBeBetween": [check.min, check.max]}

    @classmethod
    def from_odcs(cls, rule: Mapping[str, Any], field: str | None) -> dict[str, Any] | None:
        if (rule.get("metric") or rule.get("rule")) != "rowCount":
            return None
        bounds: dict[str, Any] = {}
        for operator, ours, change in _ODCS_OPERATORS:
            if isinstance(rule.get(operator), int):
                bounds |= dict.fromkeys(ours, rule[operator] + change)
        between = rule.get("mustBeBetween")
        if isinstance(between, list):
            bounds = dict(zip(("min", "max"), between, strict=False))
        return {CheckKind.ROWS.value: bounds} if bounds else None
