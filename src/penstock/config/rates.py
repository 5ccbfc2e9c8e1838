"""Rate limits of a source: how many requests it may get in a second, a minute, an hour or a day.

Limits by second and minute are a pace. Limits by hour and day are counted: the windows begin at full hours and at
midnight UTC, by the clock of the state database.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator

from penstock.config.values import refusal

_LIMIT = re.compile(r"(\d{1,12})/([smhd])")
_HINT = "write 10/s, 600/m, 5000/h or 15000/d"


class RateWindow(StrEnum):
    """The time in which requests are counted."""

    SECOND = "second"
    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"

    @property
    def length(self) -> timedelta:
        return timedelta(seconds=_SECONDS[self])

    @property
    def is_counted(self) -> bool:
        """Whether the state database counts the requests of each window; otherwise the limit is a pace."""
        return self in (RateWindow.HOUR, RateWindow.DAY)

    def start(self, now: datetime) -> datetime:
        """The beginning of the window that contains `now`: a full hour, or midnight UTC."""
        moment = now.astimezone(UTC)
        return datetime.fromtimestamp(moment.timestamp() // _SECONDS[self] * _SECONDS[self], UTC)


_SECONDS = {RateWindow.SECOND: 1, RateWindow.MINUTE: 60, RateWindow.HOUR: 3_600, RateWindow.DAY: 86_400}


@dataclass(frozen=True, slots=True)
class RateLimit:
    """The largest number of requests in one window."""

    requests: float  # a whole number, unless the file has a number per second
    window: RateWindow

    @property
    def per_second(self) -> float:
        return self.requests / self.window.length.total_seconds()

    def __str__(self) -> str:
        return f"{self.requests:g}/{self.window[0]}" if self.requests % 1 else f"{int(self.requests)}/{self.window[0]}"


def rate_limits(value: object) -> object:
    """Parse one limit or a list of limits. Raises ValueError, for an item of a list with its place."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        return (_limit(value),)
    if not value:
        raise ValueError(f"must not be empty: {_HINT}, or leave out the key")
    limits: list[RateLimit] = []
    problems: list[tuple[tuple[int | str, ...], str]] = []
    for index, item in enumerate(value):
        try:
            limit = _limit(item)
        except ValueError as error:
            problems.append(((index,), str(error)))
            continue
        same = next((one for one in limits if one.window is limit.window), None)
        if same is not None:
            problems.append(((index,), f"{limit} is a second limit for each {limit.window}, after {same}: keep one"))
        limits.append(limit)
    if problems:
        raise refusal(problems)
    return tuple(limits)


def pace(limits: Iterable[RateLimit]) -> float | None:
    """Requests per second that keep every limit by second or minute; None without such a limit."""
    return min((limit.per_second for limit in limits if not limit.window.is_counted), default=None)


def counted(limits: Iterable[RateLimit]) -> tuple[RateLimit, ...]:
    """The limits by hour and day, the longest window first."""
    return tuple(sorted((one for one in limits if one.window.is_counted), key=lambda one: one.window))


def _limit(value: object) -> RateLimit:
    if isinstance(value, RateLimit):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 and math.isfinite(value):
        return RateLimit(value, RateWindow.SECOND)
    found = _LIMIT.fullmatch(value) if isinstance(value, str) else None
    if found is None or int(found[1]) == 0:
        raise ValueError(f"{value!r} is not a rate: {_HINT}")
    window = next(window for window in RateWindow if window[0] == found[2])
    return RateLimit(int(found[1]), window)


RateLimits = Annotated[tuple[RateLimit, ...], BeforeValidator(rate_limits)]
