"""The fold of a run: order, repetition and batching of events change nothing, and the slow, obvious fold agrees."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ulid import ULID

from penstock.ledger.events import Event
from penstock.partition import new_ulids
from penstock.projections import task_states
from penstock.projections.event_page import count_unknown_events
from penstock.projections.fact import OF_A_RUN, UNDERSTOOD, Fact, understood
from penstock.projections.rows import edge_rows, task_rows
from penstock.projections.run_fold import RunFold
from penstock.projections.runs import RUNS, FoldedRun, run_row
from penstock.projections.task_reports import TaskReport, task_reports
from penstock.projections.ulids import EventIds, moments
from support.reference_fold import reference

_NOW = datetime(2024, 6, 1, tzinfo=UTC)
_IDS = new_ulids(200)
RUN = "01J0000000000000000000000A"


def fact(position: int, kind: str, **payload: Any) -> Fact:
    return Fact(position, _IDS[position], kind, 1, _NOW, RUN, payload)


@st.composite
def stories(draw: st.DrawFn) -> list[Fact]:
    """A random DAG in up to three plans, and random events about its tasks."""
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
def test_fold_returns_the_tasks_that_a_batch_changes(story: list[Fact], data: st.DataObject) -> None:
    """Applying only the changed rows to the old table gives the new table."""
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
    """Also after a first try that failed: tasks skipped because of it are reactivated."""
    story = [fact(1, "PlanCreated", **PLAN), fact(2, "TaskStarted", stage="load", tasks=[LOAD], **{"try": 1})]
    story.append(fact(3, "LoadsFailed", tasks=[LOAD], error_class="data", final=True, **{"try": 1}))
    story.append(fact(4, "TaskStarted", stage="load", tasks=[LOAD], **{"try": 2}))
    story.append(fact(5, "PartitionPublished", partition_key=LOAD.removeprefix("load:")))
    tasks, edges = tables(folded(story))
    assert {task["task_key"]: task["state"] for task in tasks} == {LOAD: "SUCCEEDED", MODEL: "READY", BEHIND: "BLOCKED"}
    [edge] = [edge for edge in edges if edge["upstream_task_key"] == LOAD]
    assert (edge["satisfied"], edge["resolution"], edge["satisfying_attempt"]) == (True, "SUCCESS", 2)
    assert edge["row_version"] == story[-1].event_id


def test_a_try_that_arrives_after_the_publication_changes_the_edges() -> None:
    """Its event may be committed later, at a lower position. The changed rows must include it."""
    plan, start = fact(1, "PlanCreated", **PLAN), fact(2, "TaskStarted", stage="load", tasks=[LOAD], **{"try": 2})
    published = fact(3, "PartitionPublished", partition_key=LOAD.removeprefix("load:"))
    fold = folded([plan, published])
    [edge] = edge_rows(RUN, fold, ("acme", "ads"), fold.fold([start])).to_pylist()
    assert (edge["upstream_task_key"], edge["downstream_task_key"], edge["satisfying_attempt"]) == (LOAD, MODEL, 2)
    assert [fold.graph.keys[task] for task in fold.fold([start])] == [LOAD]
    assert tables(fold) == tables(folded([plan, start, published]))


# --- the row of a run ------------------------------------------------------------------------------------------------


def done(task: str, outcome: str, at: int, **more: Any) -> Fact:
    return fact(at, "TaskFinished", task_key=task, outcome=outcome, **{"final": True, "try": 1, **more})


@pytest.mark.parametrize(
    ("end", "load", "state"),
    [
        (None, "SUCCEEDED", "RUNNING"),
        ("done", "SUCCEEDED", "SUCCEEDED"),
        ("done", "FAILED", "FAILED"),
        ("done", "CANCELLED", "INCOMPLETE"),
        ("done", None, "INCOMPLETE"),
        ("cancelled", "FAILED", "CANCELLED"),
        ("abandoned", "SUCCEEDED", "ABANDONED"),
        ("broken", "SUCCEEDED", "FAILED"),
    ],
)
def test_a_run_is_what_its_end_and_its_tasks_say(end: str | None, load: str | None, state: str) -> None:
    story = [fact(1, "PlanCreated", tasks=[LOAD])]
    story += [done(LOAD, load, 2)] if load else []
    story += [fact(3, "RunFinished", end=end)] if end else []
    assert run_row(RUN, FoldedRun.of(story), ("acme", "ads"))["state"] == state
    asked = [*story, fact(4, "RunCancelRequested")]
    assert run_row(RUN, FoldedRun.of(asked), ("acme", "ads"))["state"] == ("CANCELLING" if end is None else state)


def test_the_row_of_a_run_counts_planned_tasks_and_uses_the_first_event_of_each_type() -> None:
    story = [fact(2, "PlanCreated", **PLAN), done("extract:not/1/planned/2024-06-01", "SUCCEEDED", 3)]
    story += [fact(4, "RunCancelRequested"), fact(5, "RunCancelRequested"), done(LOAD, "SUCCEEDED", 6)]
    story += [fact(7, "RunFinished", end="cancelled"), fact(8, "RunFinished", end="done"), fact(9, "PlanCreated")]
    story.insert(0, fact(1, "Unheard"))  # an unknown event is ignored, and those after it are not
    story.append(fact(10, "Unheard"))
    for told in (story, story[::-1]):
        row = run_row(RUN, FoldedRun.of(told), ("acme", "ads"))
        assert list(row) == RUNS.names
        assert (row["tenant_id"], row["workspace_id"], row["run_id"], row["state"]) == ("acme", "ads", RUN, "CANCELLED")
        assert (row["tasks_total"], row["tasks_succeeded"], row["tasks_cancelled"]) == (3, 1, 2)
        assert (row["first_position"], row["row_version"]) == (2, _IDS[9])
        moments = [row[name] for name in ("planned_at", "cancel_requested_at", "finished_at")]
        assert moments == [ULID.from_str(_IDS[at]).datetime for at in (2, 4, 7)]
    empty = run_row(RUN, FoldedRun.of([]), ("acme", "ads"))
    assert (empty["tasks_total"], empty["first_position"], empty["row_version"]) == (0, 0, "")
    assert (empty["state"], empty["planned_at"], empty["finished_at"]) == ("RUNNING", None, None)


def test_of_all_outcomes_of_a_task_the_closing_one_wins_then_the_highest_try_then_the_last() -> None:
    plan = fact(1, "PlanCreated", tasks=[LOAD])
    stories = [
        ([done(LOAD, "FAILED", 2, **{"try": 2}), done(LOAD, "SUCCEEDED", 3)], "FAILED"),
        ([done(LOAD, "FAILED", 2), done(LOAD, "SUCCEEDED", 3)], "SUCCEEDED"),
        ([done(LOAD, "CANCELLED", 2, closes=True), done(LOAD, "SUCCEEDED", 3, **{"try": 9})], "CANCELLED"),
        ([done(LOAD, "FAILED", 2, final=False, error_class="data")], "READY"),
        ([done(LOAD, "FAILED", 2, error_class="data"), done(LOAD, "SUCCEEDED", 3)], "SUCCEEDED"),
    ]
    for story, state in stories:
        for batches in ([[plan, *story]], [[plan], *([one] for one in story)], [[*story[::-1], plan]]):
            [task] = tables(folded(*batches))[0]
            assert task["state"] == state
            assert task["error_class"] is None
            assert task["attempt"] == max(one.payload["try"] for one in story)
    [task] = tables(folded([plan, done(LOAD, "FAILED", 2, error_class="data")]))[0]
    assert task["error_class"] == "data"


def test_of_several_tasks_the_highest_try_is_known() -> None:
    fold = folded([fact(1, "PlanCreated", **PLAN)])
    assert fold.most_tries([LOAD, MODEL, "unheard"]) == 0
    fold.fold([done(LOAD, "FAILED", 2, **{"try": 3}), fact(3, "TaskStarted", stage="extract", tasks=[MODEL])])
    assert [fold.most_tries(keys) for keys in ([LOAD, MODEL], [MODEL], [BEHIND], ["unheard"], [])] == [3, 1, 0, 0, 0]


def test_the_end_of_a_run_cancels_tasks_without_outcome_and_a_later_outcome_still_counts() -> None:
    story = [fact(1, "PlanCreated", **PLAN), done(LOAD, "SUCCEEDED", 2), fact(3, "RunFinished", end="done")]
    fold = folded(story)

    def state() -> dict[str, str]:
        return {task["task_key"]: task["state"] for task in tables(fold)[0]}

    assert state() == {LOAD: "SUCCEEDED", MODEL: "CANCELLED", BEHIND: "CANCELLED"}
    assert fold.fold([fact(4, "RunFinished", end="done")]).tolist() == []
    assert {task["row_version"] for task in tables(fold)[0] if task["task_key"] != LOAD} == {_IDS[3]}
    fold.fold([done(MODEL, "FAILED", 5)])
    assert state() == {LOAD: "SUCCEEDED", MODEL: "FAILED", BEHIND: "SKIPPED"}


def test_a_task_that_belongs_to_no_partition_has_only_a_stage() -> None:
    names = ["load:demo/1/daily/2024-06-01", "publish", "publish:", "report:a/b", "x:a/b/c/d/e"]
    rows = {row["task_key"]: row for row in tables(folded([fact(1, "PlanCreated", tasks=names)]))[0]}
    assert list(rows) == sorted(names)
    found = {name: (row["stage"], row["partition_key"], row["asset_key"]) for name, row in rows.items()}
    assert found == {
        names[0]: ("load", "demo/1/daily/2024-06-01", "demo.daily"),
        "publish": ("publish", None, None),
        "publish:": ("publish", None, None),
        "report:a/b": ("report", "a/b", None),
        "x:a/b/c/d/e": ("x", "a/b/c/d/e", None),
    }


def test_an_event_about_many_partitions_reports_each_of_them() -> None:
    """Of the stage that it names, or of all, with its outcome and its try."""
    slices = {"demo.daily": {"1": "2024-06-01..2024-06-02"}}
    days = [f"demo/1/daily/2024-06-0{day}" for day in (1, 2)]
    said = [
        fact(1, "SlicesExtracted", slices=slices),
        fact(2, "SlicesUnchanged", slices=slices),
        fact(3, "TasksDropped", stage="validate", slices=slices, error_class="quota"),
        fact(4, "LoadsFailed", tasks=[f"load:{days[0]}"], error_class="data", **{"try": 2}),
        fact(5, "TaskStarted", stage="load", slices=slices, **{"try": 3}),
        fact(6, "TaskFinished", stage="load", partition_key=days[0], outcome="FAILED", final=False),
        fact(7, "TaskFinished", stage="load", partition_key=days[0], outcome="SUCCEEDED", closes=True),
        fact(8, "PartitionPublished", partition_key=days[1]),
        fact(9, "AuthorityChanged", partition_key=days[1]),
    ]
    told = task_reports(said)
    ok, failed, cancelled = task_states.SUCCEEDED, task_states.FAILED, task_states.CANCELLED
    assert told.final == [
        *(TaskReport(f"extract:{day}", ok, 1, 1) for day in days),
        *(TaskReport(f"{stage}:{day}", ok, 1, 2) for stage in ("extract", "validate", "load") for day in days),
        *(TaskReport(f"validate:{day}", cancelled, 1, 3, error_class="quota") for day in days),
        TaskReport(f"load:{days[0]}", failed, 2, 4, error_class="data"),
        TaskReport(f"load:{days[0]}", ok, 1, 7, closes=True),
    ]
    assert told.tried == [TaskReport(f"load:{days[0]}", failed, 1, 6)]
    assert told.started == [TaskReport(f"load:{day}", ok, 3, 5) for day in days]
    assert told.published == [(f"load:{days[1]}", 8)]


def test_the_fold_understands_every_event_that_the_ledger_writes_in_its_version() -> None:
    written = {kind.type: kind.version for kind in get_args(Event)}
    assert {kind: version for kind, version in UNDERSTOOD.items() if kind in written} == written
    for kind, version in written.items():
        told = fact(1, kind)
        assert understood(told._replace(version=version))
        assert not understood(told._replace(version=version + 1))
        assert not understood(told._replace(version=version - 1))
    assert not understood(fact(1, "Unheard"))
    assert UNDERSTOOD.keys() >= OF_A_RUN
    assert UNDERSTOOD.keys() - OF_A_RUN == {"AuthorityChanged", "PartitionHidden", "AttemptRefused"}
    newer = fact(3, "RunFinished")._replace(version=2)
    assert count_unknown_events([fact(1, "Unheard"), fact(2, "RunFinished"), newer, fact(4, "Unheard")]) == {
        "Unheard/1": 2,
        "RunFinished/2": 1,
    }


# --- ids of events ---------------------------------------------------------------------------------------------------


def test_ids_of_events_are_found_by_position_however_they_became_known() -> None:
    known = EventIds()
    known.add([], [])
    known.add([5, 3], ["five", "three"])
    known.add([3, 9], ["three", "nine"])
    known.add([1], ["one"])
    assert known.at(np.array([9, 0, 1, 5, 3, 3])).to_pylist() == ["nine", None, "one", "five", "three", "three"]
    known.add([4], ["four"])
    assert known.at(np.array([5, 4])).to_pylist() == ["five", "four"]


def test_the_moment_of_an_event_is_that_of_its_ulid() -> None:
    at = datetime(2024, 6, 1, 12, 30, 15, 123000, tzinfo=UTC)
    found = moments(pa.array([str(ULID.from_datetime(at)), None, "0" * 26, "00000000Z0" + "Z" * 16], pa.string()))
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert found.to_pylist() == [at, None, epoch, epoch + timedelta(milliseconds=31 * 32)]
