"""Runs work items on Spark and collects the results: always one job for many items."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from penstock.config.settings import is_local_master
from penstock.errors import PenstockError
from penstock.partition import new_ulid
from penstock.pipeline.executor_watch import ConnectWatch, ExecutorWatch, failed_hosts
from penstock.pipeline.job_errors import job_error, name_hosts
from penstock.pipeline.memory import freeze_imports
from penstock.pipeline.spark_versions import in_tasks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

Work = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]  # the function of a Python worker
Report = Callable[[float], None]  # called with the finished share of a stage, 0 to 1

_POLL_SECONDS = 0.3
_COUNTS = ("num_tasks", "num_completed_tasks")  # of a stage in the progress of a Connect query
_FEW_CORES = 64
_MOST_CORES = 10_000
_FEW_ITEMS = 20


def is_local(spark: SparkSession) -> bool:
    """Whether the workers of the session are those of a local master."""
    context = getattr(spark, "_sc", None)
    return context is not None and is_local_master(context.master)


def tasks_for(spark: SparkSession, items: int, per_task: int) -> int:
    """The number of tasks: enough to keep every core busy and the progress moving, few enough that their start is
    cheap, and a multiple of the cores, so that no core waits for the last task. A large cluster gets tasks of at least
    `_FEW_ITEMS` items."""
    cores = parallelism(spark)
    rounds = -(-items // (per_task * cores))
    return max(1, min(items, rounds * cores, max(_FEW_CORES, -(-items // _FEW_ITEMS))))


def spread(spark: SparkSession, items: pa.Table, tasks: Sequence[int]) -> DataFrame:
    """Return the items as a DataFrame in which task number `tasks[i]` gets item i, in the given order."""
    with translated_errors():
        return in_tasks(spark, items, tasks)


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
    """Return the results of a job. An error of one slice is a result. Raises SparkFailed if the job failed and a
    partition may be the cause; the other errors of `job_error` concern no single partition."""
    with translated_errors():
        return frame.toArrow()


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise our errors for those of Spark: every call to Spark may fail because its cluster is gone."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        if "cancellation of all jobs" in str(error):  # after Ctrl-C, Spark's error may arrive before the signal
            raise KeyboardInterrupt from error
        raise job_error(error) from error


def refusal(error: Exception) -> str:
    """Spark's error message about SQL in one line: its first sentence, which a syntax error has on the second line."""
    return str(error).strip().partition("\n")[0].partition(" SQLSTATE")[0]


@contextmanager
def progress(spark: SparkSession, report: Report | None) -> Iterator[None]:
    """Call `report` with the progress of the Spark jobs of this block, by finished tasks. Raises NoExecutors if the
    jobs wait for an executor of a cluster longer than `spark.executor_timeout`."""
    context = getattr(spark, "_sc", None)
    if context is None:
        with _progress_on_connect(spark, report):
            yield
        return
    watch = None if is_local_master(context.master) else ExecutorWatch(context)
    if report is None and watch is None:
        yield
        return
    group, done = new_ulid(), threading.Event()
    with translated_errors():
        context.setJobGroup(group, "penstock", interruptOnCancel=True)  # Ctrl-C must not wait for a slow source

    def poll() -> None:
        while not done.wait(_POLL_SECONDS):
            try:
                share = _share_done(context.statusTracker(), group)
                if watch is not None and watch.check(group):
                    context.cancelJobGroup(group)
            except Exception:  # noqa: BLE001 - Spark is gone, which the job itself reports
                return
            if report is not None:
                report(min(share, 0.99))  # the caller reports the end

    poller = threading.Thread(target=poll, daemon=True)
    poller.start()
    try:
        yield
    except Exception as error:
        if watch is not None and watch.expired:
            raise watch.error() from error
        if watch is not None and isinstance(error, PenstockError) and (hosts := failed_hosts(context, group)):
            name_hosts(error, hosts)
        raise
    finally:
        done.set()
        poller.join()


@contextmanager
def _progress_on_connect(spark: SparkSession, report: Report | None) -> Iterator[None]:
    """The client calls its handlers in the thread that waits for a query, and an error of a handler ends the query.
    Other threads have handlers of their own."""
    mine = threading.get_ident()
    with translated_errors():
        watch = ConnectWatch(spark)

    def handle(stages: Any = None, inflight_tasks: int = 0, **_others: Any) -> None:
        if threading.get_ident() != mine:
            return
        total, done = (sum(getattr(stage, name) for stage in stages or ()) for name in _COUNTS)
        watch.check(is_waiting=total > done and not inflight_tasks)
        if total and report is not None:
            report(min(done / total, 0.99))

    with translated_errors():
        spark.registerProgressHandler(handle)  # type: ignore[arg-type]
    try:
        yield
    finally:
        spark.removeProgressHandler(handle)  # type: ignore[arg-type]


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
    """Cancel every job of the session; threads that wait for one get an interrupt error. Does nothing if Spark is
    gone."""
    context = getattr(spark, "_sc", None)
    with suppress(PenstockError), translated_errors():
        if context is None:
            spark.interruptAll()
        else:
            context.cancelAllJobs()


def parallelism(spark: SparkSession) -> int:
    """The number of tasks that can run at the same time. With dynamic allocation it is what the cluster may grow to."""
    context = getattr(spark, "_sc", None)
    if context is None:
        return _parallelism_on_connect(spark)
    return min(_MOST_CORES, max(present_cores(spark), _largest_allocation(context)))


def present_cores(spark: SparkSession) -> int:
    """The number of tasks that can run at the same time now."""
    context = getattr(spark, "_sc", None)
    if context is None:
        return _parallelism_on_connect(spark)
    with translated_errors():
        return int(context.defaultParallelism)


def _largest_allocation(context: SparkContext) -> int:
    config = context.getConf()
    if str(config.get("spark.dynamicAllocation.enabled", "false")).lower() != "true":
        return 0
    executors = config.get("spark.dynamicAllocation.maxExecutors")
    cores = config.get("spark.executor.cores")
    return int(executors) * int(cores or 1) if executors else 0


_CONNECT_TASKS: WeakKeyDictionary[SparkSession, int] = WeakKeyDictionary()


def _parallelism_on_connect(spark: SparkSession) -> int:
    """A client finds the parallelism of its server only by the number of partitions of a range."""
    if spark not in _CONNECT_TASKS:
        from pyspark.sql import functions as F

        with progress(spark, None):
            parts = spark.range(0, 1 << 16).select(F.spark_partition_id().alias("part")).distinct()
            _CONNECT_TASKS[spark] = max(1, len(collected(parts)))
    return _CONNECT_TASKS[spark]


def forget_parallelism(spark: SparkSession) -> None:
    """Ask a Connect server again: its cluster may have grown."""
    _CONNECT_TASKS.pop(spark, None)
