"""The stages of a run. Each call works on a batch of tasks, with at most one Spark job and a few bulk writes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import partial
from threading import Event as Flag
from typing import TYPE_CHECKING, TypeVar

from penstock.clock import Clock
from penstock.config.settings import Customer, Settings
from penstock.contract.complaint import rejections, summary
from penstock.contract.contract import Contract
from penstock.errors import ErrorClass, PenstockError, SparkFailed
from penstock.failpoint import reach
from penstock.flow.attempt_log import log_cancelled, log_rejected
from penstock.flow.derive import Deriver
from penstock.flow.guard import Gate, Guard
from penstock.flow.listener import ProgressListener
from penstock.flow.quota import RequestLimits, fitting, shortage
from penstock.flow.summary import Failure, RunSummary
from penstock.flow.trace import NO_TRACES, Tracer
from penstock.lake import open_lake
from penstock.ledger.events import Event, LoadsFailed, SlicesExtracted, SlicesUnchanged, TasksDropped, TaskStarted
from penstock.lifecycle import MAX_LOSSES, AttemptReason, Stage
from penstock.partition import AssetKind, AttemptKey, PartitionKey, RunId, asset_kind, new_ulid
from penstock.partition_set import compact_ranges
from penstock.pipeline.driver_work import work_in_driver
from penstock.pipeline.extract import Extracted, days_per_request, extract, extract_in_driver
from penstock.pipeline.lazy_session import LazySession
from penstock.pipeline.parsed_cache import Lookup, ParsedCache
from penstock.pipeline.references import OpenReference
from penstock.pipeline.source_requests import Extraction
from penstock.pipeline.spark_jobs import Report
from penstock.pipeline.validate import ToValidate, Validated, validate, validate_in_driver
from penstock.plural import counted
from penstock.raw.sink import payload_compression
from penstock.source.concurrency import halved, requests_in_flight
from penstock.state.closing import OVERTAKEN
from penstock.state.control import ControlStore
from penstock.state.records import Accepted, Cancelled, Issued, Observation, Planned, Rejected, Verdict
from penstock.state.validator import ValidatorStore
from penstock.warehouse.publish import Publication

if TYPE_CHECKING:
    from penstock.projections.event_page import PrefoldedRuns

log = logging.getLogger(__name__)

T = TypeVar("T")
Out = TypeVar("Out")

_FAILED_JOBS = 60  # enough to find a few partitions that kill their workers among ten thousand
_PROJECT_SECONDS = 60.0
_AUTH_PAUSE = 900.0
_QUOTA_PAUSE = 60.0  # when the source asks for a pause and names no duration


@dataclass(frozen=True, slots=True)
class RunDependencies:
    """The dependencies of the stages, created by the composition root."""

    session: LazySession
    settings: Settings
    contracts: Mapping[str, Contract]
    control: ControlStore
    validator: ValidatorStore
    publish: Callable[[RunId, Report | None, Lookup | None], Publication]
    deriver: Deriver
    project: Callable[[PrefoldedRuns | None], None]  # advances the projections
    listener: ProgressListener
    worker_token: str
    guard: Guard
    limits: RequestLimits
    clock: Clock
    open_reference: OpenReference | None = None  # opens tables that contracts refer to
    in_driver: bool = False  # fetch and validate in this process: the plan needs no Spark
    tracer: Tracer = NO_TRACES


@dataclass(slots=True)
class Stages:
    """The stages of one run: open attempts, fetched payloads and outcomes."""

    deps: RunDependencies
    done: RunSummary
    planned: dict[PartitionKey, Planned] = field(default_factory=dict)
    open: dict[PartitionKey, Issued] = field(default_factory=dict)  # issued (or adopted) and not closed
    sizes: dict[PartitionKey, int] = field(default_factory=dict)  # of fetched payloads
    refused: Mapping[str, str] = field(default_factory=dict)  # by query: why no attempts of it are issued
    cache: ParsedCache | None = None
    unpublishable: set[PartitionKey] = field(default_factory=set)  # already reported; each publication finds them again
    in_flight: dict[str, int | None] = field(default_factory=dict)  # requests at a time, by source
    fetched: dict[AttemptKey, Extracted] = field(default_factory=dict)  # of the present batch, by jobs that ended
    observed: set[AttemptKey] = field(default_factory=set)  # those that the breaker of their source knows of
    warned: set[tuple[str, str]] = field(default_factory=set)  # warnings that were reported, by source
    stopped: Flag = field(default_factory=Flag)
    projected: float = field(default_factory=time.monotonic)

    @property
    def run_id(self) -> RunId:
        return self.done.run_id

    # --- extract --------------------------------------------------------------------------------------------------

    def extract(self, keys: Sequence[PartitionKey], tries: int) -> None:
        """Issue attempts for the partitions that have none, fetch them, and close the attempts that failed."""
        adopted = [self.open[key] for key in keys if key in self.open]
        if adopted:
            slices = compact_ranges(item.attempt.partition for item in adopted)
            self._record(TaskStarted(self.run_id, Stage.EXTRACT, slices, tries, new_ulid()))
        due = self._without_unchanged([self.planned[key] for key in keys if key not in self.open], tries)
        issued = [*adopted, *self._issue(due)]
        reach("run.issued")
        if not issued:
            return
        try:
            extracted, lost = split_on_failure(issued, self._fetch, _FAILED_JOBS)
        finally:
            self.fetched.clear()
            self.observed.clear()
        reach("run.extracted")
        good = [item for item in extracted if item.ok]
        self.sizes.update((item.attempt.partition, item.payload_bytes or 0) for item in good)
        if good:
            slices = compact_ranges(item.attempt.partition for item in good)
            self._record(SlicesExtracted(self.run_id, slices, tries, new_ulid()))
        self._close(self._failed_extractions([item for item in extracted if not item.ok], tries))
        self._close_lost(lost, Stage.EXTRACT, tries)

    def _without_unchanged(self, planned: Sequence[Planned], tries: int) -> Sequence[Planned]:
        """Drop the items that were planned because their inputs might change, and whose inputs did not change."""
        perhaps = [item.key for item in planned if item.reason is AttemptReason.REFRESH]
        unchanged = set(self.deps.deriver.unchanged(perhaps)) if perhaps else set()
        if not unchanged:
            return planned
        self.done.count(unchanged=len(unchanged))
        self._record(SlicesUnchanged(self.run_id, compact_ranges(unchanged), tries, new_ulid()))
        return [item for item in planned if item.key not in unchanged]

    def _issue(self, planned: Sequence[Planned]) -> list[Issued]:
        allowed = self._allowed(planned)
        if not allowed:
            return []
        issued, refused = self.deps.control.issue(self.run_id, self.deps.worker_token, new_ulid(), allowed)
        self.done.count(skipped=len(refused))
        self.open.update((item.attempt.partition, item) for item in issued)
        return issued

    def _allowed(self, planned: Sequence[Planned]) -> Sequence[Planned]:
        """The items that may be issued now: none of refused queries, a single probe of a source whose breaker is open,
        and no more than the quota of a source has requests for. The others are dropped from the run."""
        if refused := [item.key for item in planned if item.key.query_name in self.refused]:
            reasons = [self.refused[name] for name in sorted({key.query_name for key in refused})]
            self.done.add_problems(reasons)
            self._drop(refused, "; ".join(reasons))
            planned = [item for item in planned if item.key.query_name not in self.refused]
        guard = self.deps.guard
        gates = {source: guard.gate(source) for source in sorted({item.key.source for item in planned})}
        alone = len(planned) == 1
        allowed = [
            item
            for item in planned
            if gates[item.key.source] is Gate.OPEN
            or (gates[item.key.source] is Gate.FRESH and not guard.is_old(item))
            or (alone and gates[item.key.source] is Gate.PROBE)
        ]
        allowed = self._within_quotas(allowed)
        if len(allowed) < len(planned):
            inside = {item.key for item in allowed}
            self.done.add_problems(guard.source_error(source) for source in gates)
            limited = [guard.quota(source) for source, found in gates.items() if found is Gate.FRESH]
            self.done.add_problems(quota.used_up(guard.reserve) for quota in limited if quota is not None)
            why = "; ".join(self.done.problems) or "the breaker of the source is open"
            self._drop([item.key for item in planned if item.key not in inside], why)
        return allowed

    def _within_quotas(self, planned: Sequence[Planned]) -> list[Planned]:
        """The items whose requests are left in the quota of their source."""
        guard, kept = self.deps.guard, []
        for source in sorted({item.key.source for item in planned}):
            mine, quota = [item for item in planned if item.key.source == source], guard.quota(source)
            if quota is not None:
                days = days_per_request(self.deps.settings.sources[source], self.deps.settings.queries)
                wanted, mine = len(mine), fitting(mine, quota, guard.reserve, lambda item: item.key, guard.is_old, days)
                if len(mine) < wanted:
                    self.done.add_problems([shortage(quota, wanted - len(mine))])
            kept += mine
        return kept

    def _drop(self, keys: Sequence[PartitionKey], why: str) -> None:
        """Drop tasks from this run before attempts are issued. The partitions stay due."""
        self.done.count(blocked=len(keys))
        self._record(TasksDropped(self.run_id, Stage.EXTRACT, compact_ranges(keys), 1, why, new_ulid()))

    def _fetch(self, issued: Sequence[Issued]) -> list[Extracted]:
        """Fetch attempts, with at least one job for each source. If a job breaks, the results of the jobs before it are
        kept: the next call does not fetch them again."""
        with self._stage("extract", len(issued)) as report:
            return self._fetch_by_source(issued, report)

    def _fetch_by_source(self, issued: Sequence[Issued], report: Report) -> list[Extracted]:
        deps = self.deps
        customers = {customer.id: customer for customer in deps.settings.customers}
        hashes = {name: contract.fingerprint for name, contract in deps.contracts.items()}
        extracted: list[Extracted] = []
        for source in sorted({item.attempt.partition.source for item in issued}):
            mine = [item.attempt for item in issued if item.attempt.partition.source == source]
            kept = [self.fetched[attempt] for attempt in mine if attempt in self.fetched]
            attempts = [attempt for attempt in mine if attempt not in self.fetched]
            extracted += kept
            self._raise_if_stopped()
            if asset_kind(source) is AssetKind.DERIVED:
                if attempts:
                    extracted += self._keep(deps.deriver.derive(deps.session.get(), attempts, report))
                continue
            if source not in self.in_flight:
                self.in_flight[source] = requests_in_flight(deps.settings.sources[source])
            work = Extraction(
                deps.settings.lake,
                self.run_id,
                deps.settings.sources[source],
                deps.settings.queries,
                hashes,
                self.in_flight[source],
                payload_compression(deps.settings.raw.compression, open_lake(deps.settings.lake)),
                clock=deps.clock,
            )
            old = self._old(attempts) if work.source.quotas else set()
            fetch = partial(self._extract, customers, report)
            found = deps.limits.fetch(work, attempts, old, fetch) if attempts else []
            self._report_warnings(source, found)
            if answered := [i for i in (*kept, *found) if not i.unsent and i.attempt not in self.observed]:
                self._limit_requests(source, answered)
                deps.guard.observe(source, observation(answered))
                self.observed.update(item.attempt for item in answered)
            extracted += found
        return extracted

    def _extract(
        self, customers: Mapping[str, Customer], report: Report, work: Extraction, attempts: Sequence[AttemptKey]
    ) -> list[Extracted]:
        if self.deps.in_driver:
            return work_in_driver(partial(extract_in_driver, work, customers, attempts, self.stopped), self.stopped)
        return self._keep(extract(self.deps.session.get(), work, customers, attempts, report))

    def _keep(self, found: list[Extracted]) -> list[Extracted]:
        self.fetched.update((item.attempt, item) for item in found if not item.unsent)
        return found

    def _report_warnings(self, source: str, found: Sequence[Extracted]) -> None:
        """Report what the source warned of, each text once in a run."""
        for text in sorted({text for item in found for text in item.warnings}):
            if (source, text) not in self.warned:
                self.warned.add((source, text))
                self.deps.listener.say(f"{source}: {text}")
                log.warning("source.warned", extra={"facts": {"source": source, "warning": text}})

    def _limit_requests(self, source: str, found: Sequence[Extracted]) -> None:
        """Halve the requests in flight for the rest of the run after a quota error, and report their number."""
        limit = self.in_flight[source]
        if limit is not None and any(item.error_class is ErrorClass.QUOTA for item in found):
            self.in_flight[source] = limit = halved(limit)
            self.deps.listener.say(f"{source}: quota error, at most {counted(limit, 'request')} in flight from now on")
        if limit is not None:
            self.done.in_flight[source] = limit

    def _old(self, attempts: Sequence[AttemptKey]) -> set[PartitionKey]:
        """The partitions of attempts that leave the reserve of the quota to others. Adopted attempts do not."""
        keys = [attempt.partition for attempt in attempts if attempt.partition in self.planned]
        return {key for key in keys if self.deps.guard.is_old(self.planned[key])}

    def _failed_extractions(self, failed: Sequence[Extracted], tries: int) -> list[Verdict]:
        """Reject the attempts that failed because of the partition. An error of the source (quota, credentials)
        cancels the attempt, and counts as no failure of the partition."""
        token, verdicts, cancelled = self.deps.worker_token, [], []
        for item in failed:
            error_class, message = item.error_class or ErrorClass.INTERNAL, item.error_message or "unknown"
            if error_class.is_source_wide or not item.judged:
                cancelled.append(Cancelled(item.attempt, token, Stage.EXTRACT, error_class, message, tries=tries))
            else:
                verdicts.append(Rejected(item.attempt, token, Stage.EXTRACT, error_class, message, tries=tries))
        self._cancel(cancelled)
        now = self.deps.clock()
        for error_class in (ErrorClass.QUOTA, ErrorClass.AUTH):
            mine = [item for item in failed if item.error_class is error_class]
            until = {item.attempt.partition: now + timedelta(seconds=_pause(item)) for item in mine}
            self.deps.control.postpone(until, error_class.value)
        return list(verdicts)

    # --- validate -------------------------------------------------------------------------------------------------

    def validate(self, keys: Sequence[PartitionKey], tries: int) -> None:
        """Validate the fetched partitions, in table order, and record a verdict on each."""
        issued = [self.open[key] for key in sorted(keys, key=_in_table_order)]
        self._start(Stage.VALIDATE, keys, tries)
        if self.cache:
            self.cache.sweep()
        found, lost = split_on_failure(issued, self._examine, _FAILED_JOBS)
        reach("run.validated")
        if self.cache:
            for item in found:
                if item.block and item.payload_digest and item.is_acceptable:
                    self.cache.keep(item.attempt, item.payload_digest, item.block)
        self._close([self._verdict(item, tries) for item in found])
        self._close_lost(lost, Stage.VALIDATE, tries)
        reach("run.judged")

    def _examine(self, issued: Sequence[Issued]) -> list[Validated]:
        with self._stage("validate", len(issued)) as report:
            return self._examine_by_query(issued, report)

    def _examine_by_query(self, issued: Sequence[Issued], report: Report) -> list[Validated]:
        deps = self.deps
        found: list[Validated] = []
        for name in sorted({item.attempt.partition.query_name for item in issued}):
            items = [
                ToValidate(
                    item.attempt,
                    self.sizes.get(item.attempt.partition, 0),
                    item.previous_record_count,
                    item.previous_measures,
                )
                for item in issued
                if item.attempt.partition.query_name == name
            ]
            self._raise_if_stopped()
            budget = self.cache.budget() if self.cache else None
            contract, lake = deps.contracts[name], deps.settings.lake
            if deps.in_driver:
                found += work_in_driver(partial(validate_in_driver, lake, contract, items), self.stopped)
            else:
                found += validate(deps.session.get(), lake, contract, items, report, deps.open_reference, budget)
        return found

    def _verdict(self, found: Validated, tries: int) -> Verdict:
        key, token = found.attempt.partition, self.deps.worker_token
        complaints = [complaint.as_dict() for complaint in found.complaints]
        if found.is_acceptable and found.payload_digest is not None:
            return Accepted(
                found.attempt,
                token,
                self.deps.contracts[key.query_name].schema_version,
                found.record_count,
                found.payload_digest,
                self.sizes.get(key, 0),
                found.content_digest,
                tries,
                warnings=complaints,
                measures=found.measures,
            )
        return Rejected(
            found.attempt,
            token,
            Stage.VALIDATE,
            ErrorClass.TRANSIENT if found.only_waits else ErrorClass.DATA,
            summary(rejections(found.complaints)),
            complaints,
            found.record_count,
            found.payload_digest,
            self.sizes.get(key, 0),
            found.content_digest,
            tries,
            found.measures,
        )

    # --- load -----------------------------------------------------------------------------------------------------

    def load(self, keys: Sequence[PartitionKey], tries: int) -> None:
        """Publish every accepted partition that is not published yet, also those of other runs."""
        if keys:
            self._start(Stage.LOAD, keys, tries)
        with self._stage("load", len(keys)) as report:
            published = self.deps.publish(self.run_id, report, self.cache.take if self.cache else None)
        self.done.count(loaded=published.loaded, hidden=published.hidden)
        self._fail_loads(published.broken, keys, tries)
        self.done.add_problems(mismatch.message for mismatch in published.refused.values())
        if time.monotonic() - self.projected > _PROJECT_SECONDS:  # until then readers fold the newer events themselves
            self.deps.project(None)
            self.projected = time.monotonic()

    def _fail_loads(self, broken: Mapping[PartitionKey, str], keys: Sequence[PartitionKey], tries: int) -> None:
        """Record that loads of this run failed terminally, and report each partition once. `broken` may hold
        partitions that earlier runs accepted."""
        mine = [key for key in keys if key in broken]
        if mine:
            why = broken[mine[0]]
            self._record(LoadsFailed(self.run_id, compact_ranges(mine), tries, ErrorClass.DATA, why, new_ulid()))
        new = {key: reason for key, reason in broken.items() if key not in self.unpublishable}
        self.unpublishable.update(new)
        self.done.fail(Failure(key, Stage.LOAD, ErrorClass.DATA, reason) for key, reason in new.items())
        if new:
            example, reason = next(iter(new.items()))
            facts = {"partitions": len(new), "partition": str(example), "source": example.source, "error": reason}
            log.warning("loads.failed", extra={"facts": facts})

    # --- closing --------------------------------------------------------------------------------------------------

    def cancel_open(self) -> None:
        """Cancel the attempts that are still open, when the run ends early. Their partitions stay due."""
        reason = "the run stopped before this partition got a verdict"
        token = self.deps.worker_token
        try:
            self._cancel(
                [Cancelled(i.attempt, token, Stage.EXTRACT, ErrorClass.INTERNAL, reason) for i in self.open.values()]
            )
        except PenstockError:
            pass  # the first error is the one to show; rescue closes these attempts later

    @contextmanager
    def _stage(self, name: str, partitions: int) -> Iterator[Report]:
        """Report a stage of a batch to the listener and to the tracer. An error leaves it below 1.0."""
        with self.deps.tracer.span("penstock.stage", {"penstock.stage": name, "penstock.partitions": partitions}):
            report = self.deps.listener.stage(name, partitions)
            yield report
            report(1.0)

    def _start(self, stage: Stage, keys: Sequence[PartitionKey], tries: int) -> None:
        self._record(TaskStarted(self.run_id, stage, compact_ranges(keys), tries, new_ulid()))

    def _record(self, event: Event) -> None:
        self.deps.control.record_event(self.run_id, self.deps.worker_token, event)

    def _raise_if_stopped(self) -> None:
        """Called before each job, so that a run that is stopped starts no other."""
        if self.stopped.is_set():
            raise KeyboardInterrupt

    def _close(self, verdicts: Sequence[Verdict]) -> None:
        if not verdicts:
            return
        with self._stage("judge", len(verdicts)):
            self._judge(verdicts)

    def _judge(self, verdicts: Sequence[Verdict]) -> None:
        ruling = self.deps.validator.judge(verdicts)
        applied = set(ruling.applied)
        overtaken = [Failure(a.partition, Stage.VALIDATE, ErrorClass.TRANSIENT, OVERTAKEN) for a in ruling.overtaken]
        rejected = [v for v in verdicts if isinstance(v, Rejected) and v.attempt in applied]
        in_force = applied.difference(ruling.overtaken)
        accepted = [v for v in verdicts if isinstance(v, Accepted) and v.attempt in in_force]
        warnings = sum(len(v.warnings) for v in accepted)
        self.done.count(accepted=len(accepted), rejected=len(rejected), skipped=len(ruling.refused), warnings=warnings)
        self.done.fail(_failure(verdict) for verdict in rejected)
        log_rejected(rejected)
        self.done.count(cancelled=len(overtaken))
        self.done.cancel(overtaken)
        self._closed(v.attempt for v in verdicts)

    def _close_lost(self, lost: Sequence[tuple[Issued, SparkFailed]], stage: Stage, tries: int) -> None:
        """Close the attempts of partitions that break a job by themselves: as lost, or as rejected after MAX_LOSSES
        losses in a row."""
        rejected: list[Verdict] = []
        cancelled = []
        for item, error in lost:
            reason = f"its worker died: {error}"
            facts = (item.attempt, self.deps.worker_token, stage, ErrorClass.INTERNAL, reason)
            if item.lost_count + 1 >= MAX_LOSSES:
                rejected.append(Rejected(*facts, tries=tries))
            else:
                cancelled.append(Cancelled(*facts, lost=True, tries=tries))
        self._cancel(cancelled)
        self._close(rejected)

    def _cancel(self, closings: Sequence[Cancelled]) -> None:
        applied = set(self.deps.control.cancel(closings).applied)
        self.done.count(cancelled=len(applied))
        closed = [closing for closing in closings if closing.attempt in applied]
        self.done.cancel(map(_failure, closed))
        log_cancelled(closed)
        self._closed(closing.attempt for closing in closings)

    def _closed(self, attempts: Iterable[AttemptKey]) -> None:
        for attempt in list(attempts):
            self.open.pop(attempt.partition, None)


def _failure(closing: Rejected | Cancelled) -> Failure:
    return Failure(closing.attempt.partition, closing.stage, closing.error_class, closing.error_message)


def _in_table_order(key: PartitionKey) -> tuple[date, str]:
    return (key.logical_date, key.customer_id)


def split_on_failure(
    items: Sequence[T], work: Callable[[Sequence[T]], list[Out]], patience: int
) -> tuple[list[Out], list[tuple[T, SparkFailed]]]:
    """Do the work. If a job breaks as a whole, each half is tried, so that one partition that kills its worker does
    not fail the others. Returns the results, and the items that break a job alone. Raises SparkFailed after `patience`
    broken jobs."""
    found: list[Out] = []
    lost: list[tuple[T, SparkFailed]] = []
    waiting = [items]
    while waiting:
        some = waiting.pop()
        try:
            found += work(some)
        except SparkFailed as error:
            patience -= 1
            if patience < 0:  # the error is of Spark, not of single partitions
                raise
            if len(some) == 1:
                lost.append((some[0], error))
            else:
                half = len(some) // 2
                waiting += [some[half:], some[:half]]
    return found, lost


def observation(extracted: Sequence[Extracted]) -> Observation:
    """Summarise the outcomes of a source for its breaker."""
    refused = [item for item in extracted if item.error_class is ErrorClass.AUTH]
    quota = [_pause(item) for item in extracted if item.error_class is ErrorClass.QUOTA]
    return Observation(
        succeeded=sum(item.ok or item.error_class in (ErrorClass.DATA, ErrorClass.CONFIG) for item in extracted),
        refused=len({(i.attempt.partition.customer_id, i.attempt.partition.query_name) for i in refused}),
        message=refused[0].error_message if refused else None,
        quota_pause=max(quota) if quota else None,
    )


def _pause(item: Extracted) -> float:
    """Seconds until the partition is attempted again: as the source asks, or a default for its error class."""
    if item.error_class is ErrorClass.AUTH:
        return _AUTH_PAUSE
    return _QUOTA_PAUSE if item.retry_after is None else item.retry_after
