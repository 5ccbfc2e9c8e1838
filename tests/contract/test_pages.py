"""Acts on many failed partitions process them in pages, and hold one page in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from penstock.app import Workspace, backfills, operations, partitions
from penstock.control.requeue import RetryPreview
from penstock.control.select import Selection
from penstock.db import schema
from penstock.lifecycle import AttemptReason, PartitionStatus
from penstock.partition import PartitionKey, new_run_id, new_ulid
from penstock.state.backfills import Backfill
from penstock.state.control import ControlStore
from penstock.state.records import Planned
from penstock.state.validator import ValidatorStore
from penstock.state.worker import WorkerStore
from penstock.warehouse.snapshots import demoted_since
from support import builders
from support.builders import BACKENDS, audit_entry
from support.workspaces import NOW, customer_id, key, open_at, write_workspace

FAILED = 7  # customers, each with two failed days
ALL = Selection()
DAYS = ("2024-06-09", "2024-06-10")
RETRY = audit_entry(command="state retry", actor="kim")
PAUSE, RESUME = audit_entry(command="state pause"), audit_entry(command="state resume")


@pytest.fixture(params=BACKENDS)
def ws(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    """A workspace with fourteen failed partitions of twenty; pages of four."""
    for module in (operations, partitions):
        monkeypatch.setattr(module, "SCANNED", 5)
    for module in (operations, partitions, backfills):
        monkeypatch.setattr(module, "MOVED", 4)
    state = {}
    if request.param == "postgresql":
        state = {"state": request.getfixturevalue("postgres_url"), "schema": f"t_{new_ulid().lower()}"}
    opened = open_at(write_workspace(tmp_path, customers=10, **state))
    today = opened.context.contracts["campaign_daily"]
    kept = (today.fingerprint, "demo", "campaign_daily", "v1", today.body())
    ControlStore(opened.context.database, opened.context.now).store_contracts([kept])
    chosen = Selection(customers=tuple(customer_id(number) for number in range(1, FAILED + 1)))
    reject(opened, opened.plans.preview(chosen).items)
    yield opened
    opened.context.database.close()


def reject(ws: Workspace, items: Sequence[Planned]) -> None:
    """Attempt these partitions once; each attempt leaves a payload and fails."""
    workers = WorkerStore(ws.context.database, ws.context.now)
    token = workers.register()
    issued, _ = ControlStore(ws.context.database, ws.context.now).issue(new_run_id(), token, 0, items)
    verdicts = [builders.rejected(item.attempt, token, payload_digest="x") for item in issued]
    ValidatorStore(ws.context.database, ws.context.now).judge(verdicts)
    workers.stop(token)


def status(ws: Workspace, wanted: PartitionStatus) -> list[PartitionKey]:
    return [view.key for view in ws.context.state.views(ws.context.ranges(ALL), status=wanted, explicit=True)]


def log(ws: Workspace) -> list[tuple[int, str]]:
    return [(line["affected"], line["outcome"]) for line in ws.context.state.audit()][::-1]


def test_a_retry_of_many_partitions_moves_them_in_pages_under_one_act(ws: Workspace) -> None:
    failed = status(ws, PartitionStatus.FAILED)
    found = ws.operations.preview_retry(ALL, without_raw=False, listed=3)
    assert (found.total, found.keys) == (14, failed[:3])
    shares: list[float] = []
    assert ws.operations.retry(ALL, actor="kim", report=shares.append) == 14
    assert shares == [4 / 14, 8 / 14, 12 / 14, 1.0]
    assert status(ws, PartitionStatus.PENDING) == failed
    assert log(ws) == [(14, "begun"), (14, "done")]
    assert ws.operations.preview_retry(ALL, without_raw=False).total == 0


def test_a_retry_that_is_killed_between_pages_is_finished_by_the_next(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = status(ws, PartitionStatus.FAILED)

    def die(point: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(operations, "reach", die)
        with pytest.raises(KeyboardInterrupt):
            ws.operations.retry(ALL, actor="kim")
    assert status(ws, PartitionStatus.PENDING) == failed[:4]
    assert log(ws) == [(14, "begun")]
    assert ws.operations.retry(ALL, actor="kim") == 10
    assert status(ws, PartitionStatus.PENDING) == failed
    assert log(ws) == [(14, "begun"), (10, "begun"), (10, "done")]


def test_a_retry_moves_only_what_was_counted_before_the_confirmation(ws: Workspace) -> None:
    """More partitions fail, and another process retries one, while the operator reads the preview."""
    failed = status(ws, PartitionStatus.FAILED)
    found = ws.operations.preview_retry(ALL, without_raw=False)
    later = open_at(ws.settings.root, ws.context.now() + timedelta(seconds=1))
    reject(later, [item for item in later.plans.preview(ALL).items if item.key not in failed][:3])
    assert later.operations.retry(Selection(keys=tuple(failed[:1])), without_raw=True, actor="kim") == 1
    assert later.operations.retry(ALL, actor="kim", preview=found) == 13
    assert status(ws, PartitionStatus.PENDING) == failed
    assert len(status(ws, PartitionStatus.FAILED)) == 3
    assert (
        later.operations.retry(ALL, actor="kim", preview=RetryPreview(0, ws.context.now() + timedelta(days=1), total=2))
        == 2
    )
    later.context.database.close()


BY_STATUS = Selection(status=PartitionStatus.FAILED)
BY_KEYS = Selection(keys=tuple(key(number, day) for number in range(1, FAILED + 1) for day in DAYS))


def paused(ws: Workspace) -> list[PartitionKey]:
    return [view.key for view in ws.context.state.views(ws.context.ranges(ALL), paused=True)]


@pytest.mark.parametrize("chosen", [BY_STATUS, BY_KEYS], ids=["status", "keys"])
def test_many_partitions_are_paused_and_resumed_in_pages_under_one_act(ws: Workspace, chosen: Selection) -> None:
    failed = status(ws, PartitionStatus.FAILED)
    assert ws.operations.pause(chosen, reason="why", actor="ada") == 14
    assert paused(ws) == failed
    assert ws.operations.pause(chosen, reason="why", actor="ada") is None
    ws.operations.pause(ALL, actor="ada")
    assert ws.operations.resume(chosen, actor="ada") == 14
    assert set(paused(ws)) == {view.key for view in ws.context.state.views(ws.context.ranges(ALL))} - set(failed)
    assert ws.operations.resume(chosen, actor="ada") is None
    assert log(ws) == [(14, "begun"), (14, "done"), (6, "done"), (14, "begun"), (14, "done")]


def test_a_pause_or_resume_that_is_killed_between_pages_is_finished_by_the_next(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = status(ws, PartitionStatus.FAILED)

    def die(point: str) -> None:
        raise KeyboardInterrupt

    def killed(act: Callable[[], object]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(operations, "reach", die)
            with pytest.raises(KeyboardInterrupt):
                act()

    killed(lambda: ws.operations.pause(BY_STATUS, actor="ada"))
    assert paused(ws) == failed[:4]
    assert ws.operations.pause(BY_STATUS, actor="ada") == 10
    killed(lambda: ws.operations.resume(BY_STATUS, actor="ada"))
    assert paused(ws) == failed[4:]
    assert ws.operations.resume(BY_STATUS, actor="ada") == 10
    assert paused(ws) == []
    assert log(ws) == [(14, "begun"), (10, "begun"), (10, "done")] * 2


def failed_backfill(ws: Workspace) -> Backfill:
    """A backfill in which all fourteen partitions failed."""
    shape = {"chunk_size": 10, "priority": 3, "max_chunks": 2}
    made = ws.backfills.plan(ALL, reprocess=False, actor="ada", **shape)
    ws.context.backfills.create(made, audit_entry())
    ws.operations.retry(Selection(keys=tuple(status(ws, PartitionStatus.FAILED))), without_raw=True, actor="kim")
    chosen = [item for item in ws.plans.preview(ALL).items if item.reason == "requeued"]
    reject(ws, [replace(item, reason=AttemptReason.BACKFILL, backfill_id=made.backfill_id) for item in chosen])
    return made


def test_a_retry_of_a_backfill_reads_and_moves_its_failures_in_pages(ws: Workspace) -> None:
    old, before = failed_backfill(ws), len(log(ws))
    failed = status(ws, PartitionStatus.FAILED)
    found = ws.backfills.preview_retry(old.backfill_id, without_raw=False, listed=3)
    assert (found.total, found.keys) == (14, failed[:3])
    new = ws.backfills.retry_failed(old.backfill_id, actor="kim")
    assert status(ws, PartitionStatus.PENDING) == failed
    assert log(ws)[before:] == [(14, "begun"), (14, "done"), (14, "done")]
    made = ws.backfills.get(new)
    assert (made.selector, made.total, made.priority, made.created_by) == ({"retry_of": old.backfill_id}, 14, 3, "kim")
    assert ws.backfills.retry_failed(old.backfill_id, actor="kim") == new


def test_a_retry_of_a_backfill_that_is_killed_is_finished_by_the_next(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = failed_backfill(ws)
    failed = status(ws, PartitionStatus.FAILED)

    def die(*arguments: object) -> None:
        raise KeyboardInterrupt

    for place, name, moved in ((operations, "reach", 4), (type(ws.context.backfills), "create", 14)):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, die)
            with pytest.raises(KeyboardInterrupt):
                ws.backfills.retry_failed(old.backfill_id, actor="kim")
        assert status(ws, PartitionStatus.PENDING) == failed[:moved]
        assert len(ws.backfills.all()) == 1
    assert ws.backfills.preview_retry(old.backfill_id, without_raw=False).total == 14
    new = ws.backfills.retry_failed(old.backfill_id, actor="kim")
    assert ws.backfills.get(new).total == 14


def test_one_page_is_one_transaction_with_its_line(ws: Workspace) -> None:
    some = Selection(customers=(customer_id(1), customer_id(2)))
    assert ws.operations.retry(some, actor="kim") == 4
    assert log(ws) == [(4, "done")]


def test_terminal_partitions_and_what_waits_are_found_in_pages(ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    views = ws.context.state.views

    def counted(*arguments: object, **options: object) -> object:
        found = views(*arguments, **options)  # type: ignore[arg-type]
        held.append(len(found))
        return found

    marked = status(ws, PartitionStatus.FAILED)[::2]
    ws.context.marks.mark_terminal(marked, None, audit_entry(command="state mark-terminal"))
    monkeypatch.setattr(ws.context.state, "views", counted)
    assert [view.key for view, _ in ws.partitions.terminal(ALL)] == marked
    assert [view.key for view, _ in ws.partitions.terminal(ALL, after=marked[1], limit=3)] == marked[2:5]
    assert ws.partitions.terminal_count(ALL) == len(marked)
    held.clear()
    assert ws.partitions.held_up(ALL)["terminal"] + ws.partitions.held_up(ALL)["operator"] == 14
    assert max(held) <= 5


def test_what_was_demoted_since_a_snapshot_is_found_by_an_index(ws: Workspace) -> None:
    statement = demoted_since("demo", "campaign_daily", NOW)
    with ws.context.database.snapshot() as connection:
        if (
            ws.context.database.dialect == "postgresql"
        ):  # a table of few rows is read as a whole unless that is forbidden
            connection.execute(sa.text("SET LOCAL enable_seqscan = off"))
        explain = "EXPLAIN QUERY PLAN " if ws.context.database.dialect == "sqlite" else "EXPLAIN "
        text = str(statement.compile(connection, compile_kwargs={"literal_binds": True}))
        plan = "\n".join(str(row) for row in connection.execute(sa.text(explain + text.replace(":", r"\:"))))
    assert "demoted_attempts" in plan, plan
    assert schema.partition_attempt.name in plan
