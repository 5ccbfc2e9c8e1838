"""Lateness of tables: which days are not complete beside their deadlines, why, and when they are expected."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING

from penstock.app.context import Context
from penstock.control.deadlines import Deadline
from penstock.errors import UsageError
from penstock.projections.manifest import ProjectionsLost

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.app.lateness_facts import LatenessFacts
    from penstock.app.lateness_history import LatenessHistory
    from penstock.app.status import StatusService
    from penstock.config.assets import Asset
    from penstock.control.lateness import DayLateness
    from penstock.control.lateness_history import DayCompletion
    from penstock.control.requested_days import RequestedDays
    from penstock.warehouse.readiness import Rule

log = logging.getLogger(__name__)

_DAY = timedelta(days=1)
_COMPARED = timedelta(days=56)  # days of the history that an expected completion is computed from
_HISTORY = timedelta(days=29)  # days of `history` before the newest one
_EARLIER = timedelta(days=7)  # days before the newest one that are reported while they are not ready


class LatenessService:
    """Answers why the data of a day is late, and when it is expected."""

    def __init__(self, context: Context, status: StatusService) -> None:
        self._context = context
        self._status = status

    def report(
        self, tables: Sequence[str] = (), day: date | None = None, *, since: datetime | None = None
    ) -> list[DayLateness]:
        """The days of the tables with a deadline, or of the named ones: the day whose deadline is today, and each of
        the seven days before it that is not ready, with `since` also the unready days with a deadline from then on;
        with `day`, that day only. Raises UsageError for an unknown table and for a named table without a deadline.

        >>> [late.missing for late in ws.lateness.report(["demo.campaign_daily"])]
        """
        from penstock.control.lateness import Punctuality

        facts = self._facts()
        found: list[DayLateness] = []
        for asset, deadline in self._deadlines(tables):
            newest = day or deadline.newest_day(facts.now)
            first = day or min(newest - _EARLIER, deadline.newest_day(since or facts.now))
            days = facts.days(asset, first, newest, deadline.rule, deadline.moment)
            found += [one for one in days if one.day == newest or one.punctuality is not Punctuality.READY]
        return found

    def _facts(self) -> LatenessFacts:
        from penstock.app.lateness_facts import LatenessFacts

        history = self._history()

        def completion_times(asset: Asset, rule: Rule, day: date, zone: str) -> Mapping[date, timedelta]:
            try:
                return history.completion_times(asset, rule, day - _COMPARED, day - _DAY, zone)
            except ProjectionsLost as lost:  # the answer is useful without it
                log.warning("lateness.history_lost", extra={"facts": {"error": str(lost)}})
                return {}

        return LatenessFacts(self._context, self._context.now(), completion_times)

    def _deadlines(self, tables: Sequence[str]) -> list[tuple[Asset, Deadline]]:
        self._context.require_tables(tables)
        found = []
        for asset in self._context.settings.assets.values():
            table, deadline = f"{asset.source}.{asset.name}", Deadline.of(asset.freshness)
            if deadline is not None and (not tables or table in tables):
                found.append((asset, deadline))
            elif table in tables:
                place = self._context.contract_of(table).place
                raise UsageError(
                    f"{table} has no deadline: add freshness.complete_by to {place} in the workspace file;"
                    f" `penstock ready {table} --explain` lists what is missing without one"
                )
        return found

    def explain(self, asked: RequestedDays, require: str | int = "all") -> list[DayLateness]:
        """The days of a readiness query that are not ready, with what is missing by cause and the expected time. Needs
        no deadline; a table without one has NO_DEADLINE.

        >>> ws.lateness.explain(ws.readiness.requested_days("demo.campaign_daily", date="2024-06-01"))
        """
        from penstock.control.deadlines import NO_DEADLINE
        from penstock.control.lateness import Punctuality
        from penstock.warehouse.readiness import Rule

        name = asked.table.partition(".")[2]
        asset = self._context.settings.asset(name)
        deadline = Deadline.of(asset.freshness)
        days = self._facts().of(
            asset, asked, Rule(str(require)), deadline.moment if deadline else lambda _: NO_DEADLINE
        )
        return [one for one in days if one.punctuality is not Punctuality.READY]

    def history(self, tables: Sequence[str] = (), since: date | None = None) -> list[DayCompletion]:
        """When each day of the tables with a deadline, or of the named ones, was complete: since a day, by default over
        the last 30 days, up to the day whose deadline is today.

        >>> [day.late_seconds for day in ws.lateness.history(since=date(2024, 6, 1))]
        """
        history = self._history()
        found: list[DayCompletion] = []
        for asset, deadline in self._deadlines(tables):
            last = deadline.newest_day(self._context.now())
            found += history.days(asset, deadline, since or last - _HISTORY, last)
        return found

    def table(self) -> pa.Table:
        """The rows of `system.lateness`: every day in the history of the tables with a deadline.

        >>> ws.lateness.table()
        """
        from penstock.app.lateness_history import lateness_table
        from penstock.projections.publications import KEPT

        since = self._context.now().date() - KEPT
        return lateness_table(
            self.history(since=since), (self._context.settings.tenant, self._context.settings.workspace)
        )

    def _history(self) -> LatenessHistory:
        from penstock.app.lateness_history import LatenessHistory

        return LatenessHistory(self._context, self._status)
