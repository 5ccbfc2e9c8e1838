"""Time is an argument. Only faces and the composition root read this clock; everyone else is told what time it is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

Clock = Callable[[], datetime]
LONGEST = timedelta(days=365_000)  # of a command: 1,000 years before and after today are in the calendar


def utc_now() -> datetime:
    return datetime.now(UTC)


def last_day_over(now: datetime, time_zone: str) -> date:
    """The latest reporting day that has ended where the account lives."""
    return now.astimezone(ZoneInfo(time_zone)).date() - timedelta(days=1)


def utc_offset(now: datetime, time_zone: str) -> int:
    """By how many seconds the account's clock is ahead of UTC now."""
    offset = now.astimezone(ZoneInfo(time_zone)).utcoffset()
    return int(offset.total_seconds()) if offset else 0


def iso(moment: datetime) -> str:
    """ISO 8601 in UTC with microseconds and a Z: one width, so that text order is time order."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
