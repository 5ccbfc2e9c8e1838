"""not_null_share: the share of rows that have a value in a field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.config.checks import NotNullShare
from penstock.contract.checks.base import StatsCheck
from penstock.plural import counted

if TYPE_CHECKING:
    from penstock.contract.slice_stats import SliceStats

_ROUNDING = 1e-9  # floating point makes slightly more than 7 of 0.07 * 100


class NotNullShareCheck(StatsCheck[NotNullShare]):
    __slots__ = ()

    @property
    def default_name(self) -> str:
        return f"not_null_share({self.declared.field})"

    def problems(self, stats: SliceStats) -> Iterator[tuple[int, str]]:
        check = self.declared
        rows, present = stats.rows, stats.fields[check.field].count
        if present < rows * check.min - _ROUNDING:
            yield (
                rows - present,
                f"{check.field} has a value in {present / rows:.1%} of {counted(rows, 'row')},"
                f" at least {check.min:.1%} expected",
            )
