"""Time of a lateness report: with one partition in a hundred missing, and with the newest day missing as a whole."""

from __future__ import annotations

from datetime import time

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from bench.scale_case import Case, published
from bench.workload import ASSET, QUERY, Workload
from penstock.app import Workspace
from penstock.config.freshness import Freshness
from penstock.control.lateness import DayLateness
from penstock.db import schema


def without_newest_day(workspace: Workspace, workload: Workload) -> None:
    """The same, without any partition of the last day."""
    published(workspace, workload)

    def work(connection: Connection) -> None:
        for table in (schema.warehouse_pointer, schema.partition_state):
            connection.execute(sa.delete(table).where(table.c.logical_date == workload.dates[-1]))

    workspace.context.database.transact(work)


def _report(workspace: Workspace) -> list[DayLateness]:
    context = workspace.context
    deadline = {"freshness": Freshness(complete_by=time(9))}
    queries = {QUERY: context.settings.queries[QUERY].model_copy(update=deadline)}
    context.settings = context.settings.model_copy(update={"queries": queries})
    return workspace.lateness.report([ASSET])


def _some_missing(workspace: Workspace) -> None:
    days = _report(workspace)
    if not days or any(day.available < day.expected * 0.9 for day in days):
        raise SystemExit("one partition in a hundred is missing, but the report has other numbers")


def _newest_day_missing(workspace: Workspace) -> None:
    newest = _report(workspace)[-1]
    if newest.available or sum(one.count for one in newest.missing) != newest.expected:
        raise SystemExit(f"the newest day is missing, but the report has {newest.available} partitions of it")


LATENESS = (
    Case("late", published, _some_missing),
    Case("late, newest day missing", without_newest_day, _newest_day_missing),
)
