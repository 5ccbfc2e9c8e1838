"""Expected completion of a day: from the speed of the current run, and from the history of such days."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from statistics import median_low

from penstock.state.missing import RunProgress

_MOST_DAYS = 14  # days of the history that count
_SAME_WEEKDAY = 3  # with so many of the same weekday, only those count


def run_end(run: RunProgress, now: datetime) -> datetime | None:
    """When the run ends at its speed until now; None before its first verdict."""
    if not run.closed or now <= run.started_at:
        return None
    try:
        return now + (now - run.started_at) * max(0, run.planned - run.closed) / run.closed
    except OverflowError:
        return None


@dataclass(frozen=True, slots=True)
class UsualCompletion:
    """The usual completion of a day. Without `at`, and with `overdue`, every earlier day took less time."""

    at: datetime | None = None
    overdue: bool = False


def usual_completion(day: date, day_end: datetime, history: Mapping[date, timedelta], now: datetime) -> UsualCompletion:
    """When a day that is not complete at `now` is complete, by earlier days: the median of those that took longer than
    this day has taken already. `history` is the time from the end of each earlier day to its completion."""
    comparable = _comparable(day, history)
    if not comparable:
        return UsualCompletion()
    later = [after for after in comparable if day_end + after > now]
    return UsualCompletion(day_end + median_low(later)) if later else UsualCompletion(overdue=True)


def _comparable(day: date, history: Mapping[date, timedelta]) -> Sequence[timedelta]:
    """The last days before this one: of the same weekday if there are enough, else of any."""
    earlier = sorted((one for one in history if one < day), reverse=True)
    same = [one for one in earlier if one.weekday() == day.weekday()]
    chosen = same if len(same) >= _SAME_WEEKDAY else earlier
    return [history[one] for one in chosen[:_MOST_DAYS]]
