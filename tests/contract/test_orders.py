"""Orders for the control loop: each is executed by one worker, and a run starts only under its claim."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from penstock.app import Workspace
from penstock.app.orders import MAX_FAILURES
from penstock.clock import Clock
from penstock.control.rescue import rescue
from penstock.control.select import Selection
from penstock.db import schema
from penstock.db.engine import Database
from penstock.errors import ActRefused, DatabaseUnavailable, LeaseLost, PenstockError, SparkFailed, UsageError
from penstock.flow.graph import Graph
from penstock.lake.protocol import LakeUnavailable
from penstock.lifecycle import MAX_LOSSES
from penstock.partition import RunId, new_run_id, new_ulid
from penstock.pipeline.job_errors import ClusterUnfit, SparkUnavailable
from penstock.state.order_claims import OrderClaim
from penstock.state.orders import ORDER_FIELDS, Order, OrderKind, OrderState, OrderStore
from support import builders
from support.builders import Actors, SetClock, everything
from support.workspaces import NOW, Silent, customer_id, key, open_at, write_workspace


@pytest.fixture(params=builders.BACKENDS)
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workspace]:
    """Two customers and two days; runs of a few partitions need no Spark."""
    state, name = "sqlite:///state.db", None
    if request.param == "postgresql":
        state, name = request.getfixturevalue("postgres_url"), f"t_{new_ulid().lower()}"
    faults = [{"fault": "wrong_type", "customer": customer_id(2), "date": "2024-06-09"}]
    opened = open_at(
        write_workspace(tmp_path, customers=2, faults=faults, state=state, schema=name, driver_partitions=32)
    )
    yield opened
    opened.close()


def rows(workspace: Workspace, table: sa.Table) -> list[dict[str, Any]]:
    return everything(workspace.context.database, [table])[table.name]


def loop(workspace: Workspace) -> str:
    return workspace.context.workers.register(control_loop=True)


def expire(workspace: Workspace, token: str) -> None:
    """The worker's lease has run out."""
    Actors.on(workspace.context.database).expire(token)


def test_an_order_is_executed_once_and_names_its_run(workspace: Workspace) -> None:
    made = workspace.orders.create("run", Selection(), actor="kim", reason="first load")
    assert (made.state, made.actor, made.run_id) == (OrderState.QUEUED, "kim", None)
    done = workspace.orders.execute_next(loop(workspace))
    assert done is not None
    assert (done.order_id, done.state, done.error_message) == (made.order_id, OrderState.SUCCEEDED, None)
    assert done.result is not None
    counts = done.result["counts"]
    assert (counts["planned"], counts["accepted"], counts["rejected"], counts["loaded"]) == (4, 3, 1, 3)
    [run] = rows(workspace, schema.run)
    assert (run["run_id"], run["actor"], run["filters"]["order"]) == (done.run_id, "kim", made.order_id)
    assert workspace.orders.execute_next(loop(workspace)) is None
    assert len(rows(workspace, schema.run)) == 1


def test_a_reprocessing_order_fetches_success_partitions_again(workspace: Workspace) -> None:
    token = loop(workspace)
    for reprocess in (False, True):
        workspace.orders.create("run", Selection(keys=(key(1),)), {"reprocess": reprocess}, actor="kim")
        done = workspace.orders.execute_next(token)
        assert done is not None
        assert done.state is OrderState.SUCCEEDED
    assert len(workspace.context.state.attempts(key(1))) == 2
    audit = [(row["actor"], row["command"], row["outcome"]) for row in rows(workspace, schema.audit)]
    assert audit.count(("kim", "orders create", "done")) == 2
    assert audit.count(("kim", "run --reprocess", "done")) == 1


def test_a_previewed_order_fetches_only_previewed_partitions_again(workspace: Workspace) -> None:
    token = loop(workspace)
    workspace.runs.start(Selection(keys=(key(1),)), actor="kim")
    chosen, again = Selection(status="success"), {"reprocess": True}
    plan, _ = workspace.actions.preview("run", chosen, again, actor="kim")
    assert plan.total == 1
    workspace.actions.apply(plan.token, actor="kim", worker_token=workspace.context.workers.register())
    workspace.runs.start(Selection(keys=(key(2, "2024-06-10"),)), actor="kim")  # before a loop takes the order
    workspace.orders.create("run", chosen, again, actor="kim")  # an order without a preview keeps its selector
    attempts = []
    for _ in range(2):
        done = workspace.orders.execute_next(token)
        assert done is not None
        assert (done.state, done.error_message) == (OrderState.SUCCEEDED, None)
        attempts.append([len(workspace.context.state.attempts(one)) for one in (key(1), key(2, "2024-06-10"))])
    assert attempts == [[2, 1], [3, 2]]


def test_two_loops_at_the_same_time_take_one_order_once(workspace: Workspace) -> None:
    workspace.orders.create("run", actor="kim")

    def take(handle: Database, clock: Clock) -> bool:
        token = workspace.context.workers.register(control_loop=True)
        return OrderStore(handle, clock).claim(token) is not None

    assert sorted(builders.race(workspace.context.database, take, take)) == [False, True]
    [order] = rows(workspace, schema.run_order)
    assert (order["state"], order["claims"]) == ("claimed", 1)


def test_orders_are_taken_in_their_order_and_only_from_the_dead(workspace: Workspace) -> None:
    orders, first, second = workspace.context.orders, loop(workspace), loop(workspace)
    ids = [workspace.orders.create("run", actor="kim").order_id for _ in range(2)]
    taken = [orders.claim(token) for token in (first, second)]
    assert [order.order_id for order in taken if order] == ids
    third = loop(workspace)
    assert orders.claim(third) is None
    assert not orders.is_waiting(third)
    expire(workspace, first)
    assert orders.is_waiting(third)
    over = orders.claim(third)
    assert over is not None
    assert (over.order_id, over.worker_token, over.claims) == (ids[0], third, 2)
    assert not orders.finish(taken[0].claim, OrderState.SUCCEEDED, result={})  # type: ignore[union-attr]
    assert orders.get(ids[0]).state is OrderState.CLAIMED


def test_an_order_is_not_taken_over_while_a_live_worker_holds_its_run(workspace: Workspace) -> None:
    orders, first, worker = workspace.context.orders, loop(workspace), workspace.context.workers.register()
    workspace.orders.create("run", actor="kim")
    order = orders.claim(first)
    assert order is not None
    workspace.context.control.start_run(new_run_id(), worker, "kim", {}, 0, order=order.claim)
    expire(workspace, first)
    assert orders.claim(loop(workspace)) is None
    expire(workspace, worker)
    assert orders.claim(loop(workspace)) is not None


def test_a_worker_whose_claim_is_lost_starts_no_run(workspace: Workspace) -> None:
    """A loop that was suspended between its claim and the start of the run."""
    orders, first = workspace.context.orders, loop(workspace)
    workspace.orders.create("run", actor="kim")
    order = orders.claim(first)
    assert order is not None
    expire(workspace, first)
    assert orders.claim(loop(workspace)) is not None
    with pytest.raises(LeaseLost, match="taken over by another control loop"):
        workspace.context.control.start_run(new_run_id(), first, "kim", {}, 0, order=order.claim)
    assert rows(workspace, schema.run) == []


def test_a_cancelled_order_is_never_executed(workspace: Workspace) -> None:
    orders, token = workspace.context.orders, loop(workspace)
    queued = workspace.orders.create("run", actor="kim").order_id
    assert workspace.orders.cancel(queued, actor="bo")
    assert not workspace.orders.cancel(queued, actor="bo")
    assert workspace.orders.execute_next(token) is None
    workspace.orders.create("run", actor="kim")
    claimed = orders.claim(token)
    assert claimed is not None
    assert workspace.orders.cancel(claimed.order_id, actor="bo")
    with pytest.raises(LeaseLost):
        workspace.context.control.start_run(new_run_id(), token, "kim", {}, 0, order=claimed.claim)
    assert {order["state"] for order in rows(workspace, schema.run_order)} == {"cancelled"}
    with pytest.raises(UsageError, match="there is no order"):
        workspace.orders.cancel(new_ulid())


def test_cancelling_an_order_in_progress_cancels_its_run(workspace: Workspace) -> None:
    orders, token = workspace.context.orders, loop(workspace)
    workspace.orders.create("run", actor="kim")
    order = orders.claim(token)
    assert order is not None
    run = new_run_id()
    workspace.context.control.start_run(run, token, "kim", {"order": order.order_id}, 0, order=order.claim)
    assert workspace.orders.cancel(order.order_id, actor="bo")
    assert [row["type"] for row in rows(workspace, schema.event)] == ["RunCancelRequested"]
    workspace.context.control.finish_run(run, token, {}, "done")
    expire(workspace, token)
    done = workspace.orders.execute_next(loop(workspace))
    assert done is not None
    assert (done.state, done.run_id) == (OrderState.CANCELLED, run)


def stopped_order(workspace: Workspace) -> Order:
    """A loop stopped before its run issued anything."""
    workspace.orders.create("run", actor="kim")
    stopped = workspace.orders.execute_next(loop(workspace), stopping=lambda: True)
    assert stopped is not None
    assert stopped.run_id is not None
    return stopped


def killed_order(workspace: Workspace, **options: Any) -> Order:
    """A loop died, and another process closed its run."""
    token = loop(workspace)
    workspace.orders.create("run", Selection(keys=(key(1),)), options, actor="kim")
    order = workspace.context.orders.claim(token)
    assert order is not None
    killed_run(workspace, token, order.claim, **options)
    return workspace.orders.get(order.order_id)


def killed_run(workspace: Workspace, token: str, claim: OrderClaim | None = None, **filters: Any) -> RunId:
    """A run of one partition whose process died before it issued anything."""
    graph, run = Graph([key(1)]), new_run_id()
    workspace.context.control.start_run(run, token, "kim", filters, 1, graph.event(run), claim)
    workspace.context.workers.stop(token)
    rescue(workspace.context.workers, workspace.context.control, workspace.context.validators)
    return run


@pytest.mark.parametrize("made", [stopped_order, killed_order, partial(killed_order, reprocess=True)])
def test_a_cancelled_order_whose_run_is_over_is_not_continued(
    workspace: Workspace, made: Callable[[Workspace], Order]
) -> None:
    order = made(workspace)
    assert workspace.orders.cancel(order.order_id, actor="bo")
    assert workspace.orders.get(order.order_id).state is OrderState.CANCELLED
    assert not workspace.orders.cancel(order.order_id, actor="bo")
    assert workspace.orders.execute_next(loop(workspace)) is None
    assert workspace.context.state.attempts(key(1)) == []
    assert workspace.runs.unfinished() == []


def test_an_order_is_not_continued_if_its_killed_run_was_cancelled(workspace: Workspace) -> None:
    order = killed_order(workspace, reprocess=True)
    assert workspace.runs.cancel(RunId(str(order.run_id)), actor="bo")
    done = workspace.orders.execute_next(loop(workspace))
    assert done is not None
    assert (done.state, done.run_id) == (OrderState.CANCELLED, order.run_id)
    assert workspace.context.state.attempts(key(1)) == []


def test_an_order_that_is_cancelled_between_two_runs_starts_no_further_run(workspace: Workspace) -> None:
    token = loop(workspace)
    workspace.orders.create("run", actor="kim")
    order = workspace.context.orders.claim(token)
    assert order is not None
    run = new_run_id()
    workspace.context.control.start_run(run, token, "kim", {"is_divided": True}, 0, order=order.claim)
    workspace.context.control.finish_run(run, token, {}, "done")
    assert workspace.orders.cancel(order.order_id, actor="bo")
    with pytest.raises(LeaseLost, match="was cancelled"):
        workspace.context.control.start_run(new_run_id(), token, "kim", {}, 0, order=order.claim)
    assert workspace.orders.get(order.order_id).state is OrderState.CANCELLED
    assert not workspace.context.orders.finish(order.claim, OrderState.SUCCEEDED, result={})


def test_work_that_has_begun_and_is_no_run_is_not_cancelled(workspace: Workspace) -> None:
    token = loop(workspace)
    workspace.orders.create("reconcile", actor="kim")
    order = workspace.context.orders.claim(token)
    assert order is not None
    assert workspace.context.orders.begin(order.claim)
    with pytest.raises(ActRefused, match="is being executed"):
        workspace.orders.cancel(order.order_id)


def test_an_error_ends_the_order_with_its_message(workspace: Workspace) -> None:
    made = workspace.orders.create("run", Selection(keys=(key(1, day="2030-01-01"),)), actor="kim")
    done = workspace.orders.execute_next(loop(workspace))
    assert done is not None
    assert (done.order_id, done.state) == (made.order_id, OrderState.FAILED)
    assert "is not due" in str(done.error_message)


def fail_with(error: Exception) -> Callable[..., None]:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


class Outage:
    """The work of orders raises an error until the outage ends. The clock can be moved past the pause of an order."""

    def __init__(self, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        self._workspace = workspace
        self._clock = SetClock(NOW)
        workspace.context.clock = self._clock
        self._patch = monkeypatch
        for service, name in ((workspace.runs, "start"), (workspace.rechecks, "run")):
            monkeypatch.setattr(type(service), name, fail_with(error))

    def wait(self, seconds: float = 300.0) -> None:
        self._clock.now += timedelta(seconds=seconds)

    def end(self) -> None:
        self._patch.undo()


MAY_PASS = [
    LakeUnavailable("no lake"),
    SparkFailed("lost"),
    SparkUnavailable("gone"),
    ClusterUnfit("too old"),
    LeaseLost("another process publishes to demo.campaign_daily"),
    DatabaseUnavailable("a statement was cancelled"),
]


@pytest.mark.parametrize("error", MAY_PASS, ids=lambda error: type(error).__name__)
def test_an_order_whose_work_fails_is_put_back_with_a_pause_and_executed_later(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, error: PenstockError
) -> None:
    made, token = workspace.orders.create("run", actor="kim"), loop(workspace)
    outage = Outage(workspace, monkeypatch, error)
    for failures in range(1, MAX_LOSSES + 2):
        put_back = workspace.orders.execute_next(token)
        assert put_back is not None
        assert (put_back.order_id, put_back.state, put_back.failures) == (made.order_id, OrderState.QUEUED, failures)
        assert put_back.worker_token is None
        assert workspace.orders.execute_next(token) is None  # not at once
        assert not workspace.orders.is_waiting(token)
        assert "is tried again after" in str(workspace.orders.warning(put_back))
        outage.wait()
        assert workspace.orders.is_waiting(token)
    outage.end()
    done = workspace.orders.execute_next(token)
    assert done is not None
    assert (done.state, done.claims, done.retry_at) == (OrderState.SUCCEEDED, 1, None)
    assert workspace.orders.warning(done) is None


@pytest.mark.parametrize("error", MAY_PASS, ids=lambda error: type(error).__name__)
def test_an_order_whose_work_fails_does_not_hold_up_the_orders_behind_it(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, error: PenstockError
) -> None:
    failing = workspace.orders.create("validate", actor="kim")
    behind = [workspace.orders.create("compact", actor="kim").order_id for _ in range(2)]
    token, _ = loop(workspace), Outage(workspace, monkeypatch, error)
    taken = [workspace.orders.execute_next(token) for _ in range(4)]
    assert [(order.order_id, order.state) for order in taken[:3] if order] == [
        (failing.order_id, OrderState.QUEUED),
        *((order_id, OrderState.SUCCEEDED) for order_id in behind),
    ]
    assert taken[3] is None


def test_pauses_of_a_failing_order_grow_and_end_with_its_failure(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = loop(workspace)
    workspace.orders.create("validate", actor="kim")
    outage, pauses = Outage(workspace, monkeypatch, LeaseLost("the lease of the table was lost")), []
    for _ in range(MAX_FAILURES - 1):
        put_back = workspace.orders.execute_next(token)
        assert put_back is not None
        assert put_back.retry_at is not None
        pauses.append((put_back.retry_at - workspace.context.now()).total_seconds())
        outage.wait(pauses[-1])
    assert pauses == [2, 4, 8, 16, 32, 64, 128, 256, 300]
    done = workspace.orders.execute_next(token)
    assert done is not None
    expected = f"the work failed {MAX_FAILURES} times; the last error: the lease of the table was lost"
    assert (done.state, done.error_message) == (OrderState.FAILED, expected)
    assert workspace.orders.execute_next(token) is None


def test_an_order_that_was_lost_during_its_work_is_left_to_its_new_holder(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, first, second = workspace.orders.create("validate", actor="kim"), loop(workspace), loop(workspace)

    def lose(*_: Any, **__: Any) -> None:
        expire(workspace, first)
        assert workspace.context.orders.claim(second) is not None
        raise LeaseLost("order was taken over by another control loop")

    monkeypatch.setattr(type(workspace.rechecks), "run", lose)
    found = workspace.orders.execute_next(first)
    assert found is not None
    assert (found.order_id, found.worker_token) == (made.order_id, second)
    assert (found.state, found.failures, found.retry_at) == (OrderState.CLAIMED, 0, None)


def test_without_the_database_the_order_stays_and_the_same_worker_takes_it_again(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, lost = loop(workspace), DatabaseUnavailable("it did not respond")
    workspace.orders.create("run", actor="kim")
    outage = Outage(workspace, monkeypatch, lost)
    monkeypatch.setattr(OrderStore, "put_back", fail_with(lost))
    for _ in range(MAX_LOSSES + 1):
        with pytest.raises(DatabaseUnavailable):
            workspace.orders.execute_next(token)
    outage.end()
    done = workspace.orders.execute_next(token)
    assert done is not None
    assert (done.state, done.claims, done.failures) == (OrderState.SUCCEEDED, 1, 0)


def test_the_text_of_an_unexpected_error_is_in_the_log_and_not_in_the_order(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    workspace.orders.create("validate", actor="kim")
    Outage(workspace, monkeypatch, ValueError("/home/kim/secret.txt has hunter2"))
    done = workspace.orders.execute_next(loop(workspace))
    assert done is not None
    assert done.state is OrderState.FAILED
    assert done.error_message == (
        "internal error: ValueError; the log of the control loop has the details:"
        f" order.broken with order_id {done.order_id}"
    )
    [record] = [found for found in caplog.records if found.message == "order.broken"]
    assert record.exc_info is not None
    assert record.facts["order_id"] == done.order_id  # type: ignore[attr-defined]


def test_the_text_of_an_expected_error_has_no_secrets(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace.orders.create("validate", actor="kim")
    Outage(workspace, monkeypatch, ActRefused("postgresql://kim:hunter2@db/ads refused it"))
    done = workspace.orders.execute_next(loop(workspace))
    assert done is not None
    assert done.error_message == "postgresql://kim:***@db/ads refused it"


def test_an_order_that_kills_its_loops_ends_as_failed(workspace: Workspace) -> None:
    workspace.orders.create("run", actor="kim")
    for _ in range(MAX_LOSSES):
        token = loop(workspace)
        assert workspace.context.orders.claim(token) is not None
        expire(workspace, token)
    done = workspace.orders.execute_next(loop(workspace))
    assert done is not None
    assert done.state is OrderState.FAILED
    assert f"lost {MAX_LOSSES} times" in str(done.error_message)
    assert rows(workspace, schema.run) == []


def test_a_finished_run_is_not_started_again_after_a_takeover(workspace: Workspace) -> None:
    """The loop died after the end of the run and before the end of the order."""
    first = loop(workspace)
    workspace.orders.create("run", actor="kim")
    order = workspace.context.orders.claim(first)
    assert order is not None
    workspace.runs.start(Selection(), actor="kim", order=order.claim)
    expire(workspace, first)
    done = workspace.orders.execute_next(loop(workspace))
    assert done is not None
    assert done.state is OrderState.SUCCEEDED
    assert done.result is not None
    assert (done.result["end"], done.result["counts"]["accepted"]) == ("done", 3)
    assert len(rows(workspace, schema.run)) == 1
    assert {len(workspace.context.state.attempts(key(number))) for number in (1, 2)} == {1}


def test_a_stopping_loop_returns_the_order_and_the_next_one_does_the_rest(workspace: Workspace) -> None:
    workspace.orders.create("run", actor="kim")
    stopped = workspace.orders.execute_next(loop(workspace), stopping=lambda: True)
    assert stopped is not None
    assert (stopped.state, stopped.claims, stopped.worker_token) == (OrderState.QUEUED, 0, None)
    assert stopped.run_id is not None
    done = workspace.orders.execute_next(loop(workspace))
    assert done is not None
    assert done.state is OrderState.SUCCEEDED
    assert {len(workspace.context.state.attempts(key(number))) for number in (1, 2)} == {1}


def test_a_loop_that_continues_an_order_stops_too(workspace: Workspace) -> None:
    first = stopped_order(workspace)
    again = workspace.orders.execute_next(loop(workspace), stopping=lambda: True)
    assert again is not None
    assert (again.order_id, again.state) == (first.order_id, OrderState.QUEUED)
    assert rows(workspace, schema.partition_attempt) == []
    done = workspace.orders.execute_next(loop(workspace))
    assert done is not None
    assert done.state is OrderState.SUCCEEDED
    assert statuses(workspace) == ["failed", "success", "success", "success"]


def test_a_stopping_loop_returns_an_order_that_resumes_a_run(workspace: Workspace) -> None:
    run = killed_run(workspace, loop(workspace))
    workspace.orders.create("resume", options={"run_id": run}, actor="kim")
    stopped = workspace.orders.execute_next(loop(workspace), stopping=lambda: True)
    assert stopped is not None
    assert stopped.state is OrderState.QUEUED
    assert workspace.context.state.attempts(key(1)) == []
    done = workspace.orders.execute_next(loop(workspace))
    assert done is not None
    assert (done.state, done.error_message) == (OrderState.SUCCEEDED, None)
    assert len(workspace.context.state.attempts(key(1))) == 1


@pytest.mark.parametrize("has_ended", [False, True])
def test_an_order_that_resumes_a_run_is_continued_after_its_loop_died(workspace: Workspace, has_ended: bool) -> None:
    run, token = killed_run(workspace, loop(workspace)), loop(workspace)
    workspace.orders.create("resume", options={"run_id": run}, actor="kim")
    order = workspace.context.orders.claim(token)
    assert order is not None
    assert workspace.context.orders.begin(order.claim, run)
    if has_ended:
        workspace.runs.resume(run, actor="kim", order=order.claim)
    workspace.context.workers.stop(token)
    done = workspace.orders.execute_next(loop(workspace))
    assert done is not None
    assert (done.state, done.error_message) == (OrderState.SUCCEEDED, None)
    assert len(workspace.context.state.attempts(key(1))) == 1


class Interrupting(Silent):
    """A second signal interrupts the work of a stage."""

    def __init__(self, stage: str) -> None:
        self._stage = stage

    def stage(self, name: str, partitions: int) -> Callable[[float], None]:
        if name == self._stage:
            raise KeyboardInterrupt
        return super().stage(name, partitions)


@pytest.mark.parametrize("stage", ["extract", "load"])
def test_an_order_that_a_second_signal_interrupts_is_continued(workspace: Workspace, stage: str) -> None:
    first = loop(workspace)
    workspace.orders.create("run", actor="kim")
    with pytest.raises(KeyboardInterrupt):
        workspace.orders.execute_next(first, Interrupting(stage))
    workspace.context.workers.stop(first)
    done = workspace.orders.execute_next(loop(workspace))
    assert done is not None
    assert (done.state, done.error_message) == (OrderState.SUCCEEDED, None)
    assert statuses(workspace) == ["failed", "success", "success", "success"]


def statuses(workspace: Workspace) -> list[str]:
    return sorted(row["status"] for row in rows(workspace, schema.partition_state))


def test_a_repeated_creation_with_the_same_id_stores_one_order(workspace: Workspace) -> None:
    order_id = new_ulid()
    made = [workspace.orders.create("run", actor="kim", order_id=order_id) for _ in range(2)]
    assert made[0] == made[1]
    assert len(rows(workspace, schema.run_order)) == 1
    assert len(rows(workspace, schema.audit)) == 1


def test_unknown_names_are_refused_before_anything_is_stored(workspace: Workspace) -> None:
    unknown: list[tuple[str, Selection, dict[str, Any]]] = [
        ("run", Selection(customers="9"), {}),
        ("validate", Selection(queries="nothing"), {}),
        ("compact", Selection(), {"tables": ["demo.nothing"]}),
        ("resume", Selection(), {"run_id": new_run_id()}),
        ("resume", Selection(), {}),
    ]
    for kind, selection, options in unknown:
        with pytest.raises(UsageError):
            workspace.orders.create(kind, selection, options)
    assert rows(workspace, schema.run_order) == []


@pytest.mark.parametrize("kind", OrderKind)
def test_an_order_refuses_what_its_kind_does_not_take(workspace: Workspace, kind: OrderKind) -> None:
    values: dict[str, Any] = {"run_id": new_run_id(), "tables": ["demo.campaign_daily"], "reprocess": True}
    taken = ORDER_FIELDS[kind]
    for name in sorted({"selection", *values} - set(taken)):
        chosen = Selection(customers=customer_id(1)) if name == "selection" else Selection()
        options = {} if name == "selection" else {name: values[name]}
        with pytest.raises(UsageError, match=f"an order of kind {kind} takes no {name}"):
            workspace.orders.create(kind, chosen, options)
    assert rows(workspace, schema.run_order) == []


def test_an_order_says_since_when_no_control_loop_is_alive(workspace: Workspace) -> None:
    order = workspace.orders.create("run", actor="kim")
    assert workspace.orders.warning(order) == ("no control loop was ever started: start `penstock control serve`")
    workspace.context.workers.register()  # a run by hand executes no orders
    assert workspace.orders.warning(order) is not None
    token = loop(workspace)
    assert workspace.orders.warning(order) is None
    workspace.context.workers.stop(token)
    [stopped_at] = [row["stopped_at"] for row in rows(workspace, schema.worker) if row["token"] == token]
    assert f"no control loop has been alive since {stopped_at:%Y-%m-%d %H:%M:%S} UTC" in str(
        workspace.orders.warning(order)
    )
    ended = replace(order, state=OrderState.SUCCEEDED, finished_at=NOW)
    assert workspace.orders.warning(ended) is None


def test_pages_of_orders_are_newest_first(workspace: Workspace) -> None:
    ids = [workspace.orders.create("reconcile", actor="kim").order_id for _ in range(3)]
    first, total = workspace.orders.page(2)
    rest, _ = workspace.orders.page(2, first[-1].order_id)
    assert ([order.order_id for order in (*first, *rest)], total) == (sorted(ids, reverse=True), 3)


def test_every_kind_of_order_is_known_to_the_database(workspace: Workspace) -> None:
    token = loop(workspace)
    for kind in (OrderKind.RECONCILE, OrderKind.COMPACT, OrderKind.VALIDATE):
        made = workspace.orders.create(kind, actor="kim")
        claimed = workspace.context.orders.claim(token)
        assert claimed is not None
        assert claimed.claim == OrderClaim(made.order_id, token)
        assert workspace.context.orders.finish(claimed.claim, OrderState.SUCCEEDED, result={})
