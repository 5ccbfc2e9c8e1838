"""A workspace whose partition keys are as long as real ones, with every kind of row that commands list. No Spark."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import yaml

from penstock.control.select import Selection
from penstock.flow.graph import Graph
from penstock.lifecycle import AttemptReason, Stage
from penstock.partition import PartitionKey, RunId, new_run_id
from penstock.state.records import Planned
from support.builders import audit_entry, rejected, resumed
from support.harness import FIELDS, Harness

QUERY = "campaign_performance_daily"
CUSTOMERS = ("1234567890", "9876543210")


@dataclass(frozen=True, slots=True)
class LongNames:
    """Each of two customers has one served partition, one failed and terminal, one failed, and one missing; these are
    those of the first customer."""

    folder: Path
    served: PartitionKey
    terminal: PartitionKey
    failed: PartitionKey
    missing: PartitionKey
    loaded_run: RunId
    failed_run: RunId
    open_run: RunId  # of a worker that lives; it has issued nothing yet
    backfill: str


def make(folder: Path) -> LongNames:
    start = datetime.now(UTC).date() - timedelta(days=4)
    body = {
        "tenant": "acme",
        "workspace": "ads",
        "state": "sqlite:///state.db",
        "lake": "./lake",
        "customers": [{"id": customer} for customer in CUSTOMERS],
        "sources": {"google_ads": {"kind": "demo"}},
        "queries": {
            QUERY: {
                "source": "google_ads",
                "schema_version": "v1",
                "start_date": start.isoformat(),
                "fields": FIELDS,
                "freshness": {"max_lag": "1s"},
            }
        },
    }
    (folder / "penstock.yaml").write_text(yaml.safe_dump(body, sort_keys=False))
    house = Harness(folder)
    served, terminal, failed, missing = (
        [PartitionKey("google_ads", customer, QUERY, start + timedelta(days=n)) for customer in CUSTOMERS]
        for n in range(4)
    )
    for clicks in (7, 8):  # so that each partition was loaded twice
        loaded_run = house.deliver(dict.fromkeys(served, clicks))
        house.publish()
    fail(house, terminal)
    failed_run = fail(house, failed)
    house.workspace.context.marks.mark_terminal(terminal, "no longer sold", audit_entry(command="state mark-terminal"))
    house.workspace.context.marks.pause(missing, None, audit_entry(command="state pause"))
    for year in (2031, 2032):
        later = Selection(since=date(year, 1, 1), until=date(year, 1, 2))
        house.workspace.operations.pause(later, actor="ada")
    resumed(house.workspace.context.database, house.now, *missing)
    open_run = new_run_id()
    house.control.start_run(open_run, house.workers.register(), "ada", {}, 0)
    time.sleep(1.1)  # the served partitions are stale from here on
    backfills = [backfill(house, priority) for priority in (0, 5, 0, 5)]
    return LongNames(
        folder, served[0], terminal[0], failed[0], missing[0], loaded_run, failed_run, open_run, backfills[0]
    )


def fail(house: Harness, keys: Sequence[PartitionKey]) -> RunId:
    """A run in which the source answered for none of these."""
    run_id, token = new_run_id(), house.workers.register()
    contract = house.workspace.context.contracts[QUERY]
    planned = [Planned(key, 0, AttemptReason.MISSING, contract.fingerprint, contract.schema_version) for key in keys]
    house.control.start_run(run_id, token, "ada", {}, len(keys), Graph(keys).event(run_id))
    issued, _ = house.control.issue(run_id, token, "one", planned)
    house.validator.judge([rejected(one.attempt, token, stage=Stage.EXTRACT) for one in issued])
    house.control.finish_run(run_id, token, {}, "done")
    house.workers.stop(token)
    return run_id


def backfill(house: Harness, priority: int) -> str:
    from penstock.app import load_workspace

    ws = load_workspace(house.folder)  # by the clock of today
    new = ws.backfills.plan(Selection(), reprocess=True, chunk_size=10, priority=priority, max_chunks=1, actor="kim")
    ws.context.backfills.create(new, audit_entry(command="backfill create"))
    return new.backfill_id
