"""Pauses by selector through the workspace, on both databases: cost, scope and end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from penstock.app import Workspace
from penstock.control.select import Selection
from penstock.db import schema
from penstock.lifecycle import PartitionStatus, PlanReason
from penstock.partition import new_run_id, new_ulid
from penstock.state.control import ControlStore
from penstock.state.pause_selectors import read_selectors
from penstock.state.validator import ValidatorStore
from penstock.state.worker import WorkerStore
from support import builders
from support.builders import BACKENDS, audit_entry
from support.workspaces import NOW, customer_id, key, open_at, write_workspace

CUSTOMERS, DAYS = 100, 365
FIRST = date(2023, 6, 12)  # of the 365 days that are over
PAUSE, RESUME = audit_entry(command="state pause", actor="kim"), audit_entry(command="state resume")
ALL = Selection(source="demo")
MINE = Selection(customers=(customer_id(1),))


@pytest.fixture(params=BACKENDS)
def ws(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workspace]:
    state = {}
    if request.param == "postgresql":
        state = {"state": request.getfixturevalue("postgres_url"), "schema": f"t_{new_ulid().lower()}"}
    query = {"start_date": FIRST.isoformat()}
    folder = write_workspace(tmp_path, customers=CUSTOMERS, query=query, **state)
    opened = open_at(folder)
    yield opened
    opened.context.database.close()


def reasons(ws: Workspace, selection: Selection = ALL) -> dict[PlanReason, int]:
    return ws.context.state.reasons(ws.context.ranges(selection), ws.context.now(), {})


def rows(ws: Workspace, table: sa.Table) -> int:
    with ws.context.database.snapshot() as connection:
        return int(connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0)


def marked(ws: Workspace) -> int:
    """How many partitions have a mark of their own."""
    table = schema.partition_control
    with ws.context.database.snapshot() as connection:
        found = sa.select(sa.func.count()).select_from(table).where(table.c.paused_at.is_not(None))
        return int(connection.scalar(found) or 0)


def fail(ws: Workspace, *numbers: int) -> None:
    """The first day of these customers is attempted and rejected."""
    control, workers = (
        ControlStore(ws.context.database, ws.context.now),
        WorkerStore(ws.context.database, ws.context.now),
    )
    body = ws.context.contracts["campaign_daily"]
    control.store_contracts([(body.fingerprint, "demo", "campaign_daily", "v1", body.body())])
    token = workers.register()
    wanted = Selection(keys=tuple(key(number, FIRST.isoformat()) for number in numbers))
    issued, _ = control.issue(new_run_id(), token, 0, ws.plans.preview(wanted).items)
    ValidatorStore(ws.context.database, ws.context.now).judge(
        [builders.rejected(item.attempt, token) for item in issued]
    )
    workers.stop(token)


def test_a_pause_of_36_500_pending_partitions_is_one_row(ws: Workspace) -> None:
    assert ws.operations.pause(ALL, reason="the account moves", actor="kim") == CUSTOMERS * DAYS == 36_500
    assert (rows(ws, schema.pause_selector), rows(ws, schema.partition_control)) == (1, 0)
    assert reasons(ws) == {"paused": CUSTOMERS * DAYS}
    assert ws.operations.pause(ALL, reason="again", actor="kim") is None
    [line] = ws.context.state.audit()
    assert (line["command"], line["actor"], line["affected"], line["outcome"]) == ("state pause", "kim", 36_500, "done")
    [view] = ws.context.state.views(ws.context.ranges(Selection(keys=(key(7),))))
    assert (view.control.paused_at, view.control.paused_by) == (NOW, "kim")
    assert view.control.paused_reason == "the account moves"
    why = ws.partitions.why(key(7))
    assert "paused by kim: the account moves" in why.blocks
    assert why.next == f"nothing until `penstock state resume {key(7)}`"
    assert ws.plans.preview(ALL).paused == ws.partitions.held_up(ALL)["paused"] == 36_500
    assert ws.operations.resume(ALL, actor="ada") == 36_500
    assert reasons(ws) == {"missing": 36_500}
    assert ws.operations.resume(ALL, actor="ada") is None


def test_a_part_of_a_pause_is_resumed_and_the_rest_stays_paused(ws: Workspace) -> None:
    ws.operations.pause(ALL, reason="why", actor="kim")
    week = Selection(since=FIRST, until=FIRST + timedelta(days=6), customers=(customer_id(1), customer_id(2)))
    assert ws.operations.resume(week, actor="ada") == 14
    one = Selection(keys=(key(3, "2024-01-05"),))
    assert ws.operations.resume(one, actor="ada") == 1
    assert ws.operations.resume(one, actor="ada") is None
    assert reasons(ws) == {"missing": 15, "paused": 36_485}
    assert ws.context.state.count(ws.context.ranges(ALL), paused=True) == 36_485
    assert {view.key.customer_id for view in ws.context.state.views(ws.context.ranges(week), paused=False)} == set(
        week.customers
    )
    assert ws.operations.pause(ALL, reason="all again", actor="kim") == 15
    assert reasons(ws) == {"paused": 36_500}


def test_a_pause_holds_for_days_that_come_later_unless_it_has_an_end(ws: Workspace) -> None:
    ws.operations.pause(MINE, actor="kim")
    ws.operations.pause(Selection(customers=(customer_id(2),), until=NOW.date()), actor="kim")
    later = open_at(ws.settings.root, NOW + timedelta(days=3))
    both = Selection(customers=(customer_id(1), customer_id(2)), since=NOW.date())
    assert reasons(later, both) == {"paused": 4, "missing": 2}
    later.context.database.close()


def test_what_was_planned_before_the_pause_is_not_issued(ws: Workspace) -> None:
    fail(ws, 5)
    plan = ws.plans.preview(Selection(keys=(key(1), key(2))))
    ws.operations.pause(MINE, actor="kim")
    control, workers = (
        ControlStore(ws.context.database, ws.context.now),
        WorkerStore(ws.context.database, ws.context.now),
    )
    issued, refused = control.issue(new_run_id(), workers.register(), 0, plan.items)
    assert [item.attempt.partition for item in issued] == [key(2)]
    assert [item.attempt.partition for item in refused] == [key(1)]


def test_pauses_of_single_partitions_stay_valid_and_end_with_their_selector(ws: Workspace) -> None:
    """A database from before the selectors contains such rows."""
    assert ws.context.marks.pause([key(1), key(2)], "one by one", PAUSE) == 2
    assert ws.operations.pause(MINE, reason="all of it", actor="kim") == DAYS - 1
    assert reasons(ws)[PlanReason.PAUSED] == DAYS + 1
    [view] = ws.context.state.views(ws.context.ranges(Selection(keys=(key(1),))))
    assert view.control.paused_reason == "one by one"
    assert ws.operations.resume(MINE, actor="ada") == DAYS
    assert reasons(ws)[PlanReason.PAUSED] == 1
    assert ws.operations.resume(Selection(keys=(key(2),)), actor="ada") == 1
    assert reasons(ws) == {"missing": 36_500}


def test_a_pause_by_status_names_the_partitions_that_have_it_now(ws: Workspace) -> None:
    fail(ws, 1, 2)
    failed = Selection(status=PartitionStatus.FAILED)
    assert ws.operations.pause(failed, actor="kim") == 2
    fail(ws, 3)
    assert reasons(ws)[PlanReason.PAUSED] == 2
    pending = Selection(status=PartitionStatus.PENDING, customers=(customer_id(1),))
    assert ws.operations.pause(pending, actor="kim") == DAYS - 1
    assert (rows(ws, schema.pause_selector), marked(ws)) == (1, 2)
    assert ws.operations.pause(pending, actor="kim") is None
    assert ws.operations.resume(failed, actor="ada") == 2
    assert reasons(ws) == {"paused": DAYS - 1, "failed": 3, "missing": 36_500 - DAYS - 2}
    assert marked(ws) == 0
    assert ws.operations.resume(failed, actor="ada") is None
    assert [line["affected"] for line in ws.context.state.audit()] == [2, DAYS - 1, 2]


def test_a_resume_by_status_inside_a_pause_leaves_the_rest_paused(ws: Workspace) -> None:
    fail(ws, 1, 2, 3)
    failed = Selection(status=PartitionStatus.FAILED)
    assert ws.operations.pause(Selection(customers=(customer_id(1),), status=failed.status), actor="kim") == 1
    assert ws.operations.pause(ALL, actor="kim") == 36_499
    assert ws.operations.resume(failed, actor="ada") == 3
    assert (reasons(ws), marked(ws)) == ({"failed": 3, "paused": 36_497}, 0)
    assert ws.operations.resume(failed, actor="ada") is None
    assert ws.operations.resume(ALL, actor="ada") == 36_497
    with ws.context.database.snapshot() as connection:
        assert read_selectors(connection) == []


def test_a_repeated_resume_of_a_part_is_no_act(ws: Workspace) -> None:
    ws.operations.pause(Selection(queries=("campaign_daily",)), actor="kim")
    day = Selection(queries=("campaign_daily",), since=FIRST, until=FIRST)
    assert ws.operations.resume(day, actor="ada") == CUSTOMERS
    before = rows(ws, schema.pause_selector)
    for again in (day, day, replace(day, customers=(customer_id(1),))):
        assert ws.operations.resume(again, actor="ada") is None
    assert (rows(ws, schema.pause_selector), len(ws.context.state.audit())) == (before, 2)
    assert reasons(ws) == {"missing": CUSTOMERS, "paused": 36_500 - CUSTOMERS}
