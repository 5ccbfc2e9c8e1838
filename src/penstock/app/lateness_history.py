"""Reads the history of lateness: the first publications of the ledger, beside today's deadlines and expected days."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING

from penstock.app.context import Context
from penstock.config.assets import Asset
from penstock.control.deadlines import Deadline
from penstock.control.lateness_history import DayCompletion, completed_days
from penstock.control.select import Selection
from penstock.expected import expected_by_day
from penstock.warehouse.readiness import Rule

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.app.status import StatusService


class LatenessHistory:
    """The history at one moment; the projection is read once, and the expected days of a table are counted once."""

    def __init__(self, context: Context, status: StatusService) -> None:
        self._context = context
        self._status = status
        self._rows: pa.Table | None = None
        self._counts: dict[str, dict[date, int]] = {}

    def days(self, asset: Asset, deadline: Deadline, first: date, last: date) -> list[DayCompletion]:
        """The days from `first` to `last` since the first one with a publication in time: what came before was filled
        by backfills."""
        expected = self._expected(asset, first, last)
        from penstock.projections.publications import completions, first_day

        begin = first_day(self.rows(), asset.source, asset.name)
        expected = {} if begin is None else {day: count for day, count in expected.items() if day >= begin}
        needed = {day: deadline.rule.needed(count) for day, count in expected.items()}
        times = completions(self.rows(), asset.source, asset.name, needed)
        return completed_days(f"{asset.source}.{asset.name}", deadline, expected, times)

    def completion_times(self, asset: Asset, rule: Rule, first: date, last: date, zone: str) -> dict[date, timedelta]:
        """The time from the end of each complete day, in a time zone, to its completion."""
        from penstock.control.deadlines import day_end
        from penstock.projections.publications import completions

        needed = {day: rule.needed(count) for day, count in self._expected(asset, first, last).items()}
        found = completions(self.rows(), asset.source, asset.name, needed)
        return {day: at - day_end(day, zone) for day, at in found.items()}

    def rows(self) -> pa.Table:
        """The first publication of each partition."""
        if self._rows is None:
            self._rows = self._status.current().publications()
        return self._rows

    def _expected(self, asset: Asset, first: date, last: date) -> dict[date, int]:
        if asset.name not in self._counts:
            counts = expected_by_day(self._context.ranges(Selection((), asset.source, (), (asset.name,))))
            self._counts[asset.name] = {day: count for (_, day), count in counts.items()}
        return {day: count for day, count in self._counts[asset.name].items() if first <= day <= last}


def lateness_table(days: Sequence[DayCompletion], owner: tuple[str, str]) -> pa.Table:
    """The rows of `system.lateness`."""
    import pyarrow as pa

    from penstock.projections.lateness import LATENESS

    rows = [
        (*owner, one.table, one.day, one.expected, one.required, one.deadline, one.completed_at, one.late_seconds)
        for one in days
    ]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(LATENESS)
    return pa.Table.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, LATENESS, strict=True)], schema=LATENESS
    )
