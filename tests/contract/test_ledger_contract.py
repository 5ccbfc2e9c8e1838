"""The ledger and its projections, on both databases: no event is skipped, none counts twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from penstock.control.export import export_before
from penstock.control.plan import ASKED_FOR
from penstock.control.rescue import close_own_attempts, end_cancelled
from penstock.control.resume import left_over, outdated_closings, reasons_of, still_current
from penstock.control.unfinished import left_of, unfinished_runs
from penstock.db import schema
from penstock.errors import ActRefused, ErrorClass, LeaseLost, PenstockError
from penstock.flow.graph import Graph
from penstock.flow.run_state import RunState
from penstock.lake import Lake
from penstock.lake.protocol import LakeUnavailable
from penstock.ledger.append import append
from penstock.ledger.events import (
    AuthorityChanged,
    Event,
    PartitionHidden,
    PlanCreated,
    RunCancelRequested,
    RunFinished,
    SlicesExtracted,
)
from penstock.ledger.segments import SegmentDamaged
from penstock.lifecycle import Act, Outcome, Stage
from penstock.partition import AttemptKey, PartitionKey, RunId, new_run_id
from penstock.partition_set import compact_ranges
from penstock.projections import event_page, projector
from penstock.projections.fact import START
from penstock.projections.manifest import ProjectionsLost
from penstock.projections.run_page import run_page
from penstock.projections.runs import FoldedRun
from penstock.projections.system_tables import SystemTable
from penstock.state.inputs import InputStore
from penstock.state.records import Consumed, Issued, Verdict
from support import builders
from support.builders import BACKENDS, accepted, audit_entry, key, rejected
from support.ledger_harness import LedgerHarness, attempt
from support.workspaces import customer_id, open_at, write_workspace


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


# --- reading ---------------------------------------------------------------------------------------------------------


def test_a_batch_that_is_delivered_twice_changes_nothing(harness: LedgerHarness) -> None:
    events: list[Event] = [RunCancelRequested(new_run_id(), "ada"), RunFinished(new_run_id(), "done")]
    tell = lambda connection: append(connection, events, "control", builders.NOW)  # noqa: E731
    assert harness.actors.database.transact(tell) == 2
    before = harness.ledger.after(START, 100)
    assert harness.actors.database.transact(tell) == 0
    assert harness.ledger.after(START, 100) == before


def test_pages_hold_every_event_once_and_in_order(harness: LedgerHarness) -> None:
    harness.start(1, 2, 3)
    everything, end = harness.ledger.after(START, 1000)
    found, cursor = [], START
    while True:
        page, cursor = harness.ledger.after(cursor, 1)
        if not page:
            break
        found += page
    assert (found, cursor) == (everything, end)
    assert len({fact.event_id for fact in found}) == len(found) > 0


@pytest.mark.parametrize("harness", ["postgresql"], indirect=True)
@pytest.mark.parametrize("late_first", [True, False], ids=["numbered first", "numbered last"])
def test_an_event_that_commits_late_is_not_skipped(harness: LedgerHarness, late_first: bool) -> None:
    """One append is held open while another commits, with a lower or a higher transaction number than that one. (SQLite
    has one writer at a time: there the second append waits for the first.)"""
    database = harness.actors.database
    slow, quick = new_run_id(), new_run_id()
    open_now, go_on = threading.Event(), threading.Event()
    number = sa.text("SELECT pg_current_xact_id()")

    def hold(connection: sa.Connection) -> None:
        append(connection, [RunFinished(slow, "done")], "control", builders.NOW)
        open_now.set()
        assert go_on.wait(20)

    def tell_quickly(connection: sa.Connection) -> None:
        connection.execute(number)  # from here on the quick one has the lower transaction number ...
        if not late_first:
            thread.start()
            assert open_now.wait(20)  # ... but the slow one takes the lower position
        append(connection, [RunFinished(quick, "done")], "control", builders.NOW)

    thread = threading.Thread(target=lambda: database.transact(hold))
    if late_first:
        thread.start()
        assert open_now.wait(20)
    database.transact(tell_quickly)
    first, cursor = harness.ledger.after(START, 100)
    listed = harness.ledger.tail(100, after=0)
    go_on.set()
    thread.join()
    second, _ = harness.ledger.after(cursor, 100)
    assert sorted(fact.run_id or "" for fact in [*first, *second]) == sorted([slow, quick])
    assert slow in {fact.run_id for fact in second}
    position = listed[-1]["position"] if listed else 0
    later = harness.ledger.tail(100, after=position)
    assert [event["run_id"] for event in listed] == [fact.run_id for fact in first]
    assert [event["run_id"] for event in later] == [fact.run_id for fact in second]


def test_events_are_listed_after_any_position_in_order(harness: LedgerHarness) -> None:
    def withdraw(connection: sa.Connection) -> None:
        append(connection, [RunFinished(new_run_id(), "done")], "control", builders.NOW)
        raise KeyError("PostgreSQL does not assign this position again")

    harness.start(1)
    with pytest.raises(KeyError):
        harness.actors.database.transact(withdraw)
    harness.start(2, 3)
    everything = harness.ledger.tail(1000)
    found: list[dict[str, Any]] = []
    while page := harness.ledger.tail(1, after=found[-1]["position"] if found else 0):
        found += page
    assert found == everything
    last = everything[-1]["position"]
    assert last > len(everything) or harness.actors.database.dialect == "sqlite"
    for position in range(last + 2):
        expected = [event for event in everything if event["position"] > position]
        assert harness.ledger.tail(1000, after=position) == expected


def test_events_of_a_type_are_returned_once_with_the_cursor_after_all_events(harness: LedgerHarness) -> None:
    run_id = harness.start(1, 2)
    harness.actors.control.finish_run(run_id, harness.actors.token, {}, "broken")
    found, cursor = harness.ledger.of_types(START, ("RunFinished",))
    assert [(fact.run_id, fact.payload["end"]) for fact in found] == [(run_id, "broken")]
    assert cursor == harness.ledger.newest()
    harness.start(3)
    assert harness.ledger.of_types(cursor, ("RunFinished",)) == ([], harness.ledger.newest())
    assert harness.ledger.of_types(harness.ledger.newest(), ("RunFinished",)) == ([], harness.ledger.newest())


@pytest.mark.parametrize("harness", ["postgresql"], indirect=True)
def test_events_of_a_type_are_not_skipped_while_an_older_transaction_is_open(harness: LedgerHarness) -> None:
    database, slow, quick = harness.actors.database, new_run_id(), new_run_id()
    _, cursor = harness.ledger.of_types(START, ("RunFinished",))
    with database.engine.begin() as held:
        append(held, [RunFinished(slow, "broken")], "control", builders.NOW)
        database.transact(lambda c: append(c, [RunFinished(quick, "broken")], "control", builders.NOW))
        first, cursor = harness.ledger.of_types(cursor, ("RunFinished",))
    second, _ = harness.ledger.of_types(cursor, ("RunFinished",))
    assert sorted(fact.run_id or "" for fact in [*first, *second]) == sorted([slow, quick])


def test_new_events_of_a_run_are_returned_at_once_and_none_is_lost(harness: LedgerHarness) -> None:
    run_id = harness.start(1, 2)
    first, cursor = harness.ledger.news_of_run(run_id, START)
    assert {fact.type for fact in first} == {"PlanCreated", "TaskStarted"}
    harness.actors.control.finish_run(run_id, harness.actors.token, {})
    second, _ = harness.ledger.news_of_run(run_id, cursor)
    assert "RunFinished" in {fact.type for fact in second}


# --- projections -----------------------------------------------------------------------------------------------------


def story(harness: LedgerHarness) -> Iterator[None]:
    """Things happen to three partitions, step by step."""
    actors = harness.actors
    first = harness.start(1, 2, 3)
    yield
    verdicts: list[Verdict] = [accepted(attempt(first, 1), actors.token), rejected(attempt(first, 2), actors.token)]
    actors.validator.judge(verdicts)
    yield
    actors.control.cancel([builders.cancelled(attempt(first, 3), actors.token)])
    actors.control.finish_run(first, actors.token, {}, "done")
    yield
    actors.clock.now += timedelta(hours=1)
    second = harness.start(1, 3)
    yield
    actors.validator.judge([rejected(attempt(second, 1), actors.token), accepted(attempt(second, 3), actors.token)])
    actors.control.finish_run(second, actors.token, {}, "done")
    yield


def test_step_by_step_from_scratch_and_over_the_news_is_all_the_same(harness: LedgerHarness) -> None:
    for _ in story(harness):
        over_the_news = harness.tables()
        harness.projector.advance()
        step_by_step = harness.tables()
        assert over_the_news == step_by_step
    harness.projector.rebuild()
    assert harness.tables() == step_by_step
    states = {row["partition_key"]: row for row in step_by_step["partition_status"]}
    one, two, three = (states[str(key(day))] for day in (1, 2, 3))
    assert (one["last_attempt_outcome"], one["available"]) == ("FAILED", True)
    assert one["last_materialization_run_id"] != one["last_attempt_run_id"]
    assert (two["last_attempt_outcome"], two["last_materialization_run_id"]) == ("FAILED", None)
    assert (three["last_attempt_outcome"], three["available"]) == ("SUCCEEDED", True)
    assert dict(one["partition_values"])["customer_id"] == "1000000001"
    assert {row["state"] for row in step_by_step["runs"]} == {"FAILED"}


def test_a_run_has_the_version_of_the_last_event_about_its_tasks_however_its_row_is_made(
    harness: LedgerHarness,
) -> None:
    """An acceptance also changes the authority of its partition; that event comes last and is no event of the run."""
    run_id = harness.start(1, 2)
    harness.projector.advance()
    harness.actors.validator.judge([accepted(attempt(run_id, 1), harness.actors.token)])
    told = harness.ledger.of_run(run_id)
    assert [fact.type for fact in told[-2:]] == ["TaskFinished", "AuthorityChanged"]
    found = [*harness.tables()["runs"]]
    harness.projector.advance()
    found += harness.tables()["runs"]
    harness.projector.rebuild()
    found += harness.tables()["runs"]
    assert [(row["row_version"], row["first_position"]) for row in found] == [(told[-2].event_id, told[0].position)] * 3


def test_an_event_about_a_partition_alone_is_no_event_of_a_run(harness: LedgerHarness) -> None:
    said: list[Event] = [AuthorityChanged(new_run_id(), key(1), 1, Act.ACCEPT), PartitionHidden(key(1), "batch")]
    harness.actors.database.transact(lambda c: append(c, said, "operator", builders.NOW))
    over_the_news = harness.tables()
    assert harness.projector.advance() == 2
    assert harness.tables() == over_the_news
    assert [len(over_the_news[name]) for name in ("runs", "tasks", "partition_status")] == [0, 0, 1]
    assert harness.projector.head.read()[1].runs == ()


@pytest.mark.parametrize("somebody_was_faster", [False, True])
def test_a_prefolded_run_is_not_folded_again_and_gives_the_same_rows(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch, somebody_was_faster: bool
) -> None:
    actors, run_id = harness.actors, harness.start(1, 2, 3)
    desk = RunState(run_id, harness.ledger.news_of_run)
    desk.refresh()
    actors.validator.judge([accepted(attempt(run_id, 1), actors.token), rejected(attempt(run_id, 2), actors.token)])
    if somebody_was_faster:  # it has folded events that this run state has not read
        harness.another_projector().advance()
    actors.control.cancel([builders.cancelled(attempt(run_id, 3), actors.token)])
    actors.control.finish_run(run_id, actors.token, {}, "done")
    with monkeypatch.context() as patch:
        patch.setattr(event_page, "FoldedRun", None)  # no run is folded again
        harness.projector.advance({run_id: desk.folded})
    prefolded = harness.tables()
    assert [row["state"] for row in prefolded["runs"]] == ["FAILED"]
    harness.projector.rebuild()
    assert harness.tables() == prefolded


def test_a_prefolded_run_that_is_not_over_is_folded_from_the_ledger(harness: LedgerHarness) -> None:
    """The prefolded run may be ahead of the page, or behind it."""
    run_id = harness.start(1, 2)

    def lend() -> FoldedRun:
        raise AssertionError("a run that goes on was taken from its lender")

    harness.projector.advance({run_id: lend})
    harness.actors.validator.judge([accepted(attempt(run_id, 1), harness.actors.token)])
    harness.another_projector().advance({run_id: lend})
    told = harness.tables()
    assert [row["state"] for row in told["runs"]] == ["RUNNING"]
    harness.projector.rebuild()
    assert harness.tables() == told


# --- one run on one page ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folded", [True, False], ids=["from files", "from news"])
def test_the_page_of_a_run_shows_what_failed_and_which_edges_hold_up_the_rest(
    harness: LedgerHarness, folded: bool
) -> None:
    harness.start(9)  # another run, which is on no page but its own
    run_id = harness.start(1, 2, 3)
    verdicts: list[Verdict] = [
        rejected(attempt(run_id, 2), harness.actors.token, stage=Stage.EXTRACT),
        accepted(attempt(run_id, 3), harness.actors.token),
    ]
    harness.actors.validator.judge(verdicts)
    if folded:
        harness.projector.advance()
    page = run_page(harness.current(), run_id)
    assert (page.run["run_id"], page.run["tasks_total"], page.kept) == (run_id, 9, True)
    assert {(row["stage"], row["state"]): row["tasks"] for row in page.stages} == {
        ("extract", "RUNNING"): 2, ("extract", "FAILED"): 1,
        ("validate", "BLOCKED"): 1, ("validate", "SKIPPED"): 1, ("validate", "SUCCEEDED"): 1,
        ("load", "BLOCKED"): 1, ("load", "SKIPPED"): 1, ("load", "READY"): 1,
    }  # fmt: skip
    assert [(row["task_key"], row["state"], row["error_class"]) for row in page.failed] == [
        (f"extract:{key(2)}", "FAILED", "data")
    ]
    found = [(row["upstream_task_key"], row["upstream_state"], row["state"], row["resolution"]) for row in page.blocked]
    assert found == [
        (f"extract:{key(1)}", "RUNNING", "BLOCKED", None),
        (f"extract:{key(2)}", "FAILED", "SKIPPED", "FAILED"),
        (f"validate:{key(1)}", "BLOCKED", "BLOCKED", None),
        (f"validate:{key(2)}", "SKIPPED", "SKIPPED", "SKIPPED"),
    ]
    assert [row["downstream_task_key"].partition(":")[0] for row in page.blocked] == ["validate"] * 2 + ["load"] * 2


def test_an_edge_from_a_task_of_no_plan_is_on_the_page_of_the_run_that_it_holds_up(harness: LedgerHarness) -> None:
    run_id, waiting = new_run_id(), "extract:models/all/m/2024-06-01"
    group = {"task": waiting, "name": "g", "rule": "all", "slices": compact_ranges([key(1)])}
    plan = PlanCreated(run_id, 0, tasks=[waiting], groups=[group])
    harness.actors.database.transact(lambda c: append(c, [plan], "control", builders.NOW))
    page = run_page(harness.current(), run_id)
    assert page.stages == [{"stage": "extract", "state": "BLOCKED", "tasks": 1}]
    assert [(row["upstream_task_key"], row["upstream_state"]) for row in page.blocked] == [(f"load:{key(1)}", None)]
    unheard = run_page(harness.current(), "01J00000000000000000000000")
    assert (unheard.run, unheard.stages, unheard.kept) == ({"run_id": "01J00000000000000000000000"}, [], False)


@pytest.mark.parametrize("folded", [0, 1, 2, 3], ids=["from news", "one in files", "two in files", "from files"])
def test_runs_are_listed_newest_first_and_before_one(harness: LedgerHarness, folded: int) -> None:
    runs = []
    for day in (1, 2, 3):
        runs.append(harness.start(day))
        if day <= folded:
            harness.projector.advance()
    current = harness.current()

    def before(run_id: str | None, limit: int) -> tuple[list[str], int]:
        rows, total = current.runs_before(run_id, limit)
        return [row["run_id"] for row in rows], total

    assert before(None, 10) == (runs[::-1], 3)
    assert before(None, 2) == ([runs[2], runs[1]], 3)
    assert before(runs[2], 1) == ([runs[1]], 3)
    assert before(runs[1], 5) == ([runs[0]], 3)
    assert before(runs[0], 5) == ([], 3)
    assert current.runs()["run_id"].to_pylist() == runs
    for run_id in runs:
        tasks = SystemTable("tasks", current.tasks(run_id)).arrow()
        edges = SystemTable("edges", current.dep_satisfaction(run_id)).arrow()
        assert ({*tasks["run_id"].to_pylist()}, len(tasks), len(edges)) == ({run_id}, 3, 2)
    assert len(SystemTable("tasks", current.tasks()).arrow()) == 9
    assert len(SystemTable("tasks", current.tasks("unheard")).arrow()) == 0


@pytest.mark.parametrize(("piece", "events"), [(1, 1), (1, 4), (2, 5), (3, 1000)])
@pytest.mark.parametrize("is_lent", [False, True])
def test_in_whatever_pieces_and_pages_events_are_read_the_tables_are_the_same(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch, piece: int, events: int, is_lent: bool
) -> None:
    for _ in story(harness):
        pass
    runs = {fact.run_id for fact in harness.ledger.after(START, 1000)[0] if fact.run_id}
    prefolded = {run: RunState(RunId(run), harness.ledger.news_of_run).folded for run in runs} if is_lent else {}
    with monkeypatch.context() as patch:
        patch.setattr(projector, "PIECE", piece)
        patch.setattr(projector, "PAGE", events)
        harness.projector.advance(prefolded)
        by_pieces = harness.tables()
        harness.projector.rebuild()
        assert harness.tables() == by_pieces
    harness.projector.rebuild()
    assert harness.tables() == by_pieces
    assert {row["state"] for row in by_pieces["runs"]} == {"FAILED"}


def test_two_who_advance_at_once_do_the_work_once(harness: LedgerHarness) -> None:
    for _ in story(harness):
        pass
    projectors = [harness.projector, harness.another_projector(), harness.another_projector()]
    with ThreadPoolExecutor(3) as pool:
        done = [future.result() for future in [pool.submit(projector.advance) for projector in projectors]]
    assert sum(done) == len(harness.ledger.after(START, 1000)[0])
    told = harness.tables()
    harness.another_projector().rebuild()
    assert harness.tables() == told


def test_a_finished_run_is_written_once_and_then_never_again(harness: LedgerHarness) -> None:
    for _ in story(harness):
        harness.projector.advance()
    _, before = harness.projector.head.read()
    harness.start(2)
    harness.projector.advance()
    _, after = harness.projector.head.read()
    assert all(after.parts[run] == parts for run, parts in before.parts.items())
    assert len(after.parts) == len(before.parts) + 1


def test_tasks_expire_by_retention_and_partition_status_never(harness: LedgerHarness) -> None:
    for _ in story(harness):
        harness.projector.advance()
    harness.actors.clock.now += timedelta(days=3650)  # run times come from ULIDs, which are of today
    before = harness.tables()
    harness.start(2)
    harness.projector.advance()
    after = harness.tables()
    assert {row["run_id"] for row in after["tasks"]} == {row["run_id"] for row in after["runs"]} - {
        row["run_id"] for row in before["runs"]
    }
    assert len(after["partition_status"]) == 3


def test_an_event_of_an_unknown_type_or_version_folds_to_nothing_and_is_counted(harness: LedgerHarness) -> None:
    run_id = harness.start(1)
    harness.projector.advance()
    before = harness.tables()

    class Unheard(RunFinished):
        type = "Unheard"

    class Newer(RunFinished):
        version = 9

    strange = [Unheard(run_id, "done"), Newer(run_id, "done")]
    harness.actors.database.transact(lambda c: append(c, strange, "control", builders.NOW))
    harness.projector.advance()
    assert harness.tables() == before
    assert harness.projector.head.read()[1].unknown == {"Unheard/1": 1, "RunFinished/9": 1}


def test_projections_that_are_missing_or_of_another_format_are_rebuilt(harness: LedgerHarness) -> None:
    for _ in story(harness):
        harness.projector.advance()
    told = harness.tables()
    for content in (None, b'{"format": 99}'):
        path = str(harness.projector.head.read()[0])
        harness.lake.delete([path])
        if content is not None:
            harness.lake.create(path, content)
        with pytest.raises(ProjectionsLost, match="ledger rebuild"):
            harness.current()
        harness.projector.rebuild()
        assert harness.tables() == told


def test_an_error_in_the_middle_leaves_nothing_out_afterwards(harness: LedgerHarness) -> None:
    """The second file of a page cannot be written; its events are folded again."""
    run_id = harness.start(1)
    harness.projector.advance()
    harness.actors.validator.judge([rejected(attempt(run_id, 1), harness.actors.token, stage=Stage.EXTRACT)])
    good = harness.projector.lake
    harness.projector.lake = _FullLake(good, "projections/runs/")
    with pytest.raises(LakeUnavailable):
        harness.projector.advance()
    harness.projector.lake = good
    harness.projector.advance()
    assert {row["task_key"].split(":")[0]: row["state"] for row in harness.tables()["tasks"]} == {
        "extract": "FAILED",
        "validate": "SKIPPED",
        "load": "SKIPPED",
    }


class _FullLake:
    """A lake that cannot take files of one folder."""

    def __init__(self, lake: Lake, folder: str) -> None:
        self._lake, self._folder = lake, folder

    def create(self, path: str, data: bytes) -> bool:
        if path.startswith(self._folder):
            raise LakeUnavailable("no space left")
        return self._lake.create(path, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lake, name)


def test_rebuilding_again_and_again_leaves_no_files_behind(harness: LedgerHarness) -> None:
    for _ in story(harness):
        harness.projector.advance()
    harness.projector.rebuild()
    counts = []
    for _ in range(3):
        harness.actors.clock.now += timedelta(hours=2)  # long enough for readers of the older manifest
        harness.projector.rebuild()
        counts.append(len(list(harness.lake.list("projections"))))
    assert counts[0] == counts[1] == counts[2]


@pytest.mark.parametrize("harness", ["postgresql"], indirect=True)
def test_a_ledger_that_was_restored_into_another_cluster_is_refused_then_settled(harness: LedgerHarness) -> None:
    for _ in story(harness):
        harness.projector.advance()
    told, database = harness.tables(), harness.actors.database

    def restore(connection: sa.Connection) -> None:  # a dump brings the numbers of the other cluster with it
        connection.exec_driver_sql("ALTER TABLE event DISABLE TRIGGER USER")
        connection.exec_driver_sql("UPDATE event SET transaction_id = transaction_id + 1000000000")
        connection.exec_driver_sql("ALTER TABLE event ENABLE TRIGGER USER")

    database.transact(restore)
    with pytest.raises(PenstockError, match="another PostgreSQL cluster"):
        harness.current()
    builders.migrated(database)
    harness.projector.rebuild()
    assert harness.tables() == told
    harness.start(2)
    assert len(harness.tables()["runs"]) == len(told["runs"]) + 1


# --- export ----------------------------------------------------------------------------------------------------------


def exported(harness: LedgerHarness, *, rehearsal: bool = False) -> int:
    database, lake, clock = harness.actors.database, harness.lake, harness.actors.clock
    entry = audit_entry(command="ledger export")
    folded = harness.projector.head.read()[1].cursor
    found = export_before(database, lake, harness.ledger, clock.now, folded, entry, clock.now, rehearsal=rehearsal)
    return int(found["events"])


def test_exported_events_leave_the_database_and_a_rebuild_reads_both(harness: LedgerHarness) -> None:
    for _ in story(harness):
        harness.projector.advance()
    harness.actors.clock.now += timedelta(days=1)
    told = harness.tables()
    total = len(harness.ledger.after(START, 1000)[0])
    newest = harness.ledger.after(START, 1000)[0][-1]
    assert exported(harness, rehearsal=True) == total - 1
    assert exported(harness) == total - 1
    assert harness.ledger.after(START, 1000)[0] == [newest]
    harness.start(2)
    harness.projector.rebuild()
    after = harness.tables()
    assert [row for row in after["tasks"] if row["run_id"] in {r["run_id"] for r in told["runs"]}] == told["tasks"]
    [line] = harness.actors.reader.audit()
    assert (line["command"], line["affected"]) == ("ledger export", total - 1)


def test_positions_go_on_after_everything_was_exported(harness: LedgerHarness) -> None:
    """SQLite numbers on from the largest position in the table: without the newest event it would begin again at 1."""
    for _ in story(harness):
        harness.projector.advance()
    harness.actors.clock.now += timedelta(days=1)
    last = harness.ledger.after(START, 1000)[0][-1].position
    exported(harness)
    run_id = harness.start(2)
    assert min(fact.position for fact in harness.ledger.of_run(run_id)) > last
    harness.projector.advance()
    assert run_id in {row["run_id"] for row in harness.tables()["runs"]}
    told = harness.tables()
    harness.projector.rebuild()
    assert harness.tables() == told


def test_events_of_a_run_that_is_not_over_are_not_exported(harness: LedgerHarness) -> None:
    run_id = harness.start(1)
    harness.actors.clock.now += timedelta(days=1)
    assert exported(harness) == 0
    assert harness.ledger.of_run(run_id)


def test_events_that_are_not_exported_cannot_be_deleted(harness: LedgerHarness) -> None:
    harness.start(1)
    with pytest.raises(PenstockError, match="append-only"):
        harness.actors.database.transact(lambda connection: connection.execute(sa.delete(schema.event)))


def test_a_segment_that_was_changed_is_refused(harness: LedgerHarness) -> None:
    for _ in story(harness):
        pass
    harness.actors.clock.now += timedelta(days=1)
    assert exported(harness) == 0, "what the projections do not hold stays"
    harness.projector.advance()
    exported(harness)
    [entry] = harness.lake.list("ledger")
    with harness.lake.writer(entry.path) as writer:
        writer.write(b"something else")
        writer.commit()
    with pytest.raises(SegmentDamaged, match="was changed"):
        harness.projector.rebuild()


# --- consumed runs ---------------------------------------------------------------------------------------------------


def test_a_derived_partition_is_accepted_only_on_runs_that_are_still_trusted(harness: LedgerHarness) -> None:
    actors = harness.actors
    first = harness.start(1)
    actors.validator.judge([accepted(attempt(first, 1), actors.token)])
    derived = harness.start(5)
    inputs = InputStore(actors.database)
    inputs.record({attempt(derived, 5): [Consumed(key(1), first, f"content-{first}")]})
    verdict = accepted(attempt(derived, 5), actors.token)
    second = harness.start(1)
    actors.validator.judge([accepted(attempt(second, 1), actors.token)])  # the input changes meanwhile
    actors.validator.judge([verdict])
    [made] = actors.reader.attempts(key(5))
    assert (made.outcome, actors.reader.state(key(5))) == (Outcome.CANCELLED, None)

    again = harness.start(5)
    used = [Consumed(key(1), second, f"content-{second}")]
    assert inputs.record({attempt(again, 5): used}) == set()
    assert inputs.record({attempt(again, 5): used}) == set()
    later = [*used, Consumed(key(2), second, "later words of an attempt change nothing")]
    assert inputs.record({attempt(again, 5): later}) == {attempt(again, 5)}
    fresh = accepted(attempt(again, 5), actors.token)
    actors.validator.judge([fresh])
    actors.validator.judge([fresh])
    assert actors.reader.attempts(key(5))[0].outcome is Outcome.SUCCEEDED
    harness.projector.advance()
    [kept] = harness.current().consumed()
    rows = kept.to_table().to_pylist() if not isinstance(kept, pa.Table) else kept.to_pylist()
    assert [(row["run_id"], row["input_run_id"]) for row in rows] == [(again, second)]


# --- adopting --------------------------------------------------------------------------------------------------------


def test_a_run_is_adopted_only_when_its_worker_is_gone(harness: LedgerHarness) -> None:
    actors = harness.actors
    run_id = harness.start(1, 2)
    newcomer = actors.workers.register()
    with pytest.raises(PenstockError, match="is being worked on"):
        actors.control.adopt(run_id, newcomer)
    actors.workers.stop(actors.token)
    adopted = actors.control.adopt(run_id, newcomer)
    assert sorted(item.attempt.partition for item in adopted) == [key(1), key(2)]
    late = actors.validator.judge([accepted(attempt(run_id, 1), actors.token)])
    assert [refused.why for refused in late.refused] == ["the attempt belongs to another worker now"]
    assert actors.validator.judge([accepted(attempt(run_id, 1), newcomer)]).applied
    actors.control.cancel([builders.cancelled(attempt(run_id, 2), newcomer)])
    actors.control.finish_run(run_id, newcomer, {})
    with pytest.raises(PenstockError, match="is over"):
        actors.control.adopt(run_id, newcomer)
    assert Stage.EXTRACT in {a.stage for a in actors.reader.attempts(key(2))}


def test_a_worker_whose_run_was_taken_over_cannot_write_any_more(harness: LedgerHarness) -> None:
    actors = harness.actors
    run_id = harness.start(1)
    actors.workers.stop(actors.token)
    newcomer = actors.workers.register()
    actors.control.adopt(run_id, newcomer)
    before = builders.everything(actors.database)
    with pytest.raises(LeaseLost, match="taken over"):
        actors.control.issue(run_id, actors.token, "late", [builders.planned(key(2))])
    with pytest.raises(LeaseLost, match="taken over"):
        actors.control.record_event(run_id, actors.token, SlicesExtracted(run_id, {}, 1, "late"))
    assert actors.control.finish_run(run_id, actors.token, {}, "abandoned") is None
    assert builders.everything(actors.database) == before
    assert actors.control.finish_run(run_id, newcomer, {}) == "done"
    assert actors.control.finish_run(run_id, newcomer, {}) is None


def test_the_remaining_work_of_a_dead_run_follows_from_its_events_and_open_attempts(harness: LedgerHarness) -> None:
    """Day 1 has a verdict, day 2 was fetched, day 3 was dispatched, day 4 refused, day 5 never dispatched."""
    actors, run_id = harness.actors, new_run_id()
    keys = [key(day) for day in (1, 2, 3, 4, 5)]
    taken = actors.issue_one(key(4))
    actors.control.start_run(run_id, actors.token, "ada", {}, len(keys), Graph(keys).event(run_id))
    actors.control.issue(run_id, actors.token, "one", [builders.planned(key(day)) for day in (1, 2, 3, 4)])
    actors.control.record_event(
        run_id, actors.token, SlicesExtracted(run_id, compact_ranges([key(1), key(2)]), 1, "one")
    )
    actors.validator.judge([accepted(attempt(run_id, 1), actors.token)])
    actors.workers.stop(actors.token)
    adopted = actors.control.adopt(run_id, actors.workers.register())
    assert sorted(item.attempt for item in adopted) == [attempt(run_id, 2), attempt(run_id, 3)]
    desk = RunState(run_id, harness.ledger.news_of_run)
    desk.refresh()
    found = left_over(desk, adopted)
    assert found.unissued == [key(5)]
    assert [item.attempt for item in found.fetched] == [attempt(run_id, 2)]
    assert taken.run_id != run_id


def test_only_attempts_whose_contract_query_and_customer_are_as_they_were_go_on(tmp_path: Path) -> None:
    ws = open_at(write_workspace(tmp_path, customers=2))
    today = ws.context.contracts["campaign_daily"].fingerprint
    model = PartitionKey("models", "all", "campaign_daily", date(2024, 6, 1))
    mine = key(1, customer_id(1))

    def item(partition: PartitionKey, fingerprint: str = today) -> Issued:
        return Issued(AttemptKey(partition, new_run_id()), 1, fingerprint, None)

    same, another = item(mine), item(key(2, customer_id(1)), "another contract")
    no_query, no_customer, of_model = item(key(1, customer_id(1), "gone")), item(key(1, "9999999999")), item(model)
    current, outdated = still_current(
        [another, same, no_query, no_customer, of_model], ws.settings, ws.context.contracts
    )
    assert (current, outdated) == ([same, of_model], [another, no_query, no_customer])
    closings = outdated_closings(outdated, "token")
    assert [(one.attempt, one.worker_token, one.lost) for one in closings] == [
        (one.attempt, "token", False) for one in outdated
    ]
    assert {(one.stage, one.error_class) for one in closings} == {(Stage.EXTRACT, ErrorClass.CONFIG)}


def test_killed_runs_with_reprocess_are_unfinished_while_partitions_of_them_are_left(harness: LedgerHarness) -> None:
    """Each run planned two days; the first of them was judged before it died."""
    actors = harness.actors

    def killed(first: int, end: str | None, **filters: Any) -> RunId:
        run_id, keys = new_run_id(), [key(first), key(first + 1)]
        actors.control.start_run(run_id, actors.token, "ada", filters, 2, Graph(keys).event(run_id))
        actors.control.issue(run_id, actors.token, "one", actors.plan(*keys))
        actors.validator.judge([accepted(attempt(run_id, first), actors.token)])
        actors.control.cancel([builders.cancelled(attempt(run_id, first + 1), actors.token)])
        if end:
            actors.control.finish_run(run_id, actors.token, {}, end)
        return run_id

    actors.accept(key(2))  # a verdict from before the runs
    actors.clock.now += timedelta(hours=1)
    done = killed(11, "done", reprocess=True)
    abandoned, broken = killed(1, "abandoned", reprocess=True), killed(3, "broken", reprocess=True)
    stopped, plain = killed(5, "abandoned", reprocess=True), killed(7, "abandoned")
    actors.control.request_cancel(stopped, audit_entry(), even_if_over=True)
    resumed = killed(9, "abandoned", reprocess=True)
    killed(13, None, reprocess=True)
    again = killed(15, "abandoned", reprocess=True, resumes=resumed)
    found = unfinished_runs(actors.reader, harness.ledger)
    assert [(run.run_id, run.planned, run.keys) for run in found] == [
        (abandoned, 2, (key(2),)), (broken, 2, (key(4),)), (again, 2, (key(16),)),
    ]  # fmt: skip
    assert f"run {broken} (reprocess, 1 of 2 partitions not done)" in found[1].message
    assert {done, plain, stopped, resumed}.isdisjoint(run.run_id for run in found)
    actors.reject(key(4))
    assert [run.run_id for run in unfinished_runs(actors.reader, harness.ledger)] == [abandoned, again]
    assert left_of(actors.reader, harness.ledger, plain) == [key(8)]
    assert left_of(actors.reader, harness.ledger, new_run_id()) == []


def test_a_resumed_run_has_the_reasons_it_had_and_a_round_is_not_resumed() -> None:
    assert reasons_of({}) == reasons_of({"reprocess": False, "round": False}) == ASKED_FOR
    assert reasons_of({"reprocess": True}) == (*ASKED_FOR, "success")
    with pytest.raises(ActRefused, match="a round of the control loop is not resumed"):
        reasons_of({"round": True})


def test_what_a_live_worker_left_when_its_round_broke_is_closed_by_itself(harness: LedgerHarness) -> None:
    actors = harness.actors
    run_id = harness.start(1, 2)
    assert close_own_attempts(actors.workers, actors.control, actors.token) == 2
    assert {(a.outcome, a.lost_count) for a in actors.reader.attempts(key(1))} == {(Outcome.CANCELLED, 0)}
    [run] = harness.tables()["runs"]
    assert (run["run_id"], run["state"]) == (run_id, "FAILED")


def test_a_cancel_comes_before_the_end_of_a_run_or_is_refused(harness: LedgerHarness) -> None:
    """In the first case the run ends as cancelled, so that no other run of its command begins."""
    actors = harness.actors
    first, second = harness.start(1), harness.start(2)
    assert actors.control.request_cancel(first, builders.audit_entry()) is True
    assert actors.control.request_cancel(first, builders.audit_entry()) is True
    lines = [(line["affected"], line["outcome"]) for line in actors.reader.audit()]
    assert lines == [(0, "asked for before"), (1, "done")]
    assert actors.control.finish_run(first, actors.token, {}) == "cancelled"
    assert actors.control.finish_run(second, actors.token, {}) == "done"
    before = builders.everything(actors.database)
    assert actors.control.request_cancel(second, builders.audit_entry()) is False
    assert builders.everything(actors.database) == before


def test_cancelling_a_dead_run_closes_it_and_no_other(harness: LedgerHarness) -> None:
    actors = harness.actors
    first, second = harness.start(1), harness.start(2)
    actors.workers.stop(actors.token)
    end_cancelled(actors.workers, actors.control, second)
    states = {row["run_id"]: row["state"] for row in harness.tables()["runs"]}
    assert states == {first: "RUNNING", second: "CANCELLED"}
    [closed], [waiting] = actors.reader.attempts(key(2)), actors.reader.attempts(key(1))
    assert (closed.outcome, closed.lost_count, waiting.outcome) == (Outcome.CANCELLED, 0, None)
