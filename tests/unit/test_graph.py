"""Graphs of runs: invalid plans are refused with the path; valid plans fold to the expected states."""

from __future__ import annotations

from datetime import UTC, date, datetime

import numpy as np
import pytest

from penstock.config.checks import check_from_mapping
from penstock.flow.graph import FanIn, Graph, GraphRefused
from penstock.flow.references import waiting_for_references
from penstock.lifecycle import Stage
from penstock.partition import PartitionKey, RunId, new_ulids
from penstock.partition_set import compact_ranges, iter_keys
from penstock.projections import task_states
from penstock.projections.fact import Fact
from penstock.projections.graph import Ints, RunGraph, needed, spread
from penstock.projections.run_fold import RunFold
from support.builders import contract, key

RUN = RunId("01J00000000000000000000000")
NOW = datetime(2024, 6, 1, tzinfo=UTC)
IDS = new_ulids(100)


def model(name: str, day: int = 1) -> PartitionKey:
    return PartitionKey("models", "all", name, date(2024, 6, day))


def test_the_same_partition_twice_is_refused() -> None:
    with pytest.raises(GraphRefused, match="demo/1000000001/campaign_daily/2024-06-01 is planned twice"):
        Graph([key(1), key(2), key(1)])


def test_a_dependency_that_the_run_does_not_load_is_refused() -> None:
    with pytest.raises(GraphRefused, match="spend/2024-06-01 waits for demo/1000000001/campaign_daily/2024-06-02"):
        Graph([key(1), model("spend")], [FanIn(model("spend"), "demo", "all", [key(1), key(2)])])


def test_a_waiting_task_must_be_planned_and_have_an_upstream() -> None:
    with pytest.raises(GraphRefused, match="not planned itself"):
        Graph([key(1)], [FanIn(model("spend"), "demo", "all", [key(1)])])
    with pytest.raises(GraphRefused, match="waits for nothing"):
        Graph([model("spend")], [FanIn(model("spend"), "demo", "all")])


def test_a_cycle_is_refused_with_its_path() -> None:
    one, two, three = model("one"), model("two"), model("three")
    fan_ins = [FanIn(one, "g", "all", [two]), FanIn(two, "g", "all", [three]), FanIn(three, "g", "all", [one])]
    with pytest.raises(GraphRefused) as refused:
        Graph([one, two, three], fan_ins)
    message = str(refused.value)
    assert message.startswith("a cycle: ")
    assert message.count(" waits for ") == 3
    assert message.removeprefix("a cycle: ").split(" waits for ")[0] == message.split(" waits for ")[-1]


def test_a_diamond_is_not_a_cycle() -> None:
    one, two, three = model("one"), model("two"), model("three")
    Graph([key(1), one, two, three], [
        FanIn(one, "g", "all", [key(1)]),
        FanIn(two, "g", "all", [key(1)]),
        FanIn(three, "a", "all", [one]),
        FanIn(three, "b", "all", [two]),
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "edges", "wanted"),
    [
        ("all", 7, 7),
        ("at least 3", 7, 3),
        ("share 0.5", 7, 4),
        ("share 0.9", 10, 9),
        ("share 1.0", 3, 3),
        ("share 0.1", 1, 1),
        ("share 0.0", 3, 0),
        ("share 0.7", 10, 7),
        ("all", 0, 0),
    ],
)
def test_a_rule_says_how_many_it_needs(rule: str, edges: int, wanted: int) -> None:
    assert needed(rule, edges) == wanted


@pytest.mark.parametrize("twice", [False, True])
def test_the_chains_of_a_first_plan_are_taken_in_at_once_as_they_are_one_by_one(
    monkeypatch: pytest.MonkeyPatch, twice: bool
) -> None:
    fan_ins = [FanIn(model("spend"), "demo", "all", [key(1), key(3)])]
    first = Graph([key(1), key(3), key(4), model("spend")], fan_ins).event(RUN).payload()
    if twice:  # our plans do not contain this; it must have no effect
        first = {**first, "chains": [*first["chains"], *first["chains"]]}
    later = Graph([key(4), key(5)]).event(RUN).payload()

    def taken_in() -> tuple[object, ...]:
        graph = RunGraph()
        touched = [graph.add_plans([(7, first)]).tolist(), graph.add_plans([(9, later), (7, first)]).tolist()]
        arrays = (graph.up, graph.down, graph.edge_position, graph.outside, graph.group_start, graph.group_needed)
        return touched, graph.keys, graph.index, graph.plan_position, [array.tolist() for array in arrays]

    at_once = taken_in()
    with monkeypatch.context() as patch:
        patch.setattr(RunGraph, "_add_first_chains", lambda *_: False)
        assert at_once == taken_in()
    assert len(at_once[1]) == 15  # type: ignore[arg-type]


def test_chains_with_a_task_twice_are_not_taken_in_at_once() -> None:
    chains = Graph([key(1), key(2)]).event(RUN).payload()["chains"]
    graph = RunGraph()
    assert graph._add_first_chains([*chains, *chains], 7) is False
    assert (graph.keys, graph.index, graph.plan_position) == ([], {}, [])
    assert graph._add_first_chains(chains, 7) is True
    assert (len(graph.keys), graph.plan_position) == (6, [7] * 6)


def edges_of(graph: RunGraph) -> list[tuple[str, str, int, bool]]:
    columns = zip(graph.up, graph.down, graph.edge_position, graph.outside, strict=True)
    return [(graph.keys[up], graph.keys[down], int(at), bool(outside)) for up, down, at, outside in columns]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["in order", "the later one first"])
def test_of_two_plans_of_an_edge_or_a_group_the_first_wins(order: tuple[int, int]) -> None:
    group = {"name": "g", "task": "m", "tasks": ["a", "b"]}
    first = {"tasks": ["a", "b", "m"], "groups": [{**group, "rule": "at least 1"}]}
    second = {"tasks": ["c", "m"], "edges": [["a", "m"]], "groups": [{**group, "rule": "all"}]}
    plans = [(3, first), (5, second)]
    graph = RunGraph()
    for at in order:
        graph.add_plans([plans[at]])
    assert sorted(edges_of(graph)) == [("a", "m", 3, False), ("b", "m", 3, False)]
    assert graph.group_needed.tolist() == [1]
    assert dict(zip(graph.keys, graph.plan_position, strict=True)) == {"a": 3, "b": 3, "m": 5, "c": 5}


def test_a_plan_touches_its_tasks_and_what_waits_and_only_once() -> None:
    graph = RunGraph()
    assert graph.add_plans([]).tolist() == []
    graph.number("stranger")
    plan = {"tasks": ["b"], "edges": [["a", "c"]]}
    assert [graph.keys[task] for task in graph.add_plans([(1, plan)])] == ["b", "c"]
    assert graph.add_plans([(1, plan)]).tolist() == []
    assert dict(zip(graph.keys, graph.plan_position, strict=True)) == {"stranger": 0, "b": 1, "c": 0, "a": 0}


def test_edges_are_found_by_the_task_that_they_leave_and_by_the_one_that_waits() -> None:
    graph = RunGraph()
    edges = [["a", "c"], ["b", "c"], ["a", "d"], ["c", "d"]]
    graph.add_plans([(1, {"tasks": ["a", "b", "c", "d"], "edges": edges})])
    graph.number("late")  # added after the last plan: it has no edges

    def pairs(found: Ints) -> list[str]:
        return sorted(graph.keys[graph.up[edge]] + graph.keys[graph.down[edge]] for edge in found)

    def tasks(*names: str) -> Ints:
        return np.array([graph.index[name] for name in names], np.int64)

    assert pairs(graph.outgoing(tasks("a"))) == ["ac", "ad"]
    assert pairs(graph.outgoing(tasks("b", "c"))) == ["bc", "cd"]
    assert pairs(graph.outgoing(tasks("d", "late"))) == []
    assert pairs(graph.incoming(tasks("c"))) == ["ac", "bc"]
    assert pairs(graph.incoming(tasks("c", "d"))) == ["ac", "ad", "bc", "cd"]
    assert pairs(graph.incoming(tasks("a", "b", "late"))) == []


def test_ranges_are_spread_one_after_the_other() -> None:
    assert spread(np.array([4, 9, 1]), np.array([6, 9, 4])).tolist() == [4, 5, 1, 2, 3]
    assert spread(np.array([], np.int64), np.array([], np.int64)).tolist() == []


def test_initials_follow_the_tasks_as_they_become_known() -> None:
    graph, found = RunGraph(), []
    for name in ("extract:a", "load:a", "", "\u00e9tude"):
        graph.number(name)
        found.append("".join(map(chr, graph.initials())))
    assert found == ["e", "el", "el ", "el \u00e9"]


def test_tasks_in_a_state_are_planned_and_of_the_stage_that_was_asked_for() -> None:
    fold = RunFold()
    tasks = ["extract:a", "extra:b", "load:a", "examine:c"]
    fold.fold([Fact(1, IDS[1], "PlanCreated", 1, NOW, RUN, {"tasks": tasks})])
    unplanned = {"task_key": "extract:x", "outcome": "SUCCEEDED"}
    fold.fold([Fact(2, IDS[2], "TaskFinished", 1, NOW, RUN, unplanned)])
    assert fold.tasks_in(task_states.READY) == tasks
    assert fold.tasks_in(task_states.READY, "extract") == ["extract:a"]
    assert fold.tasks_in(task_states.READY, "load") == ["load:a"]
    assert fold.tasks_in(task_states.SUCCEEDED) == []
    assert fold.state_of("extract:x") == task_states.TaskState.SUCCEEDED
    assert fold.state_of("load:a") == task_states.TaskState.READY
    assert fold.state_of("load:unheard") is None


def test_slices_are_written_briefly_and_read_back() -> None:
    keys = [key(day, customer) for customer in ("1", "2") for day in (1, 2, 3, 7, 9, 10)]
    written = compact_ranges(reversed(keys))
    assert written == {
        "demo.campaign_daily": dict.fromkeys(("1", "2"), "2024-06-01..2024-06-03 2024-06-07 2024-06-09..2024-06-10")
    }
    assert list(iter_keys(written)) == [str(k) for k in keys]


def finished(position: int, stage: str, partition: PartitionKey, outcome: str) -> Fact:
    payload = {"partition_key": str(partition), "stage": stage, "outcome": outcome, "try": 1, "final": True}
    return Fact(position, IDS[position], "TaskFinished", 1, NOW, RUN, payload)


@pytest.mark.parametrize(
    ("rule", "loads", "expected"),
    [
        ("all", "SS", task_states.READY),
        ("all", "S-", task_states.BLOCKED),
        ("all", "SF", task_states.SKIPPED),
        ("all", "SC", task_states.CANCELLED),
        ("at least 1", "SF", task_states.READY),
        ("at least 1", "S-", task_states.BLOCKED),  # a task is ready only when every edge is resolved
        ("share 0.5", "FF", task_states.SKIPPED),
    ],
)
def test_a_model_waits_for_its_inputs_by_its_rule(rule: str, loads: str, expected: int) -> None:
    spend, total = model("spend"), model("total")
    fan_ins = [
        FanIn(spend, "demo.campaign_daily", rule, [key(1), key(2)]),
        FanIn(total, "models.spend", "all", [spend]),
    ]
    plan = Graph([key(1), key(2), spend, total], fan_ins).event(RUN)
    fold = RunFold()
    fold.fold([Fact(1, IDS[1], plan.type, plan.version, NOW, RUN, plan.payload())])
    outcomes = {"S": "SUCCEEDED", "F": "FAILED", "C": "CANCELLED"}
    facts = [
        finished(2 + number, "load", key(number + 1), outcomes[letter])
        for number, letter in enumerate(loads)
        if letter in outcomes
    ]
    fold.fold(facts)
    assert f"extract:{spend}" in fold.tasks_in(expected)
    behind = expected if expected in (task_states.SKIPPED, task_states.CANCELLED) else task_states.BLOCKED
    assert f"extract:{total}" in fold.tasks_in(behind)


def test_inputs_that_were_published_before_are_satisfied_from_the_start() -> None:
    spend = model("spend")
    plan = Graph([spend], [FanIn(spend, "demo.campaign_daily", "all", published=[key(1), key(2)])]).event(RUN)
    fold = RunFold()
    fold.fold([Fact(1, IDS[1], plan.type, plan.version, NOW, RUN, plan.payload())])
    assert fold.tasks_in(task_states.READY) == [f"extract:{spend}"]


def test_a_skipped_task_is_revived_when_a_later_outcome_is_success() -> None:
    plan = Graph([key(1)]).event(RUN)
    fold = RunFold()
    fold.fold([Fact(1, IDS[1], plan.type, plan.version, NOW, RUN, plan.payload())])
    fold.fold([finished(2, "extract", key(1), "FAILED")])
    assert fold.tasks_in(task_states.SKIPPED) == [f"validate:{key(1)}", f"load:{key(1)}"]
    fold.fold([finished(3, "extract", key(1), "SUCCEEDED")])
    assert fold.tasks_in(task_states.READY) == [f"validate:{key(1)}"]
    assert fold.tasks_in(task_states.BLOCKED) == [f"load:{key(1)}"]


def test_a_slice_waits_only_for_the_slice_of_its_customer_and_day_and_only_inside_the_run() -> None:
    refers = check_from_mapping({"references": {"field": "clicks", "to": "demo.clicks"}})
    contracts = {"campaign_daily": contract(checks=(refers,)), "clicks": contract(name="clicks")}
    keys = [key(1), key(2), key(1, query="clicks"), key(3, query="clicks"), key(1, "1000000002"), model("spend")]
    [fan_in] = waiting_for_references(keys, contracts)
    assert (fan_in.waiting, fan_in.inside, fan_in.stage) == (key(1), [key(1, query="clicks")], Stage.VALIDATE)
    [group] = Graph(keys, [fan_in]).event(RUN).groups
    assert group["task"] == f"validate:{key(1)}"
