"""Lateness: what is missing by cause, when it is expected, and the chain of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from penstock.control.lateness import Missing, MissingCause, Punctuality
from penstock.errors import ErrorClass, UsageError
from penstock.partition import PartitionKey, new_ulid
from penstock.state.authority import AuthorityStore
from penstock.state.records import Breaker
from penstock.views.lateness import day_fields
from support import builders
from support.builders import audit_entry
from support.late_harness import BY_NINE, DAY, DEADLINE, NOW, TABLE, LateHarness, later
from support.workspaces import key

Make = Callable[..., LateHarness]


@pytest.fixture(params=builders.BACKENDS)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes a workspace on the backend."""
    made: list[LateHarness] = []
    with builders.quick_folder() as folder:

        def harness(**settings: Any) -> LateHarness:
            if request.param != "sqlite":
                settings |= {"state": request.getfixturevalue("postgres_url"), "schema": f"t_{new_ulid().lower()}"}
            made.append(LateHarness(Path(folder) / str(len(made)), **settings))
            return made[-1]

        yield harness
        for one in made:
            one.workspace.context.database.close()


def at(number: int, day: str = DAY) -> PartitionKey:
    return key(number, day)


def model(name: str, customer: str = "all", day: str = DAY) -> PartitionKey:
    return PartitionKey("models", customer, name, date.fromisoformat(day))


def test_each_cause_is_counted_and_why_names_the_same_one(make: Make) -> None:
    house = make(customers=10, zones={9: "America/Los_Angeles"})
    house.deliver_day([1])
    house.issue(at(2))
    house.deliver({at(3): 1})
    house.reject(at(4), at(5))
    house.workspace.context.marks.mark_terminal([at(4)], "gone", audit_entry())
    house.control.postpone({at(6): later(2)})
    house.reject(at(7), error=ErrorClass.TRANSIENT)
    house.workspace.context.marks.pause([at(8)], "not now", audit_entry())
    assert house.causes() == {
        MissingCause.NOT_DUE: 1,
        MissingCause.IN_PROGRESS: 1,
        MissingCause.WAITING_FOR_PUBLICATION: 1,
        MissingCause.TERMINAL: 1,
        MissingCause.FAILED_CHECK: 1,
        MissingCause.QUOTA: 1,
        MissingCause.WAITING_FOR_RETRY: 1,
        MissingCause.PAUSED: 1,
        MissingCause.NOT_ATTEMPTED: 1,
    }
    found = {one.cause: one for one in house.report().missing}
    retry_at = NOW + timedelta(minutes=5)  # the first backoff
    assert found[MissingCause.NOT_DUE] == Missing(MissingCause.NOT_DUE, 1, later(1), at(9), None)
    assert found[MissingCause.QUOTA].until == later(2)
    error = "transient: it did not work"
    assert found[MissingCause.WAITING_FOR_RETRY] == Missing(MissingCause.WAITING_FOR_RETRY, 1, retry_at, at(7), error)
    assert found[MissingCause.FAILED_CHECK].detail == "data: it did not work"
    assert found[MissingCause.TERMINAL].detail == "marked by ada: gone; it did not work"
    assert found[MissingCause.PAUSED].detail == "by ada: not now"

    # An open breaker holds back what would be attempted; it does not hide why others are missing.
    opened = Breaker("demo", 3, NOW, later(0.5), 1, None, ErrorClass.AUTH, "token revoked")
    house.workspace.context.breakers.change("demo", lambda _: opened)
    assert house.causes(examples=(MissingCause.BREAKER,)) == {
        MissingCause.NOT_DUE: 1,
        MissingCause.IN_PROGRESS: 1,
        MissingCause.WAITING_FOR_PUBLICATION: 1,
        MissingCause.TERMINAL: 1,
        MissingCause.FAILED_CHECK: 1,
        MissingCause.BREAKER: 3,
        MissingCause.PAUSED: 1,
    }
    [breaker] = [one for one in house.report().missing if one.cause is MissingCause.BREAKER]
    assert (breaker.until, breaker.detail) == (later(0.5), "the breaker of demo is open: token revoked")


def test_a_quota_that_is_used_up_and_a_pause_that_the_source_asked_for_are_waits(make: Make) -> None:
    house = make(customers=2, source={"rate": "4/d"})
    context = house.workspace.context
    assert house.causes() == {MissingCause.NOT_ATTEMPTED: 2}
    context.quotas.claim("demo", context.settings.sources["demo"].quotas, 100)
    assert house.causes() == {MissingCause.QUOTA: 2}
    [one] = house.report().missing
    quota = context.guard(by_hand=False).quota("demo")
    assert quota is not None
    assert (one.until, one.detail) == (quota.renews_at(), "the quota of demo is used up")

    pausing = Breaker("demo", not_before=later(3))
    context.breakers.change("demo", lambda _: pausing)
    assert [(one.cause, one.until) for one in house.report().missing] == [(MissingCause.QUOTA, later(3))]
    assert house.causes() == {MissingCause.QUOTA: 2}
    house.clock.now = later(4)
    context.breakers.change("demo", lambda _: Breaker("demo"))


def test_a_postponed_partition_of_refused_credentials_counts_as_the_breaker(make: Make) -> None:
    house = make(customers=1)
    house.control.postpone({at(1): later(1)}, "auth")
    assert house.causes() == {MissingCause.BREAKER: 1}
    assert house.report().punctuality is Punctuality.AT_RISK
    house.clock.now = later(1)
    assert house.causes() == {MissingCause.NOT_ATTEMPTED: 1}


def test_a_day_that_its_source_no_longer_serves_is_terminal(make: Make) -> None:
    house = make(customers=2, source={"keeps": "1 days"})
    house.clock.now = NOW + timedelta(days=5)
    assert house.causes() == {MissingCause.TERMINAL: 2}
    assert house.report().missing[0].detail == "its source no longer serves the day"


def test_the_state_follows_the_deadline_and_the_rule(make: Make) -> None:
    house = make(query={"freshness": {**BY_NINE, "require": "80%"}})
    first = house.report()
    assert (first.punctuality, first.deadline) == (Punctuality.ON_TRACK, DEADLINE)
    assert (first.expected, first.required, first.available) == (9, 8, 0)
    house.reject(at(1))
    assert house.report().punctuality is Punctuality.ON_TRACK, "one of nine may be missing"
    house.reject(at(2))
    assert house.report().punctuality is Punctuality.AT_RISK, "only an operator retries it"
    house.clock.now = DEADLINE - timedelta(microseconds=1)
    assert house.report().punctuality is Punctuality.AT_RISK
    house.clock.now = DEADLINE
    assert house.report().punctuality is Punctuality.LATE
    house.deliver_day(range(2, 10))
    ready = house.report()
    assert (ready.punctuality, ready.available, ready.missing) == (Punctuality.READY, 8, ())


def test_a_known_wait_beyond_the_deadline_is_a_risk(make: Make) -> None:
    house = make(customers=2)
    house.deliver_day([1])
    house.control.postpone({at(2): later(0.5)})
    assert (house.report().punctuality, house.report().expected_at) == (Punctuality.ON_TRACK, later(0.5))
    house.control.postpone({at(2): later(2)})
    assert (house.report().punctuality, house.report().expected_at) == (Punctuality.AT_RISK, later(2))


def test_the_speed_of_the_open_run_gives_the_expected_time(make: Make) -> None:
    house = make()
    attempts, token = house.issue(*(at(number) for number in range(1, 10)))
    assert house.report().expected_at is None, "no verdict yet, and no history"
    house.clock.now = later(0.5)
    verdicts = [house._accepted(one, 1, 3, token) for one in attempts[:6]]
    house.validator.judge(verdicts)
    found = house.report()  # six of nine in half an hour
    assert (found.punctuality, found.expected_at) == (Punctuality.ON_TRACK, later(0.75))
    assert {one.cause: one.count for one in found.missing} == {
        MissingCause.IN_PROGRESS: 3,
        MissingCause.WAITING_FOR_PUBLICATION: 6,
    }
    house.clock.now = later(0.9)
    slower = house.report()  # the same six in 54 minutes: the rest takes 27 more
    assert (slower.punctuality, slower.expected_at) == (Punctuality.AT_RISK, later(1.35))
    house.workers.stop(token)


def test_the_chain_of_a_model_names_the_inputs_of_its_inputs(make: Make) -> None:
    models: dict[str, Any] = {
        "spend": {"code": "SELECT 1", "depends_on": [TABLE]},
        "total": {"code": "SELECT 1", "depends_on": ["models.spend"], "freshness": BY_NINE},
    }
    house = make(customers=3, models=models, query={"freshness": None})
    house.deliver_day([1])
    house.control.postpone({at(2): later(0.25), at(3): later(0.5)})
    total = house.report("models.total")
    assert (total.expected, total.punctuality, total.expected_at) == (1, Punctuality.ON_TRACK, later(0.5))
    [waits] = total.missing
    assert waits.cause is MissingCause.WAITING_FOR_INPUTS
    assert waits.detail == "1 of 1 partitions of models.spend cannot be read"
    [spend] = total.inputs
    assert (spend.table, spend.deadline, spend.expected_at) == ("models.spend", DEADLINE, later(0.5))
    [fetched] = spend.inputs
    assert (fetched.table, fetched.available, fetched.required) == (TABLE, 1, 3)
    assert [(one.cause, one.count, one.until) for one in fetched.missing] == [(MissingCause.QUOTA, 2, later(0.5))]
    assert house.causes("models.total") == {MissingCause.WAITING_FOR_INPUTS: 1}
    assert house.workspace.partitions.why(model("spend")).missing_cause is MissingCause.WAITING_FOR_INPUTS

    # A failed check of one input partition blocks the whole chain.
    house.reject(at(3))
    blocked = house.report("models.total")
    assert (blocked.punctuality, blocked.expected_at) == (Punctuality.AT_RISK, None)


def test_a_model_whose_inputs_are_there_is_not_attempted_or_paused(make: Make) -> None:
    house = make(customers=2, models={"spend": {"code": "SELECT 1", "depends_on": [TABLE], "freshness": BY_NINE}})
    house.deliver_day([1, 2])
    assert house.causes("models.spend") == {MissingCause.NOT_ATTEMPTED: 1}
    assert house.report("models.spend").inputs == ()
    # The pointer serves the demoted partition no more: the model waits for it.
    AuthorityStore(house.workspace.context.database, house.now).demote(at(1), "wrong", audit_entry())
    assert house.causes("models.spend") == {MissingCause.WAITING_FOR_INPUTS: 1}
    [fetched] = house.report("models.spend").inputs
    assert {one.cause: one.count for one in fetched.missing} == {MissingCause.FAILED_CHECK: 1}
    house.workspace.context.marks.pause([model("spend")], None, audit_entry())
    assert house.causes("models.spend") == {MissingCause.PAUSED: 1}


def test_a_model_per_customer_waits_only_for_the_inputs_of_its_customer(make: Make) -> None:
    body = {"code": "SELECT 1", "depends_on": [TABLE], "per": ["customer", "date"], "needs": "2 days"}
    house = make(customers=4, models={"own": {**body, "freshness": BY_NINE}}, query={"start_date": "2024-06-09"})
    house.deliver_day([1, 2, 3])
    house.deliver_day([1, 2, 4], "2024-06-09")
    house.reject(at(4))
    assert house.causes("models.own") == {MissingCause.WAITING_FOR_INPUTS: 2, MissingCause.NOT_ATTEMPTED: 2}
    found = house.report("models.own")
    assert found.missing[0].detail == "1 of 2 partitions of demo.campaign_daily cannot be read"
    assert [(one.day.day, one.available, one.expected) for one in found.inputs] == [(9, 3, 4), (10, 3, 4)]


def test_the_report_has_the_newest_day_and_earlier_days_that_are_not_ready(make: Make) -> None:
    house = make(customers=1, query={"start_date": "2024-05-01"})
    for day in ("2024-06-06", "2024-06-08", DAY):
        house.deliver_day([1], day)
    report = house.workspace.lateness.report()
    expected = {3: "late", 4: "late", 5: "late", 7: "late", 9: "late", 10: "ready"}
    assert {one.day.day: one.punctuality.value for one in report} == expected
    assert house.workspace.lateness.report(day=date(2024, 6, 11))[0].missing[0].cause is MissingCause.NOT_DUE
    assert house.workspace.lateness.report(day=date(2024, 4, 1)) == []
    with pytest.raises(UsageError, match=r"unknown table demo\.nothing"):
        house.workspace.lateness.report(["demo.nothing"])


def test_a_table_without_a_deadline_is_not_reported_and_refused_by_name(make: Make) -> None:
    house = make(customers=1, query={"freshness": {"max_lag": "36h"}})
    assert house.workspace.lateness.report() == []
    with pytest.raises(UsageError, match=r"has no deadline: add freshness.complete_by to queries.campaign_daily"):
        house.workspace.lateness.report([TABLE])
    asked = house.workspace.readiness.requested_days(TABLE, date=DAY)
    [day] = house.workspace.lateness.explain(asked)
    assert [(one.cause, one.count) for one in day.missing] == [(MissingCause.NOT_ATTEMPTED, 1)]


@contextmanager
def counted_statements() -> Iterator[list[str]]:
    found: list[str] = []

    def note(_c: Any, _cursor: Any, statement: str, _values: Any, _context: Any, _many: bool) -> None:
        found.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


def test_the_number_of_statements_does_not_depend_on_the_partitions(make: Make) -> None:
    counts = []
    for customers in (3, 30):
        house = make(
            customers=customers,
            models={"spend": {"code": "SELECT 1", "depends_on": [TABLE], "freshness": BY_NINE}},
            query={"start_date": "2024-06-04"},
        )
        house.deliver_day([1])
        house.reject(at(2))
        house.workspace.lateness.report()
        with counted_statements() as statements:
            house.workspace.lateness.report()
        counts.append(len(statements))
    assert counts[0] == counts[1]


def test_a_chain_of_models_costs_statements_by_its_tables_and_is_listed_once(make: Make) -> None:
    """Each model reads seven days: the paths through the chain grow with every model."""
    counts, nodes = [], []
    for depth in (1, 2, 3):
        models: dict[str, Any] = {}
        for number in range(depth):
            reads = [TABLE] if number == 0 else [f"models.m{number - 1}"]
            models[f"m{number}"] = {"code": "SELECT 1", "depends_on": reads, "needs": "7 days", "freshness": BY_NINE}
        house = make(customers=2, models=models, query={"start_date": "2024-05-01"})
        house.workspace.lateness.report()
        with counted_statements() as statements:
            found = house.workspace.lateness.report([f"models.m{depth - 1}"], date.fromisoformat(DAY))
        counts.append(len(statements))
        nodes.append(str(day_fields(found[0])).count("'punctuality'"))
    assert counts[2] - counts[1] == counts[1] - counts[0]
    assert nodes[2] < 250


def test_a_day_is_due_at_its_local_end_also_when_the_clocks_change(make: Make) -> None:
    house = make(customers=1, zones={1: "America/New_York"}, query={"start_date": "2024-10-30"})
    house.clock.now = datetime(2024, 11, 3, 3, tzinfo=UTC)  # an hour before the end of 2 November; winter begins later
    [missing] = house.report(day="2024-11-02").missing
    assert (missing.cause, missing.until) == (MissingCause.NOT_DUE, datetime(2024, 11, 3, 4, tzinfo=UTC))


def test_a_wait_lasts_as_long_as_the_longer_of_its_causes(make: Make) -> None:
    house = make(customers=1)
    house.control.postpone({at(1): later(9)})
    breakers = house.workspace.context.breakers
    breakers.change("demo", lambda breaker: replace(breaker, not_before=NOW + timedelta(minutes=1)))
    found = house.report()
    assert [(one.cause, one.until) for one in found.missing] == [(MissingCause.QUOTA, later(9))]
    assert (found.expected_at, found.punctuality) == (later(9), Punctuality.AT_RISK)
    breakers.change("demo", lambda _: Breaker("demo", opened_at=later(-3), probe_at=later(-2), error_message="401"))
    house.control.postpone({at(1): later(-1)})
    assert [(one.cause, one.until) for one in house.report().missing] == [(MissingCause.BREAKER, None)]


def test_a_deadline_changes_neither_the_contract_nor_the_staleness(make: Make) -> None:
    """Editing a deadline fetches nothing again."""
    house = make(customers=1)
    house.deliver_day([1])
    asset = house.workspace.settings.queries["campaign_daily"]
    policies = house.workspace.status.policies()
    context = house.workspace.context
    fingerprint = context.contracts["campaign_daily"].fingerprint
    context.settings = context.settings.model_copy(
        update={"queries": {"campaign_daily": asset.model_copy(update={"freshness": None})}}
    )
    del context.__dict__["contracts"]
    assert context.contracts["campaign_daily"].fingerprint == fingerprint
    assert house.workspace.status.policies() == policies
    assert replace(policies[0], max_lag=None) == policies[0]
