"""The projection of one run after 10,000 others: the cost of a pass must depend on the run, not on earlier runs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pyarrow as pa

from bench.recording import make_events
from bench.scale_case import Case
from bench.standing import fill
from bench.workload import Workload
from penstock.app import Workspace
from penstock.ledger.append import append
from penstock.partition import RunId, new_run_id, new_ulids
from penstock.projections import files
from penstock.projections.manifest import RowsFile, new_path
from penstock.projections.publish_status import publish
from penstock.projections.runs import RUNS

RUNS_BEFORE = 10_000
PARTITIONS = 100  # of the run that is projected


def after_runs(number: int) -> Case:
    """One pass that folds a run of 100 partitions, when so many runs are in the projections already."""

    def filled(workspace: Workspace, workload: Workload) -> None:
        fill(workspace, workload)
        _add_runs(workspace, number)
        workspace.status.projector.advance()
        run_events = make_events(RunId(new_run_id()), PARTITIONS)
        workspace.context.database.transact(
            lambda connection: append(connection, run_events, "bench", workspace.context.now())
        )

    return Case(f"project a run after {number:,}", filled, lambda workspace: _advance(workspace, number))


def _add_runs(workspace: Workspace, number: int) -> None:
    """Insert the files that `number` runs of one task leave, in the sizes that merging leaves, with their manifest."""
    names = new_ulids(number)
    moment = pa.scalar(workspace.context.now() - timedelta(days=1), pa.timestamp("ms", tz="UTC"))
    values = {
        "run_id": pa.array(names),
        "state": pa.repeat(pa.scalar("SUCCEEDED"), number),
        "row_version": pa.array(names),
        **{name: pa.repeat(moment, number) for name in ("planned_at", "finished_at")},
    }
    zeros = pa.array(np.zeros(number, np.int64))
    constant = pa.repeat(pa.scalar("bench"), number)
    columns = [
        values.get(field.name, constant if pa.types.is_string(field.type) else zeros).cast(field.type)
        if field.name != "cancel_requested_at"
        else pa.nulls(number, field.type)
        for field in RUNS
    ]
    path, projector = new_path("runs"), workspace.status.projector
    files.write(projector.lake, path, pa.Table.from_arrays(columns, schema=RUNS))
    seen, manifest = projector.head.read()
    parts: dict[str, tuple[str, ...]] = {name: (part,) for name, part in zip(names, new_ulids(number), strict=True)}
    projector.head.advance(
        seen, replace(manifest, runs=(RowsFile(path, number),), parts=parts), workspace.context.now()
    )


def _advance(workspace: Workspace, number: int) -> None:
    if not workspace.status.projector.advance():
        raise SystemExit("a run has events, but nothing was folded")
    if len(workspace.status.projector.head.read()[1].parts) != number + 1:
        raise SystemExit("the manifest does not name the run")


def _publish(workspace: Workspace) -> None:
    projector = workspace.status.projector
    publish(projector.lake, projector.head.read()[1], projector.owner, workspace.context.now())


_MANY = after_runs(RUNS_BEFORE)
PROJECTION = (after_runs(100), _MANY, Case("publish partition_status.parquet", _MANY.fill, _publish))
