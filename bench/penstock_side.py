"""Penstock on the same workload: one process, one session, the run as `penstock run` does it."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
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
from penstock.pipeline.spark_jobs import Report
from penstock.warehouse.reader import Vouched

_WARM_UP = Workload(partitions=200, rows=100)  # the first job of a session also compiles code for all others
_AGGREGATE = f"SELECT customer_id, sum(clicks), sum(cost_micros) FROM {ASSET} GROUP BY customer_id"  # noqa: S608 - a constant


class StageTimer:
    """Adds up the time between a stage's beginning and its end. Stages overlap, so their sum is more than the run.

    Time before the first stage is called plan; judging is counted with validation, as in the yardstick.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._began = time.perf_counter()

    def stage(self, name: str, partitions: int) -> Report:
        del partitions
        began = time.perf_counter()
        if not self.seconds:
            self.seconds["plan"] = began - self._began
        counted_as = "validate" if name == "judge" else name

        def report(share: float) -> None:
            if share == 1.0:
                self.seconds[counted_as] += time.perf_counter() - began

        return report

    def say(self, message: str) -> None:
        print(message, file=sys.stderr)


def measure(workload: Workload, folder: Path) -> Measured:
    """Do the workload, run the queries, and return the measurements."""
    warm_up, workspace = _WARM_UP.workspace(folder / "warm-up"), workload.workspace(folder / "workspace")
    watch = Stopwatch()
    with Memory() as memory:
        watch.begin("session_start")
        spark = start_session(workspace.settings.spark)
        try:
            watch.begin("warm_up")
            warm_up.runs.start(Selection(), listener=StageTimer(), spark=spark)
            watch.end()
            time.sleep(1)  # the JVM finishes its background work
            _run(workspace, watch, spark)
            peaks = memory.peaks()
        finally:
            spark.stop()
    content = _ask(workspace, watch, workload.customers[0])
    return Measured("penstock", workload.partitions, workload.rows, content, dict(watch.seconds), peaks)


def _run(workspace: Workspace, watch: Stopwatch, spark: Any) -> None:
    timer = StageTimer()
    watch.begin("run")
    summary = workspace.runs.start(Selection(), listener=timer, spark=spark)
    watch.end()
    watch.seconds.update(timer.seconds)
    if summary.loaded != summary.planned or summary.failures:
        raise RuntimeError(f"the run is not clean: {summary.counts()}, {summary.failures[:3]}")


def _ask(workspace: Workspace, watch: Stopwatch, customer_id: str) -> Content:
    """The questions that a user has, and the totals that the other side must reach, too."""
    counts = watch.ask("status", lambda: workspace.status.board(Selection()).counts([]))
    whole = watch.ask("read_all", lambda: _read(workspace, ()))
    watch.ask("read_customer", lambda: _read(workspace, (customer_id,)))
    watch.ask("sql", lambda: workspace.sql(_AGGREGATE).read_all())
    size = sa.text("SELECT sum(payload_bytes) FROM partition_attempt WHERE outcome = 'SUCCEEDED'")
    with workspace.context.database.snapshot() as connection:
        payload_bytes = int(connection.scalar(size) or 0)
    materialized = sum(row["n"] for row in counts if row["display"] == "materialized")
    clicks = pc.sum(whole.column("clicks")).as_py()
    return Content(materialized, whole.num_rows, int(clicks or 0), payload_bytes)


def _read(workspace: Workspace, customers: tuple[str, ...]) -> pa.Table:
    found = workspace.read(ASSET, customers=customers)
    assert isinstance(found, Vouched)  # without a session it is never a DataFrame
    return found.arrow()
