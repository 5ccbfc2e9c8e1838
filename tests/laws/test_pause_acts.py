"""Pauses and resumes of every kind, in any order, against a model that enumerates every partition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock.app import Workspace, operations
from penstock.control.select import Selection
from penstock.db import schema
from penstock.lifecycle import PartitionStatus
from penstock.partition import PartitionKey, new_run_id, new_ulid
from penstock.state.control import ControlStore
from penstock.state.validator import ValidatorStore
from penstock.state.worker import WorkerStore
from support import builders
from support.builders import BACKENDS, audit_entry
from support.workspaces import customer_id, key, open_at, write_workspace

CUSTOMERS = 3
DAYS = [date(2024, 6, 5) + timedelta(days=number) for number in range(6)]  # all that are over
KEYS = [key(number, day.isoformat()) for number in range(1, CUSTOMERS + 1) for day in DAYS]
FAILED = {one for number, one in enumerate(KEYS) if number % 3 != 1}
ALL, QUERY = Selection(), Selection(queries=("campaign_daily",))
PAUSE, RESUME = audit_entry(command="state pause"), audit_entry(command="state resume")

some_customers = st.lists(st.sampled_from([customer_id(n + 1) for n in range(CUSTOMERS)]), max_size=2, unique=True)
any_filters: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "source": st.sampled_from((None, "demo")),
        "customers": some_customers.map(tuple),
        "queries": st.sampled_from(((), ("campaign_daily",))),
        "since": st.none() | st.sampled_from(DAYS),
        "until": st.none() | st.sampled_from(DAYS),
        "status": st.sampled_from((None, None, PartitionStatus.FAILED, PartitionStatus.PENDING)),
    }
)
by_filters = any_filters.filter(
    lambda given: not (given["since"] and given["until"] and given["since"] > given["until"])
)
by_keys = st.lists(st.sampled_from(KEYS), min_size=1, max_size=8, unique=True).map(lambda keys: Selection(tuple(keys)))


def names(chosen: Selection, one: PartitionKey) -> bool:
    return (
        (not chosen.keys or one in chosen.keys)
        and (not chosen.customers or one.customer_id in chosen.customers)
        and (chosen.since or one.logical_date) <= one.logical_date <= (chosen.until or one.logical_date)
        and (chosen.status is None or (chosen.status is PartitionStatus.FAILED) == (one in FAILED))
    )


@pytest.fixture(params=BACKENDS)
def ws(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    """A workspace in which some partitions failed and the others are pending; pages hold three partitions."""
    monkeypatch.setattr(operations, "MOVED", 3)
    state = {}
    if request.param == "postgresql":
        state = {"state": request.getfixturevalue("postgres_url"), "schema": f"t_{new_ulid().lower()}"}
    with builders.quick_folder() as folder:
        query = {"start_date": DAYS[0].isoformat()}
        opened = open_at(write_workspace(Path(folder), customers=CUSTOMERS, query=query, **state))
        control, workers = (
            ControlStore(opened.context.database, opened.context.now),
            WorkerStore(opened.context.database, opened.context.now),
        )
        today = opened.context.contracts["campaign_daily"]
        control.store_contracts([(today.fingerprint, "demo", "campaign_daily", "v1", today.body())])
        token = workers.register()
        issued, _ = control.issue(new_run_id(), token, 0, opened.plans.preview(Selection(tuple(FAILED))).items)
        ValidatorStore(opened.context.database, opened.context.now).judge(
            [builders.rejected(item.attempt, token) for item in issued]
        )
        assert {view.key for view in opened.context.state.views(opened.context.ranges(ALL))} == set(KEYS)
        yield opened
        opened.context.database.close()


def act(ws: Workspace, chosen: Selection, pause: bool) -> int | None:
    return ws.operations.pause(chosen, actor="ada") if pause else ws.operations.resume(chosen, actor="ada")


def written(ws: Workspace) -> list[object]:
    """Everything that pauses and resumes write."""
    tables = (schema.pause_selector, schema.partition_control, schema.audit)
    with ws.context.database.snapshot() as connection:
        return [[tuple(row) for row in connection.execute(sa.select(t).order_by(*t.primary_key))] for t in tables]


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    acts=st.lists(
        st.tuples(by_filters.map(lambda given: Selection(**given)) | by_keys, st.booleans()), min_size=1, max_size=6
    )
)
@example(acts=[(QUERY, True), (replace(QUERY, since=DAYS[1], until=DAYS[1]), False)])
@example(acts=[(QUERY, True), (Selection(status=PartitionStatus.FAILED), False), (Selection(tuple(KEYS[:9])), True)])
def test_the_last_act_on_a_partition_decides_and_a_repeated_act_changes_nothing(
    ws: Workspace, acts: list[tuple[Selection, bool]]
) -> None:
    ws.operations.resume(ALL, actor="ada")  # ends the pauses of the previous example
    paused: set[PartitionKey] = set()
    for chosen, pause in acts:
        named = {one for one in KEYS if names(chosen, one)}
        after = paused | named if pause else paused - named
        assert (act(ws, chosen, pause) or 0) == len(after ^ paused)
        paused = after
        assert {view.key for view in ws.context.state.views(ws.context.ranges(ALL), paused=True)} == paused
        before = written(ws)
        assert act(ws, chosen, pause) is None
        assert written(ws) == before
