"""Control metadata beside the state: retries, marks and the operator's acts, on both databases."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from penstock.config.assets import Query, Retry
from penstock.control.plan import DUE, planned
from penstock.control.requeue import NotRetried
from penstock.control.retry import terminal
from penstock.control.schedule import schedule
from penstock.control.select import Selection
from penstock.db import schema
from penstock.errors import ActRefused, ErrorClass, PenstockError
from penstock.expected import ExpectedRange
from penstock.lifecycle import AttemptReason, PartitionStatus, PlanReason, Stage
from penstock.partition import AttemptKey, PartitionKey, new_run_id
from penstock.state.authority import AuthorityStore
from penstock.state.breakers import BreakerStore
from penstock.state.control import TAKEN
from penstock.state.marks import MarkStore
from penstock.state.pause_scope import Scope
from penstock.state.pauses import PauseStore
from penstock.state.reader import StateReader
from penstock.state.recheck import FailedRecheck
from penstock.state.records import Breaker, PartitionControl
from penstock.state.retries import Decided, RetryStore
from support import builders
from support.builders import (
    BACKENDS,
    NOW,
    Actors,
    audit_entry,
    cancelled,
    days,
    everything,
    key,
    rejected,
    resumed,
    tamper,
)
from support.cli import answer
from support.old_workspaces import move_to_postgres, unpack
from support.workspaces import open_at, write_workspace

POLICY = Retry(max_attempts=3, backoff=(timedelta(minutes=5), timedelta(minutes=30)), jitter=0)
QUERIES: dict[str, Query] = {name: builders.query(name, retry=POLICY) for name in ("campaign_daily", "keyword_daily")}

NEIGHBOURS = (key(2), key(customer="1000000002"), key(query="keyword_daily"), key(source="ads"))


@pytest.fixture(params=BACKENDS)
def actors(request: pytest.FixtureRequest) -> Iterator[Actors]:
    def url() -> str:
        found: str = request.getfixturevalue("postgres_url")
        return found

    with builders.quick_folder() as folder:
        database = builders.open_database(request.param, folder, url)
        yield Actors.on(builders.migrated(database))
        database.close()


def fail(actors: Actors, partition: PartitionKey | None = None, kind: ErrorClass = ErrorClass.TRANSIENT) -> AttemptKey:
    attempt = actors.issue_one(partition)
    verdict = rejected(attempt, actors.token, "no answer", Stage.EXTRACT)
    actors.validator.judge([replace(verdict, error_class=kind)])
    return attempt


def decided(actors: Actors) -> int:
    return schedule(RetryStore(actors.database), QUERIES, lambda: 0.5, builders.due_at)


def control(actors: Actors, partition: PartitionKey | None = None) -> PartitionControl:
    day = (partition or key()).logical_date.day
    [view] = actors.reader.views([days(day, day)])
    return view.control


def due(actors: Actors, now: datetime | None = None, **restated: Any) -> list[tuple[int, str]]:
    found = actors.reader.candidates([days(1, 8)], DUE, now or actors.clock(), restated)
    return [(c.key.logical_date.day, c.reason) for c in found if c.reason != "missing"]


# --- retries -------------------------------------------------------------------------------------------------------


def test_a_failure_is_due_again_after_its_backoff_and_not_before(actors: Actors) -> None:
    fail(actors)
    assert decided(actors) == 1
    assert control(actors).next_run_at == NOW + timedelta(minutes=5)
    assert control(actors).strategy == "backoff 1 of 2"
    assert due(actors, NOW + timedelta(minutes=4, seconds=59)) == []
    assert due(actors, NOW + timedelta(minutes=5)) == [(1, "retry")]


def test_a_due_retry_is_requeued_by_being_issued_and_by_nothing_else(actors: Actors) -> None:
    fail(actors)
    decided(actors)
    issued, _ = actors.try_to_issue(builders.planned(key(), 1, "retry"))
    assert len(issued) == 1
    state = actors.reader.state(key())
    assert state is not None
    assert (state.status, state.error_message, state.attempt_count) == ("pending", None, 1)


def test_an_acceptance_ends_the_row_of_failures(actors: Actors) -> None:
    fail(actors)
    decided(actors)
    fail(actors)
    actors.accept()
    assert decided(actors) == 0
    assert control(actors) == PartitionControl()
    fail(actors)
    decided(actors)
    assert control(actors).failures == 1


def test_the_policy_gives_up_after_its_attempts(actors: Actors) -> None:
    for _ in range(3):
        fail(actors)
        decided(actors)
    found = control(actors)
    assert (found.failures, found.next_run_at) == (3, None)
    assert found.strategy == "none: 3 of 3 attempts failed"
    assert due(actors, NOW + timedelta(days=5)) == []


def limited(actors: Actors, **changes: Any) -> StateReader:
    """A planner whose workspace file has another retry policy than when the partition failed."""
    return StateReader(actors.database, {"campaign_daily": POLICY.model_copy(update=changes)})


def terminal_days(reader: StateReader, now: datetime) -> list[int]:
    """The list of `state terminal`, from SQL; each must be terminal by the Python policy as well."""
    by_sql = [view.key.logical_date.day for view in reader.views([days(1, 8)], terminal_at=now)]
    policy = reader.limits["campaign_daily"]
    assert isinstance(policy, Retry)
    failed = reader.views([days(1, 8)], status=PartitionStatus.FAILED)
    by_words = [v for v in failed if terminal(policy, v.control, v.expires_at, now) is not None]
    assert [view.key.logical_date.day for view in by_words] == by_sql
    return by_sql


def test_a_retry_whose_policy_was_made_stricter_is_neither_planned_nor_issued(actors: Actors) -> None:
    for _ in range(2):
        fail(actors)
        decided(actors)
    later = NOW + timedelta(hours=1)
    [asked] = limited(actors).candidates([days(1, 1)], DUE, later, {})
    assert (asked.reason, asked.max_attempts) == ("retry", 3)
    stricter = limited(actors, max_attempts=2)
    assert stricter.candidates([days(1, 1)], DUE, later, {}) == []
    assert stricter.reasons([days(1, 1)], later, {}) == {"failed": 1}
    assert (terminal_days(limited(actors), later), terminal_days(stricter, later)) == ([], [1])
    issued, [refused] = actors.try_to_issue(replace(builders.planned(key(), 2, "retry"), max_attempts=2))
    assert (issued, refused.why) == ([], "its retry policy allows no further attempt")
    issued, _ = actors.try_to_issue(replace(builders.planned(key(), 2, "retry"), max_attempts=3))
    assert len(issued) == 1


def test_the_age_of_a_day_ends_its_retries_when_they_are_planned_and_when_they_are_issued(actors: Actors) -> None:
    """The account is two hours ahead of UTC: its first of June was over at ten in the evening of that day."""
    fail(actors, key(1))
    fail(actors, key(2))
    decided(actors)
    actors.accept(key(3))
    fail(actors, key(3))
    decided(actors)
    spans = [replace(days(1, 8), utc_offset=7200)]
    reader = limited(actors, max_age=timedelta(days=40))
    end = datetime(2024, 6, 1, 22, tzinfo=UTC) + timedelta(days=40)
    before, at = (
        reader.candidates(spans, (PlanReason.RETRY,), moment, {}) for moment in (end - timedelta(microseconds=1), end)
    )
    assert [c.key.logical_date.day for c in before] == [1, 2, 3]
    assert [c.key.logical_date.day for c in at] == [2, 3]
    assert before[0].expires_at == end
    assert [v.key for v in reader.views(spans, terminal_at=end)] == [key(1)]
    assert reader.candidates(spans, (PlanReason.RETRY,), end + timedelta(days=2), {}) == [], (
        "a failed re-fetch ends as well"
    )
    assert [v.key for v in reader.views(spans, terminal_at=end + timedelta(days=2))] == [key(1), key(2)]

    actors.clock.now = end
    issued, [refused] = actors.try_to_issue(*(planned(c, builders.FINGERPRINT, "v1") for c in before))
    assert [item.attempt.partition for item in issued] == [key(2), key(3)]
    assert (refused.attempt.partition, refused.why) == (key(1), "its day is older than its retry policy allows")


def test_an_operator_who_requeues_forgives_what_failed_before(actors: Actors) -> None:
    for _ in range(3):
        fail(actors)
        decided(actors)
    assert terminal_days(limited(actors), NOW) == [1]
    fail(actors, key(2))  # requeued before the policy has decided
    assert actors.control.requeue([key(1), key(2), key(3)], audit_entry()) == 2
    assert [control(actors, key(day)).failures for day in (1, 2)] == [0, 0]
    for day in (1, 2):
        fail(actors, key(day))
    assert decided(actors) == 2
    assert [control(actors, key(day)).failures for day in (1, 2)] == [1, 1]
    assert terminal_days(limited(actors), NOW) == []


def test_the_policys_own_retries_forgive_nothing(actors: Actors) -> None:
    for number in range(3):
        attempt = actors.try_to_issue(builders.planned(key(), number, "retry"))[0][0].attempt
        actors.validator.judge([replace(rejected(attempt, actors.token), error_class=ErrorClass.TRANSIENT)])
        decided(actors)
    assert control(actors).failures == 3
    assert terminal_days(limited(actors), NOW) == [1]


TOO_OLD = "2024-06-02 00:00 UTC, the policy retries for 34 days"


@pytest.mark.parametrize(
    ("retry", "moment", "why"),
    [
        ({"max_attempts": 3}, NOW + timedelta(hours=1), None),
        ({"max_attempts": 1}, NOW + timedelta(hours=1), "1 failed attempts in a row, the policy allows 1"),
        ({"max_age": "34d"}, datetime(2024, 7, 8, tzinfo=UTC), f"due since {TOO_OLD}"),
    ],
)
def test_every_answer_about_terminality_is_that_of_the_planner(
    tmp_path: Path, retry: dict[str, Any], moment: datetime, why: str | None
) -> None:
    """The policy in the file is another one by now, or the day is too old: nothing was written since the failure."""
    fields = [{"name": name, "type": "long"} for name in ("campaign_id", "clicks")]
    query = {"start_date": "2024-06-01", "retry": retry, "fields": fields, "checks": []}
    folder = write_workspace(tmp_path, rows=1, query=query)
    actors = Actors.on(open_at(folder, NOW).context.database)
    refetched, failed = key(2), key(1)
    actors.accept(refetched)
    fail(actors, refetched)
    fail(actors, failed)
    assert decided(actors) == 2
    ws = open_at(folder, moment)
    chosen = Selection(keys=(failed, refetched))
    assert ws.plans.preview(chosen).reasons == ({"retry": 2} if why is None else {})
    assert [(view.key, words) for view, words in ws.partitions.terminal(chosen)] == (
        [] if why is None else [(failed, why)]
    )
    views = ws.context.state.views(ws.context.ranges(chosen))
    assert [ws.partitions.terminal_reason(view) for view in views] == [why, None]
    assert [ws.partitions.next_run_at(view) is not None for view in views] == [why is None] * 2
    held_up = ws.partitions.held_up(chosen)
    assert (held_up["retry"], held_up["terminal"], held_up["operator"]) == ((2, 0, 0) if why is None else (0, 1, 1))
    for partition in (failed, refetched):
        assert ("retried after" in ws.partitions.why(partition).next) == (why is None)
    if why is not None:
        assert f"given up for good: {why}" in ws.partitions.why(failed).blocks
        assert ws.partitions.why(failed).next == f"nothing until `penstock state retry {failed}`"
        assert ws.operations.preview_retry(chosen, without_raw=False).keys == [failed]


def test_data_errors_wait_for_a_person(actors: Actors) -> None:
    fail(actors, kind=ErrorClass.DATA)
    assert decided(actors) == 0
    assert "data errors are not retried" in str(control(actors).strategy)


def test_a_failed_refetch_of_a_good_partition_is_retried_and_stays_success(actors: Actors) -> None:
    actors.accept()
    fail(actors)
    decided(actors)
    assert due(actors, NOW + timedelta(minutes=6)) == [(1, "retry")]
    state = actors.reader.state(key())
    assert state is not None
    assert state.status is PartitionStatus.SUCCESS


def test_deciding_twice_changes_nothing(actors: Actors) -> None:
    fail(actors)
    decided(actors)
    before = everything(actors.database)
    assert decided(actors) == 0
    assert everything(actors.database) == before


def test_a_decision_about_the_past_is_left_out(actors: Actors) -> None:
    """One scheduler read, then the partition was retried and accepted, then the scheduler writes."""
    fail(actors)
    store = RetryStore(actors.database)
    waiting = store.undecided(10)
    actors.accept()
    store.decide([Decided(item, NOW, "backoff 1 of 2") for item in waiting])
    assert control(actors) == PartitionControl()


def test_a_manual_retry_ends_the_scheduled_one(actors: Actors) -> None:
    fail(actors)
    decided(actors)
    assert actors.control.requeue([key()], audit_entry()) == 1
    assert control(actors).next_run_at is None
    assert due(actors) == [(1, "requeued")]


def test_a_postponed_partition_waits_and_then_is_due_as_before(actors: Actors) -> None:
    actors.cancel(key(1))
    actors.control.postpone({key(1): NOW + timedelta(seconds=30)})
    actors.control.postpone({key(1): NOW + timedelta(seconds=40)})
    assert control(actors).strategy == "quota"
    assert actors.reader.reasons([days(1, 1)], NOW + timedelta(seconds=39), {}) == {"waiting": 1}
    assert actors.reader.reasons([days(1, 1)], NOW + timedelta(seconds=40), {}) == {"missing": 1}
    actors.accept(key(1))
    assert control(actors) == PartitionControl()


# --- marks ---------------------------------------------------------------------------------------------------------


def test_a_paused_partition_is_attempted_for_no_reason_until_it_is_resumed(actors: Actors) -> None:
    marks = MarkStore(actors.database, actors.clock)
    fail(actors, key(2))
    decided(actors)
    assert marks.pause([key(1), key(2)], "the account moves", audit_entry()) == 2
    assert marks.pause([key(1), key(2)], "again", audit_entry()) == 0
    later = NOW + timedelta(hours=1)
    assert actors.reader.reasons([days(1, 3)], later, {}) == {"missing": 1, "paused": 2}
    assert control(actors).paused_reason == "the account moves"
    assert resumed(actors.database, actors.clock, key(1), key(2), key(3)) == 2
    assert actors.reader.reasons([days(1, 3)], later, {}) == {"missing": 2, "retry": 1}


def test_only_failed_partitions_can_be_given_up_and_clearing_forgives(actors: Actors) -> None:
    marks = MarkStore(actors.database, actors.clock)
    fail(actors, key(1))
    fail(actors, key(1))
    decided(actors)
    actors.accept(key(2))
    assert marks.mark_terminal([key(1), key(2), key(3)], "gone for good", audit_entry()) == 1
    assert control(actors, key(1)).terminal_reason == "gone for good"
    assert due(actors, NOW + timedelta(days=2)) == []
    assert marks.mark_terminal([key(1)], "again", audit_entry()) == 0
    assert marks.clear_terminal([key(1), key(2)], audit_entry()) == 1
    assert control(actors, key(1)) == PartitionControl()
    fail(actors, key(1))
    decided(actors)
    assert control(actors, key(1)).failures == 1


def test_every_mark_is_in_the_audit_log(actors: Actors) -> None:
    marks = MarkStore(actors.database, actors.clock)
    marks.pause([key(1)], None, audit_entry(command="state pause"))
    resumed(actors.database, actors.clock, key(1))
    assert [(row["command"], row["affected"]) for row in actors.reader.audit()] == [
        ("state resume", 1),
        ("state pause", 1),
    ]


DEMO, WHO, WHAT = key()[:3]
JUNE = {day: date(2024, 6, day) for day in range(1, 10)}


@pytest.mark.parametrize(
    ("scope", "names"),
    [
        (Scope(DEMO, WHO, WHAT, JUNE[3], JUNE[5]), lambda k: k[:3] == key()[:3] and 3 <= k[3].day <= 5),
        (Scope(DEMO, WHO, WHAT, None, JUNE[5]), lambda k: k[:3] == key()[:3] and k[3].day <= 5),
        (Scope(DEMO, WHO, WHAT, JUNE[3], None), lambda k: k[:3] == key()[:3] and k[3].day >= 3),
        (Scope(None, WHO, WHAT, JUNE[3], JUNE[5]), lambda k: k[1:3] == (WHO, WHAT) and 3 <= k[3].day <= 5),
        (Scope(DEMO, None, WHAT, JUNE[3], JUNE[5]), lambda k: (k[0], k[2]) == (DEMO, WHAT) and 3 <= k[3].day <= 5),
        (Scope(DEMO, WHO, None, JUNE[3], JUNE[5]), lambda k: k[:2] == (DEMO, WHO) and 3 <= k[3].day <= 5),
        (Scope(source=DEMO), lambda k: k[0] == DEMO),
        (Scope(customer_id=WHO), lambda k: k[1] == WHO),
        (Scope(query_name=WHAT), lambda k: k[2] == WHAT),
        (Scope(), lambda k: True),
    ],
)
def test_a_resume_takes_back_the_marks_inside_its_scope_and_no_other(actors: Actors, scope: Scope, names: Any) -> None:
    """Every second partition is held instead of paused; other control metadata stays."""
    owners = [key()[:3], *(partition[:3] for partition in NEIGHBOURS[1:])]
    marked = [PartitionKey(*owner, JUNE[day]) for owner in owners for day in range(2, 7)]
    table = schema.partition_control
    for number, partition in enumerate(marked):
        kind = "paused" if number % 2 else "held"
        mark = {f"{kind}_at": NOW, f"{kind}_by": "ada", f"{kind}_reason": "look"}
        row = {**builders.columns(partition), "failures": 1, "cleared_attempt_no": 2, **mark}
        actors.execute(sa.insert(table).values(**row))
    plain = {**builders.columns(key(1)), "failures": 1, "cleared_attempt_no": 2}
    actors.execute(sa.insert(table).values(**plain))
    before = {PartitionKey(*_key(row).values()): row for row in actors.rows(table)}
    store, entry = PauseStore(actors.database, actors.clock), audit_entry(command="state resume")
    assert store.resume([scope], entry, lambda _: 7) == 7
    nothing = dict.fromkeys(f"{kind}_{what}" for kind in ("paused", "held") for what in ("at", "by", "reason"))
    after = {PartitionKey(*_key(row).values()): row for row in actors.rows(table)}
    assert after == {k: row | nothing if names(k) else row for k, row in before.items()}
    assert [(line["command"], line["affected"]) for line in actors.reader.audit()] == [("state resume", 7)]
    assert store.resume([scope], entry, lambda _: 7) is None, "nothing is left to take back"
    assert len(actors.reader.audit()) == 1


def test_a_pause_is_written_once_and_ends_when_it_is_resumed(actors: Actors) -> None:
    store, entry = PauseStore(actors.database, actors.clock), audit_entry(command="state pause")
    mine, other = Scope(DEMO, WHO), Scope("ads")
    assert store.pause([mine, other], "look", entry, lambda _: 3) == 3
    assert store.pause([mine], "again", entry, lambda _: 3) is None
    assert len(actors.reader.audit()) == 1
    actors.clock.now = later = NOW + timedelta(hours=1)
    assert store.resume([mine], entry, lambda _: 2, audited=False) == 2
    assert len(actors.reader.audit()) == 1
    found = {row["source"]: row for row in actors.rows(schema.pause_selector) if row["paused"]}
    assert (found[DEMO]["ended_at"], found["ads"]["ended_at"]) == (later, None)
    assert {(row["since"], row["actor"], row["reason"]) for row in found.values()} == {(NOW, "ada", "look")}


# --- authority -----------------------------------------------------------------------------------------------------


def acts(actors: Actors) -> AuthorityStore:
    return AuthorityStore(actors.database, actors.clock)


def pointer_available(actors: Actors) -> bool:
    with actors.database.snapshot() as connection:
        return bool(connection.scalar(sa.select(schema.warehouse_pointer.c.available)))


def test_demotion_hides_the_rows_in_the_transaction_of_the_failure(actors: Actors) -> None:
    attempt = actors.accept()
    actors.publish()
    assert acts(actors).demote(key(), "wrong currency", audit_entry())
    state = actors.reader.state(key())
    assert state is not None
    assert (state.status, state.current_run_id, state.authority_version) == ("failed", attempt.run_id, 2)
    assert (state.attempt_count, state.error_message) == (1, "demoted by ada: wrong currency")
    assert not pointer_available(actors)
    before = everything(actors.database)
    assert not acts(actors).demote(key(), "again", audit_entry())
    assert everything(actors.database) == before


def test_what_was_never_trusted_cannot_be_demoted(actors: Actors) -> None:
    fail(actors)
    with pytest.raises(ActRefused, match="no run of it is trusted"):
        acts(actors).demote(key(), "why not", audit_entry())


def test_rollback_returns_to_an_accepted_run_and_holds_it_there(actors: Actors) -> None:
    first = actors.accept(rows=10)
    actors.accept(rows=20)
    actors.publish()
    assert acts(actors).rollback(key(), first.run_id, audit_entry())
    state = actors.reader.state(key())
    assert state is not None
    assert (state.current_run_id, state.record_count, state.attempt_count) == (first.run_id, 10, 2)
    assert not pointer_available(actors)
    assert control(actors).held_by == "ada"
    assert not acts(actors).rollback(key(), first.run_id, audit_entry())


def test_a_rollback_holds_the_partition_for_the_reason_that_was_given(actors: Actors) -> None:
    first, second = actors.accept(), actors.accept()
    assert acts(actors).rollback(key(), first.run_id, audit_entry(), "the new one is wrong")
    assert control(actors).held_reason == "the new one is wrong"
    assert acts(actors).rollback(key(), second.run_id, audit_entry())
    assert control(actors).held_reason == f"rollback to {second.run_id}"


def test_rollback_refuses_what_is_not_an_accepted_run_of_this_schema(actors: Actors) -> None:
    good = actors.accept()
    bad = fail(actors)
    actors.accept()
    with pytest.raises(ActRefused, match="was never accepted"):
        acts(actors).rollback(key(), bad.run_id, audit_entry())
    with pytest.raises(ActRefused, match="has no attempt in run"):
        acts(actors).rollback(key(), new_run_id(), audit_entry())
    actors.execute(sa.update(schema.partition_state).values(schema_version="v2"))
    with pytest.raises(ActRefused, match="schema version v1"):
        acts(actors).rollback(key(), good.run_id, audit_entry())


def test_a_demoted_run_is_never_returned_to(actors: Actors) -> None:
    first = actors.accept()
    acts(actors).demote(key(), "wrong", audit_entry())
    actors.accept()
    with pytest.raises(ActRefused, match="was demoted"):
        acts(actors).rollback(key(), first.run_id, audit_entry())


def test_nothing_is_rolled_back_while_an_attempt_is_open(actors: Actors) -> None:
    first = actors.accept()
    actors.accept()
    open_one = actors.issue_one()
    with pytest.raises(ActRefused, match=f"run {open_one.run_id} works on it"):
        acts(actors).rollback(key(), first.run_id, audit_entry())


def held_back(actors: Actors, partition: PartitionKey | None = None) -> AttemptKey:
    attempt = actors.issue_one(partition)
    verdict = rejected(
        attempt, actors.token, "too few rows", record_count=3, payload_digest="p", payload_bytes=9, content_digest="c"
    )
    actors.validator.judge([verdict])
    return attempt


def test_an_approved_run_is_trusted_and_counts_no_attempt(actors: Actors) -> None:
    actors.accept(rows=100)
    attempt = held_back(actors)
    assert acts(actors).approve(key(), attempt.run_id, "the account shrank", audit_entry())
    state = actors.reader.state(key())
    assert state is not None
    assert (state.status, state.current_run_id, state.record_count) == ("success", attempt.run_id, 3)
    assert (state.attempt_count, state.authority_version) == (2, 2)
    assert not acts(actors).approve(key(), attempt.run_id, "again", audit_entry())


def test_an_older_run_is_not_approved_over_a_newer_one(actors: Actors) -> None:
    attempt = held_back(actors)
    actors.accept()
    with pytest.raises(ActRefused, match="newer than attempt 1"):
        acts(actors).approve(key(), attempt.run_id, "late", audit_entry())


def test_a_demoted_run_is_never_approved_again(actors: Actors) -> None:
    actors.accept(rows=100)
    attempt = held_back(actors)
    acts(actors).approve(key(), attempt.run_id, "the account shrank", audit_entry())
    acts(actors).demote(key(), "it did not", audit_entry())
    before = everything(actors.database)
    with pytest.raises(ActRefused, match=r"was demoted at .*, and a demoted run never regains authority"):
        acts(actors).approve(key(), attempt.run_id, "it did", audit_entry())
    assert everything(actors.database) == before


def test_a_demoted_run_does_not_block_an_older_run(actors: Actors) -> None:
    """A demoted run has no authority, also when its partition is pending."""
    attempt = held_back(actors)
    actors.accept()
    acts(actors).demote(key(), "wrong", audit_entry())
    assert AuthorityStore(actors.database, actors.clock, rehearsal=True).approve(
        key(), attempt.run_id, "right after all", audit_entry()
    )
    actors.control.requeue([key()], audit_entry())
    assert acts(actors).approve(key(), attempt.run_id, "right after all", audit_entry())
    state = actors.reader.state(key())
    assert state is not None
    assert (state.status, state.current_run_id, state.authority_version) == ("success", attempt.run_id, 3)


def test_a_run_that_is_approved_again_keeps_the_time_of_its_first_approval(actors: Actors) -> None:
    attempt = held_back(actors)
    acts(actors).approve(key(), attempt.run_id, "right", audit_entry())
    actors.accept(key())
    acts(actors).demote(key(), "wrong", audit_entry())
    actors.clock.now = NOW + timedelta(hours=1)
    assert acts(actors).approve(key(), attempt.run_id, "right after all", audit_entry())
    [found] = [one for one in actors.reader.attempts(key()) if one.run_id == attempt.run_id]
    assert found.approved_at == NOW
    state = actors.reader.state(key())
    assert state is not None
    assert (state.status, state.current_run_id) == (PartitionStatus.SUCCESS, attempt.run_id)


@pytest.mark.parametrize("act", ["rollback", "approve"])
def test_rollback_and_approval_refuse_a_run_for_the_same_reasons(actors: Actors, act: str) -> None:
    """One run that was held back and approved, so that both acts may name it."""
    attempt = held_back(actors)
    acts(actors).approve(key(), attempt.run_id, "right", audit_entry())
    later = held_back(actors)
    acts(actors).approve(key(), later.run_id, "right, too", audit_entry())
    acts(actors).demote(key(), "wrong", audit_entry())

    def refusal() -> str:
        store, reason = acts(actors), {"reason": "back"} if act == "approve" else {}
        with pytest.raises(ActRefused) as refused:
            getattr(store, act)(key(), attempt.run_id, entry=audit_entry(), **reason)
        return str(refused.value)

    table = schema.partition_attempt
    named = table.c.run_id == attempt.run_id
    for values, words in (
        ({"demoted_at": NOW}, "was demoted"),
        ({"raw_deleted_at": NOW}, "was deleted"),
        ({"schema_version": "v0"}, "is of schema version v0"),
    ):
        tamper(actors.database, sa.update(table).where(named).values(**values))
        assert words in refusal()
        undone = sa.update(table).where(named).values(demoted_at=None, raw_deleted_at=None, schema_version="v1")
        tamper(actors.database, undone)
    actors.control.requeue([key()], audit_entry())
    open_one = actors.issue_one()
    assert f"run {open_one.run_id} works on it" in refusal()


def test_an_approval_may_move_a_partition_to_a_newer_schema_version(actors: Actors) -> None:
    actors.accept(rows=100)
    attempt = held_back(actors)
    table = schema.partition_attempt
    tamper(actors.database, sa.update(table).where(table.c.run_id == attempt.run_id).values(schema_version="v2"))
    assert acts(actors).approve(key(), attempt.run_id, "the account shrank", audit_entry())
    state = actors.reader.state(key())
    assert state is not None
    assert state.schema_version == "v2"


def test_a_recheck_demotes_only_what_is_still_trusted_and_counts_one_attempt(actors: Actors) -> None:
    old = actors.accept(key(1))
    actors.accept(key(1))
    now = actors.accept(key(2))
    found = [FailedRecheck(old, "clicks is negative"), FailedRecheck(now, "clicks is negative")]
    assert actors.validator.withdraw(found) == [key(2)]
    state = actors.reader.state(key(2))
    assert state is not None
    assert (state.status, state.attempt_count, state.authority_version) == ("failed", 2, 2)
    assert actors.validator.withdraw(found) == []


def test_every_act_leaves_one_event_and_one_line_in_the_audit_log(actors: Actors) -> None:
    first = actors.accept()
    actors.accept()
    acts(actors).rollback(key(), first.run_id, audit_entry(command="state rollback"))
    acts(actors).demote(key(), "wrong", audit_entry(command="state demote"))
    with actors.database.snapshot() as connection:
        rows = connection.execute(
            sa.select(schema.event.c.payload).where(schema.event.c.type == "AuthorityChanged").order_by("position")
        ).all()
    assert [row.payload["act"] for row in rows] == ["accept", "accept", "rollback", "demote"]
    assert [row["command"] for row in actors.reader.audit()] == ["state demote", "state rollback"]


PER_PARTITION = (
    schema.partition_state, schema.partition_attempt, schema.partition_control, schema.publish_due, schema.retry_due,
    schema.warehouse_pointer,
)  # fmt: skip


def rows_of(actors: Actors, *partitions: PartitionKey) -> dict[str, list[dict[str, Any]]]:
    """The rows of these partitions, by table."""
    named = [builders.columns(partition) for partition in partitions]
    found = everything(actors.database, PER_PARTITION)
    return {name: [row for row in rows if _key(row) in named] for name, rows in found.items()}


def _key(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in schema.KEY}


def lived_in(actors: Actors, *partitions: PartitionKey) -> list[list[AttemptKey]]:
    """Partitions with two accepted runs, one that a guard rejected and two that failed, and a `next_run_at`."""
    runs = []
    for fate in ("accept", "accept", "hold back", "fail", "fail"):
        runs.append(issued := actors.issue(*partitions))
        if fate == "accept":
            actors.validator.judge([builders.accepted(one, actors.token) for one in issued])
            continue
        left = {"record_count": 3, "payload_digest": "p", "payload_bytes": 9, "content_digest": "c"}
        words: dict[str, Any] = left if fate == "hold back" else {"stage": Stage.EXTRACT}
        actors.validator.judge([rejected(one, actors.token, **words) for one in issued])
        if len(runs) == 4:
            decided(actors)
    actors.control.postpone(dict.fromkeys(partitions, NOW), "backoff")
    actors.execute(sa.delete(schema.publish_due))
    return runs


@pytest.mark.parametrize(
    "act", ["demote", "rollback", "approve", "recheck", "requeue", "terminal", "clear", "pause", "accept", "reject"]
)
def test_an_act_on_a_partition_leaves_its_neighbours_alone(actors: Actors, act: str) -> None:
    """Neighbours differ in one part of the key each; they were in the same runs, and are in the same state."""
    first, second, third, *_ = (AttemptKey(key(), run[0].run_id) for run in lived_in(actors, key(), *NEIGHBOURS))
    for partition in (key(), *NEIGHBOURS):
        actors.publish(partition)
    marks, entry = MarkStore(actors.database, actors.clock), audit_entry()
    if act in ("requeue", "terminal", "clear"):
        for partition in (key(), *NEIGHBOURS):
            acts(actors).demote(partition, "wrong", entry)
    if act == "clear":
        marks.mark_terminal([key(), *NEIGHBOURS], None, entry)
    mine, before = rows_of(actors, key()), rows_of(actors, *NEIGHBOURS)
    actors.clock.now += timedelta(hours=1)
    match act:
        case "demote":
            assert acts(actors).demote(key(), "wrong", entry)
        case "rollback":
            assert acts(actors).rollback(key(), first.run_id, entry)
        case "approve":
            assert acts(actors).approve(key(), third.run_id, "right", entry)
        case "recheck":
            assert actors.validator.withdraw([FailedRecheck(second, "wrong")]) == [key()]
        case "requeue":
            assert actors.control.requeue([key()], entry) == 1
        case "terminal":
            assert marks.mark_terminal([key()], None, entry) == 1
        case "clear":
            assert marks.clear_terminal([key()], entry) == 1
        case "pause":
            assert marks.pause([key()], None, entry) == 1
        case "accept":
            actors.accept(key())
        case "reject":
            actors.reject(key())
    assert rows_of(actors, *NEIGHBOURS) == before
    assert rows_of(actors, key()) != mine


def test_a_demotion_marks_its_run_and_no_other_and_makes_the_partition_due(actors: Actors) -> None:
    first, second = actors.accept(), actors.accept()
    actors.execute(sa.delete(schema.publish_due))
    actors.clock.now = later = NOW + timedelta(hours=1)
    assert acts(actors).demote(key(), "wrong", audit_entry(command="state demote"))
    marked = {one.run_id: one.demoted_at for one in actors.reader.attempts(key())}
    assert marked == {first.run_id: None, second.run_id: later}
    assert actors.rows(schema.publish_due) == [{**builders.columns(key()), "authority_version": 3, "since": later}]
    state = actors.reader.state(key())
    assert state is not None
    assert state.updated_at == later
    [*_, told] = actors.events("AuthorityChanged")
    assert (told["run_id"], told["authority_version"], told["act"]) == (second.run_id, 3, "demote")
    [line] = actors.reader.audit()
    assert (line["command"], line["affected"], line["outcome"], line["at"]) == ("state demote", 1, "done", later)


def test_a_pending_partition_with_a_demoted_run_cannot_be_demoted_again(actors: Actors) -> None:
    actors.accept()
    acts(actors).demote(key(), "wrong", audit_entry())
    actors.control.requeue([key()], audit_entry())
    before = everything(actors.database)
    with pytest.raises(ActRefused, match="no run of it is trusted"):
        acts(actors).demote(key(), "wrong", audit_entry())
    with pytest.raises(ActRefused, match="no run of it is trusted"):
        acts(actors).demote(key(2), "wrong", audit_entry())
    assert everything(actors.database) == before


@pytest.mark.parametrize("act", ["rollback", "approve"])
def test_authority_by_hand_ends_the_retries_and_holds_the_partition(actors: Actors, act: str) -> None:
    [first], [second], [third], *_ = lived_in(actors, key())
    actors.publish()
    MarkStore(actors.database, actors.clock).pause([key()], "look", audit_entry())
    actors.clock.now = later = NOW + timedelta(hours=1)
    target = first if act == "rollback" else third
    if act == "rollback":
        assert acts(actors).rollback(key(), target.run_id, audit_entry(), "right")
    else:
        assert acts(actors).approve(key(), target.run_id, "right", audit_entry())
    [row] = actors.rows(schema.partition_control)
    held = {"held_at": later, "held_by": "ada", "held_reason": "right"}
    paused = {"paused_at": NOW, "paused_by": "ada", "paused_reason": "look"}
    empty = dict.fromkeys(("failing_since", "next_run_at", "strategy", "terminal_at", "terminal_by", "terminal_reason"))
    assert row == {**builders.columns(key()), **held, **paused, **empty, "failures": 0, "cleared_attempt_no": 5}
    assert actors.rows(schema.retry_due) == []
    assert actors.rows(schema.publish_due) == [{**builders.columns(key()), "authority_version": 3, "since": later}]
    assert {one.run_id for one in actors.reader.attempts(key()) if one.approved_at} == (
        {third.run_id} if act == "approve" else set()
    )
    [pointer] = actors.rows(schema.warehouse_pointer)
    assert (pointer["run_id"], pointer["available"]) == (second.run_id, act == "approve")
    [*_, told] = actors.events("AuthorityChanged")
    content = f"content-{first.run_id}" if act == "rollback" else "c"
    assert (told["run_id"], told["authority_version"], told["act"], told["content_digest"]) == (
        target.run_id, 3, act, content,
    )  # fmt: skip
    resumed(actors.database, actors.clock, key())
    fail(actors)
    [again] = RetryStore(actors.database).undecided(9)
    assert again.failures == 1, "verdicts count anew"


def test_a_return_to_the_run_that_is_still_served_leaves_it_to_readers(actors: Actors) -> None:
    first = actors.accept()
    actors.publish()
    actors.accept()  # not published yet
    assert acts(actors).rollback(key(), first.run_id, audit_entry())
    assert pointer_available(actors)


def test_a_rehearsal_refuses_the_same_and_changes_nothing(actors: Actors) -> None:
    [first], _, [third], *_ = lived_in(actors, key())
    rehearsal = AuthorityStore(actors.database, actors.clock, rehearsal=True)
    before = everything(actors.database)
    assert rehearsal.rollback(key(), first.run_id, audit_entry())
    assert rehearsal.approve(key(), third.run_id, "right", audit_entry())
    assert rehearsal.demote(key(), "wrong", audit_entry())
    with pytest.raises(ActRefused, match="was never accepted"):
        rehearsal.rollback(key(), third.run_id, audit_entry())
    with pytest.raises(ActRefused, match="not held back"):
        rehearsal.approve(key(), first.run_id, "right", audit_entry())
    with pytest.raises(ActRefused, match="no run of it is trusted"):
        rehearsal.demote(key(2), "wrong", audit_entry())
    assert everything(actors.database) == before


@pytest.mark.parametrize("missing", ["payload_digest", "content_digest"])
def test_a_rejection_that_left_no_examined_bytes_is_not_approved(actors: Actors, missing: str) -> None:
    attempt = actors.issue_one()
    left: dict[str, Any] = {
        "record_count": 3,
        "payload_digest": "p",
        "payload_bytes": 9,
        "content_digest": "c",
        missing: None,
    }
    actors.validator.judge([rejected(attempt, actors.token, **left)])
    with pytest.raises(ActRefused, match="was not held back by a guard"):
        acts(actors).approve(key(), attempt.run_id, "right", audit_entry())


def test_a_partition_without_a_verdict_has_no_run_to_roll_back_to(actors: Actors) -> None:
    attempt = actors.cancel()
    with pytest.raises(ActRefused, match="no attempt of it has a verdict yet"):
        acts(actors).rollback(key(), attempt.run_id, audit_entry())


def test_a_recheck_marks_the_examined_run_and_no_other(actors: Actors) -> None:
    """Day 1 got another run during the re-check, day 2 is trusted, day 3 was demoted before."""
    old, _ = actors.accept(key(1)), actors.accept(key(1))
    earlier, trusted = actors.accept(key(2)), actors.accept(key(2))
    gone = actors.accept(key(3))
    acts(actors).demote(key(3), "by hand", audit_entry())
    actors.execute(sa.delete(schema.publish_due))
    actors.clock.now = later = NOW + timedelta(hours=1)
    found = [FailedRecheck(old, "a"), FailedRecheck(trusted, "b"), FailedRecheck(gone, "c")]
    assert actors.validator.withdraw(found) == [key(2)]
    marks = {row["run_id"]: row["demoted_at"] for row in actors.rows(schema.partition_attempt) if row["demoted_at"]}
    assert marks == {trusted.run_id: later, gone.run_id: NOW}
    assert actors.rows(schema.publish_due) == [{**builders.columns(key(2)), "authority_version": 3, "since": later}]
    state = actors.reader.state(key(2))
    assert state is not None
    assert (state.error_message, state.updated_at, state.current_run_id) == ("b", later, trusted.run_id)
    [*_, told] = actors.events("AuthorityChanged")
    assert (told["run_id"], told["authority_version"], told["act"]) == (trusted.run_id, 3, "re-check")
    assert earlier.run_id not in marks


# --- restatement ---------------------------------------------------------------------------------------------------


def at(day: int, hour: int = 12) -> datetime:
    return datetime(2024, 6, day, hour, tzinfo=UTC)


def restated(actors: Actors, now: datetime, over: int, offset: int = 0) -> list[int]:
    last = date(2024, 6, over)
    span = ExpectedRange("demo", "1000000001", "campaign_daily", date(2024, 6, 1), last, last, offset)
    found = actors.reader.candidates([span], (PlanReason.RESTATE,), now, {"campaign_daily": (1, 2, 5)})
    return [c.key.logical_date.day for c in found]


def test_a_day_is_fetched_again_at_each_of_its_ages_and_then_no_more(actors: Actors) -> None:
    """Ages 1, 2 and 5: the first of June ends with the 2nd, so it is fetched again on the 3rd, the 4th and the 7th."""
    fetched = []
    for day in range(2, 13):
        actors.clock.now = at(day, 6)
        if day == 2:
            actors.accept(key(1))
        elif restated(actors, actors.clock.now, day - 1) == [1]:
            actors.accept(key(1))
            fetched.append(day)
    assert fetched == [3, 4, 7]


def test_a_day_ends_where_the_account_lives(actors: Actors) -> None:
    actors.clock.now = at(2, 1)  # fetched just after the day's end in Berlin, and before it in New York
    actors.accept(key(1))
    assert restated(actors, at(3, 12), 2, offset=7200) == [1]
    actors.clock.now = at(2, 23)
    actors.accept(key(1))  # in Berlin (UTC+2) the day is one day old at 22:00 UTC
    assert restated(actors, at(3, 12), 2, offset=7200) == []
    assert restated(actors, at(3, 12), 2, offset=0) == [1]


def test_a_missed_age_is_made_up_for_once(actors: Actors) -> None:
    actors.clock.now = at(2)
    actors.accept(key(1))
    assert restated(actors, at(28), 27) == [1]
    actors.clock.now = at(28)
    actors.accept(key(1))
    assert restated(actors, at(29), 28) == []


def test_what_a_person_decided_is_not_restated_until_resumed(actors: Actors) -> None:
    actors.clock.now = at(2)
    first = actors.accept(key(1))
    actors.accept(key(1))
    acts(actors).rollback(key(1), first.run_id, audit_entry())
    assert restated(actors, at(4), 3) == []
    assert resumed(actors.database, actors.clock, key(1)) == 1
    assert restated(actors, at(4), 3) == [1]


def test_an_attempt_that_nobody_judged_does_not_count_as_fetched(actors: Actors) -> None:
    actors.clock.now = at(2)
    actors.accept(key(1))
    actors.clock.now = at(4)
    actors.cancel(key(1))
    assert restated(actors, at(4), 3) == [1]


def test_the_database_refuses_a_mark_without_an_author(actors: Actors) -> None:
    row = {**builders.columns(key()), "paused_at": NOW}
    with pytest.raises(PenstockError, match="a_pause_has_an_author"):
        actors.database.transact(lambda c: c.execute(sa.insert(schema.partition_control), row))


# --- outdated plans ------------------------------------------------------------------------------------------------


WITHDRAWN = "its retry was withdrawn"
GIVEN_UP = "an operator gave it up"
USED_UP = "its retry policy allows no further attempt"
TOO_OLD = "its day is older than its retry policy allows"
CHOSEN = "an operator chose its run, so it is not fetched again before it is resumed"
SOON, THEN = NOW + timedelta(seconds=1), NOW + timedelta(minutes=5)
BY = {"terminal_by": "ada", "terminal_at": NOW}
HELD = {"held_by": "ada", "held_at": NOW}
# The status, the control metadata, the plan, and the reason of the refusal.
AT_ISSUE: tuple[tuple[str, dict[str, Any], dict[str, Any], str | None], ...] = (
    ("none", {}, {}, None),
    ("failed", {}, {}, WITHDRAWN),
    ("failed", {"next_run_at": THEN}, {}, None),
    ("success", {}, {}, WITHDRAWN),
    ("success", {"next_run_at": THEN}, {}, None),
    ("pending", {}, {}, None),
    ("pending", {"failures": 1}, {}, None),
    ("pending", BY, {}, None),
    ("failed", {"next_run_at": THEN, **BY}, {}, GIVEN_UP),
    ("success", {"next_run_at": THEN, **BY}, {}, None),
    ("failed", {"next_run_at": THEN, "failures": 2}, {"max_attempts": 3}, None),
    ("failed", {"next_run_at": THEN, "failures": 3}, {"max_attempts": 3}, USED_UP),
    ("failed", {"next_run_at": THEN, "failures": 4}, {"max_attempts": 3}, USED_UP),
    ("failed", {"next_run_at": THEN, "failures": 9}, {}, None),
    ("failed", {"next_run_at": THEN}, {"expires_at": NOW}, TOO_OLD),
    ("failed", {"next_run_at": THEN}, {"expires_at": SOON}, None),
    ("success", HELD, {"reason": "restate"}, CHOSEN),
    ("success", {}, {"reason": "restate"}, None),
    ("success", {"next_run_at": THEN, **HELD}, {}, None),
    ("success", {**HELD, **BY, "failures": 9}, {"reason": "reprocess", "max_attempts": 3, "expires_at": NOW}, None),
    ("failed", {**BY, "failures": 9}, {"reason": "backfill", "max_attempts": 3, "expires_at": NOW}, None),
    ("none", {"paused_by": "ada", "paused_at": NOW}, {"reason": "missing"}, "an operator paused it"),
)


def test_what_is_issued_depends_on_what_is_kept_beside_the_partition_and_nothing_else(actors: Actors) -> None:
    """All in one batch: each is decided by its own control metadata."""
    table, plan = schema.partition_control, []
    for day, (status, beside, written, _) in enumerate(AT_ISSUE, 1):
        if status == "success":
            actors.accept(key(day))
        elif status != "none":
            actors.reject(key(day))
        if status == "pending":
            actors.control.requeue([key(day)], audit_entry())
        actors.execute(sa.delete(table).where(*builders.is_key(table, key(day))))
        if beside:
            strategy = {"strategy": "backoff"} if "next_run_at" in beside else {}
            values = {"cleared_attempt_no": 0, "failures": 0, **beside, **strategy}
            actors.execute(sa.insert(table).values(**builders.columns(key(day)), **values))
        seen = 0 if status == "none" else 1
        plan.append(replace(builders.planned(key(day), seen, "retry"), **written))
    states = {row["logical_date"].day: row for row in actors.rows(schema.partition_state)}
    issued, refused = actors.try_to_issue(*plan)
    why = {one.attempt.partition.logical_date.day: one.why for one in refused}
    assert why == {day: words for day, (*_, words) in enumerate(AT_ISSUE, 1) if words}
    assert sorted([*why, *(one.attempt.partition.logical_date.day for one in issued)]) == [*range(1, len(AT_ISSUE) + 1)]
    # A retry that is issued is requeued by that; nothing else moves.
    after = {row["logical_date"].day: row for row in actors.rows(schema.partition_state)}
    retried = [day for day in states if day not in why and plan[day - 1].reason == "retry"]
    moved = {"status": "pending", "error_message": None}
    assert after == {
        day: row | (moved if day in retried and row["status"] == "failed" else {}) for day, row in states.items()
    }


def test_a_plan_that_builds_on_an_attempt_that_is_not_there_is_refused(actors: Actors) -> None:
    actors.reject(key(2))
    issued, refused = actors.try_to_issue(
        builders.planned(key(1), 1),
        builders.planned(key(2), 2),
        builders.planned(key(3)),
        builders.planned(key(2, "x")),
    )
    assert sorted(one.attempt.partition for one in issued) == [key(3), key(2, "x")]
    assert {(one.attempt.partition, one.why) for one in refused} == {(key(1), TAKEN), (key(2), TAKEN)}


def test_a_requeue_ends_appointments_and_forgives_only_what_failed(actors: Actors) -> None:
    """Day 1 failed, day 2 is good with a failed re-fetch, day 3 failed and is not named."""
    actors.accept(key(2))
    for day in (1, 2, 3):
        fail(actors, key(day))
    decided(actors)
    actors.clock.now = later = NOW + timedelta(hours=1)
    for day in (1, 2, 3):
        fail(actors, key(day))
    decided(actors)
    for day in (1, 2, 3):
        actors.execute(sa.insert(schema.retry_due).values(**builders.columns(key(day)), attempt_no=2))
    beside = {row["logical_date"].day: row for row in actors.rows(schema.partition_control)}
    assert actors.control.requeue([key(1), key(2), key(4)], audit_entry()) == 1
    after = {row["logical_date"].day: row for row in actors.rows(schema.partition_control)}
    nothing = {"next_run_at": None, "strategy": None}
    forgiven = {"failures": 0, "failing_since": None, "cleared_attempt_no": 2}
    assert after == {1: beside[1] | nothing | forgiven, 2: beside[2] | nothing, 3: beside[3]}
    assert [row["logical_date"].day for row in actors.rows(schema.retry_due)] == [3]
    assert later == actors.clock()


def test_a_page_of_a_requeue_leaves_no_line_in_the_audit_log(actors: Actors) -> None:
    fail(actors, key(1))
    assert actors.control.requeue([key(1)]) == 1
    assert list(actors.reader.audit()) == []


def test_failures_count_in_a_row_since_the_last_good_run_of_this_partition(actors: Actors) -> None:
    """Day 1: good, failed, approved, failed twice. Day 2: failed three times, cleared after the first. Day 3: once."""
    for partition in (key(2), key(1, "x")):
        fail(actors, partition)
    MarkStore(actors.database, actors.clock).mark_terminal([key(2)], None, audit_entry())
    MarkStore(actors.database, actors.clock).clear_terminal([key(2)], audit_entry())
    actors.accept(key(1))
    approved = held_back(actors, key(1))
    acts(actors).approve(key(1), approved.run_id, "right", audit_entry())
    since: dict[PartitionKey, datetime] = {}
    for hour in (1, 2):
        actors.clock.now = NOW + timedelta(hours=hour)
        for partition in (key(1), key(2)):
            since.setdefault(partition, actors.clock.now)
            fail(actors, partition)
    actors.cancel(key(2))
    fail(actors, key(3))
    found = {one.key: one for one in RetryStore(actors.database).undecided(9)}
    assert {k: (one.attempt_no, one.failures) for k, one in found.items()} == {
        key(1): (4, 2), key(1, "x"): (1, 1), key(2): (3, 2), key(3): (1, 1),
    }  # fmt: skip
    assert {k: found[k].failing_since for k in since} == since
    assert found[key(1, "x")].failing_since == NOW
    assert list(found) == sorted(found)
    assert [one.key for one in RetryStore(actors.database).undecided(2)] == sorted(found)[:2]


def test_a_decision_is_kept_for_its_partition_and_its_attempt(actors: Actors) -> None:
    for partition in (key(1), *NEIGHBOURS):
        fail(actors, partition)
    store = RetryStore(actors.database)
    undecided = {one.key: one for one in store.undecided(9)}
    fail(actors, key(2))
    store.decide([Decided(undecided[k], THEN, "backoff") for k in (key(1), key(2))])
    [row] = actors.rows(schema.partition_control)
    assert (_key(row), row["next_run_at"], row["strategy"], row["failures"], row["failing_since"]) == (
        builders.columns(key(1)), THEN, "backoff", 1, NOW,
    )  # fmt: skip
    assert {one.key: one.attempt_no for one in store.undecided(9)} == {k: 2 if k == key(2) else 1 for k in NEIGHBOURS}


def test_giving_up_ends_the_appointment_and_a_second_time_changes_nothing(actors: Actors) -> None:
    fail(actors, key(1))
    actors.accept(key(2))
    fail(actors, key(2))
    decided(actors)
    marks = MarkStore(actors.database, actors.clock)
    beside = {row["logical_date"].day: row for row in actors.rows(schema.partition_control)}
    assert marks.mark_terminal([key(1), key(2), key(3)], "no such account", audit_entry()) == 1
    given_up = {"terminal_at": NOW, "terminal_by": "ada", "terminal_reason": "no such account"}
    after = {row["logical_date"].day: row for row in actors.rows(schema.partition_control)}
    assert after[1] == beside[1] | given_up | {"next_run_at": None, "strategy": None}
    assert after[2] == beside[2]
    assert after[3]["terminal_at"] is None
    actors.clock.now += timedelta(hours=1)
    assert marks.mark_terminal([key(1)], "still none", audit_entry()) == 0
    assert actors.rows(schema.partition_control)[0] == after[1]
    assert marks.clear_terminal([key(1), key(2), key(3)], audit_entry()) == 2
    cleared = {row["logical_date"].day: row for row in actors.rows(schema.partition_control)}
    nothing = dict.fromkeys((*given_up, "failing_since", "next_run_at", "strategy")) | {"failures": 0}
    assert cleared[1] == after[1] | nothing | {"cleared_attempt_no": 1}
    assert cleared[2] == after[2] | nothing | {"cleared_attempt_no": 2}
    assert actors.rows(schema.retry_due) == []
    assert [(line["affected"], line["outcome"]) for line in actors.reader.audit()] == [
        (2, "done"),
        (0, "done"),
        (1, "done"),
    ]


def test_a_mark_of_pause_stays_as_it_was_first_set(actors: Actors) -> None:
    marks = MarkStore(actors.database, actors.clock)
    assert marks.pause([key(1)], "first", audit_entry()) == 1
    actors.clock.now += timedelta(hours=1)
    assert marks.pause([key(1), key(2)], "second", audit_entry(actor="kim"), audited=False) == 1
    found = [
        (row["paused_at"], row["paused_by"], row["paused_reason"]) for row in actors.rows(schema.partition_control)
    ]
    assert found == [(NOW, "ada", "first"), (actors.clock(), "kim", "second")]
    assert len(actors.reader.audit()) == 1


def test_a_pause_or_a_hold_that_came_after_the_plan_is_respected_when_issuing(actors: Actors) -> None:
    first = actors.accept(key(1))
    actors.accept(key(1))
    fail(actors, key(2))
    plan = [builders.planned(key(1), 2, "restate"), builders.planned(key(2), 1, "retry"), builders.planned(key(3))]
    acts(actors).rollback(key(1), first.run_id, audit_entry())
    marks = MarkStore(actors.database, actors.clock)
    marks.mark_terminal([key(2)], None, audit_entry())
    marks.pause([key(3)], None, audit_entry())
    issued, refused = actors.try_to_issue(*plan)
    assert issued == []
    assert {item.attempt.partition.logical_date.day: item.why for item in refused} == {
        1: "an operator chose its run, so it is not fetched again before it is resumed",
        2: "its retry was withdrawn",
        3: "an operator paused it",
    }
    dropped = [row["payload"]["why"] for row in everything(actors.database)["event"] if row["type"] == "TasksDropped"]
    assert sorted(dropped) == sorted(item.why for item in refused)


def test_a_refetch_that_an_operator_asked_for_is_retried_although_the_partition_is_held(actors: Actors) -> None:
    """The hold stops restatement. The explicit re-fetch is not carried out yet, so its retry is planned and issued."""
    first = actors.accept(key(1))
    actors.accept(key(1))
    acts(actors).rollback(key(1), first.run_id, audit_entry())
    fail(actors, key(1))
    decided(actors)
    later = NOW + timedelta(minutes=5)
    [candidate] = actors.reader.candidates([days(1, 1)], DUE, later, {"campaign_daily": (1,)})
    assert (candidate.reason, candidate.held) == ("retry", True)
    actors.clock.now = later
    issued, refused = actors.try_to_issue(builders.planned(key(1), candidate.last_attempt_no, "retry"))
    assert ([item.attempt.partition for item in issued], refused) == ([key(1)], [])
    actors.validator.judge([rejected(issued[0].attempt, actors.token)])
    found = actors.reader.candidates([days(1, 1)], DUE, later + timedelta(days=9), {"campaign_daily": (1,)})
    assert found == [], "a held partition is not restated"
    state = actors.reader.state(key(1))
    assert state is not None
    assert (state.status, state.current_run_id) == (PartitionStatus.SUCCESS, first.run_id)


def test_a_pause_of_the_source_does_not_end_the_retries_of_a_refetch(actors: Actors) -> None:
    """The retry of a success partition meets a quota: after the pause it is due again, as a pending one would be."""
    trusted = actors.accept(key(1))
    fail(actors, key(1))
    decided(actors)
    actors.clock.now = NOW + timedelta(minutes=5)
    [issued], _ = actors.try_to_issue(builders.planned(key(1), 2, "retry"))
    actors.control.cancel([cancelled(issued.attempt, actors.token)])
    actors.control.postpone({key(1): actors.clock.now + timedelta(seconds=30)})
    assert due(actors) == []
    actors.clock.now += timedelta(seconds=30)
    assert due(actors) == [(1, "retry")]
    [again], refused = actors.try_to_issue(builders.planned(key(1), 3, "retry"))
    assert (again.attempt.partition, refused) == (key(1), [])
    state = actors.reader.state(key(1))
    assert state is not None
    assert (state.status, state.current_run_id) == (PartitionStatus.SUCCESS, trusted.run_id)


@pytest.mark.parametrize("strategy", ["quota", "auth"])
def test_a_refetch_that_only_met_a_pause_is_due_when_the_pause_ends(actors: Actors, strategy: str) -> None:
    """Nothing failed: the attempt was closed without a verdict, so the request is still open."""
    trusted = actors.accept(key(1))
    actors.cancel(key(1))
    actors.control.postpone({key(1): NOW + timedelta(hours=1)}, strategy)
    assert due(actors) == []
    if strategy == "auth":
        store, opened = (
            BreakerStore(actors.database, actors.clock),
            Breaker("demo", 3, NOW, NOW, error_class="auth", error_message="refused"),
        )
        store.change("demo", lambda _: opened)
        store.close("demo", audit_entry())
    else:
        actors.clock.now += timedelta(hours=1)
    assert due(actors) == [(1, "retry")]
    [again], _ = actors.try_to_issue(builders.planned(key(1), 2, "retry"))
    actors.validator.judge([builders.accepted(again.attempt, actors.token)])
    assert due(actors) == []
    assert control(actors) == PartitionControl()
    state = actors.reader.state(key(1))
    assert state is not None
    assert state.current_run_id == again.attempt.run_id != trusted.run_id


@pytest.mark.parametrize(
    ("failures", "backfill", "is_due"),
    [(0, None, True), (4, None, True), (5, None, False), (0, "B", False), (1, "B", True)],
)
def test_the_next_retry_of_a_refetch_is_that_of_the_planner(
    tmp_path: Path, failures: int, backfill: str | None, is_due: bool
) -> None:
    """Five attempts are allowed; the last one met a pause of the source. A backfill retries its own attempts."""
    fields = [{"name": name, "type": "long"} for name in ("campaign_id", "clicks")]
    query = {"start_date": "2024-06-01", "fields": fields, "checks": [], "retry": {"max_attempts": 5}}
    folder = write_workspace(tmp_path, rows=1, query=query)
    actors = Actors.on(open_at(folder, NOW).context.database)
    actors.accept(key(1))
    [issued], _ = actors.try_to_issue(replace(builders.planned(key(1), 1, "backfill"), backfill_id=backfill))
    actors.control.cancel([cancelled(issued.attempt, actors.token)])
    actors.control.postpone({key(1): NOW + timedelta(hours=1)})
    actors.execute(sa.text("UPDATE partition_control SET failures = :failures"), failures=failures)
    ws, chosen = open_at(folder, NOW + timedelta(hours=2)), Selection(keys=(key(1),))
    assert ws.plans.preview(chosen).reasons == ({"retry": 1} if is_due else {})
    [view] = ws.context.state.views(ws.context.ranges(chosen))
    assert (ws.partitions.next_run_at(view) is not None) == is_due
    assert ("retried after" in ws.partitions.why(key(1)).next) == is_due


def test_a_held_partition_that_was_demoted_and_requeued_is_retried_like_any_other(actors: Actors) -> None:
    first = actors.accept(key(1))
    actors.accept(key(1))
    acts(actors).rollback(key(1), first.run_id, audit_entry())
    acts(actors).demote(key(1), "wrong", audit_entry())
    actors.control.requeue([key(1)], audit_entry())
    fail(actors, key(1))
    decided(actors)
    actors.clock.now = NOW + timedelta(minutes=5)
    assert due(actors) == [(1, "retry")]
    issued, refused = actors.try_to_issue(builders.planned(key(1), 3, "retry"))
    assert (len(issued), refused) == (1, [])


def test_a_retry_that_was_planned_before_a_rollback_is_refused_by_its_reason(actors: Actors) -> None:
    first = actors.accept(key(1))
    actors.accept(key(1))
    fail(actors, key(1))
    decided(actors)
    plan = builders.planned(key(1), 3, "retry")
    acts(actors).rollback(key(1), first.run_id, audit_entry())
    issued, [refused] = actors.try_to_issue(plan)
    assert (issued, refused.why) == ([], "its retry was withdrawn")


def test_what_a_person_decided_is_not_undone_by_a_late_decision_of_the_policy(actors: Actors) -> None:
    first = actors.accept(key(1))
    actors.accept(key(1))
    fail(actors, key(1))
    fail(actors, key(2))
    fail(actors, key(3))
    acts(actors).rollback(key(1), first.run_id, audit_entry())
    marks = MarkStore(actors.database, actors.clock)
    marks.mark_terminal([key(2)], None, audit_entry())
    marks.clear_terminal([key(2)], audit_entry())
    actors.control.requeue([key(3)], audit_entry())
    assert control(actors, key(1)).held_at is not None
    assert decided(actors) == 0
    assert [control(actors, key(day)).next_run_at for day in (1, 2, 3)] == [None, None, None]


def test_an_old_appointment_means_nothing_after_a_new_failure(actors: Actors) -> None:
    fail(actors)
    decided(actors)
    actors.clock.now = NOW + timedelta(hours=1)
    actors.try_to_issue(builders.planned(key(), 1, "retry"))
    [attempt] = [a for a in actors.reader.attempts(key()) if a.outcome is None]
    verdict = rejected(AttemptKey(key(), attempt.run_id), actors.token, "again", Stage.EXTRACT)
    actors.validator.judge([replace(verdict, error_class=ErrorClass.TRANSIENT)])
    assert due(actors) == []  # although there is no decision yet


def test_an_acceptance_ends_failures_also_after_a_manual_retry(actors: Actors) -> None:
    fail(actors)
    decided(actors)
    actors.control.requeue([key()], audit_entry())
    actors.accept()
    assert control(actors) == PartitionControl()


def test_a_terminal_mark_means_nothing_while_the_partition_is_good(actors: Actors) -> None:
    fail(actors)
    MarkStore(actors.database, actors.clock).mark_terminal([key()], "enough", audit_entry())
    actors.control.requeue([key()], audit_entry())
    actors.accept()
    fail(actors)
    decided(actors)
    later = NOW + timedelta(minutes=5)
    assert due(actors, later) == [(1, "retry")]
    issued, _ = actors.try_to_issue(builders.planned(key(), 3, "retry"))
    assert len(issued) == 1


def test_a_pause_of_the_source_holds_for_restatement_too(actors: Actors) -> None:
    actors.clock.now = at(2)
    actors.accept(key(1))
    actors.cancel(key(1))
    assert restated(actors, at(4), 3) == [1]
    actors.control.postpone({key(1): at(4) + timedelta(seconds=30)})
    assert restated(actors, at(4), 3) == []


# --- breakers ------------------------------------------------------------------------------------------------------


def test_a_breaker_that_closes_lets_the_postponed_partitions_go(actors: Actors) -> None:
    store = BreakerStore(actors.database, actors.clock)
    opened = Breaker("demo", 3, NOW, NOW + timedelta(minutes=5), 1, None, "auth", "renew the credentials")
    for close in (
        lambda: store.close("demo", audit_entry()),
        lambda: store.change("demo", lambda _: Breaker("demo")),
    ):
        assert store.change("demo", lambda _: opened) == store.get("demo") == opened
        actors.control.postpone({key(1): NOW + timedelta(hours=1)}, "auth")
        actors.control.postpone({key(2): NOW + timedelta(hours=1)}, "quota")
        close()
        assert store.get("demo") == Breaker("demo")
        assert actors.reader.reasons([days(1, 2)], NOW, {}) == {"missing": 1, "waiting": 1}
    assert not store.close("demo", audit_entry())


def test_retry_failed_of_a_backfill_refuses_what_state_retry_refuses(tmp_path: Path) -> None:
    """Day 1 was not fetched, day 2 has a sealed run, day 3 has nothing, day 4 has nothing and is terminal."""
    fields = [{"name": name, "type": "long"} for name in ("campaign_id", "clicks")]
    folder = write_workspace(tmp_path, rows=1, query={"start_date": "2024-06-01", "fields": fields, "checks": []})
    ws = open_at(folder, NOW)
    actors = Actors.on(ws.context.database)
    shape = {"chunk_size": 10, "priority": 0, "max_chunks": 1}
    old = ws.backfills.plan(Selection(until=date(2024, 6, 4)), reprocess=False, actor="ada", **shape)
    ws.context.backfills.create(old, audit_entry())
    left: dict[int, dict[str, Any]] = {1: {"stage": Stage.EXTRACT}, 2: {"payload_digest": "p", "payload_bytes": 9}}
    for day in (1, 2, 3, 4):
        issue = replace(builders.planned(key(day)), reason=AttemptReason.BACKFILL, backfill_id=old.backfill_id)
        [issued], _ = actors.try_to_issue(issue)
        actors.validator.judge([replace(rejected(issued.attempt, actors.token), **left.get(day, {}))])
    MarkStore(actors.database, actors.clock).mark_terminal([key(4)], None, audit_entry())

    chosen = Selection(until=date(2024, 6, 4))
    for without_raw, wanted, refused in ((False, [1, 2], [3]), (True, [1, 2, 3], [])):
        found = ws.backfills.preview_retry(old.backfill_id, without_raw=without_raw)
        assert [one.logical_date.day for one in found.keys] == wanted
        assert [one.logical_date.day for one in found.refused[NotRetried.NO_RAW]] == refused
        assert found.refused[NotRetried.TERMINAL] == [key(4)]
        assert found == ws.operations.preview_retry(chosen, without_raw=without_raw)

    shown = answer("backfill", "retry-failed", old.backfill_id, "--dry-run", workspace=folder)
    assert (shown["total"], shown["refused"], shown["terminal"]) == (2, [str(key(3))], [str(key(4))])
    done = answer("backfill", "retry-failed", old.backfill_id, "--yes", workspace=folder)
    statuses = [view.state.status for view in ws.context.state.views([days(1, 4)])]
    assert (done["total"], statuses) == (2, ["pending", "pending", "failed", "failed"])
    lines = len(ws.context.state.audit())
    again = answer("backfill", "retry-failed", old.backfill_id, workspace=folder)
    assert (again["backfill_id"], len(ws.context.state.audit())) == (done["backfill_id"], lines)
    for day in (1, 2):
        actors.accept(key(day))
    nothing = answer("backfill", "retry-failed", old.backfill_id, workspace=folder, code=1)
    assert (nothing["total"], nothing["refused"]) == (0, [str(key(3))])
    more = answer("backfill", "retry-failed", old.backfill_id, "--without-raw", workspace=folder)
    statuses = [view.state.status for view in ws.context.state.views([days(1, 4)])]
    assert (more["backfill_id"], statuses) == (done["backfill_id"], ["success", "success", "pending", "failed"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_migration_freezes_old_attempts_and_settles_what_failed_before_a_hold(
    backend: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A partition of the second customer failed after the hold: that still counts."""
    folder = unpack("0005", tmp_path)
    with sqlite3.connect(folder / "state.db") as old:
        old.execute(
            "INSERT INTO partition_control (source, customer_id, query_name, logical_date, failures, held_at, held_by)"
            " SELECT source, customer_id, query_name, logical_date, customer_id = '1000000002', updated_at, 'ada'"
            " FROM partition_state WHERE source = 'demo'"
        )
    old.close()
    if backend == "postgresql":
        move_to_postgres(folder, "0005", request.getfixturevalue("postgres_url"), f"old_{new_run_id().lower()}")
    database = open_at(folder).context.database
    control = schema.partition_control
    with database.snapshot() as connection:
        found = connection.execute(sa.select(control.c.customer_id, control.c.cleared_attempt_no).distinct()).all()
    assert sorted(tuple(row) for row in found) == [("1000000001", 1), ("1000000002", 0)]
    rewrite = sa.update(schema.partition_attempt).values(content_digest="other")
    with pytest.raises(PenstockError, match="refused a change: closed_attempts_are_frozen: "):
        database.transact(lambda connection: connection.execute(rewrite))
    database.close()
