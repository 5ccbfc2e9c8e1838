"""Penstock on the same workload: one process, one session, the run as `penstock run` does it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import duckdb  # noqa: F401 - the import is no part of the first SQL question
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from bench.measure import Content, Measured, Memory, Stopwatch
from bench.workload import ASSET, Workload
from penstock.app import Workspace
from penstock.control.select import Selection
from penstock.pipeline.session import start_session
from penstock.pipeline.work import Report
from penstock.warehouse.reader import Vouched

_WARM_UP = Workload(partitions=4, rows=5)
_AGGREGATE = f"SELECT customer_id, sum(clicks), sum(cost_micros) FROM {ASSET} GROUP BY customer_id"  # noqa: S608 - a constant


class StageWatcher:
    """Splits the time of a run where the runner says that a stage begins.

    What comes before the first stage is called plan. From the second batch of a run on, issuing belongs to the load
    before it: the runner does not announce it.
    """

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch
        self._watch.begin("plan")

    def stage(self, name: str, partitions: int) -> Report:
        del partitions
        self._watch.begin(name)
        return _nobody_looks


def measure(workload: Workload, folder: Path) -> Measured:
    """Do the workload, ask the questions, and say what it took."""
    warm_up, workspace = _WARM_UP.workspace(folder / "warm-up"), workload.workspace(folder / "workspace")
    watch = Stopwatch()
    with Memory() as memory:
        watch.begin("session_start")
        spark = start_session(workspace.settings.spark)
        try:
            watch.begin("warm_up")
            warm_up.run(Selection(), watcher=StageWatcher(Stopwatch()), spark=spark)
            watch.end()
            time.sleep(1)  # the JVM ends what it does behind the scenes
            _run(workspace, watch, spark)
            peaks = memory.peaks()
        finally:
            spark.stop()
    content = _ask(workspace, watch, workload.customers[0])
    return Measured("penstock", workload.partitions, workload.rows, content, dict(watch.seconds), peaks)


def _run(workspace: Workspace, watch: Stopwatch, spark: Any) -> None:
    summary = workspace.run(Selection(), watcher=StageWatcher(watch), spark=spark)
    watch.end()
    if summary.loaded != summary.planned or summary.failures:
        raise RuntimeError(f"the run is not clean: {summary.counts()}, {summary.failures[:3]}")


def _ask(workspace: Workspace, watch: Stopwatch, customer_id: str) -> Content:
    """The questions that a user has, and the totals that the other side must reach, too."""
    counts = watch.ask("status", lambda: workspace.reader.counts(workspace.ranges(Selection())))
    whole = watch.ask("read_all", lambda: _read(workspace, ()))
    watch.ask("read_customer", lambda: _read(workspace, (customer_id,)))
    watch.ask("sql", lambda: workspace.sql(_AGGREGATE).read_all())
    size = sa.text("SELECT sum(payload_bytes) FROM partition_attempt WHERE outcome = 'SUCCEEDED'")
    with workspace.database.snapshot() as connection:
        payload_bytes = int(connection.scalar(size) or 0)
    materialized = sum(row["n"] for row in counts if row["display"] == "materialized")
    clicks = pc.sum(whole.column("clicks")).as_py()
    return Content(materialized, whole.num_rows, int(clicks or 0), payload_bytes)


def _read(workspace: Workspace, customers: tuple[str, ...]) -> pa.Table:
    found = workspace.read(ASSET, customers=customers)
    assert isinstance(found, Vouched)  # without a session it is never a DataFrame
    return found.arrow()


def _nobody_looks(_share: float) -> None:
    """Somebody must be told how far a stage is, or the run is not watched as a real one is."""
