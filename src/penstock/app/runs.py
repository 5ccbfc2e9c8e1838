"""Runs: start, resume, cancel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from penstock.app.context import Context, audit_entry, os_user
from penstock.control.quota import SourceGuard
from penstock.control.select import Selection
from penstock.control.unfinished import Unfinished, left_of, unfinished_runs
from penstock.errors import ActRefused, UsageError
from penstock.flow.guard import Gate
from penstock.flow.listener import ProgressListener
from penstock.flow.summary import RunSummary, as_one
from penstock.observe.progress import SILENT
from penstock.partition import AssetKind, PartitionKey, RunId, new_run_id
from penstock.pipeline.memory import reduced_gc
from penstock.plural import counted
from penstock.state.audited import AuditedAct

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import SparkSession

    from penstock.app.lineage import LineageService
    from penstock.app.model_plans import ModelService
    from penstock.app.partitions import PartitionService
    from penstock.app.plans import PlanService
    from penstock.app.publications import PublicationService
    from penstock.app.runners import RunnerFactory
    from penstock.control.plan import Plan
    from penstock.expected import ExpectedRange
    from penstock.pipeline.lazy_session import LazySession
    from penstock.state.order_claims import OrderClaim
    from penstock.state.worker import WorkerStore


class RunService:
    """Starts, resumes and cancels runs. Many processes can run at the same time: no partition is processed twice."""

    def __init__(
        self,
        context: Context,
        plans: PlanService,
        models: ModelService,
        runners: RunnerFactory,
        publications: PublicationService,
        partitions: PartitionService,
        lineage: LineageService,
    ) -> None:
        self._context = context
        self._plans = plans
        self._models = models
        self._runners = runners
        self._publications = publications
        self._partitions = partitions
        self._lineage = lineage

    def start(
        self,
        selection: Selection | None = None,
        *,
        listener: ProgressListener | None = None,
        reprocess: bool = False,
        actor: str | None = None,
        spark: SparkSession | None = None,
        order: OrderClaim | None = None,
        stopping: Callable[[], bool] = lambda: False,
        unless_judged_since: datetime | None = None,
        within: Sequence[ExpectedRange] | None = None,
    ) -> RunSummary:
        """Close the attempts of dead workers, publish due partitions, plan, and take the plan through extract,
        validate and load. Splits a large plan into several runs, one after the other. Starts Spark only if there is
        something to publish or to attempt. `reprocess` also attempts success partitions; it is audited. `order` is the
        claim of the order that the runs carry out. When `stopping` returns True, no more attempts are issued, and no
        further run starts. A divided plan leaves out fetched partitions with a verdict on an attempt that was issued at
        `unless_judged_since` or later. With `within`, only partitions of these ranges are planned.

        >>> ws.runs.start(Selection(since="2024-06-01"), actor="kim").accepted
        """
        chosen, reports = selection or Selection(), listener or SILENT
        return self._start(
            chosen, reports, reprocess, actor or os_user(), spark, None, order, stopping, unless_judged_since, within
        )

    @reduced_gc()
    def _start(
        self,
        selection: Selection,
        listener: ProgressListener,
        reprocess: bool,
        actor: str,
        spark: SparkSession | None,
        resumes: RunId | None,
        order: OrderClaim | None,
        stopping: Callable[[], bool],
        unless_judged_since: datetime | None = None,
        within: Sequence[ExpectedRange] | None = None,
    ) -> RunSummary:
        from penstock.control.plan import Plan

        self._runners.refuse_mismatches(selection)
        workers = self._runners.rescue()
        self._plans.runnable_ranges(selection)  # refuses a selection that cannot run before anything starts
        published: list[RunSummary] = []
        session = self._session(spark)
        if self._publications.is_due():  # before planning: models read only what is published
            published = [self._publish(session, workers, listener, actor, in_driver=self._may_work_alone(spark))]
            if published[0].end != "done":
                return as_one(published)
        guard = self._context.guard(by_hand=True)
        whole, plans = self._plans.split(
            selection,
            reprocess=reprocess,
            may_continue=lambda source: guard.gate(source) is Gate.OPEN,
            counted=lambda total: self._begin_spark(total, spark),
            within=within,
        )
        if unless_judged_since is not None and whole.is_divided:
            plans = _without(plans, self._context.state.judged_since(unless_judged_since))
        first = next(plans, Plan(()))
        unfinished = [run.message for run in self.unfinished() if run.run_id != resumes]
        if not first.items:
            summary = as_one(published) if published else RunSummary(new_run_id())
            summary.skipped += whole.held
            summary.waiting = self._partitions.held_up(selection) | {"model_inputs": whole.waiting}
            summary.unfinished = unfinished
            return summary
        in_driver = self._may_work_alone(spark) and not whole.is_divided and self._is_small(first)
        if not in_driver:
            self._start_spark(session, spark)
        if whole.is_divided and any(span.kind is AssetKind.DERIVED for span in self._context.ranges(selection)):
            broken = self._models.learn_contracts(session.get())  # at the start of hours of work, not at the end
            for message in broken.values():
                listener.say(message)
        filters = {**selection.as_dict(), **({"reprocess": True} if reprocess else {})}
        if order:
            filters |= {"order": order.order_id, "is_divided": whole.is_divided}
        if resumes:
            filters = {**self._context.run_filters(resumes), "resumes": resumes}
        finished: list[RunSummary] = []
        with self._reprocessing(reprocess and not resumes, selection, actor, whole, finished):
            is_stopped = self._run_plans(
                chain([first], plans),
                whole,
                finished,
                guard,
                session,
                workers,
                listener,
                actor,
                filters,
                in_driver,
                order,
                stopping,
            )
        summary = as_one([*published, *finished])
        summary.skipped += whole.held
        summary.is_divided = whole.is_divided and len(finished) > 1
        summary.is_stopped = is_stopped
        summary.unfinished = unfinished
        return summary

    def _session(self, given: SparkSession | None) -> LazySession:
        """The caller's session, or that of the workspace, which is started when it is needed."""
        from penstock.pipeline.lazy_session import LazySession

        return LazySession(lambda: self._context.session(given, fetches=True))

    def _begin_spark(self, partitions: int, given: SparkSession | None) -> None:
        """Start the JVM in the background, if the work is too large for this process: it starts during planning."""
        from penstock.pipeline.session import begin_session

        spark = self._context.settings.spark
        if given is None and partitions > spark.driver_partitions:
            begin_session(spark)

    def _start_spark(self, session: LazySession, given: SparkSession | None) -> None:
        """Start the session, so that an error of Spark comes before the first attempt, and then its workers."""
        from penstock.pipeline.worker_jobs import start_workers

        started = session.get()
        if given is None:
            start_workers(started)

    def _may_work_alone(self, given: SparkSession | None) -> bool:
        """Whether this process may work on a few partitions itself: on a local master, without a session of the
        caller."""
        spark = self._context.settings.spark
        return given is None and spark.is_local and spark.driver_partitions > 0

    def _is_small(self, plan: Plan) -> bool:
        """Whether the start of Spark takes longer than the work, and the work needs no Spark: models and some checks
        do. If it does, an error of Spark comes before the first attempt."""
        from penstock.pipeline.validate import needs_no_spark

        if len(plan.items) > self._context.settings.spark.driver_partitions:
            return False
        if any(item.key.kind is AssetKind.DERIVED for item in plan.items):
            return False
        contracts = self._context.contracts
        return all(needs_no_spark(contracts[name]) for name in {item.key.query_name for item in plan.items})

    def _publish(
        self,
        session: LazySession,
        workers: WorkerStore,
        listener: ProgressListener,
        actor: str,
        *,
        in_driver: bool,
    ) -> RunSummary:
        """A run without items: it publishes due partitions."""
        from penstock.flow.heartbeat import Heartbeat

        with Heartbeat(workers) as heart:
            runner = self._runners.runner(session, heart.token, listener, by_hand=True, in_driver=in_driver)
            return runner.run(new_run_id(), (), actor=actor, filters={"publish": True})

    def _run_plans(
        self,
        plans: Iterable[Plan],
        whole: Plan,
        finished: list[RunSummary],
        guard: SourceGuard,
        session: LazySession,
        workers: WorkerStore,
        listener: ProgressListener,
        actor: str,
        filters: Mapping[str, Any],
        in_driver: bool,
        order: OrderClaim | None,
        stopping: Callable[[], bool],
    ) -> bool:
        """One run per plan, until a run is cancelled or the process stops. Appends each summary to `finished`. Returns
        True if plans are left because the process stops. A plan whose checks Spark refuses is left out; raises
        ChecksRefused if no run is left."""
        from penstock.flow.heartbeat import Heartbeat
        from penstock.flow.runner import ChecksRefused

        refused: list[tuple[int, ChecksRefused]] = []
        is_stopped = False
        with Heartbeat(workers) as heart:
            for plan in plans:
                if finished and stopping():
                    is_stopped = True
                    break
                for source, count in plan.blocked.items() if finished else ():
                    finished[-1].count(blocked=count)
                    finished[-1].add_problems([guard.source_error(source)])
                if plan.blocked:
                    continue
                if whole.is_divided:
                    progress = f"{counted(len(plan.items))}, then {plan.later:,} more to fetch"
                    listener.say(f"run {len(finished) + 1}: {progress}")
                run_id = new_run_id()
                today = self._models.with_current_contracts(session.get, plan.items, plan.fan_ins)
                runner = self._runners.runner(
                    session, heart.token, listener, by_hand=True, stopping=stopping, in_driver=in_driver
                )
                try:
                    done = runner.run(
                        run_id, today.items, actor=actor, filters=filters, fan_ins=today.fan_ins, order=order
                    )
                except ChecksRefused as error:
                    refused.append((len(today.items), error))
                    continue
                done.count(blocked=today.left_out)
                done.add_problems(today.problems)
                finished.append(done)
                self._runners.schedule_retries()
                self._lineage.emit_or_log(run_id)
                if done.end != "done":
                    break
        for count, refusal in refused:
            if not finished:
                raise refusal
            finished[-1].count(blocked=count)
            finished[-1].add_problems([str(refusal)])
        return is_stopped

    @contextmanager
    def _reprocessing(
        self, by_hand: bool, selection: Selection, actor: str, plan: Plan, finished: Sequence[RunSummary]
    ) -> Iterator[None]:
        """Audit who fetches success partitions again, before the first run and after the last."""
        if not by_hand:
            yield
            return
        entry = audit_entry(actor, AuditedAct.RUN_REPROCESS, selection.as_dict(), {"reprocess": True})
        with self._context.audited(entry, plan.total) as action:
            yield
            action.affected = sum(done.accepted + done.rejected for done in finished)
            action.outcome = finished[-1].end if finished else "done"

    @reduced_gc()
    def resume(
        self,
        run_id: RunId,
        *,
        listener: ProgressListener | None = None,
        spark: SparkSession | None = None,
        actor: str | None = None,
        order: OrderClaim | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> RunSummary:
        """Continue a run whose worker died, without repeating its finished work. A run that a later run closed is
        continued by a new run, which `order` then names. When `stopping` returns True, no more attempts are issued.
        Audited. Raises ActRefused if nothing is left.

        >>> ws.runs.resume(ws.runs.unfinished()[0].run_id, actor="kim")
        """
        self._context.run_filters(run_id)  # refuses an unknown run
        entry = audit_entry(actor, AuditedAct.RUNS_RESUME, {"run_id": run_id})
        with self._context.audited(entry) as action:
            summary = self._resume(run_id, listener or SILENT, spark, entry.actor, order, stopping)
            action.affected, action.outcome = summary.accepted + summary.rejected, summary.end
        return summary

    def _resume(
        self,
        run_id: RunId,
        listener: ProgressListener,
        spark: SparkSession | None,
        actor: str,
        order: OrderClaim | None,
        stopping: Callable[[], bool],
    ) -> RunSummary:
        from penstock.control.resume import left_over, outdated_closings, reasons_of, still_current
        from penstock.flow.heartbeat import Heartbeat
        from penstock.flow.run_state import RunState
        from penstock.raw.reader import RawReader
        from penstock.warehouse.publish import Publication

        self._runners.refuse_mismatches(Selection())
        found = self._context.state.run(run_id)
        if found is not None and found.finished_at is not None:
            return self._resume_in_new_run(run_id, listener, spark, actor, order, stopping)
        workers = self._context.workers
        control = self._context.control
        workers.mark_dead_workers()
        with Heartbeat(workers) as heart:
            filters = self._context.run_filters(run_id)
            reasons = reasons_of(filters)
            adopted, outdated = still_current(
                control.adopt(run_id, heart.token), self._context.settings, self._context.contracts
            )
            control.cancel(outdated_closings(outdated, heart.token))
            session = self._context.session(spark, fetches=True)
            published = Publication()
            if self._publications.is_due():  # before planning: models read only what is published
                report = listener.stage("load", self._context.pointers.waiting())
                published = self._publications.publish(session, heart.token, run_id, report)
                report(1.0)
            state = RunState(run_id, self._context.ledger.news_of_run)
            state.refresh()
            waiting = left_over(state, adopted)
            plan = self._plans.replan(waiting.unissued, reasons)
            sizes = RawReader(self._context.lake).sizes([item.attempt for item in waiting.fetched])
            broken: dict[str, str] = {}
            if any(item.attempt.partition.kind is AssetKind.DERIVED for item in adopted):
                broken = self._models.learn_contracts(session)
            lost = [
                i
                for i in adopted
                if i.attempt.partition.kind is AssetKind.DERIVED and i.attempt.partition.query_name in broken
            ]
            control.cancel(outdated_closings(lost, heart.token))
            today = self._models.with_current_contracts(lambda: session, plan)
            runner = self._runners.runner(session, heart.token, listener, by_hand=True, stopping=stopping)
            current = [item for item in adopted if item not in lost]
            summary = as_one([runner.resume(run_id, today.items, current, sizes, filters)])
            summary.count(blocked=today.left_out + len(lost), loaded=published.loaded, hidden=published.hidden)
            summary.add_problems([*today.problems, *broken.values()])
        self._runners.schedule_retries()
        self._lineage.emit_or_log(run_id)
        return summary

    def _resume_in_new_run(
        self,
        run_id: RunId,
        listener: ProgressListener,
        spark: SparkSession | None,
        actor: str,
        order: OrderClaim | None,
        stopping: Callable[[], bool],
    ) -> RunSummary:
        """Process the rest of a finished run in a new run."""
        due = self.left_of(run_id)
        if not due:
            raise ActRefused(f"run {run_id} is over: nothing is left to resume")
        is_reprocess = bool(self._context.run_filters(run_id).get("reprocess"))
        selection = Selection(keys=tuple(due))
        return self._start(selection, listener, is_reprocess, actor, spark, run_id, order, stopping)

    def left_of(self, run_id: RunId) -> list[PartitionKey]:
        """The planned partitions of a finished run that it did not attempt and that are still due.

        >>> ws.runs.left_of(ws.runs.unfinished()[0].run_id)
        """
        from penstock.control.resume import reasons_of

        filters = self._context.run_filters(run_id)
        left = left_of(self._context.state, self._context.ledger, run_id)
        return [item.key for item in self._plans.replan(left, reasons_of(filters))]

    def unfinished(self) -> list[Unfinished]:
        """The killed runs with `--reprocess` that have partitions left: no later run attempts these by itself.

        >>> [run.message for run in ws.runs.unfinished()]
        """
        return unfinished_runs(self._context.state, self._context.ledger)

    def unfinished_messages(self) -> list[str]:
        """A message for each unfinished run; empty for a database role that may not read runs.

        >>> ws.runs.unfinished_messages()
        """
        return self._partitions.unfinished_runs()

    def cancel(
        self,
        run_id: RunId,
        *,
        actor: str | None = None,
        dry_run: bool = False,
        flags: Mapping[str, Any] | None = None,
    ) -> bool:
        """Request that a run stops. A run without a worker is closed at once, and an unfinished run is no longer
        reported. Returns False if the run is over; a dry run only returns whether there is something to cancel.

        >>> ws.runs.cancel(ws.runs.unfinished()[0].run_id, actor="kim")
        """
        found = self._context.state.run(run_id)
        if found is None:
            raise UsageError(f"there is no run {run_id}: `penstock runs list` shows them")
        from penstock.control.rescue import end_cancelled

        control = self._context.control
        if dry_run and found.finished_at is None:
            return True  # without the events of killed runs
        killed = any(run.run_id == run_id for run in self.unfinished())
        if dry_run:
            return killed
        entry = audit_entry(actor, AuditedAct.RUNS_CANCEL, {"run_id": run_id}, flags)
        if not control.request_cancel(run_id, entry, even_if_over=killed):
            return False
        end_cancelled(self._context.workers, control, run_id)
        return True


def _without(plans: Iterable[Plan], judged: Set[PartitionKey]) -> Iterator[Plan]:
    """The plans without these fetched partitions. A plan that has no other partitions is left out."""
    for plan in plans:
        items = [item for item in plan.items if item.key.kind is AssetKind.DERIVED or item.key not in judged]
        if items or not plan.items:
            yield replace(plan, items=items)
