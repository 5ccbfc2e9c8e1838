"""The days of a readiness query, compared with the expected days."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta

from penstock.config.settings import Settings
from penstock.control.ranges import clip_days, count_partitions
from penstock.control.select import Selection, expected
from penstock.errors import UsageError
from penstock.expected import ExpectedRange

_DAY = timedelta(days=1)
_AHEAD = 3 * _DAY  # accounts on the other side of the earth are at most so far ahead
_LAST_DAY, _END = date.max - 3 * _DAY, datetime.combine(date.max - _DAY, time(12), UTC)


@dataclass(frozen=True, slots=True)
class RequestedDays:
    """The expected partitions of the days in a readiness query.

    `due` holds the days that have ended. `ranges` holds `due` and the days that have not ended yet, as far as the
    query names them: the days that have ended for some accounts only, and the next day on which anything is
    expected."""

    table: str
    since: date | None
    until: date | None
    ranges: Sequence[ExpectedRange]
    due: Sequence[ExpectedRange]
    ended: bool  # no partition is expected after those of `ranges`, whatever day it is

    @property
    def first(self) -> date:
        return min(span.first for span in self.ranges)

    @property
    def last(self) -> date | None:
        """The last day that has ended for any account; None if no day has."""
        return max((span.last for span in self.due), default=None)

    @property
    def notes(self) -> list[str]:
        """Differences between the expected and the requested days, with the reason of each."""
        found = []
        last = self.last
        if self.since and self.since < self.first:
            found.append(f"nothing is expected before {self.first}, where start_date and active_from begin")
        if self.until and last is None:
            found.append(f"{_days(self.first, self.until)}: not over yet, so nothing is there")
        elif self.until and last and self.until > last and self.ended:
            found.append(f"nothing is expected after {last}, where active_to ends")
        elif self.until and last and self.until > last:
            days = _days(min(max(span.first, last + _DAY) for span in self.ranges if span.last > last), self.until)
            found.append(f"{days}: not over yet, so nothing is there; the last day that is over is {last}")
        elif count_partitions(self.ranges) > count_partitions(self.due):
            found.append(f"{last} is not over yet for all accounts")
        return found


def requested_days(settings: Settings, table: str, selection: Selection, now: datetime) -> RequestedDays:
    """The requested days of a table, including a named day that has not ended yet. Raises UsageError if nothing is
    expected on any of the named days, now or later."""
    due, until = expected(settings, selection, now), selection.until
    last = max((span.last for span in due), default=None)
    if until is None:
        if last is None:
            raise UsageError(_nothing(settings, table, selection, now))
        return RequestedDays(table, selection.since, None, due, due, ended=False)
    reach = until if last is None else min(until, last + _AHEAD)
    later = expected(settings, selection, max(now, _over_everywhere(reach)))
    if not later:
        raise UsageError(_nothing(settings, table, selection, now))
    first = min(span.first for span in later)
    if last is None:
        return RequestedDays(table, selection.since, until, clip_days(later, first, first), due, ended=False)
    to_come, further = [span for span in later if span.last > last], list[ExpectedRange]()
    if not to_come and until > reach:  # a customer may begin later than that
        further = [span for span in expected(settings, selection, _over_everywhere(until)) if span.last > last]
    following = min((max(span.first, last + _DAY) for span in (*to_come, *further)), default=last)
    ranges = [*clip_days(later, first, following), *clip_days(further, following, following)]
    return RequestedDays(table, selection.since, until, ranges, due, ended=following == last)


def _over_everywhere(day: date) -> datetime:
    """A moment at which this day is over for every account."""
    return datetime.combine(day, time(12), UTC) + 2 * _DAY if day < _LAST_DAY else _END


def _days(first: date, last: date) -> str:
    return f"{first}" if first >= last else f"{first} to {last}"


def _nothing(settings: Settings, table: str, selection: Selection, now: datetime) -> str:
    since, until = selection.since, selection.until
    if since and until:
        asked = f"on {since}" if since == until else f"from {since} to {until}"
    else:
        asked = f"from {since} on" if since else f"until {until}" if until else "yet"
    whole = expected(settings, replace(selection, since=None, until=None), now)
    if not whole and selection.customers and expected(settings, replace(selection, customers=()), now):
        return f"{table} has no partitions of {', '.join(selection.customers)}"
    if not whole:
        return f"{table} expects nothing {asked}: no day is over since its start_date and the active_from of customers"
    first, last = min(span.first for span in whole), max(span.last for span in whole)
    if until and until < first:
        why = "its start_date or the active_from of customers is later"
    elif all(span.last < (span.over or span.last) for span in whole):
        why = "the active_to of its customers is earlier"
    else:
        why = "later days are not over yet"
    return f"{table} expects nothing {asked}: {why} (it expects {first} to {last})"
