"""Measures one evaluation of all rules of alerts on a workspace that is filled without rows."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import sqlalchemy as sa

from bench.command_workspace import filled_workspace
from bench.measure import timed
from bench.options import positive
from bench.report import circumstances
from bench.workload import Workload, days_of
from penstock.app import Workspace, load_workspace
from penstock.config.alerts import KINDS, AlertSettings
from penstock.config.freshness import Freshness
from penstock.db import schema

_CASES = ((2_000, 0), (20_000, 0), (20_000, 8))  # terminal partitions, days without data


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.alerts", description=__doc__)
    parser.add_argument("--partitions", type=positive, default=1_000_000)
    parser.add_argument("--repeat", type=positive, default=5)
    options = parser.parse_args()
    for failed, empty_days in _CASES:
        folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
        try:
            measure(folder / "workspace", options.partitions, failed, empty_days, options.repeat)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def measure(folder: Path, partitions: int, failed: int, empty_days: int, repeat: int) -> None:
    """Evaluate all rules; `failed` partitions are terminal, and the last `empty_days` days have no data."""
    first_day = datetime.now(UTC).date() - timedelta(days=days_of(partitions) + empty_days)
    filled_workspace(Workload(partitions, 1, first_day), folder)
    workspace = with_rules(load_workspace(folder))
    fail(workspace, failed)
    token = workspace.context.workers.register(control_loop=True)
    first = timed(workspace.alerts.evaluate, token)
    others = sorted(timed(workspace.alerts.evaluate, token) for _ in range(repeat))
    facts: dict[str, object] = {"what": "evaluate all rules", "partitions": partitions, "failed": failed}
    facts |= {"empty_days": empty_days, "first_seconds": round(first, 3)}
    facts |= {"median_seconds": round(others[len(others) // 2], 3), "longest_seconds": round(others[-1], 3)}
    facts["firing"] = sum(alert.is_active for alert in workspace.context.alert_states.alerts())
    sys.stdout.write(json.dumps({**facts, **circumstances()}, default=str) + "\n")
    workspace.close()


def with_rules(workspace: Workspace) -> Workspace:
    """The same workspace with every rule and a deadline."""
    channels = {"ops": {"webhook": "http://127.0.0.1:9/"}}
    alerts = AlertSettings.model_validate({"channels": channels, "rules": [{"rule": kind} for kind in KINDS]})
    settings = workspace.settings
    queries = {
        name: query.model_copy(
            update={"freshness": Freshness.model_validate({"max_lag": "36h", "complete_by": "09:00"})}
        )
        for name, query in settings.queries.items()
    }
    return Workspace(settings.model_copy(update={"alerts": alerts, "queries": queries}))


def fail(workspace: Workspace, count: int) -> None:
    """Mark partitions as failed for good, with messages that differ in their values."""
    state = schema.partition_state
    columns = [state.c[name] for name in schema.KEY]
    chosen = sa.select(*columns).where(state.c.status == "success").limit(count)
    with workspace.context.database.snapshot() as connection:
        keys = [dict(row._mapping) for row in connection.execute(chosen)]
    this = [state.c[name] == sa.bindparam(f"k_{name}") for name in schema.KEY]
    update = sa.update(state).where(*this).values(status="failed", error_message=sa.bindparam("message"))
    rows = [
        {f"k_{name}": value for name, value in key.items()} | {"message": f"row {n} of 'part-{n}.csv' is not valid"}
        for n, key in enumerate(keys)
    ]
    marked = (*schema.KEY, "terminal_at", "terminal_by")
    failed = sa.select(*columns, state.c.updated_at, sa.literal("bench")).where(state.c.status == "failed")
    marks = sa.insert(schema.partition_control).from_select(marked, failed)
    workspace.context.database.transact(lambda connection: connection.execute(update, rows))
    workspace.context.database.transact(lambda connection: connection.execute(marks))


if __name__ == "__main__":
    main()
