"""Dispatches the tasks that are ready, in one lane for each stage, so that the stages overlap."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from penstock.contract.contract import Contract
from penstock.contract.stored import store_contracts
from penstock.errors import ConfigError, PenstockError, TransientError
from penstock.failpoint import reach
from penstock.flow.graph import STAGES, FanIn, Graph
from penstock.flow.guard import Gate
from penstock.flow.references import waiting_for_references
from penstock.flow.run_state import ReadEvents, RunState
from penstock.flow.stages import RunDependencies, Stages
from penstock.flow.summary import RunSummary
from penstock.flow.trace import TRACEPARENT, TraceSpan, trace_id_of
from penstock.lake import open_lake
from penstock.lifecycle import Stage
from penstock.log_fields import log_fields
from penstock.partition import PartitionKey, RunId
from penstock.pipeline.memory import release_memory
from penstock.pipeline.parsed_cache import ParsedCache, open_cache
from penstock.pipeline.validate import check_expressions
from penstock.state.order_claims import OrderClaim
from penstock.state.records import Issued, Planned

log = logging.getLogger(__name__)

BATCH_PARTITIONS = 10_000
_SMALLEST_BATCH = 2_500  # below this a second batch costs more than working on two at once saves
_POLL_SECONDS = 2.0  # how often a waiting run checks whether it was cancelled


class ChecksRefused(ConfigError):
    """Spark refuses a check of every query in a plan. No attempt was issued."""

    remedy = "Correct the expressions of the checks that the message names; `penstock doctor` finds most of them."


@dataclass(frozen=True, slots=True)
class Runner:
    """Executes plans."""

    deps: RunDependencies
    news: ReadEvents
    stopping: Callable[[], bool] = lambda: False  # called before each batch; True stops issuing

    def run(
        self,
        run_id: RunId,
        plan: Sequence[Planned],
        *,
        actor: str,
        filters: Mapping[str, Any],
        fan_ins: Sequence[FanIn] = (),
        order: OrderClaim | None = None,
    ) -> RunSummary:
        """Execute the plan, newest months first, for `order` if it is given. Attempts that cannot be finished are
        cancelled, never left open. A query with a check that Spark refuses is left out and reported. Raises
        ChecksRefused, before anything is recorded, if that leaves nothing of the plan."""
        deps = self.deps
        refused = self._prepare(plan)
        if refused and all(item.key.query_name in refused for item in plan):
            raise ChecksRefused("; ".join(refused.values()))
        reasons: dict[str, int] = {}
        for item in plan:
            reasons[item.reason.value] = reasons.get(item.reason.value, 0) + 1
        keys = [item.key for item in plan]
        graph = Graph(keys, [*fan_ins, *waiting_for_references(keys, deps.contracts)], reasons)
        with self._reported(run_id, len(plan), filters) as span:
            traced = {**filters, TRACEPARENT: span.traceparent} if span.traceparent else filters
            deps.control.start_run(run_id, deps.worker_token, actor, traced, len(plan), graph.event(run_id), order)
            reach("run.started")
            return self._execute(run_id, plan, {}, {}, refused, span)

    def resume(
        self,
        run_id: RunId,
        plan: Sequence[Planned],
        adopted: Sequence[Issued],
        sizes: Mapping[PartitionKey, int],
        filters: Mapping[str, Any],
    ) -> RunSummary:
        """Continue a run whose worker died, without repeating finished tasks. `plan` holds the partitions that it had
        not issued, `sizes` the sizes of the payloads that it had fetched, `filters` those that it was started with."""
        refused = self._prepare(plan)
        taken = {item.attempt.partition: item for item in adopted}
        with self._reported(run_id, len(plan) + len(adopted), filters) as span:
            return self._execute(run_id, plan, taken, dict(sizes), refused, span)

    @contextmanager
    def _reported(self, run_id: RunId, partitions: int, filters: Mapping[str, Any]) -> Iterator[TraceSpan]:
        """Report a run to the log and to the tracer. Every log line of the run names it, its worker and its trace. The
        span is linked to that of the run which it continues."""
        attributes: dict[str, str | int] = {"penstock.run_id": run_id, "penstock.partitions": partitions}
        attributes |= {f"penstock.{name}": str(filters[name]) for name in ("order", "resumes") if name in filters}
        with self.deps.tracer.span("penstock.run", attributes, filters.get(TRACEPARENT)) as span:
            trace = {"trace_id": found} if (found := trace_id_of(span.traceparent)) else {}
            with log_fields(run_id=run_id, worker=self.deps.worker_token, **trace):
                log.info("run.started", extra={"facts": {"partitions": partitions}})
                try:
                    yield span
                except BaseException as error:
                    log.info("run.broken", extra={"facts": {"error": str(error) or type(error).__name__}})
                    raise

    def _prepare(self, plan: Sequence[Planned]) -> dict[str, str]:
        """Store the contracts that attempts will reference. Returns, by query, why Spark refuses a check: no attempt
        of such a query may be issued."""
        refused: dict[str, str] = {}
        contracts = []
        for name in sorted({item.key.query_name for item in plan}):
            try:
                check_expressions(self.deps.session.get, self.deps.contracts[name])
                contracts.append(self.deps.contracts[name])
            except ConfigError as error:
                refused[name] = str(error)
        if contracts:
            store_contracts(open_lake(self.deps.settings.lake), contracts)
            self.deps.control.store_contracts([_contract_row(contract) for contract in contracts])
        return refused

    def _execute(
        self,
        run_id: RunId,
        plan: Sequence[Planned],
        adopted: dict[PartitionKey, Issued],
        sizes: dict[PartitionKey, int],
        refused: Mapping[str, str],
        span: TraceSpan,
    ) -> RunSummary:
        started = time.monotonic()
        done = RunSummary(run_id, planned=len(plan) + len(adopted))
        ordered = sorted(plan, key=_newest_month_first)
        stages = Stages(self.deps, done, {item.key: item for item in ordered}, adopted, sizes, refused)
        token, state = self.deps.worker_token, RunState(run_id, self.news)
        try:
            with self._open_cache() as stages.cache:
                probes = self._probes([item for item in ordered if item.key.query_name not in refused])
                _Lanes(self, stages, state, probes).work_through()
        except BaseException as error:
            stages.cancel_open()
            end = "cancelled" if isinstance(error, KeyboardInterrupt) else "broken"
            try:
                self.deps.control.finish_run(run_id, token, done.counts(), end)
            except PenstockError:
                pass  # the first error is the one to show
            raise
        stages.cancel_open()
        done.seconds = round(time.monotonic() - started, 3)
        done.end = self.deps.control.finish_run(run_id, token, done.counts(), done.end) or done.end
        span.annotate({f"penstock.{name}": value for name, value in (done.counts() | {"end": done.end}).items()})
        log.info("run.finished", extra={"facts": {**done.counts(), "end": done.end, "seconds": done.seconds}})
        reach("run.finished")
        del stages
        release_memory()
        self.deps.project({run_id: state.folded})
        release_memory()
        return done

    def _open_cache(self) -> AbstractContextManager[ParsedCache | None]:
        """The cache of parsed rows. A few partitions that this process validates are read again by the load."""
        if self.deps.in_driver:
            return nullcontext()
        return open_cache(self.deps.session.get(), self.deps.settings.lake)

    def _probes(self, plan: Sequence[Planned]) -> list[PartitionKey]:
        """One partition of each source whose breaker is open, each time of another customer. If its probe succeeds, the
        rest of the plan follows."""
        guard, probes = self.deps.guard, []
        for source in sorted({item.key.source for item in plan}):
            if guard.gate(source) is Gate.PROBE:
                mine = [item.key for item in plan if item.key.source == source]
                customers = sorted({key.customer_id for key in mine})
                chosen = customers[guard.probes(source) % len(customers)]
                probes.append(next(key for key in mine if key.customer_id == chosen))
        return probes


@dataclass(slots=True)
class _Lanes:
    """Runs the three stages concurrently, each on one batch at a time. The ledger determines the next batch."""

    runner: Runner
    stages: Stages
    state: RunState
    probes: list[PartitionKey]
    busy: dict[Stage, Future[None]] = field(default_factory=dict)
    left: dict[Stage, set[str]] = field(default_factory=dict)  # begun by a worker that died
    order: dict[str, PartitionKey] = field(default_factory=dict)  # the order in which partitions are fetched

    def work_through(self) -> None:
        """Return when no task is ready and no lane is busy. Raises the first error of a lane."""
        stages = self.stages
        self.order = {str(key): key for key in (*stages.open, *stages.planned)}
        self.state.refresh()
        self.left = {stage: set(self.state.running(stage)) for stage in STAGES}
        with ThreadPoolExecutor(len(STAGES), thread_name_prefix="lane") as lanes:
            try:
                if not stages.planned and not stages.open:  # publishes what earlier runs accepted
                    self._submit(lanes, Stage.LOAD, [], 1)
                while True:
                    for stage in STAGES:
                        self._dispatch(lanes, stage)
                    if not self.busy:
                        return
                    self._wait()
            except BaseException:
                self._cancel_lanes()
                raise

    def _dispatch(self, lanes: ThreadPoolExecutor, stage: Stage) -> None:
        """Submit the next batch of ready tasks to a lane that is idle."""
        if stage in self.busy or self._stops(stage):
            return
        ready = self._ready(stage)
        if not ready:
            return
        batch = self._batch(stage, ready)
        if not batch:  # no longer due: the end of the run cancels these tasks
            return
        names = [str(key) for key in batch]
        self.left[stage].difference_update(names)
        tries = 1 + self.state.tries(stage, names)
        self._submit(lanes, stage, batch, tries)

    def _submit(self, lanes: ThreadPoolExecutor, stage: Stage, batch: Sequence[PartitionKey], tries: int) -> None:
        """Work on a batch in its lane. Log lines and spans of the lane belong to the run."""
        self.busy[stage] = lanes.submit(copy_context().run, self._work, stage, batch, tries)

    def _work(self, stage: Stage, batch: Sequence[PartitionKey], tries: int) -> None:
        work = {Stage.EXTRACT: self.stages.extract, Stage.VALIDATE: self.stages.validate, Stage.LOAD: self.stages.load}
        attributes = {"penstock.stage": stage.value, "penstock.partitions": len(batch), "penstock.tries": tries}
        with self.stages.deps.tracer.span("penstock.batch", attributes):
            work[stage](batch, tries)

    def _ready(self, stage: Stage) -> set[str]:
        return set(self.state.ready(stage)) | self.left[stage]

    def _batch(self, stage: Stage, ready: set[str]) -> list[PartitionKey]:
        if stage is Stage.LOAD:  # one publication loads all accepted partitions
            return [self._key(text) for text in ready]
        if stage is Stage.VALIDATE:
            return [self._key(text) for text in sorted(ready)[:BATCH_PARTITIONS]]
        while self.probes:
            probe = self.probes.pop(0)
            if str(probe) in ready:
                return [probe]
        # Half of the rest, so that the last batches are small: nothing overlaps with their validation and load.
        size = min(BATCH_PARTITIONS, max(_SMALLEST_BATCH, -(-len(ready) // 2)))
        return list(islice((key for text, key in self.order.items() if text in ready), size))

    def _key(self, text: str) -> PartitionKey:
        return self.order.get(text) or PartitionKey.parse(text)

    def _stops(self, stage: Stage) -> bool:
        """True if no further batch of this stage is dispatched. When the process stops, no attempts are issued; when
        the run is cancelled, only loads of accepted partitions continue."""
        if self.state.cancel_requested:
            self.stages.done.end = "cancelled"
            return stage is not Stage.LOAD
        return stage is Stage.EXTRACT and self.runner.stopping()

    def _wait(self) -> None:
        """Wait until a lane is idle, or the run is cancelled. Raises the error of a lane that failed."""
        while not wait(self.busy.values(), _POLL_SECONDS, FIRST_COMPLETED).done:
            try:
                self.state.refresh()
            except TransientError:  # the database is unavailable; the lanes may not need it before it is back
                continue
            if self._interrupted():
                break
        self.state.refresh()
        for stage, future in list(self.busy.items()):
            if future.done():
                del self.busy[stage]
                future.result()

    def _interrupted(self) -> bool:
        """Cancel the jobs of a cancelled run, so that it does not wait for its source. True if it did. A load is not
        interrupted."""
        if not self.state.cancel_requested or Stage.LOAD in self.busy:
            return False
        self._cancel_lanes()
        self.stages.done.end = "cancelled"
        self.busy.clear()  # their errors follow from the cancellation
        return True

    def _cancel_lanes(self) -> None:
        """Cancel all jobs, and prevent the lanes from starting others."""
        self.stages.stopped.set()
        self.stages.deps.limits.stopped.set()
        waiting = set(self.busy.values())
        while waiting:
            self.stages.deps.session.cancel_jobs()
            _, waiting = wait(waiting, 1.0)


def _contract_row(contract: Contract) -> tuple[str, str, str, str, dict[str, Any]]:
    return (contract.fingerprint, contract.source, contract.query_name, contract.schema_version, contract.body())


def _newest_month_first(item: Planned) -> tuple[str, str, int, str, int]:
    """Sort key: newest months first; in a month the days of a customer together, because a span is one request."""
    key = item.key
    month = key.logical_date.year * 12 + key.logical_date.month
    return (key.source, key.query_name, -month, key.customer_id, key.logical_date.toordinal())
