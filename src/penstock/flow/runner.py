"""The runner carries a plan through the stages in bounded batches: issue, extract, validate and judge, publish."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from penstock.clock import Clock
from penstock.contract.complaint import summary
from penstock.contract.contract import Contract
from penstock.errors import ErrorClass, PenstockError, SparkFailed
from penstock.failpoint import reach
from penstock.flow.guard import Gate, Guard
from penstock.lifecycle import MAX_LOSSES, Stage
from penstock.partition import PartitionKey, RunId
from penstock.pipeline.extract import Extracted, Extraction, extract
from penstock.pipeline.validate import ToValidate, Validated, check_expressions, validate
from penstock.pipeline.work import Report
from penstock.settings import Settings
from penstock.state.control import ControlStore
from penstock.state.records import Accepted, Cancelled, Issued, Observation, Planned, Rejected, Verdict
from penstock.state.validator import ValidatorStore
from penstock.warehouse.publish import Publication

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH_PARTITIONS = 10_000
_FAILED_JOBS = 60  # enough to find a few slices that kill their workers among ten thousand
_AUTH_PAUSE = 900.0
_QUOTA_PAUSE = 60.0  # when the source asks for a pause and does not say how long

_SMALLEST_BATCH = 2_500  # below this a second batch costs more than working on two at once saves


class Watcher(Protocol):
    """Whoever wants to know how far a run is."""

    def stage(self, name: str, partitions: int) -> Report:
        """A stage begins; the answer is told the finished share of it, at the end 1. Stages may overlap."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A partition that did not make it, and why."""

    key: PartitionKey
    stage: Stage
    error_class: ErrorClass
    message: str


@dataclass(slots=True)
class RunSummary:
    """What became of a run."""

    run_id: RunId
    planned: int = 0
    accepted: int = 0
    rejected: int = 0
    loaded: int = 0
    hidden: int = 0
    skipped: int = 0
    blocked: int = 0  # not issued, because the source is in trouble
    late: int = 0  # verdicts that came too late; the other thread counts what was not issued
    cancelled: int = 0
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)  # of sources, in words

    def counts(self) -> dict[str, int]:
        names = ("planned", "accepted", "rejected", "loaded", "hidden", "skipped", "cancelled")
        return {name: getattr(self, name) for name in names} | {"skipped": self.skipped + self.late + self.blocked}


@dataclass(frozen=True, slots=True)
class Runner:
    """Everything a run needs, made by the composition root."""

    spark: SparkSession
    settings: Settings
    contracts: Mapping[str, Contract]
    control: ControlStore
    validator: ValidatorStore
    publish: Callable[[RunId, Report | None], Publication]
    watcher: Watcher
    worker_token: str
    guard: Guard
    clock: Clock
    stopping: Callable[[], bool] = lambda: False  # asked before each batch: True means that nothing more is issued

    def run(self, run_id: RunId, plan: Sequence[Planned], *, actor: str, filters: Mapping[str, Any]) -> RunSummary:
        """Work through the plan, newest months first. What cannot be finished is cancelled, never left open."""
        started = time.monotonic()
        done = RunSummary(run_id, planned=len(plan))
        size = min(BATCH_PARTITIONS, max(_SMALLEST_BATCH, -(-len(plan) // 2)))
        for name in sorted({item.key.query_name for item in plan}):
            check_expressions(self.spark, self.contracts[name])
        self.control.start_run(run_id, self.worker_token, actor, filters, len(plan))
        used = sorted({item.key.query_name for item in plan})
        if used:
            self.control.keep_contracts([_contract_row(self.contracts[name]) for name in used])
        ordered = sorted(plan, key=_newest_month_first)
        probes = self._probes(ordered)
        rest = [item for item in ordered if [item] not in probes] if probes else ordered
        batches = [rest[at : at + size] for at in range(0, len(rest), size)]
        self._work_through([*probes, *batches], done)
        if not ordered:  # what an earlier run accepted but could not publish is published all the same
            self._publish(done)
        done.seconds = round(time.monotonic() - started, 3)
        self.control.finish_run(run_id, done.counts())
        return done

    def _work_through(self, batches: Sequence[Sequence[Planned]], done: RunSummary) -> None:
        """While one batch is judged and published, which is the database's work, Spark extracts the next one."""
        with ThreadPoolExecutor(1, thread_name_prefix="publish") as second:
            behind: Future[None] | None = None
            for number, planned in enumerate(batches):
                if self.stopping():
                    break
                issued, verdicts = self._examine(number, planned, done)
                try:
                    if behind is not None:
                        behind.result()
                except BaseException:
                    self._give_up(issued)
                    raise
                behind = second.submit(self._conclude, issued, verdicts, done)
            if behind is not None:
                behind.result()

    def _examine(self, number: int, planned: Sequence[Planned], done: RunSummary) -> tuple[list[Issued], list[Verdict]]:
        """Issue, extract and validate one batch: what the validator has to say about each attempt."""
        planned = self._allowed(planned, done)
        if not planned:
            return [], []
        issued, refused = self.control.issue(done.run_id, self.worker_token, number, planned)
        done.skipped += len(refused)
        reach("run.issued")
        try:
            verdicts = self._verdicts(issued, done, _Patience(_FAILED_JOBS))
        except BaseException:
            self._give_up(issued)
            raise
        return issued, verdicts

    def _verdicts(self, issued: Sequence[Issued], done: RunSummary, patience: _Patience) -> list[Verdict]:
        """Extract and validate. If a job breaks as a whole, each half is tried: one slice that kills its worker must
        not take the others with it. What was sealed before is not written again."""
        try:
            extracted = self._extract(issued)
            self._observe(extracted)
            reach("run.extracted")
            verdicts = self._validate(issued, [e for e in extracted if e.ok])
            reach("run.validated")
        except SparkFailed as error:
            patience.spend(error)
            if len(issued) == 1:
                return self._lost(issued[0], error, done)
            half = len(issued) // 2
            return [
                *self._verdicts(issued[:half], done, patience),
                *self._verdicts(issued[half:], done, patience),
            ]
        return [*verdicts, *self._failed_extractions([e for e in extracted if not e.ok], done)]

    def _lost(self, item: Issued, error: SparkFailed, done: RunSummary) -> list[Verdict]:
        """This slice alone breaks a job. That counts as a loss, and the fourth in a row as a rejection."""
        words = f"its worker died: {error}"
        done.failures.append(Failure(item.attempt.partition, Stage.EXTRACT, ErrorClass.INTERNAL, words))
        if item.lost_count + 1 >= MAX_LOSSES:
            return [Rejected(item.attempt, self.worker_token, Stage.EXTRACT, ErrorClass.INTERNAL, words)]
        lost = Cancelled(item.attempt, self.worker_token, Stage.EXTRACT, ErrorClass.INTERNAL, words, lost=True)
        done.cancelled += len(self.control.cancel([lost]).applied)
        return []

    def _probes(self, plan: Sequence[Planned]) -> list[list[Planned]]:
        """One partition of each source whose breaker is open, each time of another customer: if it comes through, the
        rest of the plan follows."""
        probes = []
        for source in sorted({item.key.source for item in plan}):
            if self.guard.gate(source) is Gate.PROBE:
                mine = [item for item in plan if item.key.source == source]
                customers = sorted({item.key.customer_id for item in mine})
                chosen = customers[self.guard.probes(source) % len(customers)]
                probes.append([next(item for item in mine if item.key.customer_id == chosen)])
        return probes

    def _allowed(self, planned: Sequence[Planned], done: RunSummary) -> Sequence[Planned]:
        """What may be issued now. Behind an open breaker that is a single probe."""
        gates = {source: self.guard.gate(source) for source in sorted({item.key.source for item in planned})}
        alone = len(planned) == 1
        allowed = [
            item
            for item in planned
            if gates[item.key.source] is Gate.OPEN or (alone and gates[item.key.source] is Gate.PROBE)
        ]
        if len(allowed) < len(planned):
            done.blocked += len(planned) - len(allowed)
            words = [self.guard.trouble(source) for source in gates]
            done.troubles += [word for word in words if word and word not in done.troubles]
        return allowed

    def _observe(self, extracted: Sequence[Extracted]) -> None:
        for source in sorted({item.attempt.partition.source for item in extracted}):
            mine = [item for item in extracted if item.attempt.partition.source == source]
            self.guard.observe(source, observation(mine))

    def _conclude(self, issued: Sequence[Issued], verdicts: Sequence[Verdict], done: RunSummary) -> None:
        """Make it count: verdicts into the state, accepted runs into the warehouse."""
        try:
            self._judge(verdicts, done)
        except BaseException:
            self._give_up(issued)
            raise
        reach("run.judged")
        self._publish(done)

    def _extract(self, issued: Sequence[Issued]) -> list[Extracted]:
        report = self.watcher.stage("extract", len(issued))
        customers = {customer.id: customer for customer in self.settings.customers}
        hashes = {name: contract.fingerprint for name, contract in self.contracts.items()}
        extracted: list[Extracted] = []
        for source in sorted({item.attempt.partition.source for item in issued}):
            attempts = [item.attempt for item in issued if item.attempt.partition.source == source]
            work = Extraction(
                self.settings.lake,
                issued[0].attempt.run_id,
                self.settings.sources[source],
                self.settings.queries,
                hashes,
            )
            extracted += extract(self.spark, work, customers, attempts, report)
        report(1.0)
        return extracted

    def _validate(self, issued: Sequence[Issued], extracted: Sequence[Extracted]) -> list[Verdict]:
        report = self.watcher.stage("validate", len(extracted))
        previous = {item.attempt: item.previous_record_count for item in issued}
        sizes = {item.attempt: item.payload_bytes or 0 for item in extracted}
        verdicts: list[Verdict] = []
        for name in sorted({item.attempt.partition.query_name for item in extracted}):
            items = [
                ToValidate(item.attempt, sizes[item.attempt], previous[item.attempt])
                for item in extracted
                if item.attempt.partition.query_name == name
            ]
            found = validate(self.spark, self.settings.lake, self.contracts[name], items, report)
            verdicts += [self._verdict(item, sizes[item.attempt]) for item in found]
        report(1.0)
        return verdicts

    def _verdict(self, found: Validated, size: int) -> Verdict:
        key = found.attempt.partition
        if not found.complaints and found.payload_digest is not None:
            version = self.contracts[key.query_name].schema_version
            return Accepted(
                found.attempt,
                self.worker_token,
                version,
                found.record_count,
                found.payload_digest,
                size,
                found.content_digest,
            )
        return Rejected(
            found.attempt,
            self.worker_token,
            Stage.VALIDATE,
            ErrorClass.DATA,
            summary(found.complaints),
            [complaint.as_dict() for complaint in found.complaints],
            found.record_count,
            found.payload_digest,
            size,
            found.content_digest,
        )

    def _failed_extractions(self, failed: Sequence[Extracted], done: RunSummary) -> list[Verdict]:
        """The slice's own trouble is a rejection; the source's trouble cancels the attempt and counts for nothing."""
        verdicts: list[Verdict] = []
        cancelled: list[Cancelled] = []
        for item in failed:
            error_class, message = item.error_class or ErrorClass.INTERNAL, item.error_message or "unknown"
            if error_class.is_source_wide:
                done.failures.append(Failure(item.attempt.partition, Stage.EXTRACT, error_class, message))
                cancelled.append(Cancelled(item.attempt, self.worker_token, Stage.EXTRACT, error_class, message))
            else:
                verdicts.append(Rejected(item.attempt, self.worker_token, Stage.EXTRACT, error_class, message))
        done.cancelled += len(self.control.cancel(cancelled).applied)
        now = self.clock()
        for error_class in (ErrorClass.QUOTA, ErrorClass.AUTH):
            mine = [item for item in failed if item.error_class is error_class]
            until = {item.attempt.partition: now + timedelta(seconds=_pause(item)) for item in mine}
            self.control.postpone(until, error_class.value)
        return verdicts

    def _judge(self, verdicts: Sequence[Verdict], done: RunSummary) -> None:
        report = self.watcher.stage("judge", len(verdicts))
        ruling = self.validator.judge(verdicts)
        applied = set(ruling.applied)
        rejected = [v for v in verdicts if isinstance(v, Rejected) and v.attempt in applied]
        done.accepted += sum(isinstance(v, Accepted) and v.attempt in applied for v in verdicts)
        done.rejected += len(rejected)
        done.failures += [Failure(v.attempt.partition, v.stage, v.error_class, v.error_message) for v in rejected]
        done.late += len(ruling.refused)
        report(1.0)

    def _publish(self, done: RunSummary) -> None:
        report = self.watcher.stage("load", done.accepted - done.loaded)
        published = self.publish(done.run_id, report)
        report(1.0)
        done.loaded += published.loaded
        done.hidden += published.hidden
        done.failures += [
            Failure(key, Stage.LOAD, ErrorClass.DATA, message) for key, message in published.broken.items()
        ]

    def _give_up(self, issued: Sequence[Issued]) -> None:
        """We stop in the middle: what is still open is closed without a verdict, so that it can be tried again."""
        words = "the run stopped before this partition was judged"
        try:
            self.control.cancel(
                [Cancelled(i.attempt, self.worker_token, Stage.EXTRACT, ErrorClass.INTERNAL, words) for i in issued]
            )
        except PenstockError:
            pass  # the first error is the one to show; rescue will close what we could not


class _Patience:
    """How many broken jobs are borne before it is not the slices but Spark or the lake that is in trouble."""

    def __init__(self, jobs: int) -> None:
        self._left = jobs

    def spend(self, error: SparkFailed) -> None:
        self._left -= 1
        if self._left < 0 or "penstock.lake" in str(error):
            raise error


def observation(extracted: Sequence[Extracted]) -> Observation:
    """What the outcomes of one source say about the source itself."""
    refused = [item for item in extracted if item.error_class is ErrorClass.AUTH]
    quota = [_pause(item) for item in extracted if item.error_class is ErrorClass.QUOTA]
    return Observation(
        succeeded=sum(item.ok or item.error_class in (ErrorClass.DATA, ErrorClass.CONFIG) for item in extracted),
        refused=len({(i.attempt.partition.customer_id, i.attempt.partition.query_name) for i in refused}),
        message=refused[0].error_message if refused else None,
        quota_pause=max(quota) if quota else None,
    )


def _pause(item: Extracted) -> float:
    """How long to leave the partition alone, in seconds: as the source asks, or until somebody may have mended it."""
    if item.error_class is ErrorClass.AUTH:
        return _AUTH_PAUSE
    return _QUOTA_PAUSE if item.retry_after is None else item.retry_after


def _contract_row(contract: Contract) -> tuple[str, str, str, str, dict[str, Any]]:
    return (contract.fingerprint, contract.source, contract.query_name, contract.schema_version, contract.body())


def _newest_month_first(item: Planned) -> tuple[str, str, int, str, int]:
    """Fresh data first; inside a month the days of a customer together, because a span is one request."""
    key = item.key
    month = key.logical_date.year * 12 + key.logical_date.month
    return (key.source, key.query_name, -month, key.customer_id, key.logical_date.toordinal())
