"""Counted request quotas: one row per source and window, shared by all processes.

A request is sent only after it was claimed, so the number of requests in a window never exceeds its budget. The clock
of the database defines the windows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.config.rates import RateLimit, RateWindow
from penstock.db import schema
from penstock.db.engine import Database
from penstock.db.lease import seconds_ago
from penstock.db.types import UtcTimestamp
from penstock.errors import StateConflict

KEPT = timedelta(days=4)  # how long the rows of past windows stay
_SPARE = 5  # requests beside the expected ones, so that a small job of a source with pages is not cut off
_MARGIN = 1.25  # more than the requests per span of the past
_FIRST_GUESS = 2.0  # claimed requests per span of a source without a past
_TABLE = schema.source_quota

Moment = sa.ColumnElement[datetime]


@dataclass(frozen=True, slots=True)
class QuotaWindow:
    """One window of a counted limit. `claimed` includes the requests that were used."""

    source: str
    window: RateWindow
    starts_at: datetime
    budget: int
    claimed: int = 0
    used: int = 0  # as reported after a job; the rest of `claimed` is in use, or was lost with its process

    @property
    def renews_at(self) -> datetime:
        return self.starts_at + self.window.length

    @property
    def remaining(self) -> str:
        """The message about the requests that are left."""
        left = f"{max(0, self.budget - self.claimed):,} of {self.budget:,} requests left"
        return f"quota of {self.source}: {left}, renews {minute(self.renews_at)}"

    def reserved(self, share: float) -> int:
        """The requests that are left to fresh data."""
        return math.ceil(self.budget * share - 1e-9)

    def left(self, share: float = 0.0) -> int:
        """The requests that may be claimed; with a share, by work that must leave this share of the budget."""
        return max(0, self.budget - self.reserved(share) - self.claimed)


@dataclass(frozen=True, slots=True)
class SourceQuota:
    """The present windows of a source, at a time of the database clock."""

    source: str
    now: datetime
    windows: tuple[QuotaWindow, ...]
    requests_per_span: float | None = None  # of the last days; None without any

    def left(self, share: float = 0.0) -> int:
        """The requests that may be claimed: every window must have them."""
        return min(window.left(share) for window in self.windows)

    def renews_at(self, share: float = 0.0) -> datetime:
        """When requests may be claimed again: the end of the last window without any, else of the next to end."""
        ends = [window.renews_at for window in self.windows if not window.left(share)]
        return max(ends) if ends else min(window.renews_at for window in self.windows)

    def used_up(self, share: float = 0.0) -> str | None:
        """The message if no request may be claimed; None if some may."""
        if self.left(share):
            return None
        until = f"is used up until {minute(self.renews_at(share))}"
        if not self.left():
            return f"quota of {self.source} {until}"
        return f"quota of {self.source} for backfills and history {until}: the rest is for fresh data"

    def wanted(self, spans: int, growth: float = 1.0) -> int:
        """The requests to claim for so many spans: a little more than they are expected to need."""
        past = self.requests_per_span
        return math.ceil(spans * growth * (_FIRST_GUESS if past is None else max(1.0, past) * _MARGIN)) + _SPARE


@dataclass(frozen=True, slots=True)
class Claim:
    """Requests that one process may send before the first of the windows ends."""

    quota: SourceQuota  # before the claim
    requests: int

    @property
    def seconds(self) -> float:
        """The time from the claim to the end of the first window."""
        return (min(window.renews_at for window in self.quota.windows) - self.quota.now).total_seconds()


class QuotaStore:
    """Claims requests and returns unused ones. Every change is one short transaction with locked rows."""

    def __init__(self, database: Database, now: Moment | None = None) -> None:
        self._database = database
        self._moment = seconds_ago(database.dialect, 0) if now is None else now

    def read(self, source: str, limits: Sequence[RateLimit]) -> SourceQuota:
        """The present windows of the source, with the budgets of these limits. Changes nothing."""
        with self._database.snapshot() as connection:
            now = self._now(connection)
            return self._quota(connection, source, limits, now, lock=False)

    def claim(
        self,
        source: str,
        limits: Sequence[RateLimit],
        spans: int,
        *,
        share: float = 0.0,
        growth: float = 1.0,
        at_most: int | None = None,
    ) -> Claim:
        """Claim the requests that so many spans are expected to need, at most `at_most`, or as many as every window has
        left without the reserved share. Changed limits apply from here on. Deletes the rows of windows that ended days
        ago."""

        def work(connection: Connection) -> Claim:
            quota = self._locked(connection, source, limits)
            wanted = quota.wanted(spans, growth) if spans else 0
            granted = min(wanted if at_most is None else min(wanted, at_most), quota.left(share))
            for window in quota.windows if granted else ():
                taken = connection.execute(
                    sa.update(_TABLE)
                    .where(*_is_row(window), _TABLE.c.claimed + granted <= window.budget)
                    .values(claimed=_TABLE.c.claimed + granted)
                )
                if taken.rowcount != 1:
                    raise StateConflict(f"another process claimed the quota of {source} first: run the command again")
            connection.execute(
                sa.delete(_TABLE).where(_TABLE.c.source == source, _TABLE.c.window_start < quota.now - KEPT)
            )
            return Claim(quota, granted)

        return self._database.transact(work)

    def settle(self, claim: Claim, used: int, spans: int) -> None:
        """Record how many of the claimed requests were sent, for how many spans, and return the others. Must be
        called at most once for a claim; a claim that is never settled counts until its window ends."""
        used = min(used, claim.requests)
        if not claim.requests:
            return

        def work(connection: Connection) -> None:
            for window in claim.quota.windows:
                connection.execute(
                    sa.update(_TABLE)
                    .where(*_is_row(window), _TABLE.c.claimed - _TABLE.c.used >= claim.requests)
                    .values(
                        claimed=_TABLE.c.claimed - (claim.requests - used),
                        used=_TABLE.c.used + used,
                        spans=_TABLE.c.spans + spans,
                    )
                )

        self._database.transact(work)

    def _locked(self, connection: Connection, source: str, limits: Sequence[RateLimit]) -> SourceQuota:
        """The present windows, with their rows locked. A window may end while this transaction waits for its lock."""
        while True:
            now = self._now(connection)
            for limit in limits:
                _ensure_row(connection, source, limit, now)
            found = self._quota(connection, source, limits, now, lock=True)
            later = self._now(connection)
            if all(limit.window.start(later) == limit.window.start(now) for limit in limits):
                return found

    def _quota(
        self, connection: Connection, source: str, limits: Sequence[RateLimit], now: datetime, *, lock: bool
    ) -> SourceQuota:
        windows = []
        for limit in limits:
            window = QuotaWindow(source, limit.window, limit.window.start(now), int(limit.requests))
            query = sa.select(_TABLE.c.claimed, _TABLE.c.used).where(*_is_row(window))
            row = connection.execute(query.with_for_update() if lock else query).one_or_none()
            counts = (row.claimed, row.used) if row is not None else (0, 0)
            windows.append(QuotaWindow(source, limit.window, window.starts_at, window.budget, *counts))
        past = connection.execute(
            sa.select(sa.func.sum(_TABLE.c.used).label("used"), sa.func.sum(_TABLE.c.spans).label("spans")).where(
                _TABLE.c.source == source, _TABLE.c.window_name == limits[0].window.value
            )
        ).one()
        return SourceQuota(source, now, tuple(windows), float(past.used) / float(past.spans) if past.spans else None)

    def _now(self, connection: Connection) -> datetime:
        found: datetime = connection.execute(sa.select(sa.type_coerce(self._moment, UtcTimestamp()))).scalar_one()
        return found


def minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _is_row(window: QuotaWindow) -> tuple[sa.ColumnElement[bool], ...]:
    row = _TABLE.c
    return (
        row.source == window.source,
        row.window_name == window.window.value,
        row.window_start == window.starts_at,
    )


# Updating the row on conflict also locks it. Rows are locked in the order of `SourceSettings.quotas`.
_ENSURE = sa.text("""
INSERT INTO source_quota (source, window_name, window_start, budget)
VALUES (:source, :window, :start, :budget)
ON CONFLICT (source, window_name, window_start) DO UPDATE SET budget = excluded.budget
""").bindparams(sa.bindparam("start", type_=UtcTimestamp()))


def _ensure_row(connection: Connection, source: str, limit: RateLimit, now: datetime) -> None:
    """Insert the row of the present window if it is missing, and set the budget of today's limit."""
    connection.execute(
        _ENSURE,
        {
            "source": source,
            "window": limit.window.value,
            "start": limit.window.start(now),
            "budget": int(limit.requests),
        },
    )
