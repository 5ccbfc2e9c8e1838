"""compare: a guard against an aggregate that has changed too much since the trusted run."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import TYPE_CHECKING

from penstock.config.checks import Compare
from penstock.contract.checks.base import StatsCheck

if TYPE_CHECKING:
    from penstock.contract.slice_stats import SliceStats


class CompareCheck(StatsCheck[Compare]):
    __slots__ = ()

    is_guard = True

    @property
    def default_name(self) -> str:
        return f"compare({self.declared.measure})"

    def measured(self, stats: SliceStats) -> float | None:
        """Return the aggregate of the partition, which later runs are compared with; None if it has no value."""
        if self.declared.field is None:
            return float(stats.rows)
        return stats.fields[self.declared.field].aggregate(self.declared.function)

    def problems(self, stats: SliceStats) -> Iterator[tuple[int, str]]:
        check = self.declared
        before = (stats.previous or {}).get(check.measure)
        if before is None:  # no run is trusted, or it was not measured
            return
        now = self.measured(stats)
        if now is None:
            yield stats.rows, f"{check.measure} has no value where the trusted run has {before:,.6g}"
        elif abs(now - before) > check.max_change * abs(before):
            change = f"a change of {abs(now - before) / abs(before):.0%}" if before else "a change from nothing"
            yield (
                stats.rows,
                f"{check.measure} is {now:,.6g} where the trusted run has {before:,.6g}: {change}, at most"
                f" {check.max_change:.0%} is allowed",
            )

    def missing_input(self, day: date | None) -> str:
        return "needs a trusted run to compare with"
