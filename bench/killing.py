"""A run that is killed at random points repeatedly, compared with one that is not: both must end in the same tables."""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.options import positive
from bench.workload import FIRST_DAY, QUERY, SOURCE, Workload
from penstock.app import Workspace, load_workspace
from penstock.projections.system_tables import system_table

# Columns that must be equal: all but names of runs, times, and the number of dispatches of a task.
_COMPARED = {
    "tasks": ("task_key", "state", "error_class", "deps_total", "deps_satisfied_count"),
    "dep_satisfaction": ("upstream_task_key", "downstream_task_key", "satisfied", "resolution"),
    "partition_status": ("partition_key", "last_attempt_outcome", "available", "last_materialization_code_version"),
    "runs": ("state", "tasks_total", "tasks_succeeded", "tasks_failed", "tasks_skipped", "tasks_cancelled"),
}

_MORE_EVENTS = (1, 2, 3, 1_000, 4_000)  # few: while it issues or fetches; many: while it judges or publishes


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    say = Console(stderr=True).print
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        quiet, hunted = (_workspace(Path(name) / which, options.partitions) for which in ("quiet", "hunted"))
        started = time.monotonic()
        _finish(["run"], quiet)
        undisturbed, seconds = _tables(quiet), time.monotonic() - started
        say(f"undisturbed: {seconds:.0f} s")
        chance, command, kills, started = random.Random(options.seed), ["run"], 0, time.monotonic()
        while kills < options.kills:
            when = _kill(command, hunted, chance)
            if when is None:  # it came to its end before its time
                break
            kills += 1
            run_id = hunted.status.current().runs().to_pylist()[-1]
            done = {name: run_id[f"tasks_{name}"] for name in ("succeeded", "failed", "running", "ready")}
            say(f"killed after {when}: {done}")
            command = ["runs", "resume", run_id["run_id"]]
        else:
            _finish(command, hunted)
        tables = _tables(hunted)
        differ = [name for name in _COMPARED if tables[name] != undisturbed[name]]
        hunted.ledger.rebuild()
        rebuilt = [name for name in _COMPARED if _tables(hunted)[name] != undisturbed[name]]
        attempts = _attempts(hunted)
        planned = options.partitions + len(Workload(options.partitions, rows=5).dates)
        facts = {"partitions": planned, "kills": kills, "differ": differ, "differ_when_rebuilt": rebuilt}
        print(json.dumps({**facts, **attempts, "seconds": round(time.monotonic() - started)}))
        if differ or rebuilt or attempts["attempts"] != planned:
            raise SystemExit("the tables are not the same")


def _workspace(folder: Path, partitions: int) -> Workspace:
    """A workspace with `partitions` partitions, a model over all of them, and a few faults."""
    workload = Workload(partitions, rows=5)
    faults = [
        {"fault": fault, "customer": customer}
        for fault, customer in zip(("wrong_type", "truncated"), workload.customers, strict=False)
    ]
    source = {"demo": {"kind": "demo", "seed": 7, "rows": 5, "faults": faults}}
    last = workload.dates[-1].isoformat()
    customers = [{"id": customer, "active_from": FIRST_DAY, "active_to": last} for customer in workload.customers]
    definition = folder.parent / "spend.sql"
    asset = f"{SOURCE}.{QUERY}"
    definition.write_text(
        "SELECT logical_date, sum(cost_micros) AS cost FROM asset GROUP BY ALL".replace("asset", asset)
    )
    model = {"sql": str(definition), "depends_on": [asset], "require": "any"}
    workspace = workload.workspace(folder, sources=source, customers=customers, models={"spend": model})
    return load_workspace(workspace.settings.root)


def _kill(command: list[str], workspace: Workspace, chance: random.Random) -> str | None:
    """Start it, and kill it a moment after it appended a random number of events; returns when."""
    process = subprocess.Popen(
        _argv(command, workspace), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    before, more, delay = _events(workspace), chance.choice(_MORE_EVENTS), chance.uniform(0, 1.5)
    while _events(workspace) < before + more and process.poll() is None:
        time.sleep(0.05)
    time.sleep(delay)
    if process.poll() is not None:
        return None
    process.kill()
    process.wait()
    return f"{more:,} events and {delay:.1f} s"


def _finish(command: list[str], workspace: Workspace) -> None:
    done = subprocess.run(_argv(command, workspace), capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr[-2000:])


def _argv(command: list[str], workspace: Workspace) -> list[str]:
    return [sys.executable, "-m", "penstock", *command, "--workspace", str(workspace.settings.root)]


def _events(workspace: Workspace) -> int:
    found = workspace.context.ledger.tail(1)
    return int(found[0]["position"]) if found else 0


def _tables(workspace: Workspace) -> dict[str, Any]:
    current = workspace.status.current()
    return {
        name: sorted(tuple(str(row[column]) for column in columns) for row in _rows(name, current))
        for name, columns in _COMPARED.items()
    }


def _rows(name: str, current: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = system_table(name, current).arrow().to_pylist()
    return rows


def _attempts(workspace: Workspace) -> dict[str, int]:
    """Every partition has one attempt, however often its run was killed."""
    import sqlalchemy as sa

    from penstock.db import schema

    attempt = schema.partition_attempt
    with workspace.context.database.snapshot() as connection:
        total = connection.scalar(sa.select(sa.func.count()).select_from(attempt))
        still = connection.scalar(sa.select(sa.func.count()).select_from(attempt).where(attempt.c.outcome.is_(None)))
    return {"attempts": int(total or 0), "open": int(still or 0)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.killing", description=__doc__)
    parser.add_argument("--partitions", type=positive, default=10_000, metavar="N")
    parser.add_argument("--kills", type=positive, default=10, metavar="N")
    parser.add_argument("--seed", type=positive, default=7, metavar="N")
    return parser


if __name__ == "__main__":
    main()
