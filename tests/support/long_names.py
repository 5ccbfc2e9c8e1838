"""A workspace whose partition keys are as long as real ones, with every kind of row that commands list. No Spark."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml

from builders import audit_entry, rejected
from house import FIELDS, House
from penstock.flow.graph import Graph
from penstock.lifecycle import Stage
from penstock.partition import PartitionKey, RunId, new_run_id
from penstock.state.records import Planned

QUERY = "campaign_performance_daily"
CUSTOMER = "1234567890"


@dataclass(frozen=True, slots=True)
class LongNames:
    """One partition is served, one failed and was given up, one failed; the others are missing."""

    folder: Path
    served: PartitionKey
    terminal: PartitionKey
    failed: PartitionKey
    missing: PartitionKey
    loaded_run: RunId
    failed_run: RunId


def make(folder: Path) -> LongNames:
    start = datetime.now(UTC).date() - timedelta(days=4)
    body = {
        "tenant": "acme",
        "workspace": "ads",
        "state": "sqlite:///state.db",
        "lake": "./lake",
        "customers": [{"id": CUSTOMER}],
        "sources": {"google_ads": {"kind": "demo"}},
        "queries": {
            QUERY: {"source": "google_ads", "schema_version": "v1", "start_date": start.isoformat(), "fields": FIELDS}
        },
    }
    (folder / "penstock.yaml").write_text(yaml.safe_dump(body, sort_keys=False))
    house = House(folder)
    served, terminal, failed, missing = (
        PartitionKey("google_ads", CUSTOMER, QUERY, start + timedelta(days=n)) for n in range(4)
    )
    loaded_run = house.deliver({served: 7})
    house.publish()
    failed_run, token = new_run_id(), house.workers.register()
    contract = house.workspace.contracts[QUERY]
    planned = [Planned(key, 0, "missing", contract.fingerprint, contract.schema_version) for key in (terminal, failed)]
    house.control.start_run(failed_run, token, "ada", {}, 2, Graph([terminal, failed]).event(failed_run))
    issued, _ = house.control.issue(failed_run, token, "one", planned)
    house.validator.reject([rejected(one.attempt, token, stage=Stage.EXTRACT) for one in issued])
    house.control.finish_run(failed_run, token, {}, "done")
    house.workers.stop(token)
    house.workspace.marks.mark_terminal([terminal], "no longer sold", audit_entry())
    return LongNames(folder, served, terminal, failed, missing, loaded_run, failed_run)
