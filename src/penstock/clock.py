"""Time is an argument. Only commands and the composition root read this clock; other code gets the time passed in."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

Clock = Callable[[], datetime]
MAX_DURATION = timedelta(days=365_000)  # the longest duration of an option: `datetime` can add and subtract 1,000 years


def utc_now() -> datetime:
    return datetime.now(UTC)


def last_day_over(now: datetime, time_zone: str) -> date:
    """The latest reporting day that has ended in the account's time zone."""
    return now.astimezone(ZoneInfo(time_zone)).date() - timedelta(days=1)


def utc_offset(now: datetime, time_zone: str) -> int:
    """The offset of the account's time zone from UTC, in seconds."""
    offset = now.astimezone(ZoneInfo(time_zone)).utcoffset()
    return int(offset.total_seconds()) if offset else 0


def iso(moment: datetime) -> str:
    """Format as ISO 8601 in UTC with microseconds and a Z: fixed width, so that text order is time order."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
