"""Rounds of the control loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.app.context import Context
from penstock.control.select import Selection
from penstock.flow.guard import Gate
from penstock.flow.summary import as_one
from penstock.observe.progress import SILENT
from penstock.partition import new_run_id
from penstock.pipeline.memory import reduced_gc
from penstock.warehouse.mismatch import messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.app.lineage import LineageService
    from penstock.app.model_plans import ModelService
    from penstock.app.plans import PlanService
    from penstock.app.publications import PublicationService
    from penstock.app.runners import RunnerFactory
    from penstock.app.runs import RunService
    from penstock.flow.listener import ProgressListener
    from penstock.flow.summary import RunSummary

log = logging.getLogger(__name__)


class RoundService:
    """Plans and runs one round of the control loop: fresh data, retries, restatement, backfills, models."""

    def __init__(
        self,
        context: Context,
        plans: PlanService,
        models: ModelService,
        runners: RunnerFactory,
        publications: PublicationService,
        runs: RunService,
        lineage: LineageService,
    ) -> None:
        self._context = context
        self._plans = plans
        self._models = models
        self._runners = runners
        self._publications = publications
        self._runs = runs
        self._lineage = lineage

    @reduced_gc()
    def tick(
        self,
        session: Callable[[], SparkSession],
        worker_token: str,
        listener: ProgressListener | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> Mapping[str, Any]:
        """Close the attempts of dead workers, schedule retries, publish due partitions, plan within the shares of
        fresh and old data, run, publish. Returns the facts of the round. Starts Spark only to publish or to run.

        >>> ws.rounds.tick(ws.context.session, worker_token)
        """
        from penstock.control.rescue import close_own_attempts
        from penstock.control.round import Planner

        listener = listener or SILENT
        self._context.require_own_lake()
        refused = self._context.mismatches()
        # After a restored backup, open attempts may have been accepted since: only a recovery may close them.
        workers = self._context.workers if refused else self._runners.rescue()
        close_own_attempts(workers, self._context.control, worker_token)
        self._plans.refuse_unrunnable(self._context.ranges(Selection()))
        published: list[RunSummary] = []
        if self._publications.is_due():  # before planning: models read only what is published
            runner = self._runners.runner(session(), worker_token, listener, by_hand=False, stopping=stopping)
            published = [runner.run(new_run_id(), (), actor="control", filters={"round": True, "publish": True})]
        run_id = new_run_id()
        guard = self._context.guard(by_hand=False)
        shut = {mismatch.source for mismatch in refused}  # their rows could not be published

        def gate(source: str) -> Gate:
            return Gate.SHUT if source in shut else guard.gate(source)

        planner = Planner(
            self._context.state,
            self._context.backfills,
            self._context.settings,
            self._context.contracts,
            worker_token,
            gate,
        )
        planned = planner.plan(run_id, self._context.now())
        facts: dict[str, Any] = {"run_id": run_id, "planned": len(planned.items), "waiting": planned.waiting}
        facts["troubles"] = messages(refused)
        facts["unfinished"] = [run.message for run in self._runs.unfinished()]
        models = self._models.plan_round(planned.items)
        facts["model_inputs"] = models.waiting
        if planned.items or models.items:
            spark = session()
            made = self._models.with_current_contracts(lambda: spark, models.items, models.fan_ins)
            for message in made.problems:
                log.error("models.refused", extra={"facts": {"run_id": run_id, "error": message}})
            items = [*planned.items, *made.items]
            facts["planned"] = len(items)
            runner = self._runners.runner(spark, worker_token, listener, by_hand=False, stopping=stopping)
            filters = {"round": True}
            done = runner.run(run_id, items, actor="control", filters=filters, fan_ins=made.fan_ins)
            summary = as_one([*published, done])
            facts |= {**summary.counts(), "blocked": summary.blocked, "seconds": summary.seconds}
            facts["troubles"] = list(dict.fromkeys([*facts["troubles"], *summary.problems, *made.problems]))
            if summary.blocked:  # the next round makes no more progress than this one
                facts["waiting"] = 0
            self._runners.schedule_retries()
            self._lineage.emit_or_log(run_id)
        elif published:
            [summary] = published
            facts |= {**summary.counts(), "run_id": summary.run_id, "seconds": summary.seconds}
        planner.conclude(planned.chunks, self._context.now())
        self._context.workers.record_round(worker_token)
        return facts
