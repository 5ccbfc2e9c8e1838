"""Time of finding due partitions, in an empty workspace and in a partly filled one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence

import sqlalchemy as sa

from bench.databases import Place, settle
from bench.facts import Fact
from bench.measure import Stopwatch
from bench.simulated_worker import SimulatedWorker
from bench.workload import Workload
from penstock.app import Workspace
from penstock.control.plan import DUE, make_plan
from penstock.control.restate import schedules
from penstock.control.round import Planner
from penstock.control.select import Selection
from penstock.db import schema
from penstock.db.engine import Database
from penstock.expected import ExpectedRange
from penstock.flow.guard import Gate
from penstock.lifecycle import PlanReason
from penstock.partition import new_run_id
from penstock.state.records import Planned

LIMIT = 10_000

Ranges = Sequence[ExpectedRange]


def measure_planning(place: Place, workload: Workload, share: float, batch: int) -> Iterator[Fact]:
    """Every question on an empty state, then with state for the newest `share` of the partitions."""
    stored = int(share * workload.partitions)
    with place.workspace(workload) as workspace:
        yield from _ask(workspace, workload.partitions, 0)
        if stored:
            SimulatedWorker(workspace).fill(_newest(workspace, stored), batch)
            settle(workspace.context.database)
            yield from _ask(workspace, workload.partitions, stored)


def _ask(workspace: Workspace, partitions: int, stored: int) -> Iterator[Fact]:
    ranges, watch = workspace.context.ranges(Selection()), Stopwatch()
    before, load = _rows(workspace.context.database), round(os.getloadavg()[0], 2)
    for name, question in _QUESTIONS.items():
        watch.ask(name, lambda question=question: question(workspace, ranges))  # type: ignore[misc]
        yield Fact(workspace.context.database.dialect, name, partitions, watch.seconds[name], load, stored=stored)
    if (after := _rows(workspace.context.database)) != before:
        raise SystemExit(f"planning is reading, but rows appeared: {before} became {after}")
    found = _reasons(workspace, ranges)
    if sum(found.values()) != partitions or found.get(PlanReason.MISSING, 0) != partitions - stored:
        raise SystemExit(f"{partitions} partitions are expected and {stored} have state, but the plan says {found}")


def _reasons(workspace: Workspace, ranges: Ranges) -> Mapping[PlanReason, int]:
    return workspace.context.state.reasons(ranges, workspace.context.now(), _restated(workspace))


def _candidates(workspace: Workspace, ranges: Ranges, limit: int | None) -> int:
    return len(
        workspace.context.state.candidates(ranges, DUE, workspace.context.now(), _restated(workspace), limit=limit)
    )


def _round(workspace: Workspace) -> int:
    """The work of the control loop every half minute. Without backfills it claims nothing, so no worker is named."""
    planner = Planner(
        workspace.context.state,
        workspace.context.backfills,
        workspace.settings,
        workspace.context.contracts,
        "nobody",
        lambda _source: Gate.OPEN,
    )
    return len(planner.plan(new_run_id(), workspace.context.now()).items)


_QUESTIONS: Mapping[str, Callable[[Workspace, Ranges], object]] = {
    "expected ranges": lambda workspace, _: workspace.context.ranges(Selection()),
    "reasons": _reasons,
    "reasons, one customer": lambda workspace, ranges: _reasons(workspace, ranges[:1]),
    f"candidates, {LIMIT:,}": lambda workspace, ranges: _candidates(workspace, ranges, LIMIT),
    "candidates, all": lambda workspace, ranges: _candidates(workspace, ranges, None),
    "round of the control loop": lambda workspace, _: _round(workspace),
}


def _newest(workspace: Workspace, number: int) -> Sequence[Planned]:
    return make_plan(
        workspace.context.state,
        workspace.context.ranges(Selection()),
        workspace.context.contracts,
        workspace.context.now(),
        restated=_restated(workspace),
        limit=number,
        order="newest",
    ).items


def _restated(workspace: Workspace) -> Mapping[str, Sequence[int]]:
    return schedules(workspace.settings.queries)


def _rows(database: Database) -> dict[str, int]:
    with database.snapshot() as connection:
        return {
            table.name: connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0
            for table in schema.metadata.sorted_tables
        }
