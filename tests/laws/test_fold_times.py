"""When edges were satisfied, and when tasks were ready, started and finished: from the timestamps of events."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from ulid import ULID

from penstock.projections.fact import Fact
from penstock.projections.rows import edge_rows, task_rows
from penstock.projections.run_fold import RunFold

RUN = "01J0000000000000000000000A"
_MOMENTS = [datetime(2024, 6, 1, tzinfo=UTC) + timedelta(seconds=at) for at in range(20)]


def fact(position: int, kind: str, **payload: Any) -> Fact:
    moment = _MOMENTS[position]
    return Fact(position, str(ULID.from_datetime(moment)), kind, 1, moment, RUN, payload)


def tables(story: list[Fact]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    fold = RunFold()
    fold.fold(story)
    owner = ("acme", "ads")
    return task_rows(RUN, fold, owner).to_pylist(), edge_rows(RUN, fold, owner).to_pylist()


def test_edges_and_tasks_say_when_they_were_satisfied_and_ready() -> None:
    up, down = (f"{stage}:s/1/q/2024-06-01" for stage in ("extract", "validate"))
    story = [
        fact(1, "PlanCreated", tasks=[up, down], edges=[[up, down]], groups=[]),
        fact(2, "TaskStarted", stage="extract", tasks=[up], **{"try": 1}),
        fact(3, "TaskFinished", task_key=up, outcome="SUCCEEDED", final=True, closes=False, **{"try": 1}),
        fact(4, "TaskStarted", stage="validate", tasks=[down], **{"try": 1}),
    ]
    [edge] = tables(story[:2])[1]
    assert (edge["satisfied"], edge["satisfied_at"]) == (False, None)
    tasks, [edge] = tables(story)
    assert (edge["satisfied"], edge["satisfied_at"]) == (True, _MOMENTS[3])
    assert {t["task_key"]: (t["ready_at"], t["started_at"], t["finished_at"]) for t in tasks} == {
        up: (_MOMENTS[1], _MOMENTS[2], _MOMENTS[3]),
        down: (_MOMENTS[3], _MOMENTS[4], None),
    }


def test_an_edge_of_a_failed_task_was_never_satisfied() -> None:
    up, down = (f"{stage}:s/1/q/2024-06-01" for stage in ("extract", "validate"))
    story = [
        fact(1, "PlanCreated", tasks=[up, down], edges=[[up, down]], groups=[]),
        fact(2, "TaskFinished", task_key=up, outcome="FAILED", final=True, closes=True, **{"try": 1}),
    ]
    tasks, [edge] = tables(story)
    assert (edge["resolution"], edge["satisfied_at"], edge["satisfying_attempt"]) == ("FAILED", None, None)
    assert {t["task_key"]: (t["state"], t["ready_at"], t["finished_at"]) for t in tasks} == {
        up: ("FAILED", _MOMENTS[1], _MOMENTS[2]),
        down: ("SKIPPED", None, _MOMENTS[2]),
    }


def test_a_task_is_ready_when_the_last_of_its_edges_is_resolved() -> None:
    ups = [f"extract:s/{number}/q/2024-06-01" for number in (1, 2, 3)]
    down = "extract:models/all/m/2024-06-01"
    group = {"name": "g", "task": down, "rule": "at least 2", "tasks": ups}
    story = [fact(1, "PlanCreated", tasks=[*ups, down], edges=[], groups=[group])]
    for position, up, outcome in ((2, ups[2], "SUCCEEDED"), (3, ups[0], "FAILED"), (5, ups[1], "SUCCEEDED")):
        said = {"task_key": up, "outcome": outcome, "final": True, "closes": True, "try": 1}
        story.append(fact(position, "TaskFinished", **said))
    tasks, edges = tables(story)
    [waiting] = [task for task in tasks if task["task_key"] == down]
    assert (waiting["state"], waiting["ready_at"]) == ("READY", _MOMENTS[5])
    assert [edge["satisfied_at"] for edge in edges] == [None, _MOMENTS[5], _MOMENTS[2]]
    [waiting] = [task for task in tables(story[:-1])[0] if task["task_key"] == down]
    assert (waiting["state"], waiting["ready_at"]) == ("BLOCKED", None)
