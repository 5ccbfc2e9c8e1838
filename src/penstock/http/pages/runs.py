"""Runs: the list, and one run with its tasks by stage, its failed tasks, and what blocks the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from penstock.errors import UsageError
from penstock.http.api.orders import unfinished_orders
from penstock.http.api.runs import RUN, list_runs, show_run
from penstock.http.calls import Call, Reply
from penstock.http.pages.rendering import Page, render
from penstock.http.parameters import CURSOR, limit
from penstock.http.routes import PAGE, Access, Route
from penstock.partition import PartitionKey, run_id

# In the order of the bars.
TASK_STATES = ("succeeded", "failed", "running", "ready", "blocked", "skipped", "cancelled")
_STAGES = ("extract", "validate", "load")  # in the order of the work
_ENDED = ("succeeded", "failed", "skipped", "cancelled")
_SHOWN_ORDERS = 100
_SHOWN_KEYS = 100

Share = tuple[str, int, float]  # a state, its number of tasks, and its share of 100


def show_runs(call: Call) -> Reply:
    """The runs, newest first, below the unfinished orders."""
    found = list_runs(call)
    return render(
        call,
        "runs.html",
        Page("Runs", "runs", "penstock runs list"),
        runs=[{**run, **run_figures(run)} for run in found["items"]],
        total=found["total"],
        next=found["next"],
        limit=call.limit,
        orders=[] if call.query["cursor"] else unfinished_orders(call, _SHOWN_ORDERS),
    )


def show_one_run(call: Call) -> Reply:
    """One run: its stages, its failed tasks, the edges that block others, and what is left."""
    run, named, ws = show_run(call), run_id(call.path["run_id"]), call.workspace
    is_over = ws.context.state.run(named).finished_at is not None  # type: ignore[union-attr]
    is_worked_on = ws.context.state.is_worked_on(named)
    is_round = bool(ws.context.run_filters(named).get("round"))  # the next round plans what is left of a round
    left = ws.runs.left_of(named) if is_over and not is_round else []
    return render(
        call,
        "run.html",
        Page(f"Run {named}", "runs", f"penstock runs show {named}"),
        run=run,
        figures=run_figures(run),
        stages=stages_of(run["stages"]),
        failed=_failed(call, run["failed"]),
        blocked=[
            {**edge, "key": key_of(edge["downstream_task_key"]), "upstream_key": key_of(edge["upstream_task_key"])}
            for edge in run["blocked"]
        ],
        left=[str(key) for key in left[:_SHOWN_KEYS]],
        left_total=len(left),
        is_over=is_over,
        is_worked_on=is_worked_on,
        can_cancel=ws.runs.cancel(named, dry_run=True),
        can_resume=not is_round and (bool(left) or not (is_over or is_worked_on)),
    )


def run_figures(run: Mapping[str, Any]) -> dict[str, Any]:
    """The tasks of a run by state, how many have ended, and its duration. A run without events has no tasks."""
    counts = {state: run.get(f"tasks_{state}", 0) for state in TASK_STATES}
    return {
        "shares": shares_of(counts),
        "ended": sum(counts[state] for state in _ENDED),
        "tasks": run.get("tasks_total", 0),
        "duration": duration(run.get("planned_at"), run.get("finished_at")),
    }


def stages_of(found: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The stages in the order of the work, each with its tasks by state."""
    counts: dict[str, dict[str, int]] = {}
    for item in found:
        counts.setdefault(item["stage"], {})[str(item["state"]).lower()] = item["tasks"]
    order = [*(stage for stage in _STAGES if stage in counts), *sorted(set(counts) - set(_STAGES))]
    return [
        {
            "stage": stage,
            "counts": counts[stage],
            "total": sum(counts[stage].values()),
            "ended": sum(counts[stage].get(state, 0) for state in _ENDED),
            "shares": shares_of(counts[stage]),
        }
        for stage in order
    ]


def shares_of(counts: Mapping[str, int]) -> list[Share]:
    """The states that have tasks, with their share of 100."""
    total = sum(counts.values())
    return [(state, counts[state], round(100 * counts[state] / total, 2)) for state in TASK_STATES if counts.get(state)]


def duration(began: datetime | None, ended: datetime | None) -> str | None:
    """The time between two moments as text; None if one of them is missing."""
    if began is None or ended is None:
        return None
    seconds = max(0.0, (ended - began).total_seconds())
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def key_of(task_key: str) -> str | None:
    """The partition of a task; None for a task of several partitions."""
    text = task_key.partition(":")[2]
    try:
        return str(PartitionKey.parse(text))
    except UsageError:
        return None


def _failed(call: Call, tasks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The failed tasks with the error messages of their attempts."""
    keys = {task["task_key"]: key_of(task["task_key"]) for task in tasks}
    parsed = [PartitionKey.parse(key) for key in keys.values() if key]
    errors = call.workspace.context.state.errors_of_run(call.path["run_id"], parsed)
    messages = {str(key): message for key, message in errors.items()}
    return [
        {
            **task,
            "stage": task["task_key"].partition(":")[0],
            "key": keys[task["task_key"]],
            "message": messages.get(keys[task["task_key"]] or ""),
        }
        for task in tasks
    ]


ROUTES = (
    Route("GET", "/runs", show_runs, Access.VIEWER, PAGE, "The runs", (limit(20), CURSOR)),
    Route("GET", "/runs/{run_id}", show_one_run, Access.VIEWER, PAGE, "One run", (RUN,)),
)
