"""freshness: the age of the newest time in a field at the end of the logical date."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING

from penstock.config.checks import Recent
from penstock.config.values import format_duration
from penstock.contract.checks.base import StatsCheck

if TYPE_CHECKING:
    from penstock.contract.slice_stats import SliceStats

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# the latest datetime in microseconds; floats near it may round to a number beyond it
_LATEST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


class FreshnessCheck(StatsCheck[Recent]):
    __slots__ = ()

    @property
    def default_name(self) -> str:
        return f"freshness({self.declared.field})"

    def problems(self, stats: SliceStats) -> Iterator[tuple[int, str]]:
        check = self.declared
        if stats.day is None or not stats.rows:
            return
        end = datetime.combine(stats.day, time(), UTC) + timedelta(days=1)
        newest = stats.fields[check.field].aggregate("max")
        if newest is None:
            yield stats.rows, f"{check.field} has no value in any row, so its freshness is unknown"
            return
        found = _EPOCH + timedelta(microseconds=min(newest, _LATEST))
        if end - found > check.max_lag:
            yield (
                stats.rows,
                f"the newest {check.field} is {found:%Y-%m-%d %H:%M:%S} UTC, older than"
                f" {format_duration(check.max_lag)} at the end of {stats.day}",
            )

    def missing_input(self, day: date | None) -> str | None:
        return "needs the day that the rows are of (--date)" if day is None else None
