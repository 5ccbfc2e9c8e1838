"""A Spark session that is started when it is first needed: a run of a few partitions may not need it at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING

from penstock.pipeline.spark_jobs import cancel_jobs, parallelism

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LazySession:
    """Starts a session once, at the first `get`. Thread-safe."""

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        self._start = start
        self._lock = Lock()
        self._session: SparkSession | None = None

    @classmethod
    def of(cls, session: SparkSession | LazySession) -> LazySession:
        """A session that exists already, or a lazy session itself."""
        if isinstance(session, LazySession):
            return session
        found = cls(lambda: session)
        found.get()
        return found

    def get(self) -> SparkSession:
        """The session. Raises what its start raises."""
        with self._lock:
            if self._session is None:
                self._session = self._start()
            return self._session

    @property
    def if_started(self) -> SparkSession | None:
        """The session, if something needed it before."""
        return self._session

    def parallelism(self) -> int:
        """The number of tasks that can run at the same time; before the start, the cores of this host."""
        return (os.cpu_count() or 1) if self._session is None else parallelism(self._session)

    def cancel_jobs(self) -> None:
        """Cancel the jobs of the session, if it was started."""
        if self._session is not None:
            cancel_jobs(self._session)
