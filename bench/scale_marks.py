"""How long an operator's acts on many partitions take: `state pause` and `state resume` of pending partitions, and
`state retry` of failed ones. `python -m bench.scale_marks` measures them at each size."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import sqlalchemy as sa

from bench.crew import Crew, batches
from bench.databases import BACKENDS, Place, place, settle
from bench.measure import timed
from bench.options import positive
from bench.report import circumstances
from bench.workload import SOURCE, Workload
from penstock.app import Workspace
from penstock.control.select import Selection
from penstock.db import schema
from penstock.state.audited import AuditedAct
from penstock.state.control import AuditEntry

SIZES = (10_000, 100_000, 1_000_000)
_BATCH = 10_000
_ALL = Selection(source=SOURCE)

Fill = Callable[[Workspace, Workload], None]
Act = Callable[[Workspace], None]


def pending(_workspace: Workspace, _workload: Workload) -> None:
    """Nothing was ever attempted, so there is nothing to write."""


def failed(workspace: Workspace, _workload: Workload) -> None:
    """Every partition was refused by its source once."""
    crew = Crew(workspace)
    for items in batches(workspace.plan(_ALL).items, _BATCH):
        crew.judge([crew.rejected(attempt) for attempt in crew.issue(items)])


def _entry(act: AuditedAct) -> AuditEntry:
    return AuditEntry("bench", act, _ALL.as_dict(), {})


def _expected(workspace: Workspace) -> int:
    return sum(len(span) for span in workspace.ranges(_ALL))


def _pause(workspace: Workspace) -> None:
    paused = workspace.pause_partitions(_ALL, "bench", _entry(AuditedAct.STATE_PAUSE))
    with workspace.database.snapshot() as connection:
        rows = connection.scalar(sa.select(sa.func.count()).select_from(schema.pause_selector))
    if (paused, rows) != (_expected(workspace), 1):
        raise SystemExit(f"{paused} of {_expected(workspace)} partitions were paused with {rows} rows")


def _resume(workspace: Workspace) -> None:
    resumed = workspace.resume_partitions(_ALL, _entry(AuditedAct.STATE_RESUME))
    if resumed != _expected(workspace):
        raise SystemExit(f"{resumed} of {_expected(workspace)} partitions were resumed")


def _retry(workspace: Workspace) -> None:
    total = workspace.retry_candidates(_ALL, without_raw=False).total
    entry = _entry(AuditedAct.STATE_RETRY)
    moved = workspace.retry_selected(_ALL, entry, without_raw=False, total=total)
    if moved != _expected(workspace):
        raise SystemExit(f"{moved} of {_expected(workspace)} failed partitions were requeued")


# What is measured, what fills the workspace before, and the act; cases with the same fill share a workspace.
MARKS: tuple[tuple[str, Fill, Act], ...] = (
    ("state pause", pending, _pause),
    ("state resume", pending, _resume),
    ("state retry", failed, _retry),
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scale_marks", description=__doc__)
    parser.add_argument("--partitions", type=positive, action="append", metavar="N", help="repeatable")
    parser.add_argument("--backend", action="append", choices=BACKENDS, help="repeatable; sqlite if not given")
    options, known = parser.parse_args(arguments), circumstances()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        for backend in options.backend or BACKENDS[:1]:
            with place(backend, Path(name)) as here:
                for fact in measure_marks(here, options.partitions or SIZES):
                    print(json.dumps({**fact, **known}, default=str), flush=True)


def measure_marks(place: Place, sizes: Sequence[int]) -> Iterator[dict[str, object]]:
    for partitions in sizes:
        workload = Workload(partitions, rows=1)
        for fill in dict.fromkeys(fill for _, fill, _ in MARKS):
            with place.workspace(workload) as workspace:
                fill(workspace, workload)
                settle(workspace.database)
                for what, _, act in (case for case in MARKS if case[1] is fill):
                    seconds = round(timed(act, workspace), 4)
                    yield {"what": what, "backend": place.backend, "partitions": partitions, "seconds": seconds}


if __name__ == "__main__":
    main()
