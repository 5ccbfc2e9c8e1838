"""An order that was previewed works on the previewed partitions only, also if others match when a loop executes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.app import Workspace
from penstock.control.select import Selection
from penstock.state.orders import Order, OrderState
from support.workspaces import Silent, customer_id, key, open_at, write_workspace

FROM_MAY = {"start_date": "2024-05-30"}


def applied(ws: Workspace, act: str, selection: Selection, **options: Any) -> int:
    """Preview and apply an order. Returns the number of previewed partitions."""
    plan, _ = ws.actions.preview(act, selection, options, actor="kim", reason="new contract")
    ws.actions.apply(plan.token, actor="kim", worker_token=ws.context.workers.register())
    return plan.total


def executed(ws: Workspace) -> Order:
    done = ws.orders.execute_next(ws.context.workers.register(control_loop=True))
    assert done is not None
    assert (done.state, done.error_message) == (OrderState.SUCCEEDED, None)
    return done


def run(ws: Workspace, selection: Selection, spark: Any) -> None:
    ws.runs.start(selection, listener=Silent(), actor="test", spark=spark)


def test_a_recheck_examines_only_previewed_partitions(tmp_path: Path, spark: Any) -> None:
    ws = open_at(write_workspace(tmp_path, customers=3, rows=10))
    run(ws, Selection(keys=(key(1),)), spark)
    assert applied(ws, "validate", Selection()) == 1
    run(ws, Selection(keys=(key(2), key(3))), spark)  # accepted before a loop takes the order
    stricter = open_at(write_workspace(tmp_path, customers=3, rows=10, query={"checks": [{"rows": {"min": 11}}]}))
    result = executed(stricter).result
    assert result is not None
    assert (result["examined"], result["demoted"]) == (1, [str(key(1))])
    found = stricter.partitions.views([key(number) for number in (1, 2, 3)])
    assert [found[key(number)].state.status for number in (1, 2, 3)] == ["failed", "success", "success"]


def test_a_divided_order_reprocesses_only_previewed_partitions(tmp_path: Path, spark: Any) -> None:
    ws = open_at(write_workspace(tmp_path, customers=2, query=FROM_MAY, control={"largest_run": 5}))
    run(ws, Selection(customers=customer_id(1)), spark)
    assert applied(ws, "run", Selection(status="success"), reprocess=True) == 12
    run(ws, Selection(customers=customer_id(2)), spark)
    executed(ws)
    days = [f"2024-05-{day}" for day in (30, 31)] + [f"2024-06-{day:02}" for day in range(1, 11)]
    attempts = [len(ws.context.state.attempts(key(number, day))) for number in (1, 2) for day in days]
    assert attempts == [2] * 12 + [1] * 12
