"""History of lateness: when each day was complete beside its deadline, and how often and how long tables were late."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from statistics import median

from penstock.control.deadlines import Deadline


@dataclass(frozen=True, slots=True)
class DayCompletion:
    """When a day of a table was complete, beside its deadline."""

    table: str
    day: date
    expected: int
    required: int
    deadline: datetime
    completed_at: datetime | None  # when the rule first held; None if it never did in the time that counts

    @property
    def late_seconds(self) -> int | None:
        """How long after its deadline the day was complete; 0 if in time, None if it is not complete."""
        if self.completed_at is None:
            return None
        return max(0, int((self.completed_at - self.deadline).total_seconds()))

    def was_late(self, now: datetime) -> bool:
        """Whether the rule did not hold at the deadline, which has passed."""
        return self.late_seconds != 0 if self.completed_at is not None else now >= self.deadline


@dataclass(frozen=True, slots=True)
class TableHistory:
    """How often and how long a table was late, over the days whose deadline has passed."""

    table: str
    days: int
    late: int
    never_complete: int
    median_late: timedelta | None  # of the late days that are complete
    worst_late: timedelta | None
    worst_day: date | None


def completed_days(
    table: str, deadline: Deadline, expected: Mapping[date, int], times: Mapping[date, datetime]
) -> list[DayCompletion]:
    """The completion of each expected day, given when the required partitions were published."""
    return [
        DayCompletion(table, day, count, deadline.rule.needed(count), deadline.moment(day), times.get(day))
        for day, count in sorted(expected.items())
    ]


def table_history(table: str, days: Iterable[DayCompletion], now: datetime) -> TableHistory:
    """The figures of one table at the moment `now`."""
    over = [one for one in days if now >= one.deadline]
    late = [one for one in over if one.was_late(now)]
    ended = [(one.late_seconds, one.day) for one in late if one.late_seconds is not None]
    worst = max(ended, default=None)
    return TableHistory(
        table,
        len(over),
        len(late),
        len(late) - len(ended),
        timedelta(seconds=int(median(seconds for seconds, _ in ended))) if ended else None,
        timedelta(seconds=worst[0]) if worst else None,
        worst[1] if worst else None,
    )
