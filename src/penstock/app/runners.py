"""Runners: the wiring of a run, and the steps before and after every run."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.app.context import Context
from penstock.control.select import Selection, due_times
from penstock.errors import LakeMismatch
from penstock.partition import RunId
from penstock.state.worker import WorkerStore
from penstock.warehouse.mismatch import messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.app.data import DataService
    from penstock.app.publications import PublicationService
    from penstock.app.status import StatusService
    from penstock.flow.listener import ProgressListener
    from penstock.flow.quota import RequestLimits
    from penstock.flow.runner import Runner
    from penstock.pipeline.lazy_session import LazySession
    from penstock.pipeline.parsed_cache import Lookup
    from penstock.pipeline.spark_jobs import Report
    from penstock.warehouse.publish import Publication


class RunnerFactory:
    """Makes runners, closes the attempts of dead workers, and schedules retries."""

    def __init__(
        self, context: Context, status: StatusService, publications: PublicationService, data: DataService
    ) -> None:
        self._context = context
        self._status = status
        self._publications = publications
        self._data = data

    def runner(
        self,
        session: SparkSession | LazySession,
        worker_token: str,
        listener: ProgressListener,
        *,
        by_hand: bool,
        stopping: Callable[[], bool] = lambda: False,
        in_driver: bool = False,
    ) -> Runner:
        """A runner over the stores of this workspace. `by_hand` lets it attempt a source whose breaker is open.
        `in_driver` lets it fetch and validate in this process."""
        from penstock.flow.derive import Deriver
        from penstock.flow.runner import Runner
        from penstock.flow.stages import RunDependencies
        from penstock.observe.tracing import tracer
        from penstock.pipeline.lazy_session import LazySession

        lazy = LazySession.of(session)

        def publish(run: RunId, report: Report | None, find: Lookup | None) -> Publication:
            return self._publications.publish(lazy, worker_token, run, report, find)

        deps = RunDependencies(
            lazy,
            self._context.settings,
            self._context.contracts,
            self._context.control,
            self._context.validators,
            publish,
            Deriver(self._context.database, self._context.versions, self._context.contracts, self._context.derived),
            self._status.advance,
            listener,
            worker_token,
            self._context.guard(by_hand=by_hand),
            self._limits(worker_token, listener),
            self._context.clock,
            self._data.referenced,
            in_driver,
            tracer(),
        )
        return Runner(deps, self._context.ledger.news_of_run, stopping)

    def _limits(self, worker_token: str, listener: ProgressListener) -> RequestLimits:
        from penstock.flow.quota import CLUSTER_MARGIN, LOCAL_MARGIN, RequestLimits

        settings = self._context.settings
        margin = LOCAL_MARGIN if settings.spark.is_local else CLUSTER_MARGIN
        return RequestLimits(
            self._context.quotas,
            self._context.shares,
            worker_token,
            settings.control.quota_reserve,
            margin,
            listener.say,
        )

    def rescue(self) -> WorkerStore:
        """Close the attempts of dead workers, and schedule the retries of failures."""
        from penstock.control.rescue import rescue

        workers = self._context.workers
        rescue(workers, self._context.control, self._context.validators)
        self.schedule_retries()
        return workers

    def refuse_mismatches(self, selection: Selection) -> None:
        """Raise LakeMismatch if the selected tables cannot be published, before anything is fetched."""
        assets = {f"{span.source}.{span.query_name}" for span in self._context.ranges(selection)}
        found = [one for one in self._context.mismatches() if one.asset is None or one.asset in assets]
        if found:
            raise LakeMismatch("; ".join(messages(found)))

    def schedule_retries(self) -> None:
        """Apply the retry policy to every failure without a decision."""
        from penstock.control.schedule import schedule
        from penstock.state.retries import RetryStore

        due_at = due_times(self._context.settings, self._context.now())
        schedule(RetryStore(self._context.database), self._context.settings.assets, random.random, due_at)
