"""Readiness of tables: coverage by day, and waiting for it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Unpack

from penstock.app.context import Context
from penstock.config.values import time_span
from penstock.control.filters import SliceFilters, customer_ids, day_range, refuse_unknown_options
from penstock.control.select import Selection
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.control.requested_days import RequestedDays
    from penstock.warehouse.readiness import Coverage, DayCount


class ReadinessService:
    """Answers, from the pointers, whether the partitions of a table can be read."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def coverage(self, table: str, **filters: Unpack[SliceFilters]) -> list[Coverage]:
        """The expected and the ready partitions of each day. A partition is ready if it can be read and was
        not derived from a demoted run. A day that is named and has not ended is included and not ready. Raises
        UsageError if no partition is expected on any of the days, and for the filters that `penstock ready` refuses.

        >>> [day.available for day in ws.coverage("demo.campaign_daily", since="2024-06-01")]
        """
        from penstock.warehouse.readiness import coverage

        asked = self.requested_days(table, **filters)
        return coverage(self._context.database, asked.ranges, asked.due)

    def requested_days(self, table: str, **filters: Unpack[SliceFilters]) -> RequestedDays:
        """The days of `coverage`, `ready` and `wait_for`: the partitions expected on them, and how these days differ
        from the requested ones.

        >>> ws.readiness.requested_days("demo.campaign_daily", since="2024-06-01")
        """
        from penstock.control.requested_days import requested_days

        refuse_unknown_options("ready", filters, SliceFilters)
        query = next((q for q in self._context.settings.assets.values() if f"{q.source}.{q.name}" == table), None)
        if query is None:
            known = ", ".join(sorted(c.asset for c in self._context.contracts.values()))
            raise UsageError(f"unknown table {table} (tables: {known})")
        first, last = day_range(filters.get("date"), filters.get("since"), filters.get("until"))
        customers = customer_ids(filters.get("customers"), filters.get("customer"))
        selection = Selection((), query.source, customers, (query.name,), first, last)
        return requested_days(self._context.settings, table, selection, self._context.now())

    def ready(self, table: str, *, require: str | int = "all", **filters: Unpack[SliceFilters]) -> bool:
        """Whether every day of a selection can be read, by a rule: `all`, `any`, a number of partitions, or a share
        (`95%`). A day that has not ended is not ready. Raises UsageError if no partition is expected yet, and for the
        filters that `penstock ready` refuses.

        >>> ws.ready("demo.campaign_daily", date="2024-06-01", require="95%")
        """
        from penstock.warehouse.readiness import Rule

        rule = Rule(str(require))
        return all(rule.holds(day) for day in self._day_counts([table], filters))

    def wait_for(
        self,
        table: str | Sequence[str],
        *,
        require: str | int = "all",
        patience: timedelta | float | str,
        **filters: Unpack[SliceFilters],
    ) -> list[Coverage]:
        """Wait until the selection of a table, or of each of several tables, is ready, at most `patience` in total: a
        timedelta, seconds, or text such as `10m`. Returns the coverage at that moment; it does not raise if it is not
        ready.

        >>> ws.wait_for("demo.campaign_daily", date="2024-06-01", patience="10m")
        """
        from penstock.warehouse.readiness import CoverageDays, Rule, wait_for

        tables = [table] if isinstance(table, str) else list(table)
        return wait_for(
            lambda: CoverageDays(day for name in tables for day in self.coverage(name, **filters)),
            Rule(str(require)),
            time_span(patience, "patience"),
            glance=lambda: self._day_counts(tables, filters),
        )

    def _day_counts(self, tables: Sequence[str], filters: SliceFilters) -> list[DayCount]:
        from penstock.warehouse.readiness import day_counts

        asked = [self.requested_days(name, **filters) for name in tables]
        return [count for one in asked for count in day_counts(self._context.database, one.ranges)]
