"""The days of accounts in their time zones at one moment, computed once for each time zone instead of each customer."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import NamedTuple

from penstock.clock import last_day_over, utc_offset
from penstock.config.settings import Settings
from penstock.source.horizon import horizon


class LocalDay(NamedTuple):
    """The last day that is over in a time zone, its offset from UTC in seconds, and the oldest day that a source still
    serves there, if it has such a limit."""

    over: date
    utc_offset: int
    frozen_before: date | None


class LocalDays:
    """The local days of the customers and sources of a workspace at the moment `now`."""

    def __init__(self, settings: Settings, now: datetime) -> None:
        self._sources = settings.sources
        self._now = now
        self._known: dict[tuple[str, str], LocalDay] = {}

    def of(self, source: str, time_zone: str) -> LocalDay:
        """The local day of accounts of a source in a time zone."""
        found = self._known.get((source, time_zone))
        if found is None:
            over = last_day_over(self._now, time_zone)
            frozen_before = horizon(self._sources[source], over + timedelta(days=1))
            found = LocalDay(over, utc_offset(self._now, time_zone), frozen_before)
            self._known[source, time_zone] = found
        return found


def days_by_zone(settings: Settings, now: datetime) -> tuple[tuple[str, date, int], ...]:
    """The last day that is over and the offset in each time zone of the customers. Two moments with the same result
    have the same expected partitions."""
    zones = sorted({customer.time_zone for customer in settings.customers})
    return tuple((zone, last_day_over(now, zone), utc_offset(now, zone)) for zone in zones)
