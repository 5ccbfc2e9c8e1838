"""The samples of each declared metric, from the facts of the state database and of the status board. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import product

from penstock.errors import ErrorClass
from penstock.lifecycle import DisplayStatus, Outcome
from penstock.observe import metrics as m
from penstock.observe.metrics import Family, Sample
from penstock.projections.staleness import StaleReason
from penstock.state.attempt_totals import ClosedAttempts
from penstock.state.metrics import OpenAttempts, OpenRuns, OrderCount, StateFacts, WorkerCounts
from penstock.state.orders import OrderState
from penstock.state.quota import QuotaWindow
from penstock.warehouse.publish_facts import PublishQueue

RUN_STATES = ("succeeded", "failed", "incomplete", "cancelled", "abandoned")
_NO_ERROR = "none"
_WORKER_STATES = {True: "alive", False: "lost"}


@dataclass(frozen=True, slots=True)
class TableStatus:
    """The status of the expected partitions, by table."""

    counts: Mapping[tuple[str, str], int]  # by table and display status
    stale: Mapping[tuple[str, str], int]  # by table and reason
    oldest_due: Mapping[str, datetime]  # when the oldest partition without data and without an attempt became due


@dataclass(frozen=True, slots=True)
class ProjectionFacts:
    """The content of the projections' files: the last event in them, and the finished runs by state."""

    position: int
    runs: Mapping[str, int]


def status_samples(tables: Sequence[str], status: TableStatus | None, now: datetime) -> Iterator[Sample]:
    """Partitions by display status; only `penstock_status_readable` if the status could not be read."""
    yield Sample(m.STATUS_READABLE, (), float(status is not None))
    if status is None:
        return
    for table, display in product(tables, DisplayStatus):
        yield Sample(m.PARTITIONS, (table, display.value), status.counts.get((table, display.value), 0))
    for table, reason in product(tables, StaleReason):
        yield Sample(m.STALE, (table, reason.value.lower()), status.stale.get((table, reason.value), 0))
    yield from _ages(m.OLDEST_DUE, tables, status.oldest_due, now)


def projection_samples(facts: ProjectionFacts, state: StateFacts) -> Iterator[Sample]:
    """Finished runs, and how far the projections are behind the ledger."""
    for name in sorted({*RUN_STATES, *facts.runs}):
        yield Sample(m.FINISHED_RUNS, (name,), facts.runs.get(name, 0))
    yield Sample(m.PROJECTION_LAG, (), max(0, state.newest_position - facts.position))


def state_samples(tables: Sequence[str], sources: Sequence[str], facts: StateFacts, now: datetime) -> Iterator[Sample]:
    """Everything that the state database knows."""
    yield from _closed_attempts(tables, facts.closed)
    yield from _open_attempts(tables, facts.open_attempts, now)
    yield from _runs(facts, now)
    yield from _publications(tables, facts, now)
    for source in sources:
        yield Sample(m.BREAKER, (source,), float(source in facts.open_breakers))
    yield from _quotas(facts.quotas)
    for one in facts.backfills:
        waiting = max(0, one.total - one.finished - one.claimed)
        for progress, count in (("finished", one.finished), ("claimed", one.claimed), ("waiting", waiting)):
            yield Sample(m.BACKFILL, (one.backfill_id, progress), count)
    yield from _workers(facts.workers)
    yield from _orders(facts.orders, now)
    yield Sample(m.LEDGER_POSITION, (), facts.newest_position)


def _closed_attempts(tables: Sequence[str], closed: ClosedAttempts) -> Iterator[Sample]:
    """Every combination that can occur has a sample from the start: an increase from nothing to one is no increase for
    Prometheus."""
    counts = {
        (table, outcome.value.lower(), error_class): 0
        for table, outcome in product(tables, Outcome)
        for error_class in ([_NO_ERROR] if outcome is Outcome.SUCCEEDED else [one.value for one in ErrorClass])
    }
    for found, count in closed.counts.items():
        counts[found.table, found.outcome.lower(), found.error_class or _NO_ERROR] = count
    for labels, count in sorted(counts.items()):
        yield Sample(m.ATTEMPTS, labels, count)
    yield Sample(m.LOST_ATTEMPTS, (), closed.lost)


def _open_attempts(tables: Sequence[str], found: Sequence[OpenAttempts], now: datetime) -> Iterator[Sample]:
    counts = {(one.table, one.has_worker): one.attempts for one in found}
    known = sorted({*tables, *(one.table for one in found)})
    for table, (has_worker, worker) in product(known, _WORKER_STATES.items()):
        yield Sample(m.OPEN_ATTEMPTS, (table, worker), counts.get((table, has_worker), 0))
    oldest: dict[str, datetime] = {}
    for one in found:
        oldest[one.table] = min(one.oldest, oldest.get(one.table, one.oldest))
    yield from _ages(m.OLDEST_ATTEMPT, tables, oldest, now)


def _runs(facts: StateFacts, now: datetime) -> Iterator[Sample]:
    open_runs: Sequence[OpenRuns] = facts.open_runs
    counts = {one.has_worker: one.runs for one in open_runs}
    for has_worker, worker in _WORKER_STATES.items():
        yield Sample(m.OPEN_RUNS, (worker,), counts.get(has_worker, 0))
    yield Sample(m.OLDEST_RUN, (), max((_age(one.oldest, now) for one in open_runs), default=0))
    if facts.last_run is not None:
        last = facts.last_run
        yield Sample(m.RUN_DURATION, (), (last.finished_at - last.started_at).total_seconds())
        yield Sample(m.RUN_FINISHED, (), last.finished_at.timestamp())


def _publications(tables: Sequence[str], facts: StateFacts, now: datetime) -> Iterator[Sample]:
    queues: dict[str, PublishQueue] = {one.table: one for one in facts.publish_queues}
    for table in sorted({*tables, *queues}):
        yield Sample(m.PUBLISH_DUE, (table,), queues[table].partitions if table in queues else 0)
    yield from _ages(m.PUBLISH_LAG, tables, {name: one.oldest for name, one in queues.items()}, now)
    if facts.last_publication is not None:
        last = facts.last_publication
        yield Sample(m.PUBLICATION_DURATION, (), (last.published_at - last.prepared_at).total_seconds())
        yield Sample(m.PUBLICATION_FINISHED, (), last.published_at.timestamp())


def _quotas(windows: Sequence[QuotaWindow]) -> Iterator[Sample]:
    for one in windows:
        labels = (one.source, one.window.value)
        yield Sample(m.QUOTA_LEFT, labels, one.left())
        yield Sample(m.QUOTA_BUDGET, labels, one.budget)
        yield Sample(m.QUOTA_RENEWS, labels, one.renews_at.timestamp())


def _workers(found: Sequence[WorkerCounts]) -> Iterator[Sample]:
    by_kind = {one.is_control_loop: one for one in found}
    for is_loop, kind in ((True, "control_loop"), (False, "other")):
        one = by_kind.get(is_loop)
        yield Sample(m.WORKERS, (kind, "alive"), one.alive if one else 0)
        yield Sample(m.WORKERS, (kind, "lost"), one.lost if one else 0)
    loops = by_kind.get(True)
    if loops is not None and loops.last_heartbeat is not None:
        yield Sample(m.LOOP_HEARTBEAT, (), loops.last_heartbeat.timestamp())
    if loops is not None and loops.last_round is not None:
        yield Sample(m.LOOP_ROUND, (), loops.last_round.timestamp())


def _orders(found: Sequence[OrderCount], now: datetime) -> Iterator[Sample]:
    by_state = {one.state: one for one in found}
    for state in OrderState:
        yield Sample(m.ORDERS, (state.value,), by_state[state.value].orders if state.value in by_state else 0)
    queued = by_state.get(OrderState.QUEUED.value)
    yield Sample(m.OLDEST_ORDER, (), _age(queued.oldest, now) if queued else 0)


def _ages(family: Family, tables: Sequence[str], oldest: Mapping[str, datetime], now: datetime) -> Iterator[Sample]:
    """The age of the oldest of each table; 0 for a table without any."""
    for table in sorted({*tables, *oldest}):
        yield Sample(family, (table,), _age(oldest[table], now) if table in oldest else 0)


def _age(since: datetime, now: datetime) -> float:
    return max(0.0, (now - since).total_seconds())
