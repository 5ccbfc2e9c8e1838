"""Control loops and servers that are killed at every gap: each order and each plan is carried out once."""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.app import Workspace, load_workspace
from penstock.client import Client, ServerUnavailable
from penstock.control.select import Selection
from penstock.db import schema
from penstock.errors import PenstockError
from penstock.lifecycle import Outcome
from penstock.partition import PartitionKey
from support.api_process import api_server
from support.builders import everything
from support.cli import penstock
from support.workspaces import customer_id, write_workspace

YESTERDAY = datetime.now(UTC).date() - timedelta(days=1)
GAPS = ("order.claimed", "run.started", "run.judged", "run.finished", "order.executed")
KEYS = [PartitionKey("demo", customer_id(number), "campaign_daily", YESTERDAY) for number in (1, 2, 3)]


def workspace(folder: Path) -> Path:
    faults = [{"fault": "wrong_type", "customer": customer_id(3), "date": YESTERDAY.isoformat()}]
    query = {"start_date": YESTERDAY.isoformat()}
    made = write_workspace(folder, customers=3, faults=faults, query=query, driver_partitions=32)
    assert penstock("db", "migrate", workspace=made).returncode == 0
    return made


def rows(ws: Workspace, table: str) -> list[dict[str, Any]]:
    return everything(ws.context.database, [schema.metadata.tables[table]])[table]


@pytest.mark.parametrize("gap", GAPS)
def test_an_order_whose_loop_is_killed_in_a_gap_is_carried_out_once(tmp_path: Path, gap: str) -> None:
    ws = load_workspace(workspace(tmp_path))
    order = ws.orders.create("run", Selection(), actor="kim")
    killed = penstock("control", "tick", workspace=tmp_path, PENSTOCK_FAILPOINT=gap)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert ws.orders.get(order.order_id).state in ("claimed", "running")
    begun = {row["run_id"] for row in rows(ws, "run")}
    again = penstock("control", "tick", workspace=tmp_path)
    assert again.returncode == 0, again.stderr
    done = ws.orders.get(order.order_id)
    assert (done.state, done.error_message) == ("succeeded", None)
    runs = {row["run_id"] for row in rows(ws, "run") if row["planned"]}
    assert len(runs) == 1
    if begun:
        assert runs == begun == {done.run_id}  # resumed, not started again
    for key in KEYS:
        outcomes = [attempt.outcome for attempt in ws.context.state.attempts(key)]
        assert outcomes == [Outcome.FAILED if key == KEYS[2] else Outcome.SUCCEEDED], (gap, key)
    assert len([row for row in rows(ws, "audit") if row["command"] == "orders create"]) == 1
    ws.close()


def test_a_reprocessing_order_of_a_killed_loop_fetches_each_partition_once_more(tmp_path: Path) -> None:
    ws = load_workspace(workspace(tmp_path))
    ws.runs.start(Selection(keys=tuple(KEYS[:2])), actor="kim")
    order = ws.orders.create("run", Selection(keys=tuple(KEYS[:2])), {"reprocess": True}, actor="kim")
    killed = penstock("control", "tick", workspace=tmp_path, PENSTOCK_FAILPOINT="run.issued")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert penstock("control", "tick", workspace=tmp_path).returncode == 0
    assert ws.orders.get(order.order_id).state == "succeeded"
    for key in KEYS[:2]:
        verdicts = [a.outcome for a in ws.context.state.attempts(key) if a.outcome is not Outcome.CANCELLED]
        assert verdicts == [Outcome.SUCCEEDED, Outcome.SUCCEEDED]
    ws.close()


@pytest.mark.parametrize("gap", ["plan.claimed", "plan.executed"])
@pytest.mark.parametrize("act", ["retry", "backfill", "run"])
def test_a_plan_whose_server_is_killed_in_a_gap_is_applied_once(tmp_path: Path, gap: str, act: str) -> None:
    ws = load_workspace(workspace(tmp_path))
    ws.runs.start(Selection(), actor="kim")
    assert ws.partitions.views(KEYS)[KEYS[2]].state.status == "failed"
    with api_server(tmp_path, PENSTOCK_FAILPOINT=gap) as server, Client(server.url) as client:
        plan = client.preview(act)
        with pytest.raises(ServerUnavailable):
            client.apply(plan["token"])
        assert server.process.wait(30) == -signal.SIGKILL
    with api_server(tmp_path) as server, Client(server.url) as client:
        done = client.apply(plan["token"])
        assert done["applied_at"] is not None
        assert client.apply(plan["token"]) == done
    commands = [row["command"] for row in rows(ws, "audit")]
    if act == "retry":
        assert ws.partitions.views(KEYS)[KEYS[2]].state.status == "pending"
        assert commands.count("state retry") == 1
    elif act == "backfill":
        assert [found.backfill_id for found in ws.backfills.all()] == [plan["token"]]
        assert commands.count("backfill create") == 1
    else:
        assert [found.order_id for found in ws.orders.page(10)[0]] == [plan["token"]]
        assert commands.count("orders create") == 1
    ws.close()


def test_a_repeated_request_after_a_kill_creates_one_order(tmp_path: Path) -> None:
    ws = load_workspace(workspace(tmp_path))
    with api_server(tmp_path, PENSTOCK_FAILPOINT="request.executed") as server, Client(server.url) as client:
        with pytest.raises(PenstockError):
            client.order_run(reason="go", idempotency_key="k")
        assert server.process.wait(30) == -signal.SIGKILL
    assert len(rows(ws, "run_order")) == 1
    with api_server(tmp_path) as server, Client(server.url) as client:
        made = client.order_run(reason="go", idempotency_key="k")
        assert client.order_run(reason="go", idempotency_key="k") == made
    assert [row["order_id"] for row in rows(ws, "run_order")] == [made["order_id"]]
    ws.close()
