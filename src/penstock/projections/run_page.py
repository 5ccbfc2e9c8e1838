"""Summary of one run: its tasks by stage and state, failed tasks, and the edges that block the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow.compute as pc

from penstock.projections.current import Current
from penstock.projections.system_tables import SystemTable

_SHOWN = 100


@dataclass(frozen=True, slots=True)
class RunPage:
    run: dict[str, Any]
    stages: list[dict[str, Any]]  # stage, state, tasks
    failed: list[dict[str, Any]]
    blocked: list[dict[str, Any]]  # unsatisfied edges, and the tasks that they block
    kept: bool  # False once retention has deleted the tasks; the counts stay
    trace_id: str | None = None  # of the spans of the run, if it was traced


def run_page(current: Current, run_id: str) -> RunPage:
    with current.readable():
        return _run_page(current, run_id)


def _run_page(current: Current, run_id: str) -> RunPage:
    runs = current.runs()
    [run] = runs.filter(pc.equal(runs["run_id"], run_id)).to_pylist() or [{"run_id": run_id}]
    connection = duckdb.connect()
    SystemTable("tasks", current.tasks(run_id)).duckdb(connection).create_view("task")
    SystemTable("edges", current.dep_satisfaction(run_id)).duckdb(connection).create_view("edge")
    stages = _rows(connection, "SELECT stage, state, count(*) AS tasks FROM task GROUP BY ALL ORDER BY stage, state")
    failed = _rows(
        connection,
        "SELECT task_key, state, attempt, error_class, finished_at FROM task WHERE state = 'FAILED'"
        f" ORDER BY task_key LIMIT {_SHOWN}",
    )
    blocked = _rows(
        connection,
        "SELECT e.downstream_task_key, t.state, e.upstream_task_key, u.state AS upstream_state, e.resolution"
        " FROM edge e JOIN task t ON t.task_key = e.downstream_task_key"
        " LEFT JOIN task u ON u.task_key = e.upstream_task_key"
        " WHERE NOT e.satisfied AND t.state IN ('BLOCKED', 'SKIPPED', 'CANCELLED')"
        # root causes first: the upstream has an outcome of its own, not one that follows from its edges
        " ORDER BY u.state IN ('SKIPPED', 'CANCELLED', 'BLOCKED'), e.downstream_task_key"
        f" LIMIT {_SHOWN}",
    )
    return RunPage(run, stages, failed, blocked, bool(stages))


def _rows(connection: duckdb.DuckDBPyConnection, statement: str) -> list[dict[str, Any]]:
    found = connection.execute(statement)
    names: Sequence[str] = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]
