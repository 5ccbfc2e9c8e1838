"""Rounds of the control loop without Spark: claims, finished chunks, and that every partition is attempted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.config.settings import ControlSettings, Customer, Settings, SourceSettings, StateSettings
from penstock.control.round import Planner, Round
from penstock.flow.guard import Gate
from penstock.lifecycle import AttemptReason
from penstock.partition import AttemptKey, PartitionKey, new_run_id, new_ulid
from penstock.state.backfills import Backfill, BackfillStore
from penstock.state.marks import MarkStore
from penstock.state.pause_scope import Scope
from penstock.state.pauses import PauseStore
from penstock.state.retries import RetryStore
from support import builders
from support.builders import BACKENDS, Actors, accepted, audit_entry, cancelled, contract, query, rejected

NOW = datetime(2024, 7, 1, 12, tzinfo=UTC)


def settings(customers: int = 3, size: int = 20, start: date = date(2024, 6, 1)) -> Settings:
    return Settings(
        root=Path("/nowhere"),
        tenant="acme",
        workspace="ads",
        state=StateSettings(url="sqlite:///nowhere.db"),
        lake="/nowhere/lake",
        control=ControlSettings(round=size, fresh_days=3),
        customers=tuple(Customer(id=str(1_000_000_001 + n)) for n in range(customers)),
        sources={"demo": SourceSettings(name="demo", kind="demo")},
        queries={"campaign_daily": query(start_date=start)},
    )


@dataclass
class Loop:
    """A control loop whose attempts end as the test sets."""

    actors: Actors
    settings: Settings
    fate: Callable[[AttemptKey], str] = lambda attempt: "accept"
    gate: Gate = Gate.OPEN
    attempted: list[PartitionKey] = field(default_factory=list)

    @property
    def backfills(self) -> BackfillStore:
        return BackfillStore(self.actors.database, self.actors.clock)

    def planner(self, token: str | None = None) -> Planner:
        contracts = {"campaign_daily": contract(start_date=date(2024, 6, 1))}
        return Planner(
            self.actors.reader, self.backfills, self.settings, contracts, token or self.actors.token,
            lambda source: self.gate,
        )  # fmt: skip

    def tick(self) -> Round:
        planner, run_id = self.planner(), new_run_id()
        planned = planner.plan(run_id, self.actors.clock())
        issued, _ = self.actors.try_to_issue(*planned.items, run_id=run_id)
        for item in issued:
            self.close(item.attempt)
        planner.conclude(planned.chunks, self.actors.clock())
        return planned

    def close(self, attempt: AttemptKey) -> None:
        self.attempted.append(attempt.partition)
        match self.fate(attempt):
            case "accept":
                self.actors.validator.judge([accepted(attempt, self.actors.token)])
            case "reject":
                self.actors.validator.judge([rejected(attempt, self.actors.token)])
            case _:
                self.actors.control.cancel([cancelled(attempt, self.actors.token)])
                self.actors.control.postpone({attempt.partition: self.actors.clock() + timedelta(seconds=30)})

    def backfill(self, total: int, **changes: Any) -> Backfill:
        made = Backfill(new_ulid(), "active", {}, False, 7, 0, 2, total, None, self.actors.clock(), "ada")
        made = replace(made, **changes)
        self.backfills.create(made, audit_entry())
        return made

    def status(self, backfill: Backfill) -> str:
        return self.backfills.get(backfill.backfill_id).status


@pytest.fixture(params=BACKENDS)
def loop(request: pytest.FixtureRequest) -> Iterator[Loop]:
    with builders.quick_folder() as folder:
        database = builders.open_database(request.param, folder, lambda: request.getfixturevalue("postgres_url"))
        actors = Actors.on(builders.migrated(database))
        actors.clock.now = NOW
        yield Loop(actors, settings())
        database.close()


def test_everything_is_attempted_once_and_the_newest_days_first(loop: Loop) -> None:
    first = loop.tick()
    assert {item.key.logical_date for item in first.fresh} == {date(2024, 6, 28), date(2024, 6, 29), date(2024, 6, 30)}
    while loop.tick().items:
        pass
    assert len(loop.attempted) == len(set(loop.attempted)) == 90


def test_a_backfill_is_worked_off_and_ends_with_its_numbers(loop: Loop) -> None:
    loop.fate = lambda attempt: "reject" if attempt.partition.logical_date.day == 5 else "accept"
    made = loop.backfill(30, selector={"since": "2024-06-01", "until": "2024-06-10"})
    for _ in range(30):
        loop.tick()
    assert loop.status(made) == "finished"
    progress = loop.backfills.progress(made.backfill_id)
    assert (progress.done, progress.accepted, progress.rejected, progress.skipped) == (30, 27, 3, 0)
    failed = loop.backfills.failed(made.backfill_id)
    assert [key.logical_date.day for key in failed] == [5, 5, 5]


def test_a_retry_of_a_backfill_attempts_exactly_what_failed_in_it(loop: Loop) -> None:
    """Day 5 fails in the backfill, day 20 in another attempt. Of day 5 one partition is fetched in the meantime, and
    another belongs to a customer that leaves the configuration."""
    first, second, third = (
        PartitionKey("demo", str(1_000_000_001 + n), "campaign_daily", date(2024, 6, 5)) for n in range(3)
    )
    loop.fate = lambda attempt: "reject" if attempt.partition.logical_date.day in (5, 20) else "accept"
    old = loop.backfill(30, selector={"since": "2024-06-01", "until": "2024-06-10"})
    while loop.tick().items:
        pass
    assert loop.backfills.failed(old.backfill_id) == [first, second, third]
    assert loop.backfills.failed(old.backfill_id, after=first, limit=1) == [second]
    assert loop.backfills.failed(old.backfill_id, since=second, until=second) == [second]
    assert loop.backfills.failed_count(old.backfill_id, after=first) == 2
    assert loop.backfills.failed_sources(old.backfill_id) == {"demo"}
    elsewhere = [PartitionKey("demo", first.customer_id, "campaign_daily", date(2024, 6, 20))]
    loop.actors.control.requeue([first, second, third, *elsewhere], audit_entry())
    loop.actors.accept(third)
    loop.actors.clock.now += timedelta(minutes=1)
    loop.attempted.clear()
    retry = loop.backfill(2, selector={"retry_of": old.backfill_id}, chunk_size=1)
    loop.settings = loop.settings.model_copy(update={"customers": loop.settings.customers[:1]})
    loop.fate = lambda attempt: "accept"
    for _ in range(5):
        loop.actors.clock.now += timedelta(minutes=1)
        loop.tick()
    assert loop.status(retry) == "finished"
    progress = loop.backfills.progress(retry.backfill_id)
    assert (progress.done, progress.accepted, progress.skipped) == (2, 1, 1)
    assert set(loop.attempted) == {first, *elsewhere}
    assert loop.backfills.failed(old.backfill_id) == [second]


@pytest.mark.parametrize("reprocess", [False, True])
def test_a_backfill_waits_for_paused_partitions_until_they_are_resumed(loop: Loop, reprocess: bool) -> None:
    """Of ten days, day 1 is paused by a mark, days 4 and 5 by a selector. Day 10 is success and paused: only a backfill
    that fetches again waits for it."""
    customer = loop.settings.customers[0].id
    days = [PartitionKey("demo", customer, "campaign_daily", date(2024, 6, day)) for day in range(1, 11)]
    for partition in days if reprocess else days[9:]:
        loop.actors.accept(partition)
    loop.actors.clock.now += timedelta(minutes=1)
    store = PauseStore(loop.actors.database, loop.actors.clock)
    MarkStore(loop.actors.database, loop.actors.clock).pause([days[0], days[9]], "look", audit_entry())
    store.pause([Scope("demo", customer, None, date(2024, 6, 4), date(2024, 6, 5))], "look", audit_entry(), lambda _: 2)
    made = loop.backfill(10, selector={"customers": [customer], "until": "2024-06-10"}, reprocess=reprocess)

    def rounds() -> tuple[str, int, int]:
        for _ in range(4):
            loop.actors.clock.now += timedelta(minutes=2)
            loop.tick()
        progress = loop.backfills.progress(made.backfill_id)
        return loop.status(made), progress.accepted, progress.open_chunks

    assert rounds() == ("active", 6, 2 if reprocess else 1)
    store.resume([Scope()], audit_entry(), lambda _: 4)
    assert rounds() == ("finished", 10 if reprocess else 9, 0)


def test_days_are_recent_by_today_and_not_by_the_end_of_their_customer(loop: Loop) -> None:
    ended = Customer(id="1000000009", active_to=date(2024, 6, 10))
    loop.settings = loop.settings.model_copy(update={"customers": (*loop.settings.customers[:1], ended)})
    planned = loop.planner().plan(new_run_id(), loop.actors.clock())
    assert {(item.key.customer_id, item.key.logical_date.day) for item in planned.fresh} == {
        (loop.settings.customers[0].id, day) for day in (28, 29, 30)
    }
    while loop.tick().items:
        pass
    assert len(set(loop.attempted)) == 40


def test_what_could_not_be_attempted_is_not_done(loop: Loop) -> None:
    """Every request is asked for a pause at first; nothing may be passed over, not even by a reprocessing backfill."""
    while loop.tick().items:
        pass
    loop.attempted.clear()
    loop.actors.clock.now += timedelta(minutes=1)
    made = loop.backfill(30, selector={"since": "2024-06-01", "until": "2024-06-10"}, reprocess=True)
    loop.fate = lambda attempt: "postpone"
    loop.tick()
    assert loop.attempted
    loop.fate = lambda attempt: "accept"
    for _ in range(30):
        loop.actors.clock.now += timedelta(minutes=2)
        loop.tick()
    assert loop.status(made) == "finished"
    assert loop.backfills.progress(made.backfill_id).accepted == 30


def test_a_paused_backfill_keeps_what_it_covers_and_goes_on_where_it_stopped(loop: Loop) -> None:
    made = loop.backfill(30, selector={"since": "2024-06-01", "until": "2024-06-10"})
    loop.backfills.move(made.backfill_id, "paused", audit_entry())
    while loop.tick().items:
        pass
    assert len(loop.attempted) == 60
    loop.backfills.move(made.backfill_id, "active", audit_entry())
    for _ in range(10):
        loop.tick()
    assert (loop.status(made), len(set(loop.attempted))) == ("finished", 90)


def test_a_chunk_whose_worker_is_gone_is_taken_up_by_another(loop: Loop) -> None:
    made = loop.backfill(30, selector={"since": "2024-06-01", "until": "2024-06-10"}, max_chunks=1)
    other = loop.actors.workers.register()
    loop.planner(other).plan(new_run_id(), loop.actors.clock())
    assert loop.backfills.progress(made.backfill_id).open_chunks == 1
    loop.tick()
    assert loop.backfills.progress(made.backfill_id).done == 0  # the other one lives, and one chunk is the most
    loop.actors.workers.stop(other)
    for _ in range(20):
        loop.tick()
    assert loop.status(made) == "finished"


def test_a_failing_source_takes_no_share_and_loses_nothing(loop: Loop) -> None:
    made = loop.backfill(30, selector={"since": "2024-06-01", "until": "2024-06-10"})
    loop.gate = Gate.SHUT
    assert loop.tick().items == []
    loop.gate = Gate.OPEN
    for _ in range(20):
        loop.tick()
    assert (loop.status(made), len(set(loop.attempted))) == ("finished", 90)


def test_a_source_with_only_its_reserve_left_gets_fresh_data_and_retries_of_it(loop: Loop) -> None:
    made = loop.backfill(30, selector={"since": "2024-06-01", "until": "2024-06-10"})
    loop.fate = lambda attempt: "reject" if attempt.partition.logical_date.day in (20, 29) else "accept"
    for _ in range(4):
        loop.tick()
    days = {key.logical_date.day for key in loop.attempted}
    assert {20, 29} <= days
    assert len(days) < 30
    for partition in loop.attempted:  # all failed partitions are due again by their retry policy
        if partition.logical_date.day in (20, 29):
            loop.actors.control.postpone({partition: loop.actors.clock()}, "transient")
    before, loop.gate = len(loop.attempted), Gate.FRESH
    planned = loop.tick()
    assert (planned.history, planned.chunks) == ([], [])
    assert {item.key.logical_date.day for item in planned.fresh} == {29}
    assert {item.reason for item in planned.fresh} == {AttemptReason.RETRY}
    assert len(loop.attempted) == before + 3
    loop.gate = Gate.OPEN
    for _ in range(20):
        loop.tick()
    assert (loop.status(made), len(set(loop.attempted))) == ("finished", 90)


def test_a_backfill_of_what_left_the_configuration_stops_nothing(loop: Loop) -> None:
    gone = loop.backfill(5, selector={"customers": ["9999999999"]})
    also = loop.backfill(1, selector={"keys": ["demo/9999999999/campaign_daily/2024-06-01"]})
    for _ in range(20):
        loop.tick()
    assert (loop.status(gone), loop.status(also), len(set(loop.attempted))) == ("finished", "finished", 90)


def test_a_cancelled_backfill_leaves_no_chunk_open(loop: Loop) -> None:
    made = loop.backfill(30, selector={"since": "2024-06-01", "until": "2024-06-10"})
    loop.planner().plan(new_run_id(), loop.actors.clock())
    assert loop.backfills.move(made.backfill_id, "cancelled", audit_entry())
    assert loop.backfills.progress(made.backfill_id).open_chunks == 0
    while loop.tick().items:
        pass
    assert len(set(loop.attempted)) == 90


def test_partitions_of_a_backfill_are_judged_and_retried_as_any_other(loop: Loop) -> None:
    """A new run for each attempt, one count for each verdict, and the policy's pause before the next."""
    while loop.tick().items:
        pass
    loop.fate = lambda attempt: "reject"
    loop.actors.clock.now += timedelta(minutes=1)
    made = loop.backfill(3, selector={"since": "2024-06-05", "until": "2024-06-05"}, reprocess=True)
    loop.tick()
    keys = [
        PartitionKey("demo", customer.id, "campaign_daily", date(2024, 6, 5)) for customer in loop.settings.customers
    ]
    for key in keys:
        state, attempts = loop.actors.reader.state(key), loop.actors.reader.attempts(key)
        assert state is not None
        assert (state.status, state.attempt_count) == ("success", 2)
        assert [attempt.outcome for attempt in attempts] == ["FAILED", "SUCCEEDED"]
        assert state.current_run_id == attempts[1].run_id != attempts[0].run_id
    waiting = RetryStore(loop.actors.database).undecided(10)
    assert {item.key for item in waiting} == set(keys)
    assert loop.backfills.progress(made.backfill_id).rejected == 3
