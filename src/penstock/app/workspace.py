"""The whole workspace: what the parts below offer, and runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.app.opened import os_user
from penstock.app.planning import Planning
from penstock.clock import Clock, utc_now
from penstock.config.settings import find_workspace, load_settings
from penstock.control.select import Selection
from penstock.errors import ActRefused, LakeMismatch, PenstockError, UsageError
from penstock.partition import MODELS, RunId, new_run_id
from penstock.pipeline.memory import reduced_gc
from penstock.plural import counted
from penstock.state.audited import AuditedAct
from penstock.state.control import AuditEntry, ControlStore
from penstock.state.validator import ValidatorStore
from penstock.state.worker import WorkerStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.control.plan import Plan
    from penstock.flow.runner import Runner
    from penstock.flow.summary import RunSummary, Watcher
    from penstock.pipeline.parsed_cache import Lookup
    from penstock.pipeline.work import Report
    from penstock.warehouse.publish import Publication


log = logging.getLogger(__name__)


def open_workspace(path: str | Path = ".", clock: Clock = utc_now) -> Workspace:
    """The workspace in (or above) `path`; refuses one whose database is missing or of another version."""
    workspace = load_workspace(path, clock)
    workspace.require_schema()
    return workspace


def load_workspace(path: str | Path = ".", clock: Clock = utc_now) -> Workspace:
    """The workspace without a look at its database, for commands that create or mend it."""
    return Workspace(load_settings(find_workspace(Path(path)), os.environ), clock)


class Workspace(Planning):
    """One workspace: its settings, its state database, its lake, and what can be done with them."""

    @reduced_gc()
    def run(
        self,
        selection: Selection,
        *,
        watcher: Watcher,
        reprocess: bool = False,
        actor: str | None = None,
        spark: SparkSession | None = None,
        resumes: RunId | None = None,
    ) -> RunSummary:
        """Close the attempts of dead workers, publish what waits to be published, plan, and carry the plan through
        extract, validate and load. Splits a large plan into several runs, one after the other. Starts Spark only when
        there is something to publish or to attempt."""
        from penstock.control.breaker import BreakerGuard
        from penstock.control.plan import Plan
        from penstock.flow.guard import Gate
        from penstock.flow.heartbeat import Heartbeat
        from penstock.flow.runner import ChecksRefused
        from penstock.flow.summary import RunSummary, as_one
        from penstock.pipeline.session import start_session

        self._refuse_mismatches(selection)
        workers = self._rescue()
        self._allowed(selection)  # a selection that cannot run is refused before anything starts
        actor = actor or os_user()
        published: list[RunSummary] = []
        if self._awaits_publication():  # before planning: models read only what is published
            spark = spark or start_session(self.settings.spark)
            with Heartbeat(workers) as heart:
                runner = self._runner(spark, heart.token, watcher, by_hand=True)
                published = [runner.run(new_run_id(), (), actor=actor, filters={"publish": True})]
            if published[0].end != "done":
                return as_one(published)
        guard = BreakerGuard(self.breakers, self._clock, by_hand=True)
        whole, plans = self.plans(
            selection, reprocess=reprocess, may_go_on=lambda source: guard.gate(source) is Gate.OPEN
        )
        first = next(plans, Plan(()))
        unfinished = [run.message for run in self.unfinished_runs() if run.run_id != resumes]
        if not first.items:
            summary = as_one(published) if published else RunSummary(new_run_id())
            summary.skipped += whole.held
            summary.waiting = self.held_up(selection) | {"model_inputs": whole.waiting}
            summary.unfinished = unfinished
            return summary
        session = spark or start_session(self.settings.spark)
        if whole.is_divided and any(span.source == MODELS for span in self.ranges(selection)):
            for trouble in self._learn_models(session).values():  # said now, not after hours
                watcher.say(trouble)
        filters = {**selection.as_dict(), **({"reprocess": True} if reprocess else {})}
        if resumes:
            filters = {**self.run_filters(resumes), "resumes": resumes}
        every: list[RunSummary] = []
        refused: list[tuple[int, ChecksRefused]] = []  # plans with nothing to issue, and why
        with self._reprocessing(reprocess and not resumes, selection, actor, whole, every), Heartbeat(workers) as heart:
            for plan in chain([first], plans):
                for source, count in plan.blocked.items() if every else ():
                    every[-1].count(blocked=count)
                    every[-1].trouble([guard.trouble(source)])
                if plan.blocked:
                    continue
                if whole.is_divided:
                    watcher.say(f"run {len(every) + 1}: {counted(len(plan.items))}, then {plan.later:,} more to fetch")
                run_id, today = new_run_id(), self._under_todays_models(session, plan.items, plan.fan_ins)
                runner = self._runner(session, heart.token, watcher, by_hand=True)
                try:
                    done = runner.run(run_id, today.items, actor=actor, filters=filters, fan_ins=today.fan_ins)
                except ChecksRefused as error:
                    refused.append((len(today.items), error))
                    continue
                done.count(blocked=today.left_out)
                done.trouble(today.troubles)
                every.append(done)
                self.schedule_retries()
                self._tell_lineage(run_id)
                if done.end != "done":
                    break
            for count, refusal in refused:
                if not every:
                    raise refusal
                every[-1].count(blocked=count)
                every[-1].trouble([str(refusal)])
        summary = as_one([*published, *every])
        summary.skipped += whole.held
        summary.is_divided = whole.is_divided and len(every) > 1
        summary.unfinished = unfinished
        return summary

    @reduced_gc()
    def tick(
        self,
        session: Callable[[], SparkSession],
        worker_token: str,
        watcher: Watcher,
        stopping: Callable[[], bool] = lambda: False,
    ) -> Mapping[str, Any]:
        """One round of the control loop: close the attempts of dead workers, decide about retries, publish what waits
        to be published, plan within the shares, run, publish. Starts Spark only for a publication or a plan."""
        from penstock.control.breaker import BreakerGuard
        from penstock.control.rescue import tidy_own
        from penstock.control.round import Planner
        from penstock.flow.guard import Gate
        from penstock.flow.summary import as_one
        from penstock.warehouse.mismatch import messages

        self.require_own_lake()
        refused = self.mismatches()
        # Attempts that were open when a backup was made may have been accepted since: a recovery decides about them.
        workers = WorkerStore(self.database, self._clock) if refused else self._rescue()
        tidy_own(workers, ControlStore(self.database, self._clock), worker_token)
        self._refuse_what_cannot_run(self.ranges(Selection()))
        published: list[RunSummary] = []
        if self._awaits_publication():  # before planning: models read only what is published
            runner = self._runner(session(), worker_token, watcher, by_hand=False, stopping=stopping)
            published = [runner.run(new_run_id(), (), actor="control", filters={"round": True, "publish": True})]
        run_id = new_run_id()
        guard = BreakerGuard(self.breakers, self._clock, by_hand=False)
        shut = {mismatch.source for mismatch in refused}  # what they fetch could not be published

        def gate(source: str) -> Gate:
            return Gate.SHUT if source in shut else guard.gate(source)

        planner = Planner(self.reader, self.backfills, self.settings, self.contracts, worker_token, gate)
        planned = planner.plan(run_id, self.now())
        facts: dict[str, Any] = {"run_id": run_id, "planned": len(planned.items), "waiting": planned.waiting}
        facts["troubles"] = messages(refused)
        facts["unfinished"] = [run.message for run in self.unfinished_runs()]
        models = self._models_of_round(planned.items)
        facts["model_inputs"] = models.waiting
        if planned.items or models.items:
            spark = session()
            made = self._under_todays_models(spark, models.items, models.fan_ins)
            for trouble in made.troubles:
                log.error("models.refused: %s", trouble)
            items = [*planned.items, *made.items]
            facts["planned"] = len(items)
            runner = self._runner(spark, worker_token, watcher, by_hand=False, stopping=stopping)
            filters = {"round": True}
            done = runner.run(run_id, items, actor="control", filters=filters, fan_ins=made.fan_ins)
            summary = as_one([*published, done])
            facts |= {**summary.counts(), "blocked": summary.blocked, "seconds": summary.seconds}
            facts["troubles"] = list(dict.fromkeys([*facts["troubles"], *summary.troubles, *made.troubles]))
            if summary.blocked:  # the next round will not get further: no hurry
                facts["waiting"] = 0
            self.schedule_retries()
            self._tell_lineage(run_id)
        elif published:
            [summary] = published
            facts |= {**summary.counts(), "run_id": summary.run_id, "seconds": summary.seconds}
        facts.setdefault("troubles", self.troubles())
        planner.conclude(planned.stretches, self.now())
        return facts

    @contextmanager
    def _reprocessing(
        self, by_hand: bool, selection: Selection, actor: str, plan: Plan, every: Sequence[RunSummary]
    ) -> Iterator[None]:
        """The audit log says who fetches success partitions again, before the first run and after the last."""
        if not by_hand:
            yield
            return
        entry = AuditEntry(actor, AuditedAct.RUN_REPROCESS, selection.as_dict(), {"reprocess": True})
        with self.audited(entry, plan.total) as act:
            yield
            act.affected = sum(done.accepted + done.rejected for done in every)
            act.outcome = every[-1].end if every else "done"

    @reduced_gc()
    def resume(
        self, run_id: RunId, *, watcher: Watcher, spark: SparkSession | None = None, actor: str | None = None
    ) -> RunSummary:
        """Go on with a run whose worker died, without repeating what it finished. What is left of a run that is over
        already, because a later one found it dead, is done by a new run. In the audit log."""
        self.run_filters(run_id)  # refuses an unknown run
        entry = AuditEntry(actor or os_user(), AuditedAct.RUNS_RESUME, {"run_id": run_id}, {})
        with self.audited(entry) as act:
            summary = self._resume(run_id, watcher, spark, entry.actor)
            act.affected, act.outcome = summary.accepted + summary.rejected, summary.end
        return summary

    def _resume(self, run_id: RunId, watcher: Watcher, spark: SparkSession | None, actor: str) -> RunSummary:
        from penstock.control.resume import left_over, outdated_closings, reasons_of, still_current
        from penstock.flow.heartbeat import Heartbeat
        from penstock.flow.run_state import RunState
        from penstock.flow.summary import as_one
        from penstock.pipeline.session import start_session
        from penstock.raw.reader import RawReader
        from penstock.warehouse.publish import Publication

        self._refuse_mismatches(Selection())
        found = self.reader.run(run_id)
        if found is not None and found.finished_at is not None:
            return self._resume_in_new_run(run_id, watcher, spark, actor)
        workers = WorkerStore(self.database, self._clock)
        control = ControlStore(self.database, self._clock)
        workers.mark_dead_workers()
        with Heartbeat(workers) as heart:
            reasons = reasons_of(self.run_filters(run_id))
            adopted, outdated = still_current(control.adopt(run_id, heart.token), self.settings, self.contracts)
            control.cancel(outdated_closings(outdated, heart.token))
            session = spark or start_session(self.settings.spark)
            published = Publication()
            if self._awaits_publication():  # before planning: models read only what is published
                report = watcher.stage("load", self.pointers.waiting())
                published = self._publish(session, heart.token, run_id, report)
                report(1.0)
            state = RunState(run_id, self.ledger.news_of_run)
            state.refresh()
            waiting = left_over(state, adopted)
            plan = self._replan(waiting.unissued, reasons)
            sizes = RawReader(self.lake).sizes([item.attempt for item in waiting.fetched])
            broken: dict[str, str] = {}
            if any(item.attempt.partition.source == MODELS for item in adopted):
                broken = self._learn_models(session)
            lost = [
                i for i in adopted if i.attempt.partition.source == MODELS and i.attempt.partition.query_name in broken
            ]
            control.cancel(outdated_closings(lost, heart.token))
            today = self._under_todays_models(session, plan)
            runner = self._runner(session, heart.token, watcher, by_hand=True)
            summary = as_one([runner.resume(run_id, today.items, [i for i in adopted if i not in lost], sizes)])
            summary.count(blocked=today.left_out + len(lost), loaded=published.loaded, hidden=published.hidden)
            summary.trouble([*today.troubles, *broken.values()])
        self.schedule_retries()
        self._tell_lineage(run_id)
        return summary

    def _resume_in_new_run(self, run_id: RunId, watcher: Watcher, spark: SparkSession | None, actor: str) -> RunSummary:
        """Do in a new run what is left of one that is over."""
        from penstock.control.resume import reasons_of
        from penstock.control.unfinished import left_of

        filters = self.run_filters(run_id)
        left = left_of(self.reader, self.ledger, run_id)
        due = [item.key for item in self._replan(left, reasons_of(filters))]
        if not due:
            raise ActRefused(f"run {run_id} is over: there is nothing to go on with")
        return self.run(
            Selection(keys=tuple(due)),
            watcher=watcher,
            reprocess=bool(filters.get("reprocess")),
            actor=actor,
            spark=spark,
            resumes=run_id,
        )

    def tell_lineage(self, run_id: RunId) -> int:
        """Tell what a run read and wrote, as OpenLineage events; says how many. Telling it again changes nothing."""
        from penstock.contract.contract import Contract
        from penstock.control.lineage import require_openlineage, run_events, tell
        from penstock.state.assets import assets_of_run
        from penstock.warehouse.heads import heads_of_all

        if self.settings.lineage is None:
            raise UsageError("the workspace file has no `lineage:`: write lineage: {file: lineage.jsonl}")
        self.run_filters(run_id)  # refuses a run that does not exist
        require_openlineage()
        assets = assets_of_run(self.database, run_id)
        kept = {row.fingerprint: Contract.from_body(row.body) for row in self.reader.contracts()}
        names = sorted({(asset.source, asset.query_name) for asset in assets})
        heads = {head.name: head for _, head in heads_of_all(self.database, names)}
        tell(
            self.settings.lineage,
            run_events(self.settings, run_id, assets, kept, heads, self.lake.url),
        )
        return len(assets)

    def _tell_lineage(self, run_id: RunId) -> None:
        """The same at the end of a run. Trouble with it fails no run: `penstock lineage emit` can be called later."""
        if self.settings.lineage is None:
            return
        try:
            self.tell_lineage(run_id)
        except PenstockError as error:
            log.warning("lineage.behind: %s; later: penstock lineage emit %s", error, run_id)

    def _refuse_mismatches(self, selection: Selection) -> None:
        """Raise LakeMismatch before anything is fetched that could not be published."""
        from penstock.warehouse.mismatch import messages

        assets = {f"{span.source}.{span.query_name}" for span in self.ranges(selection)}
        found = [one for one in self.mismatches() if one.asset is None or one.asset in assets]
        if found:
            raise LakeMismatch("; ".join(messages(found)))

    def _awaits_publication(self) -> bool:
        """Whether authority moved and the warehouse has not followed, or a publication was interrupted."""
        return self.pointers.waiting() > 0 or self.pointers.interrupted()

    def _rescue(self) -> WorkerStore:
        """Close what dead workers left, and let the retry policy speak about what failed."""
        from penstock.control.rescue import rescue

        workers = WorkerStore(self.database, self._clock)
        rescue(workers, ControlStore(self.database, self._clock), ValidatorStore(self.database, self._clock))
        self.schedule_retries()
        return workers

    def _runner(
        self,
        session: SparkSession,
        worker_token: str,
        watcher: Watcher,
        *,
        by_hand: bool,
        stopping: Callable[[], bool] = lambda: False,
    ) -> Runner:
        from penstock.control.breaker import BreakerGuard
        from penstock.flow.derive import Deriver
        from penstock.flow.runner import Runner
        from penstock.flow.stages import RunDependencies

        def publish(run: RunId, report: Report | None, find: Lookup | None) -> Publication:
            return self._publish(session, worker_token, run, report, find)

        deps = RunDependencies(
            session,
            self.settings,
            self.contracts,
            ControlStore(self.database, self._clock),
            ValidatorStore(self.database, self._clock),
            publish,
            Deriver(self.database, self.versions, self.contracts, self.derived),
            self.project,
            watcher,
            worker_token,
            BreakerGuard(self.breakers, self._clock, by_hand),
            self._clock,
            self._referenced,
        )
        return Runner(deps, self.ledger.news_of_run, stopping)
