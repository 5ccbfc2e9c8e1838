"""The runner dispatches the tasks that are ready, in one lane for each stage, so that the stages overlap."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
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
from penstock.flow.run_state import News, RunState
from penstock.flow.stages import RunDependencies, Stages
from penstock.flow.summary import RunSummary
from penstock.lake import open_lake
from penstock.lifecycle import Stage
from penstock.partition import PartitionKey, RunId
from penstock.pipeline.memory import release_memory
from penstock.pipeline.parsed_cache import open_cache
from penstock.pipeline.validate import check_expressions
from penstock.pipeline.work import cancel_jobs
from penstock.state.records import Issued, Planned

BATCH_PARTITIONS = 10_000
_SMALLEST_BATCH = 2_500  # below this a second batch costs more than working on two at once saves
_LOOK_SECONDS = 2.0  # how often a waiting run looks whether it was cancelled


class ChecksRefused(ConfigError):
    """Spark refuses a check of every query in a plan: nothing was issued."""

    remedy = "Correct the expressions of the checks that the message names; `penstock doctor` finds most of them."


@dataclass(frozen=True, slots=True)
class Runner:
    """Carries plans through their stages."""

    deps: RunDependencies
    news: News
    stopping: Callable[[], bool] = lambda: False  # asked before each batch: True means that nothing more is issued

    def run(
        self,
        run_id: RunId,
        plan: Sequence[Planned],
        *,
        actor: str,
        filters: Mapping[str, Any],
        fan_ins: Sequence[FanIn] = (),
    ) -> RunSummary:
        """Work through the plan, newest months first. What cannot be finished is cancelled, never left open. A query
        with a check that Spark refuses is left out and reported. Raises ChecksRefused, before anything is recorded, if
        that leaves nothing of the plan."""
        deps = self.deps
        refused = self._prepare(plan)
        if refused and all(item.key.query_name in refused for item in plan):
            raise ChecksRefused("; ".join(refused.values()))
        reasons: dict[str, int] = {}
        for item in plan:
            reasons[item.reason] = reasons.get(item.reason, 0) + 1
        keys = [item.key for item in plan]
        graph = Graph(keys, [*fan_ins, *waiting_for_references(keys, deps.contracts)], reasons)
        deps.control.start_run(run_id, deps.worker_token, actor, filters, len(plan), graph.event(run_id))
        reach("run.started")
        return self._go(run_id, plan, {}, {}, refused)

    def resume(
        self, run_id: RunId, plan: Sequence[Planned], adopted: Sequence[Issued], sizes: Mapping[PartitionKey, int]
    ) -> RunSummary:
        """Go on with a run whose worker died: what it finished is not done again. The plan is for what it had not
        issued, the sizes are of the payloads that it had fetched."""
        refused = self._prepare(plan)
        return self._go(run_id, plan, {item.attempt.partition: item for item in adopted}, dict(sizes), refused)

    def _prepare(self, plan: Sequence[Planned]) -> dict[str, str]:
        """Keep the contracts that attempts will name. Returns, by query, why Spark refuses a check: nothing of such a
        query may be issued."""
        refused: dict[str, str] = {}
        contracts = []
        for name in sorted({item.key.query_name for item in plan}):
            try:
                check_expressions(self.deps.spark, self.deps.contracts[name])
                contracts.append(self.deps.contracts[name])
            except ConfigError as error:
                refused[name] = str(error)
        if contracts:
            store_contracts(open_lake(self.deps.settings.lake), contracts)
            self.deps.control.keep_contracts([_contract_row(contract) for contract in contracts])
        return refused

    def _go(
        self,
        run_id: RunId,
        plan: Sequence[Planned],
        adopted: dict[PartitionKey, Issued],
        sizes: dict[PartitionKey, int],
        refused: Mapping[str, str],
    ) -> RunSummary:
        started = time.monotonic()
        done = RunSummary(run_id, planned=len(plan) + len(adopted))
        ordered = sorted(plan, key=_newest_month_first)
        stages = Stages(self.deps, done, {item.key: item for item in ordered}, adopted, sizes, refused)
        token, state = self.deps.worker_token, RunState(run_id, self.news)
        try:
            with open_cache(self.deps.spark) as stages.cache:
                probes = self._probes([item for item in ordered if item.key.query_name not in refused])
                _Lanes(self, stages, state, probes).work_through()
        except BaseException as error:
            stages.give_up()
            end = "cancelled" if isinstance(error, KeyboardInterrupt) else "broken"
            try:
                self.deps.control.finish_run(run_id, token, done.counts(), end)
            except PenstockError:
                pass  # the first error is the one to show
            raise
        stages.give_up()
        done.seconds = round(time.monotonic() - started, 3)
        done.end = self.deps.control.finish_run(run_id, token, done.counts(), done.end) or done.end
        reach("run.finished")
        del stages
        release_memory()
        self.deps.project({run_id: state.folded})
        release_memory()
        return done

    def _probes(self, plan: Sequence[Planned]) -> list[PartitionKey]:
        """One partition of each source whose breaker is open, each time of another customer: if it comes through, the
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
    """Three stages side by side. Each works on one batch at a time; what it works on next, the ledger says."""

    runner: Runner
    stages: Stages
    state: RunState
    probes: list[PartitionKey]
    busy: dict[Stage, Future[None]] = field(default_factory=dict)
    left: dict[Stage, set[str]] = field(default_factory=dict)  # handed out to a worker that died
    order: dict[str, PartitionKey] = field(default_factory=dict)  # in which partitions are fetched

    def work_through(self) -> None:
        stages = self.stages
        self.order = {str(key): key for key in (*stages.open, *stages.planned)}
        self.state.refresh()
        self.left = {stage: set(self.state.running(stage)) for stage in STAGES}
        with ThreadPoolExecutor(len(STAGES), thread_name_prefix="lane") as lanes:
            try:
                if not stages.planned and not stages.open:  # what an earlier run accepted is published all the same
                    self.busy[Stage.LOAD] = lanes.submit(stages.load, [], 1)
                while True:
                    for stage in STAGES:
                        self._hand_out(lanes, stage)
                    if not self.busy:
                        return
                    self._wait()
            except BaseException:
                self._halt()
                raise

    def _hand_out(self, lanes: ThreadPoolExecutor, stage: Stage) -> None:
        """Give a lane that is idle the next batch of what is ready for it."""
        if stage in self.busy or self._stops(stage):
            return
        ready = self._ready(stage)
        if not ready:
            return
        batch = self._batch(stage, ready)
        if not batch:  # planned once, but not due any more: the end of the run cancels it
            return
        names = [str(key) for key in batch]
        self.left[stage].difference_update(names)
        tries = 1 + self.state.tries(stage, names)
        work = {Stage.EXTRACT: self.stages.extract, Stage.VALIDATE: self.stages.validate, Stage.LOAD: self.stages.load}
        self.busy[stage] = lanes.submit(work[stage], batch, tries)

    def _ready(self, stage: Stage) -> set[str]:
        return set(self.state.ready(stage)) | self.left[stage]

    def _batch(self, stage: Stage, ready: set[str]) -> list[PartitionKey]:
        if stage is Stage.LOAD:  # one publication takes all that waits
            return [self._key(text) for text in ready]
        if stage is Stage.VALIDATE:
            return [self._key(text) for text in sorted(ready)[:BATCH_PARTITIONS]]
        while self.probes:
            probe = self.probes.pop(0)
            if str(probe) in ready:
                return [probe]
        # Half of what is left, so that little is in the last batches: what comes after them has nothing beside it.
        size = min(BATCH_PARTITIONS, max(_SMALLEST_BATCH, -(-len(ready) // 2)))
        return list(islice((key for text, key in self.order.items() if text in ready), size))

    def _key(self, text: str) -> PartitionKey:
        return self.order.get(text) or PartitionKey.parse(text)

    def _stops(self, stage: Stage) -> bool:
        """Whether nothing more of this stage is handed out: when the process is asked to end, nothing is issued any
        more; when the run is cancelled, only what is accepted already goes on, into the warehouse."""
        if self.state.cancel_requested:
            self.stages.done.end = "cancelled"
            return stage is not Stage.LOAD
        return stage is Stage.EXTRACT and self.runner.stopping()

    def _wait(self) -> None:
        """Until a lane is idle again, or somebody asks for the run to stop."""
        while not wait(self.busy.values(), _LOOK_SECONDS, FIRST_COMPLETED).done:
            try:
                self.state.refresh()
            except TransientError:  # the database is away; the lanes may not even need it until it is back
                continue
            if self._interrupted():
                break
        self.state.refresh()
        for stage, future in list(self.busy.items()):
            if future.done():
                del self.busy[stage]
                future.result()

    def _interrupted(self) -> bool:
        """A cancelled run does not wait for its source: the jobs are ended, and what was open is closed."""
        if not self.state.cancel_requested or Stage.LOAD in self.busy:
            return False
        self._halt()
        self.stages.done.end = "cancelled"
        self.busy.clear()  # whatever they ended with: they were told to
        return True

    def _halt(self) -> None:
        """End the jobs, and let no lane start another."""
        self.stages.stopped.set()
        waiting = set(self.busy.values())
        while waiting:
            cancel_jobs(self.stages.deps.spark)
            _, waiting = wait(waiting, 1.0)


def _contract_row(contract: Contract) -> tuple[str, str, str, str, dict[str, Any]]:
    return (contract.fingerprint, contract.source, contract.query_name, contract.schema_version, contract.body())


def _newest_month_first(item: Planned) -> tuple[str, str, int, str, int]:
    """Fresh data first; inside a month the days of a customer together, because a span is one request."""
    key = item.key
    month = key.logical_date.year * 12 + key.logical_date.month
    return (key.source, key.query_name, -month, key.customer_id, key.logical_date.toordinal())
