"""The fold of a run: order, repetition and batching of events change nothing, and the slow, obvious fold agrees."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.partition import new_ulids
from penstock.projections.fact import Fact
from penstock.projections.rows import edge_rows, task_rows
from penstock.projections.run_fold import RunFold
from penstock.projections.runs import FoldedRun, run_row
from reference_fold import reference

_NOW = datetime(2024, 6, 1, tzinfo=UTC)
_IDS = new_ulids(200)
RUN = "01J0000000000000000000000A"


def fact(position: int, kind: str, **payload: Any) -> Fact:
    return Fact(position, _IDS[position], kind, 1, _NOW, RUN, payload)


@st.composite
def stories(draw: st.DrawFn) -> list[Fact]:
    """A random DAG, told in up to three plans, and random things that happen to its tasks."""
    count = draw(st.integers(1, 9))
    names = [f"{'load' if i % 3 == 1 else 'extract'}:s/{i}/q/2024-06-01" for i in range(count)]
    edges: list[list[str]] = []
    groups: list[dict[str, Any]] = []
    for down in range(1, count):
        ups = draw(st.lists(st.integers(0, down - 1), unique=True, max_size=4))
        rule = draw(st.sampled_from(["each", "all", "at least 1", "at least 2", "share 0.5"]))
        if rule == "each":
            edges += [[names[up], names[down]] for up in ups]
        elif ups:
            rule = "at least 1" if rule == "at least 2" and len(ups) < 2 else rule
            groups.append({"name": "g", "task": names[down], "rule": rule, "tasks": [names[up] for up in ups]})
    parts = draw(st.integers(1, 3))
    plans: list[dict[str, Any]] = [{"tasks": [], "edges": [], "groups": []} for _ in range(parts)]
    for kind, items in (("tasks", names), ("edges", edges), ("groups", groups)):
        for item in items:
            plans[draw(st.integers(0, parts - 1))][kind].append(item)
    told = [("PlanCreated", plan) for plan in plans]
    for _ in range(draw(st.integers(0, 12))):
        name, attempt = draw(st.sampled_from(names)), draw(st.integers(1, 3))
        if name.startswith("load:") and draw(st.booleans()):
            if draw(st.booleans()):
                told.append(("PartitionPublished", {"partition_key": name.removeprefix("load:")}))
            else:
                told.append(("LoadsFailed", {"tasks": [name], "try": attempt, "error_class": "data", "final": True}))
        elif draw(st.booleans()):
            outcome = draw(st.sampled_from(["SUCCEEDED", "SUCCEEDED", "FAILED", "CANCELLED"]))
            final = draw(st.booleans()) or outcome == "SUCCEEDED"
            closes = final and draw(st.booleans())
            word = {"task_key": name, "outcome": outcome, "try": attempt, "final": final, "closes": closes}
            told.append(("TaskFinished", word))
        else:
            told.append(("TaskStarted", {"stage": "extract", "tasks": [name], "try": attempt}))
    if draw(st.integers(0, 3)) == 0:
        told.append(("RunFinished", {}))
    told.append(("SomethingElse", {"task_key": names[0], "outcome": "FAILED", "final": True}))
    return [fact(position + 1, kind, **payload) for position, (kind, payload) in enumerate(told)]


def folded(*batches: list[Fact]) -> RunFold:
    fold = RunFold()
    for batch in batches:
        fold.fold(batch)
    return fold


def tables(fold: RunFold) -> tuple[list[Any], list[Any]]:
    owner = ("acme", "ads")
    return task_rows(RUN, fold, owner).to_pylist(), edge_rows(RUN, fold, owner).to_pylist()


@settings(deadline=None)
@given(stories())
def test_the_obvious_fold_agrees(story: list[Fact]) -> None:
    tasks, edges = tables(folded(story))
    expected_tasks, expected_edges = reference(story)
    assert {t["task_key"]: {name: t[name] for name in expected_tasks[t["task_key"]]} for t in tasks} == expected_tasks
    found = {(e["upstream_task_key"], e["downstream_task_key"]): e for e in edges}
    assert {pair: {name: e[name] for name in expected_edges[pair]} for pair, e in found.items()} == expected_edges


@settings(max_examples=200, deadline=None)
@given(stories(), st.data())
def test_order_repetition_and_batching_change_nothing(story: list[Fact], data: st.DataObject) -> None:
    told = data.draw(st.permutations(story + data.draw(st.lists(st.sampled_from(story), max_size=6))))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(told)), max_size=5)))
    batches = [told[a:b] for a, b in zip([0, *cuts], [*cuts, len(told)], strict=True)]
    assert tables(folded(*batches)) == tables(folded(story))


@settings(deadline=None)
@given(stories(), st.data())
def test_the_rows_that_a_batch_changes_are_told(story: list[Fact], data: st.DataObject) -> None:
    """Whoever applies only the changed rows to the old table has the new table."""
    at = data.draw(st.integers(0, len(story)))
    fold = folded(story[:at])
    owner = ("acme", "ads")
    tasks = {row["task_key"]: row for row in task_rows(RUN, fold, owner).to_pylist()}
    edges = {(r["downstream_task_key"], r["upstream_task_key"]): r for r in edge_rows(RUN, fold, owner).to_pylist()}
    changed = fold.fold(story[at:])
    tasks |= {row["task_key"]: row for row in task_rows(RUN, fold, owner, changed).to_pylist()}
    edges |= {
        (r["downstream_task_key"], r["upstream_task_key"]): r for r in edge_rows(RUN, fold, owner, changed).to_pylist()
    }
    assert ([tasks[key] for key in sorted(tasks)], [edges[pair] for pair in sorted(edges)]) == tables(fold)


LOAD, MODEL, BEHIND = "load:s/1/q/2024-06-01", "extract:models/all/m/2024-06-01", "validate:models/all/m/2024-06-01"
PLAN = {"tasks": [LOAD, MODEL, BEHIND], "edges": [[LOAD, MODEL], [MODEL, BEHIND]]}


def test_a_load_that_fails_for_good_fails_its_task_and_skips_what_waits_for_it() -> None:
    failed = {"tasks": [LOAD], "try": 1, "error_class": "data", "final": True}
    story = [fact(1, "PlanCreated", **PLAN), fact(2, "TaskStarted", stage="load", tasks=[LOAD], **{"try": 1})]
    story += [fact(3, "LoadsFailed", **failed), fact(4, "RunFinished")]
    tasks, edges = tables(folded(story))
    assert {task["task_key"]: (task["state"], task["error_class"]) for task in tasks} == {
        LOAD: ("FAILED", "data"), MODEL: ("SKIPPED", None), BEHIND: ("SKIPPED", None),
    }  # fmt: skip
    assert [(edge["resolution"], edge["satisfied"]) for edge in edges] == [("FAILED", False), ("SKIPPED", False)]
    run = FoldedRun.of(story)
    assert run_row(RUN, run, ("acme", "ads"))["state"] == "FAILED"


def test_a_load_that_is_published_in_its_second_try_satisfies_its_edges_with_that_try() -> None:
    """Also after a first try that failed: what was skipped because of it is reactivated."""
    story = [fact(1, "PlanCreated", **PLAN), fact(2, "TaskStarted", stage="load", tasks=[LOAD], **{"try": 1})]
    story.append(fact(3, "LoadsFailed", tasks=[LOAD], error_class="data", final=True, **{"try": 1}))
    story.append(fact(4, "TaskStarted", stage="load", tasks=[LOAD], **{"try": 2}))
    story.append(fact(5, "PartitionPublished", partition_key=LOAD.removeprefix("load:")))
    tasks, edges = tables(folded(story))
    assert {task["task_key"]: task["state"] for task in tasks} == {LOAD: "SUCCEEDED", MODEL: "READY", BEHIND: "BLOCKED"}
    [edge] = [edge for edge in edges if edge["upstream_task_key"] == LOAD]
    assert (edge["satisfied"], edge["resolution"], edge["satisfying_attempt"]) == (True, "SUCCESS", 2)
    assert edge["row_version"] == story[-1].event_id
