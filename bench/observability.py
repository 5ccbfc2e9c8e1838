"""Measures scrapes of the metrics on a workspace that is filled without rows: the first one of a process, one without
changes, and one after new events."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from bench.command_workspace import filled_workspace
from bench.options import positive
from bench.report import circumstances
from bench.workload import QUERY, SOURCE, Workload, days_of
from penstock.app import Workspace, open_workspace
from penstock.errors import ErrorClass
from penstock.lifecycle import AttemptReason, Stage
from penstock.partition import PartitionKey, new_run_id
from penstock.state.records import Planned, Rejected

_COLUMNS = ("partitions", "customers", "scrape", "median_seconds", "worst_seconds", "bytes", "samples")


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    known = circumstances()
    folder = Path(options.folder or tempfile.mkdtemp(prefix="penstock-bench-"))
    facts: list[dict[str, object]] = []
    try:
        for size in options.partitions or (1_000_000,):
            workload = Workload(size, 1, datetime.now(UTC).date() - timedelta(days=days_of(size)))
            place = folder / f"{len(workload.customers)}x{workload.days}"
            if not place.exists():
                filled_workspace(workload, place)
            for fact in _measured(workload, place, options.repeat):
                facts.append({"partitions": size, "customers": len(workload.customers), **fact})
                print(json.dumps({**facts[-1], **known}, default=str), flush=True)
    finally:
        if options.folder is None:
            shutil.rmtree(folder)
    made = Table(*_COLUMNS)
    for fact in facts:
        made.add_row(*(str(fact.get(name, "")) for name in _COLUMNS))
    Console(stderr=True, width=120).print(made)


def _measured(workload: Workload, folder: Path, repeat: int) -> Iterator[dict[str, object]]:
    workspace = open_workspace(folder)
    try:
        yield _scrapes(workspace, "first of a process", 1)
        yield _scrapes(workspace, "without changes", repeat)
        seconds: list[float] = []
        made: dict[str, object] = {}
        for number in range(repeat):
            _fail_one(workspace, workload, number)
            made = _scrapes(workspace, "after new events", 1, seconds)
        yield made
    finally:
        workspace.close()


def _scrapes(workspace: Workspace, name: str, repeat: int, seconds: list[float] | None = None) -> dict[str, object]:
    """Scrape so many times; `seconds` has those of earlier calls."""
    spent, content = [] if seconds is None else seconds, b""
    for _ in range(repeat):
        began = time.perf_counter()
        content, _ = workspace.metrics.exposition()
        spent.append(time.perf_counter() - began)
    return {
        "scrape": name,
        "median_seconds": round(median(spent), 3),
        "worst_seconds": round(max(spent), 3),
        "bytes": len(content),
        "samples": sum(not line.startswith(b"#") for line in content.splitlines()),
    }


def _fail_one(workspace: Workspace, workload: Workload, number: int) -> None:
    """One attempt at a missing partition that fails: the ledger has a new event."""
    context = workspace.context
    contract = context.contracts[QUERY]
    key = PartitionKey(SOURCE, workload.customers[number], QUERY, workload.dates[0])
    seen = max((attempt.attempt_no for attempt in context.state.attempts(key)), default=0)
    planned = Planned(key, seen, AttemptReason.MISSING, contract.fingerprint, contract.schema_version)
    token = context.workers.register()
    [issued], _ = context.control.issue(new_run_id(), token, 0, [planned])
    context.validators.judge([Rejected(issued.attempt, token, Stage.EXTRACT, ErrorClass.TRANSIENT, "no answer")])
    context.workers.stop(token)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.observability", description=__doc__)
    parser.add_argument("--partitions", type=positive, action="append", metavar="N", help="repeatable; 1000000")
    parser.add_argument("--repeat", type=positive, default=5, metavar="K", help="medians of K scrapes (5)")
    parser.add_argument("--folder", type=Path, help="keeps the workspaces here, and uses those that are there")
    return parser


if __name__ == "__main__":
    main()
