"""The days that a question about readiness names, held against those that are expected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta

from penstock.control import spans
from penstock.control.select import Selection, expected
from penstock.errors import UsageError
from penstock.expected import ExpectedRange
from penstock.settings import Settings

_DAY = timedelta(days=1)
_AHEAD = 3 * _DAY  # accounts on the other side of the earth are at most so far ahead


@dataclass(frozen=True, slots=True)
class AskedDays:
    """The expected partitions of the days in a question about readiness.

    `due` holds the days that have ended. `ranges` holds `due` and the days that have not ended yet, as far as the
    question names them: the days that have ended for some accounts only, and the next day."""

    table: str
    since: date | None
    until: date | None
    ranges: Sequence[ExpectedRange]
    due: Sequence[ExpectedRange]
    ended: bool  # no partition is expected after those of `ranges`, whatever day it is

    @property
    def first(self) -> date:
        return min(span.first for span in self.due)

    @property
    def last(self) -> date:
        """The last day that has ended for any account."""
        return max(span.last for span in self.due)

    @property
    def notes(self) -> list[str]:
        """How the expected days differ from those that were asked for, and why."""
        found = []
        if self.since and self.since < self.first:
            found.append(f"nothing is expected before {self.first}, where start_date and active_from begin")
        if self.until and self.until > self.last and self.ended:
            found.append(f"nothing is expected after {self.last}, where active_to ends")
        elif self.until and self.until > self.last:
            days = f"{self.last + _DAY}" + ("" if self.until == self.last + _DAY else f" to {self.until}")
            found.append(f"{days}: not over yet, so nothing is there; the last day that is over is {self.last}")
        elif spans.count(self.ranges) > spans.count(self.due):
            found.append(f"{self.last} is not over yet for all accounts")
        return found


def asked_days(settings: Settings, table: str, selection: Selection, now: datetime) -> AskedDays:
    """The days of a table that were asked for. Raises UsageError if nothing is expected on any of them yet."""
    due = expected(settings, selection, now)
    if not due:
        raise UsageError(_nothing(settings, table, selection, now))
    until, last = selection.until, max(span.last for span in due)
    if until is None:
        return AskedDays(table, selection.since, None, due, due, ended=False)
    moment = datetime.combine(min(until, last + _AHEAD) + 2 * _DAY, time(12), UTC)  # over everywhere
    later = expected(settings, selection, max(now, moment))
    ranges = spans.clipped(later, min(span.first for span in later), last + _DAY)
    ended = max(span.last for span in later) <= last
    return AskedDays(table, selection.since, until, ranges, due, ended)


def _nothing(settings: Settings, table: str, selection: Selection, now: datetime) -> str:
    since, until = selection.since, selection.until
    if since and until:
        asked = f"on {since}" if since == until else f"from {since} to {until}"
    else:
        asked = f"from {since} on" if since else f"until {until}" if until else "yet"
    whole = expected(settings, replace(selection, since=None, until=None), now)
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
