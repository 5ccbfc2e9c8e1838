"""Expected partitions of models, and their inputs: laws over any customers, time zones and chains."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import last_day_over
from penstock.config.assets import Model
from penstock.config.settings import Customer, Settings, SourceSettings, StateSettings
from penstock.control.models import ModelPlanner
from penstock.control.select import Selection, derived, expected
from penstock.derived import Derived, in_order
from penstock.expected import ExpectedRange
from penstock.lifecycle import PlanReason
from penstock.partition import ALL_CUSTOMERS, PartitionKey
from support import builders

START = date(2024, 6, 1)
ZONES = ("UTC", "Pacific/Auckland", "America/Los_Angeles")
DAYS = st.integers(0, 12).map(lambda days: START + timedelta(days=days))
NOWS = st.integers(0, 10 * 24).map(lambda hours: datetime(2024, 6, 1, tzinfo=UTC) + timedelta(hours=hours))
MODELS = (
    Model(name="own", depends_on=("demo.campaign_daily",), per="customer,date"),
    Model(name="whole", depends_on=("demo.campaign_daily", "models.own"), needs=3),
    Model(name="share", depends_on=("models.own", "models.whole"), per="customer,date", needs=2),
    Model(name="last", depends_on=("models.share",)),
)


@st.composite
def customers(draw: st.DrawFn) -> tuple[Customer, ...]:
    found = []
    for number in range(draw(st.integers(0, 4))):
        begin, end = draw(st.none() | DAYS), draw(st.none() | DAYS)
        if begin and end and end < begin:
            begin, end = end, begin
        zone = draw(st.sampled_from(ZONES))
        found.append(Customer(id=f"{number}", time_zone=zone, active_from=begin, active_to=end))
    return tuple(found)


def settings(some: tuple[Customer, ...]) -> Settings:
    return Settings(
        root=Path("/nowhere"),
        tenant="acme",
        workspace="ads",
        state=StateSettings(url="sqlite:///state.db"),
        lake="/nowhere/lake",
        customers=some,
        sources={"demo": SourceSettings(name="demo", kind="demo")},
        queries={"campaign_daily": builders.query()},
        models={model.name: model for model in MODELS},
    )


def slices(found: Derived, name: str) -> list[PartitionKey]:
    return [key for span in found.ranges(name).values() for key in each(span)]


def each(span: ExpectedRange) -> list[PartitionKey]:
    days = (span.first + timedelta(days=number) for number in range(len(span)))
    return [PartitionKey(span.source, span.customer_id, span.query_name, day) for day in days]


@given(customers(), NOWS)
def test_what_goes_into_a_slice_is_expected_and_leads_back_to_it(some: tuple[Customer, ...], now: datetime) -> None:
    found = derived(settings(some), now)
    for model in MODELS:
        upstream = [key for table in model.depends_on for key in slices(found, table.partition(".")[2])]
        mine = slices(found, model.name)
        goes_into = {key: {one for keys in found.inputs(key).values() for one in keys} for key in mine}
        for one in upstream:
            assert found.outputs(model.name, [one]) & set(mine) == {key for key in mine if one in goes_into[key]}
        for key in mine:
            assert goes_into[key] <= set(upstream)
            if model.per_customer:
                assert {one.customer_id for one in goes_into[key]} <= {key.customer_id, ALL_CUSTOMERS}


@given(customers(), NOWS)
def test_a_day_of_all_customers_is_due_when_it_is_over_for_each_of_them(
    some: tuple[Customer, ...], now: datetime
) -> None:
    due = {key.logical_date for key in slices(derived(settings(some), now), "whole")}
    for day in due:
        for one in some:
            if (one.active_from or START) <= day <= (one.active_to or day):
                assert day <= last_day_over(now, one.time_zone)
    for one in some:  # and not later than that, as far as somebody has it
        first, last = one.active_from or START, one.active_to or date.max
        over = min(last_day_over(now, other.time_zone) for other in some)
        assert between(first, min(last, over)) <= due


def between(first: date, last: date) -> set[date]:
    first = max(first, START)
    return {first + timedelta(days=number) for number in range((last - first).days + 1)}


@given(customers(), NOWS)
def test_ranges_of_models_that_are_selected_are_never_empty(some: tuple[Customer, ...], now: datetime) -> None:
    assert all(len(span) for span in expected(settings(some), Selection(), now))


def test_models_come_after_what_they_read() -> None:
    names = [model.name for model in in_order({model.name: model for model in reversed(MODELS)})]
    assert names == ["own", "whole", "share", "last"]


@given(customers(), NOWS, st.sets(st.integers(0, 3)))
def test_a_plan_waits_only_for_what_is_there_or_comes_with_it(
    some: tuple[Customer, ...], now: datetime, bringing: set[int]
) -> None:
    """In an empty workspace, with any customers that the run has."""
    body = settings(some)
    found = derived(body, now)
    inside = [key for key in slices(found, "campaign_daily") if int(key.customer_id) in bringing]
    contracts = {model.name: builders.contract(name=model.name) for model in MODELS}
    with builders.quick_folder() as folder:
        reader = builders.Actors.on(builders.migrated(builders.open_database("sqlite", folder, str))).reader
        planner = ModelPlanner(reader, found, contracts, lambda ranges: set(), lambda: ())
        ranges = expected(body, Selection(source="models"), now)
        plan = planner.plan(ranges, inside, now, (PlanReason.MISSING,))
    made = {item.key for item in plan.items}
    coming = {*inside, *made}
    assert made == {key for model in MODELS for key in slices(found, model.name) if whole(found.inputs(key), coming)}
    assert len(made) + plan.waiting == sum(len(span) for span in ranges)
    assert {fan_in.waiting for fan_in in plan.fan_ins} == made


def whole(inputs: dict[str, list[PartitionKey]], coming: set[PartitionKey]) -> bool:
    """Whether there are inputs, and all of them arrive."""
    every = [one for keys in inputs.values() for one in keys]
    return bool(every) and coming.issuperset(every)


def test_a_selection_narrows_models_as_it_narrows_queries() -> None:
    some = settings((Customer(id="1"), Customer(id="2", active_to=date(2024, 6, 2))))
    now = datetime(2024, 6, 5, 12, tzinfo=UTC)

    def chosen(**narrow: Any) -> list[tuple[str, str, int, int]]:
        found = expected(some, Selection(**narrow), now)
        return [(r.query_name, r.customer_id, r.first.day, r.last.day) for r in found]

    everything = chosen()
    models = [one for one in everything if one[0] != "campaign_daily"]
    assert {one[0] for one in models} == {"own", "whole", "share", "last"}
    assert chosen(source="models") == models
    assert chosen(source="demo") == [one for one in everything if one[0] == "campaign_daily"]
    for names in (("own",), ("whole", "last"), ("last", "campaign_daily")):
        assert chosen(queries=names) == [one for one in everything if one[0] in names]
    assert chosen(customers=("2",)) == [one for one in everything if one[1] == "2"]
    assert ("own", "2", 1, 2) in chosen(customers=("2",))
    since, until = date(2024, 6, 2), date(2024, 6, 3)
    assert chosen(source="models", since=since, until=until) == [
        (name, who, max(first, 2), min(last, 3)) for name, who, first, last in models if max(first, 2) <= min(last, 3)
    ]
    assert chosen(source="models", since=date(2024, 6, 5)) == []
