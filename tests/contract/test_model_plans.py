"""Which partitions of models a run plans: due, stale or selected, with enough inputs, and not held by an operator."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import date
from typing import Any

import pytest
import sqlalchemy as sa

from penstock.config.assets import Model
from penstock.config.settings import Settings
from penstock.control.models import ModelPlan, ModelPlanner
from penstock.control.plan import DUE
from penstock.db import schema
from penstock.derived import Derived
from penstock.expected import ExpectedRange
from penstock.flow.graph import FanIn
from penstock.lifecycle import AttemptReason, PlanReason
from penstock.partition import PartitionKey
from support import builders
from support.builders import NOW, Actors

FIRST, LAST = date(2024, 6, 1), date(2024, 6, 3)
CUSTOMERS = ("1000000001", "1000000002")
QUERY = builders.query()


@pytest.fixture
def actors() -> Iterator[Actors]:
    with builders.quick_folder() as folder:
        database = builders.migrated(builders.open_database("sqlite", folder, str))
        yield Actors.on(database)
        database.close()


def fetched(day: int, customer: str = CUSTOMERS[0]) -> PartitionKey:
    return builders.key(day, customer)


def made(day: int, name: str = "spend") -> PartitionKey:
    return PartitionKey("models", "all", name, date(2024, 6, day))


def models(**changes: Any) -> dict[str, Model]:
    spend = Model(**{"name": "spend", "sql": "spend.sql", "depends_on": ("demo.campaign_daily",), **changes})
    return {"spend": spend, "total": Model(name="total", sql="total.sql", depends_on=("models.spend",))}


def derived(known: dict[str, Model]) -> Derived:
    spans = {c: ExpectedRange("demo", c, QUERY.name, FIRST, LAST) for c in CUSTOMERS}
    settings = Settings.model_construct(models=known, queries={QUERY.name: QUERY}, customers=())
    return Derived(settings, lambda name: spans)


class Planner:
    """A planner with the available and stale partitions that the test sets."""

    def __init__(self, actors: Actors, **changes: Any) -> None:
        self._derived = derived(models(**changes))
        self.there: set[PartitionKey] = set()
        self.stale: set[PartitionKey] = set()
        self.asked: list[Sequence[ExpectedRange]] = []
        contracts = {name: builders.contract(name=name, source="models") for name in ("spend", "total")}
        rows = [(c.fingerprint, c.source, c.query_name, c.schema_version, c.body()) for c in contracts.values()]
        actors.control.store_contracts(rows)
        self.planner = ModelPlanner(actors.reader, self._derived, contracts, self._available, lambda: self.stale)

    def _available(self, ranges: Sequence[ExpectedRange]) -> set[PartitionKey]:
        self.asked.append(ranges)
        return self.there

    def ranges(self) -> list[ExpectedRange]:
        return [span for name in ("spend", "total") for span in self._derived.ranges(name).values()]

    def plan(self, inside: Collection[PartitionKey] = (), reasons: Sequence[PlanReason] = DUE) -> ModelPlan:
        return self.planner.plan(self.ranges(), inside, NOW, reasons)


def keys(plan: ModelPlan) -> list[PartitionKey]:
    return [item.key for item in plan.items]


def everything(day: int) -> set[PartitionKey]:
    return {fetched(day, customer) for customer in CUSTOMERS}


def accepted(actors: Actors, *partitions: PartitionKey) -> None:
    for partition in partitions:
        actors.accept(partition)


def test_a_slice_is_planned_when_all_of_its_inputs_are_there_or_come_with_the_run(actors: Actors) -> None:
    planner = Planner(actors)
    assert (keys(planner.plan()), planner.plan().waiting) == ([], 6)
    planner.there = {fetched(1), fetched(2)}
    plan = planner.plan([fetched(1, CUSTOMERS[1])])
    assert keys(plan) == [made(1), made(1, "total")]
    assert plan.waiting == 4
    assert plan.fan_ins == [
        FanIn(made(1), "demo.campaign_daily", "all", [fetched(1, CUSTOMERS[1])], [fetched(1)]),
        FanIn(made(1, "total"), "models.spend", "all", [made(1)], []),
    ]
    [spend, total] = plan.items
    assert (spend.seen_attempt_no, spend.reason, total.seen_attempt_no) == (0, "missing", 0)
    assert spend.contract_fingerprint != total.contract_fingerprint


def test_only_the_days_that_are_read_are_asked_for(actors: Actors) -> None:
    planner = Planner(actors, needs=2)
    accepted(actors, made(1), made(2))
    planner.plan()
    assert planner.asked[0] == [ExpectedRange("demo", "all", QUERY.name, date(2024, 6, 2), LAST)]


def test_a_rule_that_holds_without_all_says_how_many_it_needs(actors: Actors) -> None:
    planner = Planner(actors, require="any")
    planner.there = {fetched(1)}
    [spend, total] = planner.plan().fan_ins
    assert (spend.rule, spend.inside, spend.published) == ("all", [], [fetched(1)])
    planner.there = everything(1)
    [spend, total] = planner.plan().fan_ins
    assert (spend.rule, set(spend.published)) == ("at least 1", everything(1))
    assert total.rule == "all"


def test_what_is_made_is_made_again_only_when_it_is_stale_or_touched(actors: Actors) -> None:
    planner = Planner(actors)
    planner.there = {one for day in (1, 2, 3) for one in everything(day)} | {made(d) for d in (1, 2, 3)}
    accepted(actors, *(made(d, name) for d in (1, 2, 3) for name in ("spend", "total")))
    assert keys(planner.plan()) == []
    planner.stale = {made(2)}
    plan = planner.plan([fetched(1)])
    found = {item.key: item.reason for item in plan.items}
    assert found == {
        made(1): AttemptReason.REFRESH,
        made(2): AttemptReason.STALE,
        made(1, "total"): AttemptReason.REFRESH,
        made(2, "total"): AttemptReason.REFRESH,
    }
    assert all(item.seen_attempt_no == 1 for item in plan.items)


def test_a_model_that_does_not_refresh_is_made_once(actors: Actors) -> None:
    planner = Planner(actors, refresh=False)
    planner.there = everything(1)
    accepted(actors, made(1))
    planner.stale = {made(1)}
    assert made(1) not in keys(planner.plan([fetched(1)]))
    assert made(1) in keys(planner.plan([fetched(1)], (PlanReason.MISSING, PlanReason.SUCCESS))), (
        "asked to make everything again"
    )


def hold(actors: Actors, partition: PartitionKey) -> None:
    facts = {**builders.columns(partition), "held_at": NOW, "held_by": "ada"}
    actors.execute(sa.insert(schema.partition_control).values(**facts))


def test_a_run_that_an_operator_chose_is_left_alone(actors: Actors) -> None:
    planner = Planner(actors)
    planner.there = everything(1) | everything(2)
    accepted(actors, made(1), made(2))
    hold(actors, made(1))
    planner.stale = {made(1), made(2)}
    assert [one for one in keys(planner.plan()) if one.query_name == "spend"] == [made(2)]


def test_a_run_that_died_is_taken_up_where_it_was(actors: Actors) -> None:
    planner = Planner(actors)
    accepted(actors, made(1), made(2))
    hold(actors, made(2))
    wanted = {made(1), made(2), made(3)}
    due = planner.planner.still_due(planner.ranges(), wanted, NOW, DUE)
    assert [(item.key, item.seen_attempt_no) for item in due] == [(made(1), 1), (made(3), 0)]
    assert [item.key for item in planner.planner.still_due(planner.ranges(), {made(3)}, NOW, DUE)] == [made(3)]
    again = planner.planner.still_due(planner.ranges(), wanted, NOW, (*DUE, PlanReason.SUCCESS))
    assert [item.key for item in again] == [made(1), made(2), made(3)]
    assert [item.reason for item in due] == [AttemptReason.REFRESH, AttemptReason.MISSING]
    assert [item.reason for item in again] == [AttemptReason.REPROCESS, AttemptReason.REPROCESS, AttemptReason.MISSING]
