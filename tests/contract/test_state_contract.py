"""The contract of the state store, tested on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from penstock.control.plan import DUE, refuse_changed_fields
from penstock.control.rescue import Rescued, rescue
from penstock.db import schema
from penstock.db.engine import Database
from penstock.db.migrate import HEAD, ensure_current, migrate
from penstock.db.triggers import REFUSALS
from penstock.db.types import Json, UtcTimestamp
from penstock.errors import ConfigError, ErrorClass, HistoryProtected, ImpossibleRow, PenstockError, StateConflict
from penstock.expected import ExpectedRange
from penstock.lifecycle import MAX_LOSSES, Outcome, PartitionStatus, PlanReason, Stage
from penstock.partition import AttemptKey, PartitionKey, RunId, new_run_id
from penstock.state.authority import AuthorityStore
from penstock.state.control import ControlStore
from penstock.state.marks import MarkStore
from penstock.state.reader import StateReader
from penstock.state.recheck import FailedRecheck
from penstock.state.records import Attempt, ClosingResult, PartitionState, PartitionView, Refused, Verdict
from penstock.state.retries import RetryStore
from penstock.state.validator import ValidatorStore
from penstock.state.worker import OpenAttempt, WorkerStore
from support import builders
from support.builders import (
    BACKENDS,
    FINGERPRINT,
    NOW,
    TENANT,
    WORKSPACE,
    Actors,
    accepted,
    another_handle,
    audit_entry,
    cancelled,
    columns,
    days,
    everything,
    is_key,
    key,
    planned,
    race,
    rejected,
)

BEFORE, LATER = NOW - timedelta(days=400), NOW + timedelta(days=400)
CLOSED = "the attempt was closed before, "


@pytest.fixture(params=BACKENDS)
def empty(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A state schema without migrations."""
    with builders.quick_folder() as folder:
        database = builders.open_database(request.param, folder, lambda: request.getfixturevalue("postgres_url"))
        yield database
        database.engine.dispose()


@pytest.fixture
def database(empty: Database) -> Database:
    return builders.migrated(empty)


@pytest.fixture
def actors(database: Database) -> Actors:
    return Actors.on(database)


def state_of(actors: Actors, partition: PartitionKey | None = None) -> PartitionState:
    found = actors.reader.state(partition or key())
    assert found is not None
    return found


def attempt_of(actors: Actors, attempt: AttemptKey) -> Attempt:
    [found] = [a for a in actors.reader.attempts(attempt.partition) if a.run_id == attempt.run_id]
    return found


def rescue_now(actors: Actors) -> Rescued:
    return rescue(actors.workers, actors.control, actors.validator)


# --- the schema and its owner --------------------------------------------------------------------------------------


def test_migrating_twice_is_the_same_as_once(empty: Database) -> None:
    assert migrate(empty, TENANT, WORKSPACE) == (None, HEAD)
    once = everything(empty)
    assert migrate(empty, TENANT, WORKSPACE) == (HEAD, HEAD)
    assert everything(empty) == once
    ensure_current(empty, TENANT, WORKSPACE)


MIGRATE = """
import sys
from penstock.db.engine import Database
from penstock.db.migrate import migrate
url, schema = sys.argv[1:]
database = Database(url, schema or None)
print("ready", flush=True)
sys.stdin.readline()
migrate(database, "acme", "ads")
"""


def test_two_migrations_at_once_both_succeed(empty: Database) -> None:
    url = empty.url.render_as_string(hide_password=False)
    line = [sys.executable, "-c", MIGRATE, url, empty.schema or ""]
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    with subprocess.Popen(line, **pipes) as one, subprocess.Popen(line, **pipes) as two:
        for process in (one, two):
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in (one, two):
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        answers = [process.communicate(timeout=60)[1] for process in (one, two)]
    assert (answers, one.returncode, two.returncode) == (["", ""], 0, 0)
    ensure_current(empty, TENANT, WORKSPACE)


def test_a_schema_of_another_workspace_is_refused(actors: Actors) -> None:
    before = everything(actors.database)
    with pytest.raises(ConfigError, match="belongs to workspace acme/ads, not to acme/other"):
        migrate(actors.database, "acme", "other")
    with pytest.raises(ConfigError, match="belongs to workspace acme/ads, not to globex/ads"):
        ensure_current(actors.database, "globex", "ads")
    assert everything(actors.database) == before


def test_a_database_without_a_schema_is_refused_with_what_to_do(empty: Database) -> None:
    with pytest.raises(ConfigError, match="penstock db migrate"):
        ensure_current(empty, TENANT, WORKSPACE)


def test_a_schema_of_another_version_is_refused_with_what_to_do(actors: Actors) -> None:
    actors.execute(sa.text("UPDATE alembic_version SET version_num = '0000'"))
    with pytest.raises(
        ConfigError, match=f"has schema version 0000, this Penstock needs {HEAD}: run `penstock db migrate`"
    ):
        ensure_current(actors.database, TENANT, WORKSPACE)


# --- verdicts ------------------------------------------------------------------------------------------------------


def test_the_first_acceptance_makes_a_partition_success(actors: Actors) -> None:
    attempt = actors.accept(rows=42)
    assert actors.reader.state(key()) == PartitionState(
        key(), PartitionStatus.SUCCESS, attempt.run_id, "v1", 42, NOW, None, attempt_count=1, authority_version=1
    )
    assert actors.reader.attempts(key()) == [
        Attempt(
            key=key(),
            run_id=attempt.run_id,
            attempt_no=1,
            reason="missing",
            contract_fingerprint=FINGERPRINT,
            schema_version="v1",
            worker_token=actors.token,
            lost_count=0,
            issued_at=NOW,
            stage=Stage.VALIDATE,
            outcome=Outcome.SUCCEEDED,
            error_class=None,
            error_message=None,
            complaints=None,
            record_count=42,
            payload_digest=f"sha-{attempt.run_id}",
            payload_bytes=840,
            content_digest=f"content-{attempt.run_id}",
            finished_at=NOW,
        )
    ]


def test_an_acceptance_appends_two_events_and_makes_the_partition_due(actors: Actors) -> None:
    attempt = actors.accept(rows=42)
    names = {"run_id": attempt.run_id, "asset_key": "demo.campaign_daily", "partition_key": str(key())}
    assert actors.events("TaskFinished") == [
        {
            **names,
            "attempt_no": 1,
            "stage": "validate",
            "outcome": "SUCCEEDED",
            "error_class": None,
            "code_version": FINGERPRINT,
            "record_count": 42,
            "try": 1,
            "final": True,
            "closes": True,
            "consumed": 0,
        }
    ]
    content = {"code_version": FINGERPRINT, "content_digest": f"content-{attempt.run_id}"}
    assert actors.events("AuthorityChanged") == [{**names, "authority_version": 1, "act": "accept", **content}]
    assert actors.rows(schema.publish_due) == [{**columns(key()), "authority_version": 1, "since": NOW}]


def test_every_event_names_its_tenant_and_workspace(actors: Actors) -> None:
    actors.accept()
    actors.reject()
    told = {(row["tenant_id"], row["workspace_id"]) for row in actors.rows(schema.event)}
    assert told == {(TENANT, WORKSPACE)}


def test_a_rejection_makes_a_pending_partition_failed_and_says_why(actors: Actors) -> None:
    complaint = {"check": "range", "count": 3, "example": {"clicks": -1}}
    attempt = actors.issue_one()
    verdict = rejected(
        attempt, actors.token, "clicks is negative", complaints=[complaint], record_count=7, payload_digest="sha"
    )
    assert actors.validator.judge([verdict]) == ClosingResult(applied=[attempt], repeated=[], refused=[])
    assert actors.reader.state(key()) == PartitionState(
        key(), PartitionStatus.FAILED, None, None, None, NOW, "clicks is negative", attempt_count=1, authority_version=0
    )
    found = attempt_of(actors, attempt)
    assert (found.outcome, found.stage, found.error_class) == (Outcome.FAILED, Stage.VALIDATE, ErrorClass.DATA)
    assert (found.error_message, found.complaints) == ("clicks is negative", [complaint])
    assert (found.record_count, found.payload_digest) == (7, "sha")
    assert [event["outcome"] for event in actors.events("TaskFinished")] == ["FAILED"]
    assert actors.events("AuthorityChanged") == []
    assert actors.rows(schema.publish_due) == []


def test_warnings_stay_with_the_accepted_attempt(actors: Actors) -> None:
    attempt = actors.issue_one()
    warning = {"check": "few", "message": "few rows\0", "count": 1, "line": None, "example": None, "severity": "warn"}
    actors.validator.judge([replace(accepted(attempt, actors.token), warnings=[warning])])
    [found] = actors.reader.attempts(key())
    assert found.outcome is Outcome.SUCCEEDED
    assert found.warnings == [{**warning, "message": "few rows\\x00"}]
    assert actors.reader.state(key()).error_message is None  # type: ignore[union-attr]


def test_an_attempt_is_issued_with_what_was_measured_of_the_trusted_run(actors: Actors) -> None:
    """Of the run that is trusted now, however it became trusted: later failed runs do not count."""
    first = actors.issue_one()
    actors.validator.judge([replace(accepted(first, actors.token), measures={"sum(clicks)": 10.5, "avg(x)": None})])
    [second], _ = actors.try_to_issue(*actors.plan())
    assert second.previous_measures == {"sum(clicks)": 10.5, "avg(x)": None}
    actors.validator.judge([rejected(second.attempt, actors.token, measures={"sum(clicks)": 99.0})])
    [third], _ = actors.try_to_issue(*actors.plan())
    assert third.previous_measures == second.previous_measures
    assert [a.measures for a in actors.reader.attempts(key())][1] == {"sum(clicks)": 99.0}
    actors.control.cancel([cancelled(third.attempt, actors.token)])
    actors.demote()
    [fourth], _ = actors.try_to_issue(*actors.plan())
    assert (fourth.previous_measures, fourth.previous_record_count) == (None, None)


def test_keeping_unknown_fields_changes_the_table_and_so_its_version(actors: Actors) -> None:
    refuse_changed_fields(actors.reader, {"campaign_daily": builders.contract(unknown_fields="ignore")})
    with pytest.raises(ConfigError, match="_extra string was added"):
        refuse_changed_fields(actors.reader, {"campaign_daily": builders.contract(unknown_fields="keep")})


def test_a_failed_refetch_leaves_the_partition_success_on_its_old_run(actors: Actors) -> None:
    good = actors.accept(rows=42)
    actors.clock.now = LATER
    bad = actors.reject()
    assert actors.reader.state(key()) == PartitionState(
        key(), PartitionStatus.SUCCESS, good.run_id, "v1", 42, LATER, None, attempt_count=2, authority_version=1
    )
    assert attempt_of(actors, bad).error_message == "clicks is negative"
    assert len(actors.events("AuthorityChanged")) == 1


def test_a_failed_refetch_leaves_the_pointer_available(actors: Actors) -> None:
    actors.accept()
    actors.publish()
    before = actors.rows(schema.warehouse_pointer)
    actors.reject()
    assert actors.rows(schema.warehouse_pointer) == before


def test_acceptance_of_a_newer_attempt_replaces_the_run(actors: Actors) -> None:
    actors.accept(rows=42)
    newer = actors.accept(rows=40)
    assert actors.reader.state(key()) == PartitionState(
        key(), PartitionStatus.SUCCESS, newer.run_id, "v1", 40, NOW, None, attempt_count=2, authority_version=2
    )
    assert [event["authority_version"] for event in actors.events("AuthorityChanged")] == [1, 2]
    assert actors.rows(schema.publish_due) == [{**columns(key()), "authority_version": 2, "since": NOW}]


def test_an_acceptance_heals_a_failed_partition(actors: Actors) -> None:
    actors.reject()
    actors.reject(message="still negative")
    assert (state_of(actors).status, state_of(actors).error_message) == (PartitionStatus.FAILED, "still negative")
    good = actors.accept()
    state = state_of(actors)
    assert (state.status, state.current_run_id, state.error_message) == (PartitionStatus.SUCCESS, good.run_id, None)
    assert (state.attempt_count, state.authority_version) == (3, 1)


def test_an_acceptance_makes_a_demoted_partition_success_again(actors: Actors) -> None:
    actors.accept()
    actors.demote()
    newer = actors.accept()
    state = state_of(actors)
    assert (state.status, state.current_run_id) == (PartitionStatus.SUCCESS, newer.run_id)
    assert (state.attempt_count, state.authority_version) == (2, 3)


def test_a_rejection_after_a_demotion_does_not_bring_the_old_run_back(actors: Actors) -> None:
    old = actors.accept()
    actors.demote()
    actors.reject()
    state = state_of(actors)
    assert (state.status, state.current_run_id) == (PartitionStatus.FAILED, old.run_id)
    assert (state.attempt_count, state.authority_version) == (2, 2)


def test_a_valid_empty_slice_is_success_with_no_rows(actors: Actors) -> None:
    attempt = actors.accept(rows=0)
    state = state_of(actors)
    assert (state.status, state.current_run_id, state.record_count) == (PartitionStatus.SUCCESS, attempt.run_id, 0)


def test_a_cancelled_attempt_does_not_count(actors: Actors) -> None:
    attempt = actors.cancel()
    assert actors.reader.state(key()) is None
    assert attempt_of(actors, attempt).outcome is Outcome.CANCELLED
    assert [event["outcome"] for event in actors.events("TaskFinished")] == ["CANCELLED"]


def test_a_cancelled_attempt_leaves_the_state_of_the_partition_as_it_was(actors: Actors) -> None:
    actors.accept()
    actors.reject(key(2))
    before = actors.rows(schema.partition_state)
    actors.clock.now = LATER
    actors.cancel()
    actors.cancel(key(2), lost=True)
    assert actors.rows(schema.partition_state) == before


def test_losses_are_counted_from_attempt_to_attempt_until_a_verdict(actors: Actors) -> None:
    actors.cancel(lost=True)
    actors.cancel(lost=True)
    actors.cancel()  # stopped by quota: neither a loss nor a proof of health
    actors.cancel(lost=True)
    actors.reject()
    actors.cancel(lost=True)
    actors.accept()
    actors.cancel()
    losses = [attempt.lost_count for attempt in reversed(actors.reader.attempts(key()))]
    assert losses == [1, 2, 2, 3, 0, 1, 0, 0]


def test_a_verdict_may_carry_many_partitions_of_mixed_outcome(actors: Actors) -> None:
    attempts = actors.issue(*(key(day) for day in range(1, 21)))
    odd = [rejected(a, actors.token) for a in attempts[::2]]
    even = [accepted(a, actors.token) for a in attempts[1::2]]
    ruling = actors.validator.judge([*odd, *even])
    assert (sorted(ruling.applied), ruling.repeated, ruling.refused) == (sorted(attempts), [], [])
    statuses = [view.state.status for view in actors.reader.views([days(1, 20)])]
    assert statuses == [PartitionStatus.FAILED, PartitionStatus.SUCCESS] * 10


def test_an_empty_batch_changes_nothing(actors: Actors) -> None:
    before = everything(actors.database)
    assert actors.validator.judge([]) == ClosingResult()
    assert actors.control.cancel([]) == ClosingResult()
    assert everything(actors.database) == before


# --- all or nothing ------------------------------------------------------------------------------------------------


def test_a_verdict_whose_event_cannot_be_appended_is_rolled_back(actors: Actors) -> None:
    attempt, other = actors.issue(key(1), key(2))
    # The plan of this run is an event already, so its verdicts cannot be appended from now on.
    actors.execute(sa.text("CREATE UNIQUE INDEX one_event_per_run ON event (run_id)"))
    before = everything(actors.database)
    with pytest.raises(PenstockError, match="refused a change"):
        actors.validator.judge([accepted(attempt, actors.token), rejected(other, actors.token)])
    with pytest.raises(PenstockError, match="refused a change"):
        actors.control.cancel([cancelled(attempt, actors.token)])
    assert everything(actors.database) == before


def test_without_an_owner_no_verdict_can_happen(actors: Actors) -> None:
    """Events name tenant and workspace; a schema that lost its owner must not take verdicts without telling them."""
    attempt = actors.issue_one()
    actors.execute(sa.text("DELETE FROM workspace"))
    before = everything(actors.database)
    with pytest.raises(PenstockError):
        actors.validator.judge([accepted(attempt, actors.token)])
    assert everything(actors.database) == before


def test_a_run_whose_plan_event_cannot_be_appended_issues_nothing(actors: Actors) -> None:
    run_id = new_run_id()
    actors.try_to_issue(planned(key(1)), run_id=run_id)
    actors.execute(sa.text("CREATE UNIQUE INDEX one_event_per_run ON event (run_id)"))
    before = everything(actors.database)
    with pytest.raises(PenstockError, match="refused a change"):
        actors.control.issue(run_id, actors.token, 2, [planned(key(2))])
    assert everything(actors.database) == before


# --- repeated, late and foreign verdicts ---------------------------------------------------------------------------


def test_the_same_verdict_twice_counts_once(actors: Actors) -> None:
    one, two, three = actors.issue(key(1), key(2), key(3))
    verdicts: list[Verdict] = [accepted(one, actors.token), rejected(two, actors.token)]
    lost = [cancelled(three, actors.token, lost=True)]
    actors.validator.judge(verdicts)
    actors.control.cancel(lost)
    before = everything(actors.database)
    actors.clock.now = LATER
    for _ in range(3):
        assert actors.validator.judge(verdicts) == ClosingResult(applied=[], repeated=[one, two], refused=[])
        assert actors.control.cancel(lost) == ClosingResult(applied=[], repeated=[three], refused=[])
    assert everything(actors.database) == before


def test_an_old_verdict_repeated_after_a_newer_one_changes_nothing(actors: Actors) -> None:
    first = actors.accept()
    actors.accept()
    before = everything(actors.database)
    assert actors.validator.judge([accepted(first, actors.token)]).repeated == [first]
    assert everything(actors.database) == before


def test_the_same_verdict_twice_in_one_batch_counts_once(actors: Actors) -> None:
    attempt = actors.issue_one()
    verdict = rejected(attempt, actors.token)
    assert actors.validator.judge([verdict, verdict]).applied == [attempt]
    assert state_of(actors).attempt_count == 1


def test_two_different_verdicts_on_one_attempt_fail_the_whole_batch(actors: Actors) -> None:
    attempt = actors.issue_one()
    before = everything(actors.database)
    with pytest.raises(PenstockError, match=f"two different verdicts on {key()}"):
        actors.validator.judge([accepted(attempt, actors.token), rejected(attempt, actors.token)])
    assert everything(actors.database) == before


def close_by(actors: Actors, outcome: Outcome) -> AttemptKey:
    match outcome:
        case Outcome.SUCCEEDED:
            return actors.accept()
        case Outcome.FAILED:
            return actors.reject()
        case Outcome.CANCELLED:
            return actors.cancel()


@pytest.mark.parametrize(
    ("closed", "said"),
    [(c, s) for c in Outcome for s in Outcome if c is not s] + [(Outcome.SUCCEEDED, Outcome.SUCCEEDED)],
)
def test_another_verdict_on_a_closed_attempt_is_refused_and_recorded(
    actors: Actors, closed: Outcome, said: Outcome
) -> None:
    attempt = close_by(actors, closed)
    tables = [table for table in schema.metadata.sorted_tables if table is not schema.event]
    before = everything(actors.database, tables)
    if said is Outcome.CANCELLED:
        ruling = actors.control.cancel([cancelled(attempt, actors.token)])
    elif said is Outcome.FAILED:
        ruling = actors.validator.judge([rejected(attempt, actors.token, "something else")])
    else:
        other = accepted(AttemptKey(attempt.partition, new_run_id()), actors.token)  # other bytes, same attempt
        verdict = type(other)(attempt, actors.token, "v1", 1, other.payload_digest, 1, other.content_digest)
        ruling = actors.validator.judge([verdict])
    assert ruling == ClosingResult(applied=[], repeated=[], refused=[Refused(attempt, CLOSED + closed)])
    assert everything(actors.database, tables) == before
    assert actors.events("AttemptRefused") == [
        {"run_id": attempt.run_id, "partition_key": str(key()), "outcome": said, "why": CLOSED + closed}
    ]


@pytest.mark.parametrize("other", [{"message": "few rows"}, {"payload_digest": "q"}, {"payload_digest": None}])
def test_the_same_outcome_with_another_message_or_payload_is_no_repetition(actors: Actors, other: Any) -> None:
    attempt = actors.issue_one()
    said: dict[str, Any] = {"message": "clicks is negative", "payload_digest": "p"}
    actors.validator.judge([rejected(attempt, actors.token, **said)])
    ruling = actors.validator.judge([rejected(attempt, actors.token, **said | other)])
    assert ruling == ClosingResult(applied=[], repeated=[], refused=[Refused(attempt, CLOSED + "FAILED")])
    assert actors.validator.judge([rejected(attempt, actors.token, **said)]).repeated == [attempt]


def test_the_same_message_without_payload_and_another_outcome_are_no_repetition(actors: Actors) -> None:
    attempt = actors.issue_one()
    words = "the source asks for a pause"
    actors.validator.judge([rejected(attempt, actors.token, words)])
    ruling = actors.control.cancel([cancelled(attempt, actors.token)])
    assert ruling == ClosingResult(applied=[], repeated=[], refused=[Refused(attempt, CLOSED + "FAILED")])


def test_a_verdict_on_an_attempt_that_was_never_issued_is_refused_and_recorded(actors: Actors) -> None:
    unknown = AttemptKey(key(), new_run_id())
    ruling = actors.validator.judge([accepted(unknown, actors.token)])
    assert ruling.refused == [Refused(unknown, "the attempt was never issued")]
    assert actors.reader.state(key()) is None
    assert actors.reader.attempts(key()) == []
    assert [event["why"] for event in actors.events("AttemptRefused")] == ["the attempt was never issued"]


def test_a_verdict_with_another_workers_token_is_refused_and_recorded(actors: Actors) -> None:
    attempt = actors.issue_one()
    stranger = actors.workers.register()
    why = "the attempt belongs to another worker now"
    assert actors.validator.judge([accepted(attempt, stranger)]).refused == [Refused(attempt, why)]
    assert actors.control.cancel([cancelled(attempt, stranger)]).refused == [Refused(attempt, why)]
    assert actors.reader.state(key()) is None
    assert attempt_of(actors, attempt).outcome is None
    assert [(e["outcome"], e["why"]) for e in actors.events("AttemptRefused")] == [
        ("SUCCEEDED", why),
        ("CANCELLED", why),
    ]
    assert actors.validator.judge([accepted(attempt, actors.token)]).applied == [attempt]


def test_a_repeated_refusal_is_recorded_once(actors: Actors) -> None:
    unknown = AttemptKey(key(), new_run_id())
    for _ in range(3):
        actors.validator.judge([accepted(unknown, actors.token)])
    assert len(actors.events("AttemptRefused")) == 1


def test_one_refused_verdict_does_not_fail_the_others(actors: Actors) -> None:
    old = actors.reject(key(1))
    again = accepted(actors.accept(key(2)), actors.token)
    good, bad = actors.issue(key(3), key(4))
    unknown = AttemptKey(key(5), new_run_id())
    ruling = actors.validator.judge(
        [
            accepted(old, actors.token),
            again,
            accepted(good, actors.token),
            rejected(bad, actors.token),
            accepted(unknown, actors.token),
        ]
    )
    assert sorted(ruling.applied) == [good, bad]
    assert ruling.repeated == [again.attempt]
    assert sorted(ruling.refused, key=lambda refused: refused.attempt) == [
        Refused(old, CLOSED + "FAILED"),
        Refused(unknown, "the attempt was never issued"),
    ]
    statuses = {view.key.logical_date.day: view.state.status.value for view in actors.reader.views([days(1, 5)])}
    assert statuses == {1: "failed", 2: "success", 3: "success", 4: "failed", 5: "pending"}


def test_an_older_attempt_never_takes_authority_from_a_newer_one(actors: Actors) -> None:
    late = actors.cancel(lost=True)  # its worker was considered dead, and comes back later
    newer = actors.accept()
    before = actors.rows(schema.partition_state)
    assert actors.validator.judge([accepted(late, actors.token)]).refused == [Refused(late, CLOSED + "CANCELLED")]
    assert actors.rows(schema.partition_state) == before
    assert state_of(actors).current_run_id == newer.run_id


def test_an_open_attempt_with_a_newer_one_beside_it_cannot_take_authority(actors: Actors) -> None:
    """Issuing never creates such rows; if they exist, the older run still loses."""
    older = actors.issue_one()
    newer = {
        **GOOD["partition_attempt"], **FAILED, **columns(key()), "run_id": new_run_id(), "attempt_no": 2,
        "outcome": "CANCELLED", "worker_token": actors.token,
    }  # fmt: skip
    actors.execute(sa.insert(schema.partition_attempt).values(newer))
    refused = actors.validator.judge([accepted(older, actors.token)]).refused
    assert refused == [Refused(older, "a newer attempt was issued")]
    assert actors.reader.state(key()) is None


def test_order_is_the_databases_and_not_a_clocks(actors: Actors) -> None:
    """The newer attempt is issued and judged by a process whose clock is more than two years behind."""
    actors.clock.now = LATER
    first = actors.accept()
    actors.clock.now = BEFORE
    second = actors.accept()
    assert state_of(actors).current_run_id == second.run_id
    assert [attempt.run_id for attempt in actors.reader.attempts(key())] == [second.run_id, first.run_id]
    actors.reject()
    [view] = actors.reader.views([days(1, 1)])
    assert (view.last_attempt_no, view.last_attempt_outcome) == (3, Outcome.FAILED)


def test_a_run_id_that_sorts_lower_is_still_the_newer_attempt(actors: Actors) -> None:
    actors.accept()
    low = RunId("0" * 26)
    [issued], _ = actors.try_to_issue(*actors.plan(key()), run_id=low)
    actors.validator.judge([accepted(issued.attempt, actors.token)])
    state = state_of(actors)
    assert (state.current_run_id, state.authority_version) == (low, 2)


# --- issuing -------------------------------------------------------------------------------------------------------


def test_attempts_are_numbered_per_partition(actors: Actors) -> None:
    actors.reject(key(1))
    actors.accept(key(1), rows=5)
    issued, refused = actors.try_to_issue(*actors.plan(key(1), key(2)))
    found = [(item.attempt.partition, item.attempt_no, item.previous_record_count) for item in issued]
    assert (found, refused) == ([(key(1), 3, 5), (key(2), 1, None)], [])


def test_the_rows_of_a_demoted_run_are_no_measure_for_the_next_one(actors: Actors) -> None:
    actors.accept(rows=5)
    actors.demote()
    [issued], _ = actors.try_to_issue(*actors.plan(key()))
    assert issued.previous_record_count is None


def test_issuing_appends_one_event_with_the_issued_partitions(actors: Actors) -> None:
    run_id = new_run_id()
    actors.try_to_issue(planned(key(1)), planned(key(2)), planned(key(4), reason="requeued"), run_id=run_id)
    days = "2024-06-01..2024-06-02 2024-06-04"
    assert actors.events("TaskStarted") == [
        {
            "run_id": run_id,
            "stage": "extract",
            "slices": {"demo.campaign_daily": {"1000000001": days}},
            "try": 1,
        }
    ]
    assert actors.events("TasksDropped") == []


def test_a_partition_has_one_open_attempt_at_most(actors: Actors) -> None:
    open_one = actors.issue_one()
    for seen in (0, 1):
        issued, [refused] = actors.try_to_issue(planned(seen=seen))
        assert issued == []
        assert (refused.attempt.partition, refused.why) == (key(), "another run took this partition first")
    assert [attempt.run_id for attempt in actors.reader.attempts(key())] == [open_one.run_id]


def test_the_database_refuses_a_second_open_attempt(actors: Actors) -> None:
    actors.issue_one()
    row = GOOD["partition_attempt"] | columns(key()) | {"attempt_no": 2}
    with pytest.raises(PenstockError, match="refused a change"):
        actors.execute(sa.insert(schema.partition_attempt).values(row))


def test_a_planner_who_saw_an_old_number_is_refused(actors: Actors) -> None:
    actors.reject()
    before = actors.rows(schema.partition_attempt)
    issued, [refused] = actors.try_to_issue(planned(seen=0))
    assert (issued, refused.why) == ([], "another run took this partition first")
    assert actors.rows(schema.partition_attempt) == before


def test_one_partition_that_was_taken_does_not_hold_up_the_others(actors: Actors) -> None:
    actors.issue_one(key(2))
    issued, refused = actors.try_to_issue(*(planned(key(day)) for day in (1, 2, 3)))
    assert [item.attempt.partition for item in issued] == [key(1), key(3)]
    assert [item.attempt.partition for item in refused] == [key(2)]
    [dropped] = actors.events("TasksDropped")
    assert dropped["slices"] == {"demo.campaign_daily": {"1000000001": "2024-06-02"}}
    assert dropped["why"] == "another run took this partition first"


def test_a_run_does_not_get_a_partition_again_that_it_has_closed(actors: Actors) -> None:
    run_id = new_run_id()
    [first], _ = actors.try_to_issue(planned(), run_id=run_id)
    actors.validator.judge([rejected(first.attempt, actors.token)])
    issued, refused = actors.control.issue(run_id, actors.token, 2, [planned(seen=1)])
    assert issued == []
    assert [item.attempt for item in refused] == [first.attempt]


def test_a_partition_planned_twice_in_one_batch_is_issued_once(actors: Actors) -> None:
    issued, _ = actors.try_to_issue(planned(), planned())
    assert [item.attempt.partition for item in issued] == [key()]


def test_two_issuers_at_once_share_the_partitions_without_overlap(actors: Actors) -> None:
    plan = [planned(key(day, customer=customer)) for customer in ("1", "2") for day in range(1, 31)]

    def issuer(items: list[Any]) -> Callable[[Database, Callable[[], datetime]], Any]:
        return lambda database, clock: ControlStore(database, clock).issue(new_run_id(), actors.token, 1, items)

    (issued_1, refused_1), (issued_2, refused_2) = race(actors.database, issuer(plan), issuer(plan[::-1]))
    first, second = ({item.attempt.partition for item in issued} for issued in (issued_1, issued_2))
    assert len(issued_1) + len(issued_2) == len(plan)
    assert first | second == {item.key for item in plan}
    assert {r.attempt.partition for r in refused_1} == second
    assert {r.attempt.partition for r in refused_2} == first
    rows = actors.rows(schema.partition_attempt)
    assert sorted((row["customer_id"], row["logical_date"]) for row in rows) == sorted(
        (item.key.customer_id, item.key.logical_date) for item in plan
    )
    assert {row["attempt_no"] for row in rows} == {1}


# --- judging at once -----------------------------------------------------------------------------------------------


def judge(verdicts: list[Any]) -> Callable[[Database, Callable[[], datetime]], ClosingResult]:
    return lambda database, clock: ValidatorStore(database, clock).judge(verdicts)


def test_of_two_deliveries_of_one_verdict_at_once_exactly_one_is_applied(actors: Actors) -> None:
    attempts = actors.issue(*(key(day) for day in range(1, 31)))
    verdicts = [accepted(attempt, actors.token) for attempt in attempts]
    one, two = race(actors.database, judge(verdicts), judge(verdicts[::-1]))
    assert sorted([*one.applied, *two.applied]) == attempts
    assert sorted([*one.repeated, *two.repeated]) == attempts
    assert [*one.refused, *two.refused] == []
    states = actors.rows(schema.partition_state)
    assert {(row["attempt_count"], row["authority_version"]) for row in states} == {(1, 1)}
    assert len(actors.events("TaskFinished")) == len(actors.events("AuthorityChanged")) == 30


def test_of_two_contrary_verdicts_at_once_exactly_one_is_applied(actors: Actors) -> None:
    actors.accept(key(1))
    actors.reject(key(2))
    attempts = actors.issue(*(key(day) for day in range(1, 31)))
    one, two = race(
        actors.database,
        judge([accepted(attempt, actors.token) for attempt in attempts]),
        judge([rejected(attempt, actors.token) for attempt in attempts[::-1]]),
    )
    assert sorted([*one.applied, *two.applied]) == attempts
    assert sorted(refused.attempt for refused in (*one.refused, *two.refused)) == attempts
    counts = {row["logical_date"].day: row["attempt_count"] for row in actors.rows(schema.partition_state)}
    assert counts == {1: 2, 2: 2, **dict.fromkeys(range(3, 31), 1)}


def test_of_a_verdict_and_a_rescue_at_once_exactly_one_is_applied(actors: Actors) -> None:
    attempts = actors.issue(*(key(day) for day in range(1, 11)))
    actors.workers.stop(actors.token)

    def rescuer(database: Database, clock: Callable[[], datetime]) -> Rescued:
        control, validator = ControlStore(database, clock), ValidatorStore(database, clock)
        return rescue(WorkerStore(database, clock), control, validator)

    ruling, rescued = race(actors.database, judge([accepted(a, actors.token) for a in attempts]), rescuer)
    assert len(ruling.applied) + rescued.cancelled == 10
    assert sorted([*ruling.applied, *(refused.attempt for refused in ruling.refused)]) == attempts
    closed = [row["outcome"] for row in actors.rows(schema.partition_attempt)]
    assert closed == (["SUCCEEDED"] if ruling.applied else ["CANCELLED"]) * 10


# --- requeue -------------------------------------------------------------------------------------------------------


def test_requeue_moves_failed_partitions_to_pending_and_nothing_else(actors: Actors) -> None:
    actors.reject(key(1))
    actors.accept(key(2))
    actors.accept(key(3))
    actors.demote(key(3))
    before = {row["logical_date"].day: row for row in actors.rows(schema.partition_state)}
    actors.clock.now = LATER
    assert actors.control.requeue([key(day) for day in (1, 2, 3, 4)], audit_entry()) == 2
    after = {row["logical_date"].day: row for row in actors.rows(schema.partition_state)}
    moved = {"status": "pending", "error_message": None, "updated_at": LATER}
    assert after == {1: before[1] | moved, 2: before[2], 3: before[3] | moved}


def test_requeue_is_idempotent_and_every_call_is_audited(actors: Actors) -> None:
    actors.reject()
    entry = audit_entry(filters={"customers": ["1000000001"]}, flags={"yes": True})
    assert actors.control.requeue([key()], entry) == 1
    before = actors.rows(schema.partition_state)
    assert actors.control.requeue([key()], entry) == 0
    assert actors.rows(schema.partition_state) == before
    line = {
        "at": NOW,
        "actor": "ada",
        "command": "state retry",
        "filters": {"customers": ["1000000001"]},
        "flags": {"yes": True},
        "outcome": "done",
    }
    audit = [{name: value for name, value in row.items() if name != "audit_id"} for row in actors.reader.audit()]
    assert audit == [line | {"affected": 0}, line | {"affected": 1}]
    assert len(list(actors.reader.audit(limit=1))) == 1


def test_a_requeue_that_cannot_be_audited_did_not_happen(actors: Actors) -> None:
    actors.reject()
    before = everything(actors.database)
    nobody = audit_entry(actor=None)
    with pytest.raises(PenstockError, match="refused a change"):
        actors.control.requeue([key()], nobody)
    assert everything(actors.database) == before


def test_a_re_check_that_cannot_be_audited_demotes_nothing(actors: Actors) -> None:
    attempt = actors.accept()
    before = everything(actors.database)
    found = [FailedRecheck(attempt, "too few rows")]
    with pytest.raises(PenstockError, match="refused a change"):
        actors.validator.withdraw(found, audit_entry(command="validate", actor=None))
    assert everything(actors.database) == before
    assert actors.validator.withdraw(found, audit_entry(command="validate")) == [key()]
    assert [(line["command"], line["affected"], line["outcome"]) for line in actors.reader.audit()] == [
        ("validate", 1, "demoted")
    ]


def test_a_requeue_leaves_the_attempt_count_alone(actors: Actors) -> None:
    actors.reject()
    actors.control.requeue([key()], audit_entry())
    actors.reject()
    assert state_of(actors).attempt_count == 2


def test_two_requeues_at_once_move_each_partition_once(actors: Actors) -> None:
    keys = [key(day) for day in range(1, 21)]
    actors.validator.judge([rejected(attempt, actors.token) for attempt in actors.issue(*keys)])

    def requeuer(chosen: list[PartitionKey]) -> Callable[[Database, Callable[[], datetime]], int]:
        def go(database: Database, clock: Callable[[], datetime]) -> int:
            control = ControlStore(database, lambda: NOW)
            if database.dialect == "postgresql":
                clock()  # requeue reads its clock before the transaction, so the two sides can only meet here
            return control.requeue(chosen, audit_entry())

        return go

    one, two = race(actors.database, requeuer(keys), requeuer(keys[::-1]))
    assert sorted((one, two)) == [0, 20]


def test_the_validator_cannot_requeue_and_the_control_plane_cannot_judge() -> None:
    def verbs(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert verbs(ValidatorStore) == {"judge", "withdraw"}
    judging = {"judge", "accept", "reject", "withdraw", "demote", "rollback", "approve"}
    assert not verbs(ControlStore) & judging
    assert not (verbs(RetryStore) | verbs(MarkStore)) & {*judging, "issue", "requeue"}
    writers = (ValidatorStore, ControlStore, WorkerStore, RetryStore, MarkStore, AuthorityStore)
    assert not verbs(StateReader) & {verb for kind in writers for verb in verbs(kind)}


# --- constraints of the database -----------------------------------------------------------------------------------

OTHER = columns(key(9))
GOOD: dict[str, dict[str, Any]] = {
    "workspace": {"one": 1, "tenant_id": "acme", "workspace_id": "ads"},
    "projection_head": {"one": 1, "manifest": "projections/manifest/1.json", "advanced_at": NOW},
    "ledger_segment": {
        "first_position": 1_000_000, "last_position": 1_000_001, "events": 1, "path": "ledger/1.parquet",
        "sha256": "0" * 64, "exported_at": NOW,
    },
    "partition_control": OTHER,
    "source_breaker": {"source": "demo"},
    "source_quota": {"source": "demo", "window_name": "day", "window_start": NOW, "budget": 10, "claimed": 1},
    "source_pace": {"source": "demo", "per_second": 5.0},
    "source_share": {"source": "paced", "worker_token": "w", "per_second": 5.0, "touched_at": NOW},
    "api_token": {
        "token_id": "t", "name": "kim", "role": "viewer", "secret_hash": "h", "created_at": NOW, "created_by": "ada",
    },
    "login_session": {
        "session_digest": "d", "token_id": "known", "created_at": NOW, "expires_at": NOW + timedelta(hours=1),
    },
    "login_failure": {"client": "127.0.0.1", "failures": 1, "since": NOW},
    "run_order": {
        "order_id": "o", "kind": "run", "selection": {}, "options": {}, "actor": "kim", "state": "queued",
        "created_at": NOW,
    },
    "action_plan": {
        "token": "p", "act": "retry", "selection": {}, "options": {}, "actor": "kim", "ledger_position": 1,
        "total": 1, "digest": "d", "items": {}, "created_at": NOW, "expires_at": NOW + timedelta(hours=1),
    },
    "idempotency_key": {
        "actor": "kim", "request_key": "k", "request_digest": "d", "reserved_id": "r", "worker_token": "w",
        "created_at": NOW,
    },
    "alert": {
        "rule": "late", "subject": "demo.daily", "alert_id": "a", "episode": 1, "state": "pending", "since": NOW,
        "matches": 1, "message": "demo.daily is late", "channels": ["ops"], "notices": 0,
    },
    "alert_delivery": {
        "delivery_id": "d", "alert_id": "a", "rule": "late", "subject": "demo.daily", "kind": "fired",
        "channel": "ops", "body": {}, "state": "waiting", "created_at": NOW, "not_before": NOW,
    },
    "alert_cursor": {"one": 1},
    "pause_selector": {
        "first_date": date(2024, 6, 1), "last_date": date(2024, 6, 1), "paused": True, "since": NOW, "actor": "ada",
    },
    "backfill": {
        "backfill_id": "another", "status": "active", "selector": {}, "reprocess": False, "chunk_size": 10,
        "priority": 0, "max_chunks": 1, "total": 10, "created_at": NOW, "created_by": "ada",
    },
    "backfill_chunk": {
        "backfill_id": "b", "chunk_no": 1, "run_id": "r", "worker_token": "w", "first_key": "a", "last_key": "b",
        "partitions": 10, "started_at": NOW,
    },
    "partition_state": {
        **OTHER, "status": "success", "current_run_id": "r", "schema_version": "v1", "record_count": 1,
        "updated_at": NOW, "error_message": None, "attempt_count": 1, "authority_version": 1,
    },
    "partition_attempt": {
        **OTHER, "run_id": "r", "attempt_no": 1, "reason": "missing", "contract_fingerprint": FINGERPRINT,
        "schema_version": "v1", "worker_token": "w", "lost_count": 0, "issued_at": NOW,
    },
    "warehouse_table": {
        "table_name": "t", "source": "demo", "query_name": "q", "schema_version": "v1", "location": "l", "version": 1,
        "lease_worker": None, "lease_token": None,
    },
    "warehouse_pointer": {
        **OTHER, "run_id": "r", "schema_version": "v1", "table_name": "demo.campaign_daily.v1", "table_version": 1,
        "available": True, "record_count": 1, "loaded_at": NOW, "hidden_at": None,
    },
    "load_batch": {
        "batch_id": "b", "status": "prepared", "lease_token": "l", "prepared_at": NOW, "finished_at": None, "body": {},
    },
    "load_batch_item": {
        "batch_id": "b", **OTHER, "act": "load", "run_id": "r", "schema_version": "v1", "table_name": "t",
        "record_count": 1, "authority_version": 1,
    },
}  # fmt: skip

SUCCEEDED = {
    "outcome": "SUCCEEDED", "stage": "validate", "finished_at": NOW, "record_count": 1, "payload_digest": "d",
    "payload_bytes": 1, "content_digest": "c",
}  # fmt: skip
FIRED = {"state": "firing", "fired_at": NOW, "notified_at": NOW, "notices": 1}
EVALUATED = {"ledger_transaction": 1, "ledger_position": 1, "started_at": NOW, "evaluated_at": NOW}
FAILED = {"outcome": "FAILED", "stage": "extract", "error_class": "data", "error_message": "bad", "finished_at": NOW}

IMPOSSIBLE: list[tuple[str, str, dict[str, Any]]] = [
    ("one_head_per_schema", "projection_head", {"one": 2}),
    ("a_segment_has_events", "ledger_segment", {"events": 0}),
    ("a_segment_has_events", "ledger_segment", {"first_position": 1_000_001, "last_position": 1_000_000}),
    ("failures_are_not_negative", "partition_control", {"failures": -1}),
    ("a_terminal_mark_has_an_author", "partition_control", {"terminal_at": NOW}),
    ("a_pause_has_an_author", "partition_control", {"paused_by": "ada"}),
    ("a_hold_has_an_author", "partition_control", {"held_at": NOW}),
    ("a_retry_says_its_strategy", "partition_control", {"next_run_at": NOW}),
    ("an_open_breaker_has_a_probe", "source_breaker", {"opened_at": NOW, "error_message": "refused"}),
    ("an_open_breaker_says_why", "source_breaker", {"opened_at": NOW, "probe_at": NOW}),
    ("quota_window_is_known", "source_quota", {"window_name": "week"}),
    ("a_quota_is_not_empty", "source_quota", {"budget": 0}),
    ("used_requests_were_claimed", "source_quota", {"used": 2}),
    ("used_requests_were_claimed", "source_quota", {"used": -1}),
    ("used_requests_were_claimed", "source_quota", {"spans": -1}),
    ("a_pace_is_positive", "source_pace", {"per_second": 0.0}),
    ("a_share_is_not_negative", "source_share", {"per_second": -0.5}),
    ("token_role_is_known", "api_token", {"role": "owner"}),
    ("a_revocation_has_an_author", "api_token", {"revoked_at": NOW}),
    ("a_revocation_has_an_author", "api_token", {"revoked_by": "ada"}),
    ("a_session_lasts", "login_session", {"expires_at": NOW}),
    ("a_session_has_a_token_or_a_name", "login_session", {"token_id": None}),
    ("a_session_has_a_token_or_a_name", "login_session", {"name": "kim", "role": "viewer"}),
    ("a_session_has_a_token_or_a_name", "login_session", {"token_id": None, "name": "kim"}),
    ("session_role_is_known", "login_session", {"token_id": None, "name": "kim", "role": "owner"}),
    ("login_failures_are_counted", "login_failure", {"failures": 0}),
    ("order_kind_is_known", "run_order", {"kind": "dance"}),
    ("order_state_is_known", "run_order", {"state": "lost"}),
    ("an_order_in_progress_has_a_worker", "run_order", {"state": "claimed"}),
    ("an_order_in_progress_has_a_worker", "run_order", {"state": "running"}),
    ("a_queued_order_has_no_worker", "run_order", {"worker_token": "w"}),
    ("a_failed_order_says_why", "run_order", {"state": "failed", "finished_at": NOW}),
    ("a_failed_order_says_why", "run_order", {"error_message": "bad"}),
    ("ended_order_has_a_time", "run_order", {"state": "succeeded"}),
    ("ended_order_has_a_time", "run_order", {"finished_at": NOW}),
    ("claims_are_not_negative", "run_order", {"claims": -1}),
    ("alert_state_is_known", "alert", {"state": "muted"}),
    ("a_pending_alert_has_not_fired", "alert", {**FIRED, "state": "pending"}),
    ("a_firing_alert_has_fired", "alert", {"state": "firing"}),
    ("a_recovered_alert_has_a_time", "alert", {**FIRED, "state": "recovered"}),
    ("a_recovered_alert_has_a_time", "alert", {**FIRED, "recovered_at": NOW}),
    ("a_fired_alert_was_notified", "alert", {**FIRED, "notified_at": None}),
    ("a_fired_alert_was_notified", "alert", {**FIRED, "notices": 0}),
    ("a_fired_alert_was_notified", "alert", {"notified_at": NOW}),
    ("an_alert_counts", "alert", {"episode": 0}),
    ("an_alert_counts", "alert", {"matches": -1}),
    ("an_alert_counts", "alert", {**FIRED, "notices": -1}),
    ("notification_kind_is_known", "alert_delivery", {"kind": "whispered"}),
    ("delivery_state_is_known", "alert_delivery", {"state": "lost", "finished_at": NOW}),
    ("finished_delivery_has_a_time", "alert_delivery", {"state": "delivered"}),
    ("finished_delivery_has_a_time", "alert_delivery", {"finished_at": NOW}),
    (
        "finished_delivery_has_no_worker",
        "alert_delivery",
        {"state": "delivered", "finished_at": NOW, "worker_token": "w"},
    ),
    ("a_dropped_delivery_says_why", "alert_delivery", {"state": "dropped", "finished_at": NOW}),
    ("deliveries_are_counted", "alert_delivery", {"attempts": -1}),
    ("one_alert_cursor_per_schema", "alert_cursor", {"one": 2}),
    *(("an_evaluation_has_a_cursor", "alert_cursor", {**EVALUATED, name: None}) for name in EVALUATED),
    ("a_plan_counts_items", "action_plan", {"total": -1}),
    ("a_plan_lasts", "action_plan", {"expires_at": NOW}),
    ("an_applied_plan_has_a_result", "action_plan", {"applied_at": NOW}),
    ("an_applied_plan_has_a_result", "action_plan", {"result": {}}),
    ("an_answered_request_has_a_response", "idempotency_key", {"status": 200}),
    ("an_answered_request_has_a_response", "idempotency_key", {"response": "{}"}),
    ("backfill_status_is_known", "backfill", {"status": "asleep"}),
    ("chunks_are_not_empty", "backfill", {"chunk_size": 0}),
    ("chunks_are_not_empty", "backfill", {"max_chunks": 0}),
    ("ended_backfill_has_a_time", "backfill", {"status": "finished"}),
    ("ended_backfill_has_a_time", "backfill", {"finished_at": NOW}),
    ("a_chunk_has_partitions", "backfill_chunk", {"partitions": 0}),
    ("a_selector_names_days", "pause_selector", {"last_date": date(2024, 5, 31)}),
    ("one_workspace_per_schema", "workspace", {"one": 2}),
    ("status_is_known", "partition_state", {"status": "terminal"}),
    ("success_names_its_run", "partition_state", {"current_run_id": None, "authority_version": 0}),
    ("success_names_its_run", "partition_state", {"schema_version": None}),
    ("success_names_its_run", "partition_state", {"record_count": None}),
    ("success_has_no_error", "partition_state", {"error_message": "bad"}),
    ("failed_says_why", "partition_state", {"status": "failed"}),
    ("attempt_count_is_not_negative", "partition_state", {"attempt_count": -1}),
    ("authority_version_counts_from_the_first_run", "partition_state", {"authority_version": 0}),
    ("authority_version_counts_from_the_first_run", "partition_state", {"status": "pending", "current_run_id": None}),
    ("attempt_numbers_start_at_one", "partition_attempt", {"attempt_no": 0}),
    ("outcome_is_known", "partition_attempt", {**FAILED, "outcome": "LOST"}),
    ("stage_is_known", "partition_attempt", {"stage": "publish"}),
    ("error_class_is_known", "partition_attempt", {"error_class": "bad luck"}),
    ("closed_attempt_has_a_time", "partition_attempt", {**FAILED, "finished_at": None}),
    ("closed_attempt_has_a_time", "partition_attempt", {"finished_at": NOW}),
    ("closed_attempt_has_a_stage", "partition_attempt", {**FAILED, "stage": None}),
    ("unsuccessful_attempt_says_why", "partition_attempt", {**FAILED, "error_class": None}),
    ("unsuccessful_attempt_says_why", "partition_attempt", {**FAILED, "outcome": "CANCELLED", "error_message": None}),
    ("accepted_attempt_has_digests", "partition_attempt", {**SUCCEEDED, "record_count": None}),
    ("accepted_attempt_has_digests", "partition_attempt", {**SUCCEEDED, "payload_digest": None}),
    ("accepted_attempt_has_digests", "partition_attempt", {**SUCCEEDED, "payload_bytes": None}),
    ("accepted_attempt_has_digests", "partition_attempt", {**SUCCEEDED, "content_digest": None}),
    ("a_lease_has_a_holder", "warehouse_table", {"lease_token": "t"}),
    ("available_rows_are_not_hidden", "warehouse_pointer", {"hidden_at": NOW}),
    ("batch_status_is_known", "load_batch", {"status": "lost", "finished_at": NOW}),
    ("finished_batch_has_a_time", "load_batch", {"status": "published"}),
    ("act_is_known", "load_batch_item", {"act": "drop"}),
    ("load_names_its_run", "load_batch_item", {"run_id": None}),
]

# Statements on the rows of `lived_in`: one success, one failed, events, audit.
FORBIDDEN: list[tuple[str, str]] = [
    ("events_are_never_changed", "UPDATE event SET type = 'Nothing'"),
    ("events_are_never_deleted", "DELETE FROM event WHERE position = (SELECT MAX(position) FROM event)"),
    ("audit_is_never_changed", "UPDATE audit SET actor = 'nobody'"),
    ("audit_is_never_deleted", "DELETE FROM audit"),
    ("contracts_are_never_changed", "UPDATE contract SET schema_version = 'v2'"),
    ("contracts_are_never_deleted", "DELETE FROM contract"),
    ("partitions_are_never_deleted", "DELETE FROM partition_state WHERE status = 'failed'"),
    ("attempt_count_never_falls", "UPDATE partition_state SET attempt_count = attempt_count - 1"),
    ("attempt_count_never_falls", "UPDATE partition_state SET authority_version = 1 WHERE status = 'success'"),
    ("authority_changes_by_version", "UPDATE partition_state SET current_run_id = 'x' WHERE status = 'success'"),
    ("closed_attempts_are_frozen", "UPDATE partition_attempt SET outcome = NULL, finished_at = NULL"),
    ("closed_attempts_are_frozen", "UPDATE partition_attempt SET outcome = 'CANCELLED' WHERE outcome = 'FAILED'"),
    ("marks_of_attempts_are_set_once", "UPDATE partition_attempt SET demoted_at = NULL"),
    ("attempts_are_never_deleted", "DELETE FROM partition_attempt"),
    ("tokens_are_never_deleted", "DELETE FROM api_token WHERE token_id = 'unused'"),
    ("revoked_tokens_stay_revoked", "UPDATE api_token SET revoked_at = NULL, revoked_by = NULL"),
    ("revoked_tokens_stay_revoked", "UPDATE api_token SET role = 'admin'"),
    ("orders_are_never_deleted", "DELETE FROM run_order"),
    ("ended_orders_stay_ended", "UPDATE run_order SET state = 'queued', finished_at = NULL"),
]


@pytest.fixture(scope="module", params=BACKENDS)
def lived_in(request: pytest.FixtureRequest) -> Iterator[Actors]:
    """One database for all tests that only try refused statements."""
    with builders.quick_folder() as folder:
        database = builders.open_database(request.param, folder, lambda: request.getfixturevalue("postgres_url"))
        actors = Actors.on(builders.migrated(database))
        actors.accept()
        actors.accept()
        actors.publish()
        actors.reject(key(2))
        actors.accept(key(4))
        AuthorityStore(database, actors.clock).demote(key(4), "wrong", audit_entry())
        actors.control.requeue([key(3)], audit_entry())
        actors.execute(sa.insert(schema.worker).values(WORKER))
        actors.execute(sa.insert(schema.backfill).values({**GOOD["backfill"], "backfill_id": "b"}))
        actors.execute(sa.insert(schema.source_pace).values({**GOOD["source_pace"], "source": "paced"}))
        revoked = {"name": "former", "revoked_at": NOW, "revoked_by": "ada"}
        for token, change in (("known", {"name": "known"}), ("unused", revoked)):
            row = {**GOOD["api_token"], "token_id": token, **change}
            actors.execute(sa.insert(schema.api_token).values(row))
        ended = {"order_id": "ended", "state": "succeeded", "finished_at": NOW}
        actors.execute(sa.insert(schema.run_order).values({**GOOD["run_order"], **ended}))
        yield actors
        database.engine.dispose()


WORKER = {"token": "w", "host": "h", "machine": "m", "process": "1:1", "started_at": NOW, "heartbeat_at": NOW}
POSSIBLE = [(table, good) for table, good in GOOD.items() if table != "workspace"]
POSSIBLE += [("alert", GOOD["alert"] | FIRED), ("alert_cursor", GOOD["alert_cursor"] | EVALUATED)]
POSSIBLE += [("partition_attempt", GOOD["partition_attempt"] | end) for end in (SUCCEEDED, FAILED)]


@pytest.mark.parametrize(("table", "row"), POSSIBLE, ids=lambda value: str(value)[:20])
def test_the_rows_from_which_the_impossible_ones_are_made_are_possible(
    lived_in: Actors, table: str, row: dict[str, Any]
) -> None:
    with lived_in.database.engine.connect() as connection, connection.begin() as transaction:
        connection.execute(sa.insert(schema.metadata.tables[table]).values(row))
        transaction.rollback()


@pytest.mark.parametrize(("name", "table", "change"), IMPOSSIBLE, ids=lambda value: str(value)[:60])
def test_the_database_refuses_an_impossible_row_by_name(
    lived_in: Actors, name: str, table: str, change: dict[str, Any]
) -> None:
    with pytest.raises(PenstockError, match=rf"refused a change: .*\b{name}\b"):
        lived_in.execute(sa.insert(schema.metadata.tables[table]).values(GOOD[table] | change))


@pytest.mark.parametrize(("name", "statement"), FORBIDDEN)
def test_the_database_refuses_to_rewrite_history_by_name(lived_in: Actors, name: str, statement: str) -> None:
    before = everything(lived_in.database)
    with pytest.raises(PenstockError, match=rf"refused a change: {name}: "):
        lived_in.execute(sa.text(statement))
    assert everything(lived_in.database) == before


ANOTHER_VALUE: dict[type[sa.types.TypeEngine[Any]], Any] = {
    sa.Text: "another",
    sa.Date: date(2001, 1, 1),
    sa.Integer: 77,
    sa.BigInteger: 77,
    UtcTimestamp: datetime(2001, 1, 1, tzinfo=UTC),
    Json: {"another": 1},
}
MARKS = ["raw_deleted_at", "approved_at", "demoted_at"]
FROZEN = [column.name for column in schema.partition_attempt.c if column.name not in MARKS]


@pytest.mark.parametrize("column", FROZEN)
@pytest.mark.parametrize("outcome", ["SUCCEEDED", "FAILED"])
def test_no_column_of_a_closed_attempt_is_ever_changed(lived_in: Actors, column: str, outcome: str) -> None:
    table = schema.partition_attempt
    closed = sa.update(table).where(table.c.outcome == outcome)
    before = everything(lived_in.database, [table])
    filled = all(row[column] is not None for row in before["partition_attempt"] if row["outcome"] == outcome)
    another = ANOTHER_VALUE[type(table.c[column].type)]
    for value in (another, sa.null()) if filled else (another,):
        with pytest.raises(PenstockError, match="refused a change: closed_attempts_are_frozen: "):
            lived_in.execute(closed.values({column: value}))
    assert everything(lived_in.database, [table]) == before


@pytest.mark.parametrize("mark", MARKS)
def test_a_mark_on_an_attempt_is_set_once_and_never_cleared_or_changed(actors: Actors, mark: str) -> None:
    actors.accept()
    table = schema.partition_attempt
    actors.execute(sa.update(table).values({mark: NOW}))
    before = everything(actors.database, [table])
    for value in (None, NOW + timedelta(seconds=1)):
        with pytest.raises(PenstockError, match="refused a change: marks_of_attempts_are_set_once: "):
            actors.execute(sa.update(table).values({mark: value}))
    actors.execute(sa.update(table).values({mark: NOW}))
    assert everything(actors.database, [table]) == before
    assert before["partition_attempt"][0][mark] == NOW


@pytest.mark.parametrize("table", ["event", "audit", "contract", "partition_state", "partition_attempt"])
def test_history_cannot_be_swept_away_past_the_triggers(lived_in: Actors, table: str) -> None:
    """Each database has a way to remove rows that is not DELETE: REPLACE on SQLite, TRUNCATE on PostgreSQL."""
    sweep = {
        "sqlite": f"INSERT OR REPLACE INTO {table} SELECT * FROM {table}",
        "postgresql": f"TRUNCATE {table} CASCADE",
    }
    with lived_in.database.engine.connect() as connection, connection.begin() as transaction:
        with pytest.raises(sa.exc.IntegrityError, match=r"append-only|never deleted"):
            connection.execute(sa.text(sweep[lived_in.database.dialect]))
        transaction.rollback()


def test_a_database_that_nobody_closed_returns_its_connections(postgres_url: str) -> None:
    database, observer = (Database(f"{postgres_url}?application_name={name}") for name in ("unclosed", "observer"))
    count = sa.text("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'unclosed'")
    with database.engine.connect() as connection:
        assert connection.execute(count).scalar() == 1
    del connection, database
    gc.collect()
    with observer.engine.connect() as connection:
        for _ in range(200):  # the server ends a session after the client has closed it
            if not connection.execute(count).scalar():
                break
            connection.rollback()
            time.sleep(0.05)
        assert connection.execute(count).scalar() == 0
    observer.close()


def test_every_named_refusal_of_the_schema_is_tried() -> None:
    checks = {
        str(constraint.name)
        for table in schema.metadata.tables.values()
        for constraint in table.constraints
        if isinstance(constraint, sa.CheckConstraint)
    }
    assert {name for name, _, _ in IMPOSSIBLE} == checks
    assert {name for name, _ in FORBIDDEN} == {refusal.name for refusal in REFUSALS}


def test_attempt_numbers_are_unique_and_contracts_must_be_known(lived_in: Actors) -> None:
    table, good = schema.partition_attempt, GOOD["partition_attempt"] | FAILED
    with pytest.raises(PenstockError, match="refused a change"):
        lived_in.execute(sa.insert(table).values(good | columns(key()) | {"attempt_no": 2}))
    with pytest.raises(PenstockError, match="refused a change"):
        lived_in.execute(sa.insert(table).values(good | {"contract_fingerprint": "unheard of"}))


def test_a_violated_constraint_is_a_domain_error_that_names_it(lived_in: Actors) -> None:
    attempt = schema.partition_attempt
    good = GOOD["partition_attempt"] | columns(key())
    closed, opened = good | FAILED | {"attempt_no": 2}, good | {"run_id": "01ANOTHER"}
    with pytest.raises(StateConflict, match=r"\battempt_numbers_are_unique\b.*run the command again"):
        lived_in.execute(sa.insert(attempt).values(closed))
    two = [opened | {"attempt_no": 98}, opened | {"attempt_no": 99, "run_id": "01OTHER"}]
    with pytest.raises(StateConflict, match=r"\bone_open_attempt_per_partition\b"):
        lived_in.execute(sa.insert(attempt).values(two))
    with pytest.raises(StateConflict, match=r"\bworker_pk\b"):
        lived_in.execute(sa.insert(schema.worker).values(WORKER))
    with pytest.raises(ImpossibleRow, match=r"\bone_head_per_schema\b"):
        lived_in.execute(sa.insert(schema.projection_head).values(GOOD["projection_head"] | {"one": 2}))
    with pytest.raises(HistoryProtected, match=r"\baudit_is_never_deleted\b"):
        lived_in.execute(sa.text("DELETE FROM audit"))


def test_a_partition_that_leaves_success_hides_its_pointer_in_the_same_statement(actors: Actors) -> None:
    actors.accept()
    actors.publish()
    table = schema.partition_state
    leave = sa.update(table).where(*is_key(table, key())).values(status="failed", error_message="withdrawn")
    available = sa.select(schema.warehouse_pointer.c.available)
    with actors.database.engine.connect() as connection, connection.begin() as transaction:
        connection.execute(leave)
        assert connection.scalar(available) is False
        transaction.rollback()
    with actors.database.snapshot() as connection:
        assert connection.scalar(available) is True
    actors.execute(leave)
    with actors.database.snapshot() as connection:
        assert connection.scalar(available) is False


def test_a_partition_that_leaves_success_hides_only_its_own_pointer(actors: Actors) -> None:
    for day in (1, 2):
        actors.accept(key(day))
    actors.publish(key(1))
    pointer = actors.rows(schema.warehouse_pointer)[0]
    actors.execute(sa.insert(schema.warehouse_pointer).values(pointer | columns(key(2))))
    actors.demote(key(2))
    found = {row["logical_date"].day: row["available"] for row in actors.rows(schema.warehouse_pointer)}
    assert found == {1: True, 2: False}


# --- looking -------------------------------------------------------------------------------------------------------


@pytest.fixture
def week(actors: Actors) -> Actors:
    """1 none, 2 accepted, 3 accepted then failed, 4 failed, 5 demoted, 6 open, 7 requeued, 8 accepted and cancelled."""
    for day in (2, 3, 5, 8):
        actors.accept(key(day))
    for day in (3, 4, 7):
        actors.reject(key(day))
    actors.demote(key(5))
    actors.control.requeue([key(7)], audit_entry())
    actors.cancel(key(8))
    actors.issue_one(key(6))
    return actors


def test_a_partition_without_a_row_is_implicitly_pending(actors: Actors) -> None:
    before = everything(actors.database)
    nothing = PartitionState(key(), PartitionStatus.PENDING, None, None, None, None, None, 0, 0)
    assert actors.reader.views([days(1, 1)]) == [PartitionView(nothing, False, 0, None, None, None, None, None, None)]
    assert actors.reader.state(key()) is None
    assert actors.reader.attempts(key()) == []
    assert everything(actors.database) == before


def test_views_show_the_status_of_every_expected_day(week: Actors) -> None:
    found = [
        (v.key.logical_date.day, v.state.status.value, v.explicit, v.last_attempt_no)
        for v in week.reader.views([days(1, 8)])
    ]
    assert found == [
        (1, "pending", False, 0),
        (2, "success", True, 1),
        (3, "success", True, 2),
        (4, "failed", True, 1),
        (5, "failed", True, 1),
        (6, "pending", False, 0),
        (7, "pending", True, 1),
        (8, "success", True, 2),
    ]


def test_a_view_names_the_last_closed_attempt_and_the_open_one(week: Actors) -> None:
    good, bad = (attempt.run_id for attempt in reversed(week.reader.attempts(key(3))))
    open_one = week.issue_one(key(3))
    [view] = week.reader.views([days(3, 3)])
    assert (view.state.current_run_id, view.last_attempt_run_id, view.open_run_id) == (good, bad, open_one.run_id)
    assert (view.last_attempt_outcome, view.last_attempt_error_class) == (Outcome.FAILED, ErrorClass.DATA)
    assert (view.last_attempt_error, view.last_attempt_at) == ("clicks is negative", NOW)


def test_views_can_be_narrowed_by_status_and_to_what_failed_last(week: Actors) -> None:
    def shown(**narrow: Any) -> list[int]:
        found = [view.key.logical_date.day for view in week.reader.views([days(1, 8)], **narrow)]
        assert week.reader.count([days(1, 8)], **narrow) == len(found)
        return found

    assert shown() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert shown(status=PartitionStatus.PENDING) == [1, 6, 7]
    assert shown(status=PartitionStatus.SUCCESS) == [2, 3, 8]
    assert shown(status=PartitionStatus.FAILED) == [4, 5]
    assert shown(last_failed=True) == [3, 4, 5]
    assert shown(status=PartitionStatus.SUCCESS, last_failed=True) == [3]
    [first] = [attempt for attempt in week.reader.attempts(key(3)) if attempt.outcome is Outcome.SUCCEEDED]
    week.accept(key(3))
    week.reject(key(3))
    acts = AuthorityStore(week.database, week.clock)
    assert acts.rollback(key(3), first.run_id, audit_entry())
    assert shown(last_failed=True) == [4, 5], "the rollback came after the failure"


def test_views_come_in_key_order_and_pages_leave_nothing_out(week: Actors) -> None:
    ranges = [days(1, 3, "B2"), days(2, 5, query="a_query"), days(1, 8), days(7, 9, "a1"), days(5, 4, "none")]
    whole = [view.key for view in week.reader.views(ranges)]
    assert len(whole) == 3 + 4 + 8 + 3
    assert whole == sorted(whole)
    pages: list[PartitionKey] = []
    while page := week.reader.views(ranges, after=pages[-1] if pages else None, limit=5):
        assert len(page) <= 5
        pages += [view.key for view in page]
    assert pages == whole
    assert week.reader.views(ranges, limit=0) == []


def test_no_ranges_are_no_partitions(week: Actors) -> None:
    assert week.reader.views([]) == []
    assert week.reader.count([]) == 0
    assert week.reader.candidates([], DUE, builders.NOW, {}) == []
    assert week.reader.reasons([], builders.NOW, {}) == {}
    assert week.reader.failed([]) == []


def test_candidates_are_what_may_be_attempted_with_the_number_to_build_on(week: Actors) -> None:
    def found(*reasons: PlanReason) -> list[tuple[Any, ...]]:
        candidates = week.reader.candidates([days(1, 8)], reasons, builders.NOW, {})
        return [(c.key.logical_date.day, c.status, c.reason, c.last_attempt_no) for c in candidates]

    assert found(*DUE) == [(1, "pending", "missing", 0), (7, "pending", "requeued", 1)]
    assert found(PlanReason.SUCCESS) == [
        (2, "success", "success", 1),
        (3, "success", "success", 2),
        (8, "success", "success", 2),
    ]
    assert found(PlanReason.FAILED) == [(4, "failed", "failed", 1), (5, "failed", "failed", 1)]
    assert week.reader.candidates([days(1, 8)], DUE, builders.NOW, {}, limit=1)[0].key == key(1)
    assert week.reader.reasons([days(1, 8)], builders.NOW, {}) == {
        "failed": 2, "missing": 1, "open": 1, "requeued": 1, "success": 3,
    }  # fmt: skip


def test_a_million_pending_partitions_cost_no_rows(actors: Actors) -> None:
    ranges = [
        ExpectedRange("demo", str(customer), "campaign_daily", date(2021, 1, 1), date(2023, 9, 27))
        for customer in range(1000)
    ]
    before = everything(actors.database)
    assert actors.reader.count(ranges) == 1_000_000
    assert everything(actors.database) == before


def test_failed_partitions_that_left_nothing_are_named(actors: Actors) -> None:
    def fail(day: int, **change: Any) -> None:
        attempt = actors.issue_one(key(day))
        assert actors.validator.judge([rejected(attempt, actors.token, **change)]).applied

    fail(1)  # judged without a payload: nothing is there
    fail(2, payload_digest="sha")  # sealed bytes are there
    fail(3, stage=Stage.EXTRACT)  # an extraction error was recorded
    fail(4, stage=Stage.EXTRACT)
    fail(4)  # the last attempt left nothing, an earlier one did
    actors.accept(key(5))
    actors.cancel(key(6))
    fail(7)
    actors.control.requeue([key(7)], audit_entry())  # pending again
    actors.cancel(key(8))
    fail(8)  # a cancelled extraction is no recorded error
    assert {one.key for one in actors.reader.failed([days(1, 9)]) if one.left_nothing} == {key(1), key(8)}
    assert {one.key for one in actors.reader.failed([days(2, 8)]) if one.left_nothing} == {key(8)}


def test_contracts_are_kept_once_and_found_by_fingerprint(actors: Actors) -> None:
    newer = builders.contract(schema_version="v2")
    rows = [(newer.fingerprint, "demo", newer.query_name, "v2", newer.body())]
    actors.clock.now = LATER
    actors.control.store_contracts(rows)
    actors.control.store_contracts(rows)
    assert [(row.fingerprint, row.schema_version) for row in actors.reader.contracts()] == [
        (FINGERPRINT, "v1"),
        (newer.fingerprint, "v2"),
    ]
    assert actors.reader.contract(newer.fingerprint) == newer.body()
    assert actors.reader.contract("unheard of") is None


def test_a_snapshot_does_not_see_what_is_written_while_it_is_open(actors: Actors) -> None:
    count = sa.select(sa.func.count()).select_from(schema.partition_attempt)
    reader = another_handle(actors.database)
    with reader.snapshot() as connection:
        assert connection.scalar(count) == 0
        actors.issue_one()
        assert connection.scalar(count) == 0
    reader.engine.dispose()
    with actors.database.snapshot() as connection:
        assert connection.scalar(count) == 1


# --- runs ----------------------------------------------------------------------------------------------------------


def test_a_run_is_recorded_from_start_to_finish(actors: Actors) -> None:
    run_id = new_run_id()
    actors.control.start_run(run_id, actors.token, "ada", {"queries": ["campaign_daily"]}, 3)
    actors.clock.now = LATER
    for _ in range(2):
        actors.control.finish_run(run_id, actors.token, {"accepted": 2, "rejected": 1})
    assert actors.rows(schema.run) == [
        {
            "run_id": run_id,
            "worker_token": actors.token,
            "actor": "ada",
            "filters": {"queries": ["campaign_daily"]},
            "planned": 3,
            "started_at": NOW,
            "finished_at": LATER,
        }
    ]
    counts = {"accepted": 2, "rejected": 1}
    assert actors.events("RunFinished") == [{"run_id": run_id, "end": "done", "counts": counts}]


# --- rescue --------------------------------------------------------------------------------------------------------

REGISTER = """
import sys
from penstock.clock import utc_now
from penstock.db.engine import Database
from penstock.state.worker import OpenAttempt, WorkerStore
url, schema = sys.argv[1:]
print(WorkerStore(Database(url, schema or None), utc_now).register())
"""


def worker_that_died(database: Database) -> str:
    """The token of a process that registered and is gone; its lease has not run out."""
    line = [sys.executable, "-c", REGISTER, database.url.render_as_string(hide_password=False), database.schema or ""]
    return subprocess.run(line, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def test_the_attempts_of_a_dead_worker_are_cancelled_and_can_be_issued_again(actors: Actors) -> None:
    dead = worker_that_died(actors.database)
    held = actors.issue_one(token=dead)
    assert rescue_now(actors) == Rescued(cancelled=1, rejected=0)
    attempt = attempt_of(actors, held)
    assert (attempt.outcome, attempt.lost_count, attempt.error_message) == (Outcome.CANCELLED, 1, "the worker was lost")
    assert actors.reader.state(key()) is None
    assert rescue_now(actors) == Rescued(cancelled=0, rejected=0)
    assert actors.validator.judge([accepted(held, dead)]).refused == [Refused(held, CLOSED + "CANCELLED")]
    good = actors.accept()
    assert (state_of(actors).current_run_id, state_of(actors).attempt_count) == (good.run_id, 1)


def test_what_a_living_worker_holds_is_left_alone(actors: Actors) -> None:
    held = actors.issue_one()
    assert rescue_now(actors) == Rescued(cancelled=0, rejected=0)
    assert attempt_of(actors, held).outcome is None
    assert actors.validator.judge([accepted(held, actors.token)]).applied == [held]


def test_what_a_silent_worker_held_is_cancelled_when_its_lease_ran_out(actors: Actors) -> None:
    silent = actors.workers.register()
    held, mine = actors.issue_one(key(1), token=silent), actors.issue_one(key(2))
    actors.expire(silent)
    assert rescue_now(actors) == Rescued(cancelled=1, rejected=0)
    assert attempt_of(actors, held).outcome is Outcome.CANCELLED
    assert attempt_of(actors, mine).outcome is None


def test_a_heartbeat_renews_everything_a_worker_holds(actors: Actors) -> None:
    actors.issue(key(1), key(2))
    actors.expire(actors.token)
    assert len(actors.workers.abandoned()) == 2
    actors.workers.heartbeat(actors.token)
    assert rescue_now(actors) == Rescued(cancelled=0, rejected=0)


def test_a_worker_that_stopped_leaves_its_attempts_to_the_rescue(actors: Actors) -> None:
    actors.issue_one()
    actors.workers.stop(actors.token)
    assert rescue_now(actors) == Rescued(cancelled=1, rejected=0)


@pytest.mark.parametrize("clock", [datetime(1999, 1, 1, tzinfo=UTC), datetime(2099, 1, 1, tzinfo=UTC)])
def test_leases_follow_the_databases_clock_and_not_the_processs(actors: Actors, clock: datetime) -> None:
    actors.clock.now = clock
    token = actors.workers.register()
    held = actors.issue_one(token=token)
    actors.workers.heartbeat(token)
    assert rescue_now(actors) == Rescued(cancelled=0, rejected=0)
    assert attempt_of(actors, held).outcome is None
    actors.expire(token)
    assert rescue_now(actors) == Rescued(cancelled=1, rejected=0)


def test_open_attempts_are_listed_by_worker_and_by_run(actors: Actors) -> None:
    """Runs of two workers, one of which is gone; each run has a closed attempt, too."""
    gone = actors.workers.register()
    runs: dict[str, list[RunId]] = {actors.token: [], gone: []}
    for number, token in enumerate((actors.token, gone, gone, actors.token)):
        run_id = new_run_id()
        actors.control.start_run(run_id, token, "ada", {}, 2)
        plan = actors.plan(key(2 * number + 1), key(2 * number + 2))
        issued, _ = actors.try_to_issue(*plan, run_id=run_id, token=token)
        actors.control.cancel([cancelled(issued[0].attempt, token)])
        runs[token].append(run_id)
    actors.control.finish_run(runs[gone][1], gone, {})
    actors.expire(gone)
    workers = actors.workers

    def opened(found: list[OpenAttempt]) -> set[tuple[int, str]]:
        return {(one.attempt.partition.logical_date.day, one.worker_token) for one in found}

    assert opened(workers.open_attempts_of(actors.token)) == {(2, actors.token), (8, actors.token)}
    assert opened(workers.abandoned()) == opened(workers.open_attempts_of(gone)) == {(4, gone), (6, gone)}
    assert opened(workers.abandoned_in(runs[gone][0])) == {(4, gone)}
    assert workers.abandoned_in(runs[actors.token][0]) == []
    assert workers.abandoned_runs() == workers.runs_of(gone) == [(runs[gone][0], gone)]
    assert sorted(workers.runs_of(actors.token)) == [(run_id, actors.token) for run_id in runs[actors.token]]
    workers.stop(actors.token)
    assert opened(workers.abandoned()) == {(2, actors.token), (4, gone), (6, gone), (8, actors.token)}
    assert workers.mark_dead_workers() == 0, "the process of all of them is alive"


def lose(actors: Actors, *keys: PartitionKey) -> Rescued:
    """Issue attempts to a worker that stops its heartbeat, and rescue."""
    token = actors.workers.register()
    actors.issue(*keys, token=token)
    actors.expire(token)
    return rescue_now(actors)


def test_the_fourth_loss_in_a_row_is_a_rejection(actors: Actors) -> None:
    for _ in range(MAX_LOSSES - 1):
        assert lose(actors, key()) == Rescued(cancelled=1, rejected=0)
    assert actors.reader.state(key()) is None
    assert lose(actors, key()) == Rescued(cancelled=0, rejected=1)
    state = state_of(actors)
    assert (state.status, state.attempt_count) == (PartitionStatus.FAILED, 1)
    assert state.error_message == "the worker was lost 4 times in a row while working on this partition"
    outcomes = [attempt.outcome for attempt in reversed(actors.reader.attempts(key()))]
    assert outcomes == [Outcome.CANCELLED] * 3 + [Outcome.FAILED]


def test_the_fourth_loss_of_a_success_leaves_it_success(actors: Actors) -> None:
    good = actors.accept()
    for _ in range(MAX_LOSSES):
        lose(actors, key())
    state = state_of(actors)
    assert (state.status, state.current_run_id, state.attempt_count) == (PartitionStatus.SUCCESS, good.run_id, 2)


def test_a_verdict_between_losses_starts_their_count_again(actors: Actors) -> None:
    for _ in range(MAX_LOSSES - 1):
        lose(actors, key())
    actors.accept()
    for _ in range(MAX_LOSSES - 1):
        assert lose(actors, key()) == Rescued(cancelled=1, rejected=0)
    assert lose(actors, key()) == Rescued(cancelled=0, rejected=1)


def test_a_poison_partition_does_not_condemn_its_neighbours(actors: Actors) -> None:
    for _ in range(MAX_LOSSES - 1):
        lose(actors, key(1))
    assert lose(actors, key(1), key(2), key(3)) == Rescued(cancelled=2, rejected=1)
    found = [view.state.status.value for view in actors.reader.views([days(1, 3)])]
    assert found == ["failed", "pending", "pending"]


def test_two_rescues_at_once_count_each_loss_once(actors: Actors) -> None:
    for _ in range(MAX_LOSSES - 1):
        lose(actors, key(1))
    token = actors.workers.register()
    actors.issue(*(key(day) for day in range(1, 11)), token=token)
    actors.expire(token)

    def rescuer(database: Database, clock: Callable[[], datetime]) -> Rescued:
        control, validator = ControlStore(database, clock), ValidatorStore(database, clock)
        return rescue(WorkerStore(database, clock), control, validator)

    one, two = race(actors.database, rescuer, rescuer)
    assert (one.cancelled + two.cancelled, one.rejected + two.rejected) == (9, 1)
    assert {row["lost_count"] for row in actors.rows(schema.partition_attempt) if row["outcome"] == "CANCELLED"} == {
        1,
        2,
        3,
    }
    assert state_of(actors, key(1)).attempt_count == 1


def test_a_verdict_about_broken_bytes_can_be_kept(actors: Actors) -> None:
    """Examples in complaints come from broken payloads: NUL and half a surrogate pair among them."""
    attempt = actors.issue_one()
    words = "line 1: a\0b \ud800"
    verdict = rejected(attempt, actors.token, words, complaints=[{"check": "json", "example": words}])
    assert actors.validator.judge([verdict]).applied == [attempt]
    [kept] = actors.reader.attempts(key())
    assert kept.error_message == "line 1: a\\x00b \\ud800"
    assert kept.complaints == [{"check": "json", "example": "line 1: a\\x00b \\ud800"}]
    assert actors.validator.judge([verdict]).repeated == [attempt]
