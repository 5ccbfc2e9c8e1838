"""The deadline of a day: a local time by which a table must be complete, as an instant."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Self
from zoneinfo import ZoneInfo

from penstock.config.freshness import Freshness
from penstock.warehouse.readiness import Rule

NO_DEADLINE = datetime.max.replace(tzinfo=UTC)  # of a table without one, whose days are explained anyway
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Deadline:
    """Day D of a table satisfies `rule` by the local time `at`, `days` days after D."""

    at: time
    time_zone: str
    rule: Rule
    days: int = 1

    @classmethod
    def of(cls, freshness: Freshness | None) -> Self | None:
        """The declared deadline; None without one."""
        if freshness is None or freshness.complete_by is None:
            return None
        rule = Rule(freshness.require)
        return cls(freshness.complete_by, freshness.time_zone, rule, freshness.complete_after_days)

    def moment(self, day: date) -> datetime:
        """The deadline of a day, in UTC. See `local_instant` for daylight-saving changes."""
        return local_instant(datetime.combine(day + timedelta(days=self.days), self.at), self.time_zone)

    def newest_day(self, now: datetime) -> date:
        """The day whose deadline is on the local date of `now`."""
        return now.astimezone(ZoneInfo(self.time_zone)).date() - timedelta(days=self.days)

    def longest_pause(self, zones: Collection[str]) -> timedelta:
        """The longest time between the publications of two days that are both complete in time, if days end in these
        time zones: from the end of a day to the deadline of the next one."""
        length = timedelta(days=self.days, hours=self.at.hour, minutes=self.at.minute)
        own = _offsets(self.time_zone)
        east = (theirs - mine for zone in zones for theirs, mine in zip(_offsets(zone), own, strict=True))
        # days end earlier in the east, and the day on which clocks change may be longer
        return length + max((timedelta(), *east)) + (max(own) - min(own))


def _offsets(time_zone: str) -> list[timedelta]:
    """The offsets from UTC in January and in July of a fixed year."""
    zone = ZoneInfo(time_zone)
    return [datetime(2024, month, 15, tzinfo=zone).utcoffset() or timedelta() for month in (1, 7)]


def day_end(day: date, time_zone: str) -> datetime:
    """The instant at which a day ends in a time zone."""
    return local_instant(datetime.combine(day + timedelta(days=1), time.min), time_zone)


def local_instant(local: datetime, time_zone: str) -> datetime:
    """The instant, in UTC, of a local time without an offset. A time that the clocks skip means the first instant after
    the gap; a time that occurs twice means its first occurrence."""
    zone = ZoneInfo(time_zone)
    found = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if found.astimezone(zone).replace(tzinfo=None) == local:
        return found
    # In a gap, fold=0 applies the offset before the change and fold=1 the one after it: the change is between the two.
    low, high = local.replace(tzinfo=zone, fold=1).astimezone(UTC), found
    before = low.astimezone(zone).utcoffset()
    while high - low > _SECOND:
        middle = low + timedelta(seconds=int((high - low).total_seconds()) // 2)
        low, high = (middle, high) if middle.astimezone(zone).utcoffset() == before else (low, middle)
    return high
