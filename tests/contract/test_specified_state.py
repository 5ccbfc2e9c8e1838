"""The specified state store contract and retry rules, where no other test covers them, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from penstock.db import schema
from penstock.lifecycle import PartitionStatus
from penstock.state.marks import MarkStore
from support import builders
from support.builders import BACKENDS, FINGERPRINT, NOW, Actors, accepted, audit_entry, columns, key, rejected
from support.ledger_harness import OWNER, LedgerHarness, attempt

HOUR = timedelta(hours=1)


@pytest.fixture(params=BACKENDS)
def harness(request: pytest.FixtureRequest) -> Iterator[LedgerHarness]:
    def url() -> str:
        found: str = request.getfixturevalue("postgres_url")
        return found

    with (
        builders.quick_folder() as folder,
        LedgerHarness.on(builders.open_database(request.param, folder, url), folder) as found,
    ):
        yield found


@pytest.fixture
def actors(harness: LedgerHarness) -> Actors:
    return harness.actors


def test_a_row_begins_with_no_attempts(actors: Actors) -> None:
    table = schema.partition_state
    actors.execute(sa.insert(table).values(**columns(key()), status="pending", updated_at=NOW))
    state = actors.reader.state(key())
    assert state is not None
    assert (state.status, state.attempt_count, state.current_run_id) == (PartitionStatus.PENDING, 0, None)


def test_reprocessing_moves_the_row_to_the_new_run_and_time(actors: Actors) -> None:
    first = actors.accept(rows=3)
    before = actors.reader.state(key())
    actors.clock.now = NOW + HOUR
    second = actors.accept(rows=4)
    [row] = actors.rows(schema.partition_state)  # one row for each partition, however many runs there were
    assert before is not None
    assert (before.current_run_id, before.updated_at) == (first.run_id, NOW)
    assert (row["current_run_id"], row["updated_at"], row["record_count"]) == (second.run_id, NOW + HOUR, 4)
    assert [a.run_id for a in actors.reader.attempts(key())] == [second.run_id, first.run_id]


def test_a_verdict_does_not_ask_whether_its_partition_is_terminal(actors: Actors) -> None:
    """The mark came during two open attempts: one is accepted, the other rejected and counted."""
    for day in (1, 2):
        actors.reject(key(day))
    good, bad = actors.issue(key(1), key(2))
    marks = MarkStore(actors.database, actors.clock)
    assert marks.mark_terminal([key(1), key(2)], "enough", audit_entry()) == 2
    ruling = actors.validator.judge([accepted(good, actors.token), rejected(bad, actors.token, "still bad")])
    assert (sorted(ruling.applied), ruling.refused) == ([good, bad], [])
    one, two = (actors.reader.state(key(day)) for day in (1, 2))
    assert one is not None
    assert two is not None
    assert (one.status, one.current_run_id, one.attempt_count) == (PartitionStatus.SUCCESS, good.run_id, 2)
    assert (two.status, two.error_message, two.attempt_count) == (PartitionStatus.FAILED, "still bad", 2)


def test_partition_status_says_of_a_partition_what_the_decision_lists(harness: LedgerHarness) -> None:
    """Accepted, then rejected an hour later: both groups of columns are complete."""
    actors = harness.actors
    good = harness.start(1)
    actors.validator.judge([accepted(attempt(good, 1), actors.token)])
    actors.clock.now = NOW + HOUR
    bad = harness.start(1)
    actors.validator.judge([rejected(attempt(bad, 1), actors.token)])
    newest = max(row["position"] for row in actors.rows(schema.event) if row["type"] == "TaskFinished")
    [event_id] = [row["event_id"] for row in actors.rows(schema.event) if row["position"] == newest]
    wanted = {
        "tenant_id": OWNER[0],
        "workspace_id": OWNER[1],
        "asset_key": "demo.campaign_daily",
        "partition_key": str(key(1)),
        "last_materialization_run_id": good,
        "last_materialization_at": NOW,
        "last_materialization_code_version": FINGERPRINT,
        "last_attempt_run_id": bad,
        "last_attempt_at": NOW + HOUR,
        "last_attempt_outcome": "FAILED",
        "stale_since": None,
        "stale_reason_code": None,
        "partition_values": [
            ("source", "demo"),
            ("customer_id", "1000000001"),
            ("query_name", "campaign_daily"),
            ("logical_date", "2024-06-01"),
        ],
        "row_version": event_id,
    }
    for folded in (False, True):
        if folded:
            harness.projector.advance()
        [row] = harness.tables()["partition_status"]
        assert {name: row[name] for name in wanted} == wanted


def moment_of(ulid: str) -> datetime:
    """The first ten characters of a ULID are milliseconds in base 32."""
    number = 0
    for character in ulid[:10]:
        number = 32 * number + "0123456789ABCDEFGHJKMNPQRSTVWXYZ".index(character)
    return datetime.fromtimestamp(number // 1000, UTC) + timedelta(milliseconds=number % 1000)


def test_dep_satisfaction_has_one_row_for_each_edge_of_a_run(harness: LedgerHarness) -> None:
    first, second = harness.start(1, 2), harness.start(3)
    actors = harness.actors
    actors.validator.judge([accepted(attempt(first, 1), actors.token), rejected(attempt(first, 2), actors.token)])
    harness.projector.advance()
    edges = harness.tables()["dep_satisfaction"]
    key_of = ("tenant_id", "workspace_id", "run_id", "upstream_task_key", "downstream_task_key")
    assert sorted(tuple(row[name] for name in key_of) for row in edges) == sorted(
        (*OWNER, run, f"{before}:{key(day)}", f"{after}:{key(day)}")
        for run, day in ((first, 1), (first, 2), (second, 3))
        for before, after in (("extract", "validate"), ("validate", "load"))
    )
    [satisfied] = [row for row in edges if row["upstream_task_key"] == f"validate:{key(1)}"]
    [refused] = [row for row in edges if row["upstream_task_key"] == f"validate:{key(2)}"]
    assert (satisfied["satisfied"], satisfied["resolution"], satisfied["satisfying_attempt"]) == (True, "SUCCESS", 1)
    assert (refused["satisfied"], refused["resolution"], refused["satisfied_at"]) == (False, "FAILED", None)
    [waiting] = [row for row in harness.tables()["tasks"] if row["task_key"] == f"load:{key(1)}"]
    assert (waiting["state"], waiting["deps_satisfied_count"]) == ("READY", 1)
    assert satisfied["satisfied_at"] == waiting["ready_at"] == moment_of(satisfied["row_version"])
