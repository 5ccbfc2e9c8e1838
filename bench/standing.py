"""Status, missing and stale at large sizes: in this process, and as a command from start to end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.databases import Place
from bench.measure import timed
from bench.workload import QUERY, SOURCE, Workload
from penstock.app import Workspace
from penstock.control.select import Selection
from penstock.partition import new_ulids
from penstock.projections import files
from penstock.projections.manifest import new_path
from penstock.projections.status import PARTIAL
from penstock.projections.status_board import FAILED, STALE, Board
from penstock.projections.status_file import with_spec_columns

_EPOCH = date(1970, 1, 1)

# One partition in a hundred is missing, one in fifty failed last, one in ten has an older contract.
_QUESTIONS: dict[str, Callable[[Board], object]] = {
    "status": lambda board: (board.counts(["query"]), board.flags()),
    "status by month and query": lambda board: board.counts(["month", "query"]),
    "missing, 100 and ranges": lambda board: (board.missing_page(after=None, limit=100), board.gaps(100)),
    "failed, 100 and how many": lambda board: (board.page(FAILED, after=None, limit=100), board.total(FAILED)),
    "stale, 100 and by reason": lambda board: (board.page(STALE, after=None, limit=100), board.stale_reasons()),
}


def measure_standing(place: Place, sizes: Sequence[int], *, commands: bool) -> Iterator[dict[str, object]]:
    for partitions in sizes:
        workload = Workload(partitions, rows=1)
        with place.workspace(workload) as workspace:
            fill(workspace, workload)
            one = workload.customers[len(workload.customers) // 2]
            for name, question in _QUESTIONS.items():
                yield _fact(name, partitions, timed(_ask, workspace, Selection(), question))
            narrow = Selection(customers=(one,))
            yield _fact("stale, one customer", partitions, timed(_ask, workspace, narrow, lambda b: b.total(STALE)))
            for command in ("status", "missing", "stale") if commands else ():
                yield _fact(f"penstock {command}", partitions, timed(_command, command, workspace.settings.root))


def _ask(workspace: Workspace, selection: Selection, question: Callable[[Board], object]) -> None:
    question(workspace.status.board(selection))


def _fact(what: str, partitions: int, seconds: float) -> dict[str, object]:
    return {"what": what, "partitions": partitions, "seconds": round(seconds, 3)}


def _command(name: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", name, "--json", "--workspace", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr.decode())


def fill(workspace: Workspace, workload: Workload) -> None:
    """The projection as if so many partitions were loaded, without the days that this would take."""
    customers, days = len(workload.customers), workload.days
    number = np.arange(workload.partitions)
    number = number[number % 100 != 0]
    count = len(number)
    customer, day = number // days, number % days
    old, failed = number % 10 == 1, number % 50 == 7
    ids = pa.array(new_ulids(count))
    made, tried = workspace.context.now() - timedelta(hours=2), workspace.context.now() - timedelta(hours=1)
    run = pa.repeat(pa.scalar("01J00000000000000000000000"), count)
    moment = pa.timestamp("us", tz="UTC")
    one = pa.array(np.ones(count, np.int32))
    contract = workspace.context.contracts[QUERY].fingerprint
    columns = {
        "source": pa.repeat(pa.scalar(SOURCE), count),
        "customer_id": pa.array(workload.customers).take(customer),
        "query_name": pa.repeat(pa.scalar(QUERY), count),
        "logical_date": pa.array((day + (workload.first_day - _EPOCH).days).astype(np.int32)).cast(pa.date32()),
        "attempt_no": one,
        "last_attempt_run_id": run,
        "last_attempt_at": pa.array([made, tried], moment).take(failed.astype(int)),
        "last_attempt_outcome": pa.array(["SUCCEEDED", "FAILED"]).take(failed.astype(int)),
        "attempt_position": pa.array(np.where(failed, 2, 1)),
        "authority_version": one,
        "authority_at": pa.repeat(pa.scalar(made, moment), count),
        "available": pa.array(np.ones(count, bool)),
        "materialized_version": one,
        "last_materialization_run_id": run,
        "last_materialization_at": pa.repeat(pa.scalar(made, moment), count),
        "last_materialization_code_version": pa.array([contract, "older"]).take(old.astype(int)),
        "content_digest": ids,
        "materialized_position": pa.array(np.ones(count, np.int64)),
        "published_version": pa.array(number),
        "published_run_id": run,
        "published_at": pa.repeat(pa.scalar(made, moment), count),
        "row_position": pa.array(number),
        "row_version": ids,
    }
    rows = pa.Table.from_arrays([columns[name] for name in PARTIAL.names], schema=PARTIAL)
    projector, path = workspace.status.projector, new_path("partition_status")
    files.write(projector.lake, path, with_spec_columns(rows, projector.owner))
    seen, manifest = projector.head.read()
    projector.head.advance(seen, replace(manifest, status_base=path), workspace.context.now())
    board = workspace.status.board(Selection())
    if board.missing() != workload.partitions - count or customers * days != workload.partitions:
        raise SystemExit("the projection does not hold what was written to it")
