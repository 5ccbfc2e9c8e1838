"""Runs work items on Spark and collects the results: always one job for many items."""

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

Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]  # the function of a Python worker
Report = Callable[[float], None]  # called with the finished share of a stage, 0 to 1

_POLL_SECONDS = 0.3


def tasks_for(spark: SparkSession, items: int, per_task: int) -> int:
    """The number of tasks: enough to keep every core busy and the progress moving, few enough that their start is
    cheap, and a multiple of the cores, so that no core waits for the last task."""
    cores = parallelism(spark)
    rounds = -(-items // (per_task * cores))
    return max(1, min(items, rounds * cores))


def spread(spark: SparkSession, items: pa.Table, tasks: Sequence[int]) -> DataFrame:
    """Return the items as a DataFrame in which task number `tasks[i]` gets item i, in the given order."""
    numbered = items.append_column("_task", pa.array(tasks, pa.int32()))
    return spark.createDataFrame(numbered).repartitionById(max(tasks) + 1, "_task").drop("_task")


def evenly(items: int, tasks: int) -> list[int]:
    """Task numbers that split a list of items into `tasks` neighbouring parts of equal length."""
    return [index * tasks // items for index in range(items)]


def mapped(frame: DataFrame, work: Work, ddl: str) -> DataFrame:
    """Map the frame through Python workers."""

    def with_frozen_imports(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        return work(batches)

    return frame.mapInArrow(with_frozen_imports, ddl)


def collected(frame: DataFrame) -> pa.Table:
    """Return the results of a job. An error of one slice is a result. Raises LakeRefused or LakeUnavailable if the lake
    failed a worker, and SparkFailed if the job itself failed."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        return frame.toArrow()
    except (PySparkException, Py4JError) as error:
        if "cancellation of all jobs" in str(error):  # after Ctrl-C, Spark's error may arrive before the signal
            raise KeyboardInterrupt from error
        raise _translated(_first_message(str(error))) from error


def _translated(line: str) -> PenstockError:
    """Convert the error of a worker to its class: a refusal of the lake is terminal. Neither concerns single slices."""
    name, _, message = line.partition(": ")
    for kind in (LakeRefused, LakeUnavailable):
        if name == f"{kind.__module__}.{kind.__qualname__}":
            return kind(message)
    return SparkFailed(f"a Spark job broke: {line}")


def refusal(error: Exception) -> str:
    """Spark's error message about SQL in one line: its first sentence, which a syntax error has on the second line."""
    return str(error).strip().partition("\n")[0].partition(" SQLSTATE")[0]


def _first_message(text: str) -> str:
    """The message without the stack: the last line of a Python traceback, or the JVM's first."""
    text = text.partition("JVM stacktrace")[0]
    lines = [
        line.strip() for line in text.splitlines() if line[:1].strip() and not line.startswith(("at ", "Traceback"))
    ]
    return (lines[-1] if "Traceback" in text else lines[0])[:1000] if lines else text[:1000]


@contextmanager
def progress(spark: SparkSession, report: Report | None) -> Iterator[None]:
    """Call `report` with the progress of the Spark jobs of this block, by finished tasks."""
    context = getattr(spark, "_sc", None)
    if report is None or context is None:  # Spark Connect has no status tracker
        yield
        return
    group, done = new_ulid(), threading.Event()
    context.setJobGroup(group, "penstock", interruptOnCancel=True)  # Ctrl-C must not wait for a slow source

    def poll() -> None:
        while not done.wait(_POLL_SECONDS):
            report(min(_share_done(context.statusTracker(), group), 0.99))  # the caller reports the end

    poller = threading.Thread(target=poll, daemon=True)
    poller.start()
    try:
        yield
    finally:
        done.set()
        poller.join()


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
    """Cancel every job of the session; threads that wait for one get an interrupt error."""
    context = getattr(spark, "_sc", None)
    if context is None:
        spark.interruptAll()
    else:
        context.cancelAllJobs()


def parallelism(spark: SparkSession) -> int:
    context = getattr(spark, "_sc", None)
    return int(context.defaultParallelism) if context is not None else 4
