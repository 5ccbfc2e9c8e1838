"""The driver's view of the executors of a cluster: whether there are any, and on which hosts tasks failed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from penstock.pipeline.job_errors import NoExecutors
from penstock.pipeline.session_config import EXECUTOR_TIMEOUT

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_DEFAULT_SECONDS = "120"
_SETTLED_SECONDS = 3.0
_POLL_SECONDS = 0.2
_MOST_TASKS = 1000  # of one stage, that are looked at for a host


class ExecutorWatch:
    """Measures how long the cluster of a context has no executor: without any, Spark waits forever and reports
    nothing."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._timeout = float(context.getConf().get(EXECUTOR_TIMEOUT) or _DEFAULT_SECONDS)
        self._seen = time.monotonic()
        self.expired = False

    def check(self, group: str) -> bool:
        """Return whether a job of the group waits and no executor was registered during the timeout. Stays True."""
        if not _has_active_job(self._context, group) or _executors(self._context):
            self._seen = time.monotonic()
        elif time.monotonic() - self._seen > self._timeout:
            self.expired = True
        return self.expired

    def error(self) -> NoExecutors:
        """The error for a job that was cancelled when the watch expired."""
        config = self._context.getConf()
        driver = f"{config.get('spark.driver.host')}:{config.get('spark.driver.port')}"
        return NoExecutors(
            f"no executor of {self._context.master} was registered with the driver at {driver} for {self._timeout:g} s:"
            " either no worker has the cores and the memory that an executor asks for, or the workers cannot reach this"
            " address (set spark.driver.host in spark.config, and open its ports); the log of"
            f" {self._context.applicationId} on a worker shows which"
        )


def wait_for_executors(context: SparkContext) -> None:
    """Wait until the number of executors does not change for some seconds: they register one after the other. With
    dynamic allocation they register when a job needs them."""
    if str(context.getConf().get("spark.dynamicAllocation.enabled")).lower() == "true":
        return
    deadline = time.monotonic() + float(context.getConf().get(EXECUTOR_TIMEOUT) or _DEFAULT_SECONDS)
    count, since = _executors(context), time.monotonic()
    while time.monotonic() < deadline and (not count or time.monotonic() - since < _SETTLED_SECONDS):
        time.sleep(_POLL_SECONDS)
        if (now := _executors(context)) != count:
            count, since = now, time.monotonic()


class ConnectWatch:
    """Measures how long a query on a Connect server has tasks and none of them runs."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._timeout = float(session.conf.get(EXECUTOR_TIMEOUT, _DEFAULT_SECONDS) or _DEFAULT_SECONDS)
        self._seen = time.monotonic()

    def check(self, *, is_waiting: bool) -> None:
        """Interrupt the queries of the session and raise NoExecutors if tasks wait longer than the timeout."""
        if not is_waiting:
            self._seen = time.monotonic()
        elif time.monotonic() - self._seen > self._timeout:
            self._session.interruptAll()
            raise NoExecutors(
                f"the Connect server ran no task for {self._timeout:g} s: its cluster has no executor with free cores;"
                " start workers, or free resources"
            )


def _has_active_job(context: SparkContext, group: str) -> bool:
    tracker = context.statusTracker()
    return not set(tracker.getActiveJobsIds()).isdisjoint(tracker.getJobIdsForGroup(group))


def failed_hosts(context: SparkContext, group: str) -> list[str]:
    """The hosts on which tasks of a job group failed; empty if Spark does not know. The error of a Python worker does
    not name its host."""
    hosts = set[str]()
    try:
        tracker = context.statusTracker()
        for job in tracker.getJobIdsForGroup(group):
            info = tracker.getJobInfo(job)
            for stage in info.stageIds if info else ():
                tasks = _scala_context(context).statusStore().taskList(stage, 0, _MOST_TASKS)
                found = (tasks.apply(index) for index in range(tasks.size()))
                hosts |= {str(task.host()) for task in found if str(task.status()) == "FAILED"}
    except Exception:  # noqa: BLE001 - an addition to the message must not replace the error
        return []
    return sorted(hosts)


def _executors(context: SparkContext) -> int:
    return int(_scala_context(context).getExecutorMemoryStatus().size()) - 1  # the driver is listed, too


def _scala_context(context: SparkContext) -> Any:
    wrapper: Any = context._jsc
    return wrapper.sc()
