"""From a selection to the due days, and from those to a plan with reasons."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from penstock.config.assets import Query
from penstock.config.checks import Field
from penstock.config.settings import Customer, Settings, SourceSettings, StateSettings
from penstock.contract.contract import Contract
from penstock.control.plan import DUE, Plan, attempt_reason, make_plan, refuse_changed_fields
from penstock.control.select import Selection, due_range, expected
from penstock.db.engine import Database
from penstock.errors import ConfigError, UsageError
from penstock.expected import ExpectedRange
from penstock.lifecycle import AttemptReason, PartitionStatus, PlanReason
from penstock.state.records import Planned
from support import builders
from support.builders import Actors, contract, days, key, planned, query

NOW = datetime(2024, 6, 10, 12, 0, tzinfo=UTC)  # midnight in Auckland, 5 in the morning in Los Angeles


def workspace(*queries: Query, customers: tuple[Customer, ...] = (Customer(id="1000000001"),)) -> Settings:
    chosen = queries or (query(),)
    return Settings(
        root=Path("/nowhere"),
        tenant="acme",
        workspace="ads",
        state=StateSettings(url="sqlite:///state.db"),
        lake="/nowhere/lake",
        customers=customers,
        sources={name: SourceSettings(name=name, kind="demo") for name in sorted({q.source for q in chosen})},
        queries={q.name: q for q in chosen},
    )


def june(first: int, last: int, customer: str = "1000000001", name: str = "campaign_daily") -> ExpectedRange:
    return days(first, last, customer, name)


# --- when a day is due ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zone", "now", "last"),
    [
        ("UTC", datetime(2024, 6, 10, 0, 0, tzinfo=UTC), 9),
        ("UTC", datetime(2024, 6, 9, 23, 59, 59, tzinfo=UTC), 8),
        ("Pacific/Auckland", datetime(2024, 6, 10, 12, 0, tzinfo=UTC), 10),  # UTC+12 in their winter
        ("Pacific/Auckland", datetime(2024, 6, 10, 11, 59, 59, tzinfo=UTC), 9),
        ("America/Los_Angeles", datetime(2024, 6, 10, 7, 0, tzinfo=UTC), 9),  # UTC-7 in their summer
        ("America/Los_Angeles", datetime(2024, 6, 10, 6, 59, 59, tzinfo=UTC), 8),
    ],
)
def test_a_day_is_due_when_it_is_over_where_the_account_lives(zone: str, now: datetime, last: int) -> None:
    settings = workspace(customers=(Customer(id="1000000001", time_zone=zone),))
    assert expected(settings, Selection(), now) == [june(1, last)]


def test_at_one_moment_the_last_day_differs_from_customer_to_customer() -> None:
    zones = {"1": "Pacific/Auckland", "2": "UTC", "3": "America/Los_Angeles"}
    settings = workspace(customers=tuple(Customer(id=name, time_zone=zone) for name, zone in zones.items()))
    assert expected(settings, Selection(), NOW) == [june(1, 10, "1"), june(1, 9, "2"), june(1, 9, "3")]
    early = datetime(2024, 6, 10, 3, 0, tzinfo=UTC)
    assert expected(settings, Selection(), early) == [june(1, 9, "1"), june(1, 9, "2"), june(1, 8, "3")]


@pytest.mark.parametrize(
    ("now", "last"),
    [
        (datetime(2024, 3, 10, 7, 59, tzinfo=UTC), date(2024, 3, 8)),  # still winter time, UTC-8
        (datetime(2024, 3, 10, 8, 0, tzinfo=UTC), date(2024, 3, 9)),
        (datetime(2024, 3, 11, 6, 59, tzinfo=UTC), date(2024, 3, 9)),  # the day of 23 hours ends at UTC-7
        (datetime(2024, 3, 11, 7, 0, tzinfo=UTC), date(2024, 3, 10)),
    ],
)
def test_a_day_of_23_hours_ends_when_it_ends(now: datetime, last: date) -> None:
    settings = workspace(
        query(start_date=date(2024, 1, 1)), customers=(Customer(id="1", time_zone="America/Los_Angeles"),)
    )
    [found] = expected(settings, Selection(), now)
    assert found.last == last


def test_now_may_have_any_time_zone() -> None:
    settings = workspace(customers=(Customer(id="1000000001", time_zone="Pacific/Auckland"),))
    assert expected(settings, Selection(), NOW.astimezone(ZoneInfo("Asia/Tokyo"))) == [june(1, 10)]


# --- expected partitions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "active", "found"),
    [
        (date(2024, 6, 3), {}, [june(3, 9)]),
        (None, {"active_from": date(2024, 6, 4)}, [june(4, 9)]),
        (date(2024, 6, 3), {"active_from": date(2024, 6, 5)}, [june(5, 9)]),
        (date(2024, 6, 5), {"active_from": date(2024, 6, 3)}, [june(5, 9)]),
        (date(2024, 6, 1), {"active_to": date(2024, 6, 7)}, [june(1, 7)]),
        (date(2024, 6, 1), {"active_to": date(2024, 6, 30)}, [june(1, 9)]),
        (date(2024, 6, 9), {}, [june(9, 9)]),
        (date(2024, 6, 10), {}, []),
        (date(2024, 6, 8), {"active_to": date(2024, 6, 7)}, []),
    ],
)
def test_a_range_begins_and_ends_where_query_and_customer_both_are(
    start: date | None, active: dict[str, Any], found: list[ExpectedRange]
) -> None:
    settings = workspace(query(start_date=start), customers=(Customer(id="1000000001", **active),))
    assert expected(settings, Selection(), NOW) == found


def test_a_query_and_a_customer_without_any_first_day_are_refused() -> None:
    settings = workspace(query(start_date=None))
    words = r"^queries\.campaign_daily has no start_date and customer 1000000001 no active_from"
    with pytest.raises(ConfigError, match=words):
        expected(settings, Selection(), NOW)


def test_every_query_asks_for_every_customer_unless_it_names_some() -> None:
    settings = workspace(
        query("campaign_daily"),
        query("keyword_daily", customers=("2",)),
        customers=(Customer(id="1"), Customer(id="2")),
    )
    assert expected(settings, Selection(), NOW) == [
        june(1, 9, "1"),
        june(1, 9, "2"),
        june(1, 9, "2", "keyword_daily"),
    ]


@pytest.fixture
def four() -> Settings:
    return workspace(
        query("campaign_daily"),
        query("keyword_daily"),
        query("orders", source="shop"),
        customers=(Customer(id="1"), Customer(id="2", active_to=date(2024, 6, 5))),
    )


def pairs(settings: Settings, selection: Selection) -> list[tuple[str, str]]:
    return [(found.query_name, found.customer_id) for found in expected(settings, selection, NOW)]


def test_a_selection_narrows_by_source_query_and_customer(four: Settings) -> None:
    assert pairs(four, Selection(source="shop")) == [("orders", "1"), ("orders", "2")]
    assert pairs(four, Selection(queries=("keyword_daily",))) == [("keyword_daily", "1"), ("keyword_daily", "2")]
    assert pairs(four, Selection(customers=("2",), source="demo")) == [("campaign_daily", "2"), ("keyword_daily", "2")]
    assert pairs(four, Selection(source="shop", queries=("keyword_daily",))) == []


def test_a_selection_narrows_by_date_but_never_widens(four: Settings) -> None:
    def campaign(**narrow: date) -> list[tuple[str, int, int]]:
        found = expected(four, Selection(queries=("campaign_daily",), **narrow), NOW)  # type: ignore[arg-type]
        return [(r.customer_id, r.first.day, r.last.day) for r in found]

    assert campaign(since=date(2024, 6, 4)) == [("1", 4, 9), ("2", 4, 5)]
    assert campaign(until=date(2024, 6, 4)) == [("1", 1, 4), ("2", 1, 4)]
    assert campaign(since=date(2020, 1, 1), until=date(2030, 1, 1)) == [("1", 1, 9), ("2", 1, 5)]
    assert campaign(since=date(2024, 6, 6)) == [("1", 6, 9)]
    assert campaign(since=date(2024, 6, 6), until=date(2024, 6, 5)) == []


def test_keys_that_are_named_are_the_selection(four: Settings) -> None:
    chosen = (key(3, "1"), key(1, "2", "orders", "shop"))
    assert expected(four, Selection(keys=chosen), NOW) == [
        june(3, 3, "1"),
        ExpectedRange("shop", "2", "orders", date(2024, 6, 1), date(2024, 6, 1)),
    ]


def test_a_key_that_is_named_twice_is_one_partition(four: Settings) -> None:
    assert expected(four, Selection(keys=(key(3, "1"), key(3, "1"))), NOW) == [june(3, 3, "1")]


def test_the_due_days_of_a_key_are_those_of_its_customer_and_query(four: Settings) -> None:
    assert due_range(four, key(30, "2"), NOW) == june(1, 5, "2")


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        (Selection(source="ads"), r"^unknown source ads \(known: demo, shop\)$"),
        (
            Selection(queries=("orders", "x", "b")),
            r"^unknown query b, x \(known: campaign_daily, keyword_daily, orders\)$",
        ),
        (Selection(customers=("9", "1", "8")), r"^unknown customer 8, 9 \(known: 1, 2\)$"),
        (Selection(keys=(key(source="ads"),)), r"^unknown source ads \(known: demo, shop\)$"),
        (Selection(keys=(key(query="x"),)), r"^unknown query x \(known: campaign_daily, keyword_daily, orders\)$"),
        (Selection(keys=(key(customer="9"),)), r"^unknown customer 9 \(known: 1, 2\)$"),
        (
            Selection(keys=(key(1, "1", "orders"),)),
            r"^demo/1/orders/2024-06-01: the query orders belongs to source shop, not demo$",
        ),
    ],
)
def test_unknown_names_are_refused_and_the_known_ones_listed(four: Settings, selection: Selection, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        expected(four, selection, NOW)


def test_of_many_known_names_the_first_twenty_are_listed() -> None:
    settings = workspace(customers=tuple(Customer(id=str(number)) for number in range(100, 125)))
    with pytest.raises(UsageError, match=r"unknown customer 9 \(known: 100, 101, .*, 119 and 5 more\)$"):
        expected(settings, Selection(customers=("9",)), NOW)


def test_a_selection_is_kept_in_the_audit_log_as_it_was_given() -> None:
    assert Selection().as_dict() == {}
    assert Selection(
        keys=(key(),),
        source="demo",
        customers=("1", "2"),
        queries=("q",),
        since=date(2024, 6, 1),
        until=date(2024, 6, 2),
        status=PartitionStatus.FAILED,
    ).as_dict() == {
        "keys": ["demo/1000000001/campaign_daily/2024-06-01"],
        "source": "demo",
        "customers": ["1", "2"],
        "queries": ["q"],
        "since": "2024-06-01",
        "until": "2024-06-02",
        "status": "failed",
    }


# --- the plan ------------------------------------------------------------------------------------------------------

CONTRACTS = {"campaign_daily": contract()}


@pytest.fixture
def actors() -> Iterator[Actors]:
    """1 nothing, 2 success, 3 failed, 4 requeued, 5 open, 6 cancelled."""
    with builders.quick_folder() as folder:
        actors = Actors.on(builders.migrated(Database(f"sqlite:///{folder}/state.db")))
        actors.accept(key(2))
        actors.reject(key(3))
        actors.reject(key(4))
        actors.control.requeue([key(4)], builders.audit_entry())
        actors.cancel(key(6))
        actors.issue_one(key(5))
        yield actors


def plan_of(actors: Actors, *, reprocess: bool = False) -> Plan:
    reasons = (*DUE, PlanReason.SUCCESS) if reprocess else DUE
    return make_plan(actors.reader, [days(1, 6)], CONTRACTS, builders.NOW, restated={}, reasons=reasons)


def test_a_plan_contains_pending_partitions_with_their_reason(actors: Actors) -> None:
    plan = plan_of(actors)
    assert plan == Plan([planned(key(1)), planned(key(4), 1, "requeued"), planned(key(6), 1)])
    assert plan.reasons == {"missing": 2, "requeued": 1}


def test_a_plan_to_reprocess_takes_what_is_success_as_well_but_never_what_failed(actors: Actors) -> None:
    plan = plan_of(actors, reprocess=True)
    assert [(item.key.logical_date.day, item.reason) for item in plan.items] == [
        (1, "missing"),
        (2, "reprocess"),
        (4, "requeued"),
        (6, "missing"),
    ]


def test_a_plan_names_todays_contract(actors: Actors) -> None:
    newer = contract(schema_version="v2")
    plan = make_plan(actors.reader, [days(1, 1)], {"campaign_daily": newer}, builders.NOW, restated={})
    assert plan.items == [Planned(key(1), 0, AttemptReason.MISSING, newer.fingerprint, "v2")]


@pytest.mark.parametrize("reason", PlanReason)
def test_every_reason_to_plan_is_stored_with_the_attempt_or_allows_none(reason: PlanReason) -> None:
    stored = {PlanReason.WAITING: AttemptReason.POSTPONED, PlanReason.SUCCESS: AttemptReason.REPROCESS}
    if reason in (PlanReason.OPEN, PlanReason.PAUSED, PlanReason.FAILED):
        with pytest.raises(ValueError, match=f"that is {reason} is not attempted"):
            attempt_reason(reason)
    else:
        assert attempt_reason(reason) == stored.get(reason, reason.value)


def test_planning_changes_nothing(actors: Actors) -> None:
    before = builders.everything(actors.database)
    assert plan_of(actors, reprocess=True) == plan_of(actors, reprocess=True)
    assert builders.everything(actors.database) == before


def test_a_plan_can_be_issued_as_it_is_and_then_nothing_is_left(actors: Actors) -> None:
    issued, refused = actors.try_to_issue(*plan_of(actors).items)
    assert [(item.attempt.partition, item.attempt_no) for item in issued] == [(key(1), 1), (key(4), 2), (key(6), 2)]
    assert refused == []
    assert plan_of(actors) == Plan([])


# --- fields change only with the version ---------------------------------------------------------------------------

CAMPAIGN, CLICKS = Field(name="campaign_id", type="long"), Field(name="clicks", type="long")
COST, PRECISE = Field(name="cost", type="double"), Field(name="clicks", type="decimal(10,2)")


def changed(*fields: Field, **more: Any) -> dict[str, Contract]:
    return {"campaign_daily": contract(fields=fields, **more)}


@pytest.mark.parametrize(
    ("fields", "difference"),
    [
        ((CAMPAIGN, CLICKS, COST), "cost double was added"),
        ((CAMPAIGN,), "clicks long was removed"),
        ((CAMPAIGN, PRECISE), r"clicks was long, is decimal\(10,2\)"),
        ((COST, PRECISE), r"campaign_id long was removed; cost double was added; clicks was long, is decimal\(10,2\)"),
    ],
)
def test_changed_fields_without_a_new_version_are_refused_with_the_difference(
    actors: Actors, fields: tuple[Field, ...], difference: str
) -> None:
    words = (
        rf"^queries\.campaign_daily: its fields changed but schema_version is still v1 \({difference}\):"
        " give it a new schema_version$"
    )
    with pytest.raises(ConfigError, match=words):
        refuse_changed_fields(actors.reader, changed(*fields))


@pytest.mark.parametrize(
    "contracts",
    [
        CONTRACTS,
        {},
        changed(CLICKS, CAMPAIGN),
        changed(CAMPAIGN, CLICKS, COST, schema_version="v2"),
        changed(CAMPAIGN, CLICKS, checks=({"unique": ["campaign_id"]},)),
        changed(CAMPAIGN, CLICKS, missing_fields="reject"),
        {"other": contract(name="other", fields=(COST,))},
        changed(COST, source="shop"),
    ],
    ids=["the same", "gone", "another order", "a new version", "checks", "policy", "another query", "another source"],
)
def test_what_leaves_the_fields_of_a_version_alone_is_allowed(actors: Actors, contracts: dict[str, Contract]) -> None:
    refuse_changed_fields(actors.reader, contracts)


def test_an_old_version_may_not_come_back_with_other_fields(actors: Actors) -> None:
    newer = contract(schema_version="v2", fields=(CAMPAIGN,))
    actors.control.store_contracts([(newer.fingerprint, "demo", "campaign_daily", "v2", newer.body())])
    refuse_changed_fields(actors.reader, {"campaign_daily": newer})
    with pytest.raises(ConfigError, match="schema_version is still v1"):
        refuse_changed_fields(actors.reader, changed(CAMPAIGN))


def test_a_changed_query_is_found_behind_contracts_of_others(actors: Actors) -> None:
    """The oldest contract on record is that of a query which is not in the configuration any more."""
    other = contract(name="other", fields=(COST,))
    actors.clock.now -= timedelta(days=365)
    actors.control.store_contracts([(other.fingerprint, "demo", "other", "v1", other.body())])
    assert [row.query_name for row in actors.reader.contracts()] == ["other", "campaign_daily"]
    with pytest.raises(ConfigError, match="schema_version is still v1"):
        refuse_changed_fields(actors.reader, changed(CAMPAIGN))
