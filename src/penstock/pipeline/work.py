"""Sending work items to Spark and getting outcomes back: always one job for many items, never the reverse."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import PenstockError, SparkFailed
from penstock.lake.protocol import LakeRefused, LakeUnavailable
from penstock.partition import new_ulid
from penstock.pipeline.memory import freeze_imports

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]  # what a Python worker does with its share
Report = Callable[[float], None]  # told the finished share of a stage, 0 to 1

_POLL_SECONDS = 0.3


def tasks_for(spark: SparkSession, items: int, per_task: int) -> int:
    """Enough tasks to keep every core busy and the progress moving, few enough that their start costs nothing; as many
    for each core, or some would wait for the last."""
    cores = parallelism(spark)
    rounds = -(-items // (per_task * cores))
    return max(1, min(items, rounds * cores))


def spread(spark: SparkSession, items: pa.Table, tasks: Sequence[int]) -> DataFrame:
    """Items as a DataFrame in which task number `tasks[i]` gets item i, in the order given."""
    numbered = items.append_column("_task", pa.array(tasks, pa.int32()))
    return spark.createDataFrame(numbered).repartitionById(max(tasks) + 1, "_task").drop("_task")


def evenly(items: int, tasks: int) -> list[int]:
    """Task numbers that cut a list of items into `tasks` neighbouring parts of the same length."""
    return [index * tasks // items for index in range(items)]


def mapped(frame: DataFrame, work: Work, ddl: str) -> DataFrame:
    """What Python workers make of the frame."""

    def settled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        return work(batches)

    return frame.mapInArrow(settled, ddl)


def collected(frame: DataFrame) -> pa.Table:
    """The outcomes of a job. One slice's error is an outcome. Raises LakeRefused or LakeUnavailable when the lake
    stopped a worker, and SparkFailed when the job itself broke."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        return frame.toArrow()
    except (PySparkException, Py4JError) as error:
        if "cancellation of all jobs" in str(error):  # somebody pressed Ctrl-C, and Spark's answer overtook the signal
            raise KeyboardInterrupt from error
        raise _translated(_gist(str(error))) from error


def _translated(gist: str) -> PenstockError:
    """The error of a worker by its class: what the lake refuses is terminal, and neither says anything about slices."""
    name, _, message = gist.partition(": ")
    for kind in (LakeRefused, LakeUnavailable):
        if name == f"{kind.__module__}.{kind.__qualname__}":
            return kind(message)
    return SparkFailed(f"a Spark job broke: {gist}")


def refusal(error: Exception) -> str:
    """What Spark has against a piece of SQL, in one line: its first words, which a syntax error puts on the second."""
    return str(error).strip().partition("\n")[0].partition(" SQLSTATE")[0]


def _gist(text: str) -> str:
    """What happened, without the stack: the last word of a Python traceback, or the JVM's first."""
    text = text.partition("JVM stacktrace")[0]
    lines = [
        line.strip() for line in text.splitlines() if line[:1].strip() and not line.startswith(("at ", "Traceback"))
    ]
    return (lines[-1] if "Traceback" in text else lines[0])[:1000] if lines else text[:1000]


@contextmanager
def progress(spark: SparkSession, report: Report | None) -> Iterator[None]:
    """Tells `report` how far the Spark jobs of this block are, by finished tasks."""
    context = getattr(spark, "_sc", None)
    if report is None or context is None:  # Spark Connect has no status tracker
        yield
        return
    group, done = new_ulid(), threading.Event()
    context.setJobGroup(group, "penstock", interruptOnCancel=True)  # Ctrl-C must not wait for a slow source

    def watch() -> None:
        while not done.wait(_POLL_SECONDS):
            report(min(_share_done(context.statusTracker(), group), 0.99))  # finished is for the caller to say

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _share_done(tracker: object, group: str) -> float:
    finished = total = 0
    for job in tracker.getJobIdsForGroup(group):  # type: ignore[attr-defined]
        info = tracker.getJobInfo(job)  # type: ignore[attr-defined]
        for stage in info.stageIds if info else ():
            if details := tracker.getStageInfo(stage):  # type: ignore[attr-defined]
                finished += details.numCompletedTasks
                total += details.numTasks
    return finished / total if total else 0.0


def cancel_jobs(spark: SparkSession) -> None:
    """End every job of the session; whoever waits for one is told that it was interrupted."""
    context = getattr(spark, "_sc", None)
    if context is None:
        spark.interruptAll()
    else:
        context.cancelAllJobs()


def parallelism(spark: SparkSession) -> int:
    context = getattr(spark, "_sc", None)
    return int(context.defaultParallelism) if context is not None else 4
