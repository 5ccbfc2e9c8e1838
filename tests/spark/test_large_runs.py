"""Plans that are too large for one run: split into several, with the same result."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.app import Workspace, load_workspace
from penstock.control.select import Selection
from penstock.partition import PartitionKey, RunId
from penstock.state.orders import OrderState
from support.workspaces import NOW, Silent, customer_id, key, open_at, rows_by_partition, run, write_workspace

FROM_MAY: dict[str, Any] = {"start_date": "2024-05-30"}  # twelve days: two of May, ten of June
SPEND = "SELECT logical_date, sum(cost_micros) AS cost, count(*) AS rows_ FROM demo.campaign_daily GROUP BY ALL"


def models() -> dict[str, Any]:
    return {
        "spend": {"code": SPEND, "depends_on": ["demo.campaign_daily"]},
        "total": {"code": "SELECT logical_date, cost FROM models.spend", "depends_on": ["models.spend"]},
    }


class Hearing(Silent):
    def __init__(self, ws: Workspace) -> None:
        self.heard: list[str] = []
        self._ws = ws

    def say(self, message: str) -> None:
        self.heard.append(message)


class Cancelling(Hearing):
    """Asks for the end of the second run, as soon as it has begun to fetch."""

    def stage(self, name: str, partitions: int) -> Callable[[float], None]:
        if len(self.heard) == 2 and name == "extract":
            *_, running = (row["run_id"] for row in self._ws.status.current().runs().to_pylist())
            self._ws.runs.cancel(RunId(running), actor="test")
        return super().stage(name, partitions)


class Stopping(Hearing):
    """The process gets a signal when the first run validates its last batch."""

    has_signal = False

    def stage(self, name: str, partitions: int) -> Callable[[float], None]:
        self.has_signal = self.has_signal or name == "validate"
        return super().stage(name, partitions)


def content(ws: Workspace, table: str) -> dict[PartitionKey, list[dict[str, Any]]]:
    """The rows of a table without the runs that they are of."""
    found = rows_by_partition(ws, table)
    return {
        partition: [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]
        for partition, rows in found.items()
    }


def test_several_runs_bring_what_one_brings_models_included(tmp_path: Path, spark: Any) -> None:
    small = {"largest_run": 15}
    divided = open_at(
        write_workspace(tmp_path / "divided", customers=3, query=FROM_MAY, models=models(), control=small)
    )
    whole = open_at(write_workspace(tmp_path / "whole", customers=3, query=FROM_MAY, models=models()))
    preview = divided.plans.preview(Selection(), limit=5)
    assert (preview.total, len(preview.items)) == (60, 5)

    many, one = run(divided, spark), run(whole, spark)
    assert (len(many.runs), len(one.runs)) == (5, 1)  # June by customers, May, and the models
    assert many.counts() == one.counts()
    assert many.accepted == many.loaded == 3 * 12 + 2 * 12
    for table in ("demo.campaign_daily", "models.spend", "models.total"):
        assert content(divided, table) == content(whole, table)
    assert [row["run_id"] for row in divided.status.current().runs().to_pylist()] == many.runs
    assert many.run_id == many.runs[-1]
    assert (run(divided, spark).planned, run(whole, spark).planned) == (0, 0)


def test_what_fails_in_one_of_them_is_not_attempted_again_by_the_next(tmp_path: Path, spark: Any) -> None:
    faults = [
        {"fault": "transient", "customer": customer_id(1), "date": "2024-06-10"},
        {"fault": "wrong_type", "customer": customer_id(2), "date": "2024-05-30"},
    ]
    ws = open_at(write_workspace(tmp_path, customers=2, faults=faults, query=FROM_MAY, control={"largest_run": 5}))
    summary = run(ws, spark)
    assert len(summary.runs) == 3
    assert sorted(str(failure.key) for failure in summary.failures) == [
        str(key(1, "2024-06-10")),
        str(key(2, "2024-05-30")),
    ]
    assert (summary.planned, summary.accepted, summary.rejected) == (24, 22, 2)
    assert [len(ws.context.state.attempts(key(1, f"2024-06-{day:02}"))) for day in range(1, 11)] == [1] * 10


@pytest.mark.parametrize("largest", [24, 30])
def test_models_do_not_count_towards_the_size_and_are_never_cut_off(tmp_path: Path, spark: Any, largest: int) -> None:
    ws = open_at(
        write_workspace(tmp_path, customers=2, query=FROM_MAY, models=models(), control={"largest_run": largest})
    )
    assert ws.plans.preview(Selection(), limit=40).total == 48
    assert len(ws.plans.preview(Selection(), limit=40).items) == 40
    summary = run(ws, spark)
    assert (len(summary.runs), summary.planned, summary.loaded) == (1, 48, 48)
    again = run(ws, spark, reprocess=True)
    assert (len(again.runs), again.loaded) == (1, 48)


def test_failing_customers_do_not_delay_the_others(tmp_path: Path, spark: Any) -> None:
    faults = [{"fault": "quota", "customer": customer_id(1)}]
    ws = open_at(write_workspace(tmp_path, customers=3, faults=faults, query=FROM_MAY, control={"largest_run": 10}))
    summary = run(ws, spark)
    assert summary.accepted >= 2 * 10  # the days of June of the others
    assert all(ws.context.state.attempts(key(number, "2024-06-10")) for number in (2, 3))


def test_a_model_that_spark_refuses_is_reported_before_the_first_run(tmp_path: Path, spark: Any) -> None:
    bad = {
        "bad": {"code": "SELECT logical_date, nothing FROM demo.campaign_daily", "depends_on": ["demo.campaign_daily"]}
    }
    ws = open_at(write_workspace(tmp_path, customers=2, query=FROM_MAY, models=bad, control={"largest_run": 5}))
    watcher = Hearing(ws)
    summary = ws.runs.start(Selection(), listener=watcher, actor="test", spark=spark)
    assert "models.bad" in watcher.heard[0]
    assert summary.loaded == 24
    assert "nothing" in summary.problems[0]


def test_one_that_is_cancelled_is_the_last_and_the_rest_stays_due(tmp_path: Path, spark: Any) -> None:
    ws = open_at(write_workspace(tmp_path, customers=2, query=FROM_MAY, control={"largest_run": 10}))
    watcher = Cancelling(ws)
    summary = ws.runs.start(Selection(), listener=watcher, actor="test", spark=spark)
    assert watcher.heard == [
        "run 1: 10 partitions, then 14 more to fetch",
        "run 2: 10 partitions, then 4 more to fetch",
    ]
    assert (summary.end, len(summary.runs), summary.planned, summary.loaded) == ("cancelled", 2, 20, 10)
    again = run(ws, spark)
    assert (len(again.runs), again.planned, again.loaded) == (2, 14, 14)


@pytest.mark.parametrize("reprocess", [False, True])
def test_an_order_that_is_stopped_between_its_runs_is_continued(tmp_path: Path, spark: Any, reprocess: bool) -> None:
    moments = [NOW]
    folder = write_workspace(tmp_path, customers=2, query=FROM_MAY, control={"largest_run": 10})
    ws = load_workspace(folder, lambda: moments[-1])
    ws.maintenance.migrate()
    if reprocess:
        run(ws, spark)
        moments.append(NOW + timedelta(minutes=1))
    ws.orders.create("run", Selection(), {"reprocess": reprocess}, actor="kim")
    watcher = Stopping(ws)
    loops = [ws.context.workers.register(control_loop=True) for _ in range(2)]
    stopped = ws.orders.execute_next(loops[0], watcher, lambda: watcher.has_signal)
    assert watcher.heard == ["run 1: 10 partitions, then 14 more to fetch"]
    assert stopped is not None
    assert (stopped.state, stopped.worker_token) == (OrderState.QUEUED, None)
    done = ws.orders.execute_next(loops[1])
    assert done is not None
    assert (done.state, done.error_message) == (OrderState.SUCCEEDED, None)
    assert done.result is not None
    assert done.result["counts"]["accepted"] == 14
    days = [f"2024-05-{day}" for day in (30, 31)] + [f"2024-06-{day:02}" for day in range(1, 11)]
    attempts = {len(ws.context.state.attempts(key(number, day))) for number in (1, 2) for day in days}
    assert attempts == {2 if reprocess else 1}
