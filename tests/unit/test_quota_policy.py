"""Which attempts a quota admits, which of them are for old data, and which windows are reported."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from penstock.config.rates import RateLimit, RateWindow
from penstock.config.settings import ControlSettings, Customer, Settings, SourceSettings, StateSettings
from penstock.control.breaker import BreakerGuard
from penstock.control.quota import SourceGuard, gate, is_old, low
from penstock.errors import QuotaUsedUp
from penstock.flow.guard import Gate
from penstock.partition import PartitionKey
from penstock.state.breakers import BreakerStore
from penstock.state.quota import QuotaStore, QuotaWindow, SourceQuota
from penstock.state.records import Observation
from support import builders
from support.builders import Actors
from support.workspaces import open_at, write_workspace

NOW = datetime(2024, 7, 1, 12, tzinfo=UTC)
START = NOW.replace(hour=0)
DAILY = (RateLimit(10, RateWindow.DAY),)


def quota(claimed: int, budget: int = 10) -> SourceQuota:
    return SourceQuota("demo", NOW, (QuotaWindow("demo", RateWindow.DAY, START, budget, claimed),))


@pytest.mark.parametrize(
    ("claimed", "by_loop", "by_hand"),
    [
        (0, Gate.OPEN, Gate.OPEN),
        (6, Gate.OPEN, Gate.OPEN),
        (7, Gate.FRESH, Gate.OPEN),
        (9, Gate.FRESH, Gate.OPEN),
        (10, Gate.SHUT, Gate.SHUT),
        (25, Gate.SHUT, Gate.SHUT),  # the rate was lowered
    ],
)
def test_the_gate_closes_for_old_data_first(claimed: int, by_loop: Gate, by_hand: Gate) -> None:
    assert gate(quota(claimed), 0.3, by_hand=False) is by_loop
    assert gate(quota(claimed), 0.3, by_hand=True) is by_hand


def test_a_window_is_reported_when_only_the_reserve_is_left() -> None:
    assert [bool(low(quota(claimed), 0.3)) for claimed in (0, 6, 7, 10, 25)] == [False, False, True, True, True]
    assert [bool(low(quota(claimed), 0.0)) for claimed in (0, 9, 10)] == [False, False, True]
    assert not low(quota(0, budget=1), 0.3)  # nothing was used yet, though all of it is reserved
    [window] = low(quota(14_880, budget=15_000), 0.2)
    assert window.remaining == "quota of demo: 120 of 15,000 requests left, renews 2024-07-02 00:00 UTC"
    [window] = low(quota(25), 0.2)
    assert window.remaining == "quota of demo: 0 of 10 requests left, renews 2024-07-02 00:00 UTC"


def settings(**limits: object) -> Settings:
    return Settings(
        root=Path("/nowhere"),
        tenant="acme",
        workspace="ads",
        state=StateSettings(url="sqlite:///nowhere.db"),
        lake="/nowhere/lake",
        control=ControlSettings(fresh_days=3, quota_reserve=0.3),
        customers=(Customer(id="1"), Customer(id="2", time_zone="Pacific/Auckland")),
        sources={"demo": SourceSettings.model_validate({"name": "demo", "kind": "demo", **limits})},
        queries={"campaign_daily": builders.query()},
    )


def test_backfills_and_days_before_the_fresh_ones_are_old() -> None:
    def old(reason: str, age: int, customer: str = "1") -> bool:
        key = PartitionKey("demo", customer, "campaign_daily", date(2024, 6, 30) - timedelta(days=age))
        return is_old(builders.planned(key, reason=reason), settings(), NOW)

    assert [old("missing", age) for age in (0, 2, 3, 300)] == [False, False, True, True]
    assert [old("retry", age) for age in (0, 2, 3, 300)] == [False, False, True, True]
    assert [old("backfill", age) for age in (0, 300)] == [True, True]
    for reason in ("requeued", "restate", "postponed", "reprocess"):
        assert not old(reason, 300)
    assert old("missing", 2, customer="2")  # in Auckland the 1st of July is over


@pytest.fixture
def actors() -> Iterator[Actors]:
    with builders.quick_folder() as folder:
        database = builders.migrated(builders.open_database("sqlite", folder, str))
        yield Actors.on(database)
        database.close()


def guard(actors: Actors, *, by_hand: bool = False) -> SourceGuard:
    breakers = BreakerGuard(BreakerStore(actors.database, actors.clock), actors.clock, by_hand)
    return SourceGuard(breakers, QuotaStore(actors.database), settings(rate="10/d"), actors.clock, by_hand)


def test_a_source_is_shut_by_its_breaker_or_by_its_quota(actors: Actors) -> None:
    loop, person, store = guard(actors), guard(actors, by_hand=True), QuotaStore(actors.database)
    assert loop.gate("demo") is Gate.OPEN
    loop.observe("demo", Observation(refused=3, message="bad login"))
    assert (loop.gate("demo"), person.gate("demo")) == (Gate.SHUT, Gate.PROBE)
    store.claim("demo", DAILY, 1)  # 7 requests: only the reserve is left
    assert person.gate("demo") is Gate.PROBE
    assert "bad login" in str(loop.source_error("demo"))
    loop.observe("demo", Observation(succeeded=1))
    assert (loop.gate("demo"), person.gate("demo"), loop.source_error("demo")) == (Gate.FRESH, Gate.OPEN, None)
    store.claim("demo", DAILY, 1)
    assert (loop.gate("demo"), person.gate("demo")) == (Gate.SHUT, Gate.SHUT)
    assert str(loop.source_error("demo")).startswith("quota of demo is used up until ")
    assert (loop.quota("models"), loop.gate("models")) == (None, Gate.OPEN)


def test_nothing_is_old_in_a_run_that_a_person_starts(actors: Actors) -> None:
    item = builders.planned(PartitionKey("demo", "1", "campaign_daily", date(2024, 1, 1)), reason="backfill")
    assert guard(actors).is_old(item)
    assert not guard(actors, by_hand=True).is_old(item)


def test_a_listing_of_accounts_claims_its_requests_and_returns_the_others(tmp_path: Path) -> None:
    ws = open_at(write_workspace(tmp_path))
    source = SourceSettings.model_validate({"name": "demo", "kind": "demo", "rate": "10/d"})
    with ws.customers._budget(source) as budget:
        assert ws.context.quotas.read("demo", source.quotas).left() == 0
        budget.spend()
        budget.spend()
    assert ws.context.quotas.read("demo", source.quotas).left() == 8
    ws.context.quotas.claim("demo", source.quotas, 100)
    with pytest.raises(QuotaUsedUp, match="quota of demo is used up until"), ws.customers._budget(source):
        pass
    ws.context.database.close()
