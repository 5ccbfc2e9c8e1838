"""The fold of one large run, compared with a scheduler that only counts: fast, and wrong when an event repeats."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from bench.measure import timed
from penstock.partition import new_ulids
from penstock.projections import task_states
from penstock.projections.fact import Fact
from penstock.projections.rows import edge_rows, task_rows
from penstock.projections.run_fold import RunFold

_NOW = datetime(2024, 6, 1, tzinfo=UTC)
_RUN = "01J00000000000000000000000"
_OWNER = ("bench", "bench")
LAYERS, DEGREE = 20, 3


def make_events(tasks: int) -> tuple[Fact, list[Fact]]:
    """A plan of `tasks` tasks in layers, each with three inputs of the layer before and the events of their success."""
    chance, width = random.Random(7), tasks // LAYERS
    keys = [f"extract:demo/{number}/campaign_daily/2024-06-01" for number in range(width * LAYERS)]
    edges = [
        [keys[up], keys[down]]
        for down in range(width, len(keys))
        for up in chance.sample(range((down // width - 1) * width, down // width * width), DEGREE)
    ]
    ids = new_ulids(len(keys) + 2)
    plan = Fact(1, ids[1], "PlanCreated", 1, _NOW, _RUN, {"tasks": keys, "edges": edges})
    reports = [
        Fact(n + 2, ids[n + 1], "TaskFinished", 1, _NOW, _RUN, {"task_key": key, "outcome": "SUCCEEDED", "try": 1})
        for n, key in enumerate(keys)
    ]
    return plan, reports


def counting(plan: Fact, reports: Sequence[Fact]) -> int:
    """The yardstick: a dictionary of counters, as ADR-022 shows it first."""
    waiting = dict.fromkeys(plan.payload["tasks"], 0)
    behind: dict[str, list[str]] = {}
    for up, down in plan.payload["edges"]:
        waiting[down] += 1
        behind.setdefault(up, []).append(down)
    ready = sum(count == 0 for count in waiting.values())
    for report in reports:
        for down in behind.get(report.payload["task_key"], ()):
            waiting[down] -= 1
            ready += waiting[down] == 0
    return ready


def measure_folding(sizes: Sequence[int]) -> Iterator[dict[str, object]]:
    for tasks in sizes:
        plan, reports = make_events(tasks)
        half = len(reports) // 2
        fold, steps = RunFold(), {}
        steps["plan"] = timed(fold.fold, [plan])
        steps["half of the reports"] = timed(fold.fold, reports[:half])
        changed = fold.fold(reports[half : half + 1000])
        steps["1,000 more reports"] = timed(fold.fold, reports[half + 1000 : half + 2000])
        steps["their rows"] = timed(task_rows, _RUN, fold, _OWNER, changed) + timed(
            edge_rows, _RUN, fold, _OWNER, changed
        )
        steps["the rest"] = timed(fold.fold, reports[half + 2000 :])
        whole = sum(steps[name] for name in ("plan", "half of the reports", "1,000 more reports", "the rest"))
        yardstick = timed(counting, plan, reports)
        if len(fold.tasks_in(task_states.SUCCEEDED)) != len(reports) or counting(plan, reports) != len(reports):
            raise SystemExit("not every task came to its end")
        yield {
            "what": "fold",
            "tasks": len(reports),
            "edges": len(plan.payload["edges"]),
            **{name: round(seconds, 4) for name, seconds in steps.items()},
            "events_per_second": round(len(reports) / whole),
            "seconds": round(whole, 3),
            "counting_seconds": round(yardstick, 3),
            "ratio": round(whole / yardstick, 2),
        }
