"""Every audited act writes its audit entries: actor, act, filters, flags and count."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.app import Workspace
from penstock.control.customers import plan_customers
from penstock.control.select import Selection
from penstock.errors import PenstockError
from penstock.lifecycle import AttemptReason
from penstock.partition import PartitionKey, new_run_id
from penstock.source.protocol import Account
from penstock.state.audited import AuditedAct
from penstock.state.control import AuditEntry, ControlStore
from penstock.state.records import Breaker
from penstock.state.worker import WorkerStore
from support import builders
from support.workspaces import NOW, Silent, customer_id, key, open_at, write_workspace

Line = tuple[int, str]  # affected, outcome
TABLE = "demo.campaign_daily"


@dataclass
class Shop:
    """A workspace in which every partition was accepted and published once."""

    folder: Path
    spark: Any
    filters: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ws(self) -> Workspace:
        return open_at(self.folder)

    @property
    def control(self) -> ControlStore:
        return ControlStore(self.ws.context.database, self.ws.context.now)

    def entry(self, act: AuditedAct, filters: Mapping[str, Any] | None = None) -> AuditEntry:
        self.filters, self.flags = filters or {"keys": ["some"]}, {"yes": True}
        return AuditEntry("kim", act, self.filters, self.flags)

    def rewritten(self, faults: Sequence[dict[str, Any]] = (), **query: Any) -> Workspace:
        """The same workspace under another contract."""
        write_workspace(self.folder, customers=3, rows=10, faults=faults, query=query)
        return self.ws

    def failed(self, partition: PartitionKey) -> PartitionKey:
        self.ws.operations.demote(partition, reason="wrong", actor="set-up")
        return partition

    def backfill(self, status: str | None = None) -> str:
        new = self.ws.backfills.plan(
            Selection(keys=(key(3),)), reprocess=True, chunk_size=10, priority=0, max_chunks=1, actor="set-up"
        )
        entry = AuditEntry("set-up", AuditedAct.BACKFILL_CREATE, {}, {})
        self.ws.context.backfills.create(new, entry)
        if status:
            self.ws.context.backfills.move(new.backfill_id, status, entry)
        return new.backfill_id


ONE = Selection(keys=(key(1),))
ONE_FILTER = {"keys": [str(key(1))]}


def reprocess(shop: Shop) -> list[Line]:
    shop.filters, shop.flags = ONE_FILTER, {"reprocess": True}
    shop.ws.runs.start(ONE, listener=Silent(), reprocess=True, actor="kim", spark=shop.spark)
    return [(1, "begun"), (1, "done")]


def resume_run(shop: Shop) -> list[Line]:
    workers, run_id = WorkerStore(shop.ws.context.database, shop.ws.context.now), new_run_id()
    token = workers.register()
    shop.control.start_run(run_id, token, "set-up", {}, 0)
    workers.stop(token)
    shop.filters = {"run_id": run_id}
    shop.ws.runs.resume(run_id, listener=Silent(), spark=shop.spark, actor="kim")
    return [(0, "begun"), (0, "done")]


def cancel_run(shop: Shop) -> list[Line]:
    workers, run_id = WorkerStore(shop.ws.context.database, shop.ws.context.now), new_run_id()
    shop.control.start_run(run_id, workers.register(), "set-up", {}, 0)
    shop.filters = {"run_id": run_id}
    assert shop.ws.runs.cancel(run_id, actor="kim")
    return [(1, "done")]


def validate(shop: Shop) -> list[Line]:
    shop.filters = ONE_FILTER
    stricter = shop.rewritten(checks=[{"rows": {"min": 11}}])
    found = stricter.rechecks.run(ONE, listener=Silent(), actor="kim", spark=shop.spark)
    assert list(found.demoted) == [key(1)]
    return [(0, "begun"), (1, "demoted"), (1, "done")]


def retry(shop: Shop) -> list[Line]:
    shop.filters, shop.flags = ONE_FILTER, {"reason": "fixed", "without_raw": True, "yes": True}
    shop.failed(key(1))
    flags = {"yes": True}
    assert shop.ws.operations.retry(ONE, without_raw=True, actor="kim", reason="fixed", flags=flags) == 1
    return [(1, "done")]


def mark_terminal(shop: Shop) -> list[Line]:
    shop.filters, shop.flags = ONE_FILTER, {"reason": "gone", "yes": True}
    gone = [shop.failed(key(1))]
    assert shop.ws.operations.mark_terminal(gone, actor="kim", reason="gone", flags={"yes": True}) == 1
    return [(1, "done")]


def clear_terminal(shop: Shop) -> list[Line]:
    shop.filters, shop.flags = {"source": "demo"}, {"yes": True}
    shop.ws.operations.mark_terminal([shop.failed(key(1))], actor="set-up")
    chosen, flags = Selection(source="demo"), {"yes": True}
    assert shop.ws.operations.clear_terminal([key(1)], actor="kim", selection=chosen, flags=flags) == 1
    return [(1, "done")]


def pause(shop: Shop) -> list[Line]:
    shop.filters, shop.flags = {"source": "demo"}, {"reason": "moves", "yes": True}
    assert shop.ws.operations.pause(Selection(source="demo"), actor="kim", reason="moves", flags={"yes": True}) == 6
    return [(6, "done")]


def resume(shop: Shop) -> list[Line]:
    shop.filters, shop.flags = ONE_FILTER, {"yes": True}
    shop.ws.operations.pause(Selection(source="demo"), actor="a")
    assert shop.ws.operations.resume(ONE, actor="kim", flags={"yes": True}) == 1
    return [(1, "done")]


def demote(shop: Shop) -> list[Line]:
    shop.filters, shop.flags = ONE_FILTER, {"reason": "wrong"}
    assert shop.ws.operations.demote(key(1), reason="wrong", actor="kim")
    return [(1, "done")]


def rollback(shop: Shop) -> list[Line]:
    old = shop.ws.context.state.attempts(key(1))[-1].run_id
    shop.ws.runs.start(ONE, listener=Silent(), reprocess=True, actor="set-up", spark=shop.spark)
    shop.filters, shop.flags = ONE_FILTER, {"to": old, "reason": None}
    assert shop.ws.operations.rollback(key(1), old, actor="kim")
    return [(1, "done")]


def approve(shop: Shop) -> list[Line]:
    fault = {"fault": "fewer_rows", "customer": customer_id(1), "date": "2024-06-09"}
    shop.rewritten(faults=[fault], checks=[{"shrink": {"max_drop": 0.5}}])
    held = shop.ws.runs.start(ONE, listener=Silent(), reprocess=True, actor="set-up", spark=shop.spark)
    shop.filters, shop.flags = ONE_FILTER, {"run": held.run_id, "reason": "right"}
    assert shop.ws.operations.approve(key(1), held.run_id, reason="right", actor="kim")
    return [(1, "done")]


def create_backfill(shop: Shop) -> list[Line]:
    new = shop.ws.backfills.plan(ONE, reprocess=True, chunk_size=10, priority=0, max_chunks=1, actor="kim")
    shop.filters = ONE_FILTER
    shop.flags = {"reprocess": True, "chunk_size": 10, "priority": 0, "max_chunks": 1}
    assert shop.ws.backfills.create(new, ONE) == new.backfill_id
    return [(1, "done")]


def moved(verb: str, before: str | None) -> Callable[[Shop], list[Line]]:
    def move(shop: Shop) -> list[Line]:
        backfill_id = shop.backfill(before)
        shop.filters = {"backfill_id": backfill_id}
        assert getattr(shop.ws.backfills, verb)(backfill_id, actor="kim")
        return [(1, "done")]

    return move


def retry_backfill(shop: Shop) -> list[Line]:
    old = shop.ws.backfills.get(shop.backfill())
    shop.filters, shop.flags = {"backfill_id": old.backfill_id}, {"without_raw": False}
    actors = builders.Actors.on(shop.ws.context.database)
    item = replace(actors.plan(key(1))[0], reason=AttemptReason.BACKFILL, backfill_id=old.backfill_id)
    [issued], _ = actors.try_to_issue(item)
    actors.validator.judge([builders.rejected(issued.attempt, actors.token, payload_digest="x")])
    shop.failed(key(1))
    shop.ws.backfills.retry_failed(old.backfill_id, actor="kim")
    return [(1, "done"), (1, "done")]


def close_breaker(shop: Shop) -> list[Line]:
    opened = Breaker("demo", 3, NOW, NOW, error_class="auth", error_message="refused")
    shop.ws.context.breakers.change("demo", lambda _: opened)
    shop.filters = {"source": "demo"}
    assert shop.ws.operations.close_breaker("demo", actor="kim")
    return [(1, "done")]


def sync_customers(shop: Shop) -> list[Line]:
    settings = (shop.folder / "penstock.yaml").read_text()
    names = "".join(f"{1_000_000_000 + number},One,UTC,,\n" for number in (1, 2, 3))
    (shop.folder / "customers.csv").write_text("id,name,time_zone,active_from,active_to\n" + names)
    head, _, tail = settings.partition("customers:")
    _, _, rest = tail.partition("sources:")
    (shop.folder / "penstock.yaml").write_text(f"{head}customers: customers.csv\nsources:{rest}")
    accounts = [Account(str(1_000_000_000 + number), "Uno", "UTC") for number in (1, 2, 3)]
    plan = plan_customers(shop.ws.settings, "demo", accounts, NOW)
    shop.filters, shop.flags = {"source": "demo"}, {"yes": True}
    shop.ws.customers.sync("demo", plan, actor="kim", flags={"yes": True})
    return [(3, "begun"), (3, "done")]


def read_raw(shop: Shop) -> list[Line]:
    old = shop.ws.context.state.attempts(key(1))[0].run_id
    assert len(list(shop.ws.raw.lines_of(key(1), old, "kim"))) == 10  # trusted: free
    assert AuditedAct.RAW_READ not in {line["command"] for line in shop.ws.context.state.audit()}
    shop.ws.runs.start(ONE, listener=Silent(), reprocess=True, actor="set-up", spark=shop.spark)
    shop.filters = {**ONE_FILTER, "run_id": old}
    assert len(list(shop.ws.raw.lines_of(key(1), old, "kim"))) == 10
    return [(1, "done")]


def collect_garbage(shop: Shop) -> list[Line]:
    shop.ws.runs.start(ONE, listener=Silent(), reprocess=True, actor="set-up", spark=shop.spark)
    later = open_at(shop.folder, NOW + timedelta(days=9))
    shop.filters = {"older_than": "1d"}
    found = later.maintenance.garbage("1d")
    assert later.maintenance.collect_garbage(found, "1d", actor="kim")[0] == len(found) == 1
    return [(1, "done")]


def take_snapshot(shop: Shop) -> list[Line]:
    shop.filters, shop.flags = {"snapshot": "now"}, {"keep": "30 days, 0:00:00"}
    shop.ws.data.take_snapshot("now", actor="kim")
    return [(0, "begun"), (1, "done")]


def drop_snapshot(shop: Shop) -> list[Line]:
    shop.ws.data.take_snapshot("now", actor="set-up")
    shop.filters = {"snapshot": "now"}
    shop.ws.data.drop_snapshot("now", actor="kim")
    return [(0, "begun"), (1, "done")]


def reconcile(shop: Shop) -> list[Line]:
    shop.failed(key(1))
    shop.filters = {}
    shop.ws.maintenance.reconcile(spark=shop.spark, actor="kim")
    return [(1, "begun"), (1, "done")]


def compact(shop: Shop) -> list[Line]:
    names = [head.name for _, head in shop.ws.maintenance.tables()]
    shop.filters = {"tables": names}
    shop.ws.maintenance.compact(names, None, shop.spark, actor="kim")
    return [(1, "begun"), (1, "done")]


def vacuum(shop: Shop) -> list[Line]:
    shop.filters, shop.flags = {"tables": [TABLE]}, {"retention": "7d"}
    shop.ws.maintenance.vacuum([TABLE], "7d", actor="kim")
    return [(0, "begun"), (0, "done")]


def export_ledger(shop: Shop) -> list[Line]:
    later = open_at(shop.folder, NOW + timedelta(days=200))
    shop.filters = {"older_than_days": 90}
    facts = later.ledger.export(90, actor="kim")
    return [(facts["events"], "done")]


def recover(shop: Shop) -> list[Line]:
    shop.filters, shop.flags = {}, {"from": "database", "yes": True}
    shop.ws.maintenance.recovery.from_database([], lambda _: None, shop.spark, actor="kim", flags={"yes": True})
    return [(0, "begun"), (0, "done")]


def create_token(shop: Shop) -> list[Line]:
    shop.filters, shop.flags = {"name": "airflow"}, {"role": "operator"}
    shop.ws.tokens.create("airflow", "operator", actor="kim")
    return [(1, "done")]


def revoke_token(shop: Shop) -> list[Line]:
    shop.filters = {"name": "airflow"}
    shop.ws.tokens.create("airflow", "operator", actor="set-up")
    assert shop.ws.tokens.revoke("airflow", actor="kim")
    return [(1, "done")]


def end_sessions(shop: Shop) -> list[Line]:
    shop.filters = {"name": "airflow"}
    _, text = shop.ws.tokens.create("airflow", "operator", actor="set-up")
    shop.ws.logins.login(text, "127.0.0.1")
    assert shop.ws.logins.end_all("airflow", actor="kim") == 1
    return [(1, "done")]


def create_order(shop: Shop) -> list[Line]:
    shop.filters, shop.flags = ONE_FILTER, {"kind": "run", "reprocess": True, "reason": "fixed"}
    shop.ws.orders.create("run", ONE, {"reprocess": True}, reason="fixed", actor="kim")
    return [(1, "done")]


def cancel_order(shop: Shop) -> list[Line]:
    order = shop.ws.orders.create("reconcile", actor="set-up")
    shop.filters = {"order_id": order.order_id}
    assert shop.ws.orders.cancel(order.order_id, actor="kim")
    return [(1, "done")]


ACTS: dict[AuditedAct, Callable[[Shop], list[Line]]] = {
    AuditedAct.RUN_REPROCESS: reprocess,
    AuditedAct.RUNS_RESUME: resume_run,
    AuditedAct.RUNS_CANCEL: cancel_run,
    AuditedAct.VALIDATE: validate,
    AuditedAct.STATE_RETRY: retry,
    AuditedAct.STATE_MARK_TERMINAL: mark_terminal,
    AuditedAct.STATE_CLEAR_TERMINAL: clear_terminal,
    AuditedAct.STATE_PAUSE: pause,
    AuditedAct.STATE_RESUME: resume,
    AuditedAct.STATE_DEMOTE: demote,
    AuditedAct.STATE_ROLLBACK: rollback,
    AuditedAct.STATE_APPROVE: approve,
    AuditedAct.BACKFILL_CREATE: create_backfill,
    AuditedAct.BACKFILL_PAUSE: moved("pause", None),
    AuditedAct.BACKFILL_RESUME: moved("resume", "paused"),
    AuditedAct.BACKFILL_CANCEL: moved("cancel", None),
    AuditedAct.BACKFILL_RETRY_FAILED: retry_backfill,
    AuditedAct.CLOSE_BREAKER: close_breaker,
    AuditedAct.CUSTOMERS_SYNC: sync_customers,
    AuditedAct.RAW_READ: read_raw,
    AuditedAct.RAW_GC: collect_garbage,
    AuditedAct.SNAPSHOT: take_snapshot,
    AuditedAct.SNAPSHOT_DROP: drop_snapshot,
    AuditedAct.RECONCILE: reconcile,
    AuditedAct.COMPACT: compact,
    AuditedAct.VACUUM: vacuum,
    AuditedAct.LEDGER_EXPORT: export_ledger,
    AuditedAct.RECOVER: recover,
    AuditedAct.TOKENS_CREATE: create_token,
    AuditedAct.TOKENS_REVOKE: revoke_token,
    AuditedAct.TOKENS_LOGOUT: end_sessions,
    AuditedAct.ORDERS_CREATE: create_order,
    AuditedAct.ORDERS_CANCEL: cancel_order,
}


@pytest.fixture(scope="module")
def accepted(tmp_path_factory: pytest.TempPathFactory, spark: Any) -> Path:
    folder = write_workspace(tmp_path_factory.mktemp("shop"), customers=3, rows=10, query={"checks": []})
    open_at(folder).runs.start(Selection(), listener=Silent(), actor="set-up", spark=spark)
    return folder


@pytest.fixture
def shop(accepted: Path, tmp_path: Path, spark: Any) -> Shop:
    """A copy of its own."""
    shutil.copytree(accepted, tmp_path / "shop")
    return Shop(tmp_path / "shop", spark)


@pytest.mark.parametrize("act", AuditedAct, ids=str)
def test_every_act_is_in_the_audit_log_with_its_actor_filters_flags_and_count(act: AuditedAct, shop: Shop) -> None:
    expected = ACTS[act](shop)
    lines = [line for line in shop.ws.context.state.audit() if line["actor"] == "kim"][::-1]
    assert {line["command"] for line in lines} == {act}
    assert [line["affected"] for line in lines] == [affected for affected, _ in expected]
    for line, (_, outcome) in zip(lines, expected, strict=True):
        assert (line["outcome"], line["filters"], line["flags"]) == (outcome, shop.filters, shop.flags)


def test_an_act_of_several_transactions_is_in_the_log_from_its_begin_whatever_becomes_of_it(shop: Shop) -> None:
    ws, entry = shop.ws, shop.entry(AuditedAct.COMPACT)
    with pytest.raises(KeyboardInterrupt), ws.context.audited(entry, 3):  # as a kill: nothing is written after it
        raise KeyboardInterrupt
    with pytest.raises(PenstockError), ws.context.audited(entry, 3):
        raise PenstockError("the lake is gone")
    lines = [(line["affected"], line["outcome"]) for line in ws.context.state.audit()][::-1]
    assert lines == [(3, "begun"), (3, "begun"), (0, "failed: the lake is gone")]


def test_an_act_that_nobody_listed_is_refused() -> None:
    with pytest.raises(ValueError, match="'state repair' is not a valid AuditedAct"):
        builders.audit_entry(command="state repair")
