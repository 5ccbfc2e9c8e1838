"""Fetches within the limits of a source: claims requests before each job, and returns the unused ones after it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from threading import Event as Flag
from typing import TypeVar

from penstock.errors import ErrorClass, PenstockError, TransientError
from penstock.lake import open_lake
from penstock.partition import AttemptKey, PartitionKey, new_ulid
from penstock.pipeline.extract import SPAN_DAYS, Extracted, days_per_request
from penstock.pipeline.source_requests import Extraction
from penstock.pipeline.task_quota import delete_expired
from penstock.plural import counted
from penstock.source.budget import RequestClaim
from penstock.state.quota import Claim, QuotaStore, SourceQuota, minute
from penstock.state.shares import ShareStore

log = logging.getLogger(__name__)

Job = Callable[[Extraction, Sequence[AttemptKey]], list[Extracted]]
T = TypeVar("T")

LOCAL_MARGIN = 2.0  # seconds: a request that is sent at the end of a window must not arrive in the next
CLUSTER_MARGIN = 62.0  # the clocks of executors may differ from the driver's by a minute

_POLL_SECONDS = 1.0
_GROWTH = 4.0  # of a claim, after one that sufficed for no span
_FRUITLESS = 5  # so many such claims in a row; the partitions then wait for the next run
_SHORT_PAUSE = 60.0


@dataclass(slots=True)
class RequestLimits:
    """The limits of all sources, for one worker. One job of a source at a time."""

    quotas: QuotaStore
    shares: ShareStore
    worker_token: str
    reserve: float  # the share of a counted quota that old data leaves to fresh data
    margin: float  # seconds before the end of a window in which nothing is sent: clocks differ
    say: Callable[[str], None]
    stopped: Flag = field(default_factory=Flag)
    _swept: datetime | None = None  # the window for which expired tickets were deleted

    def fetch(
        self, work: Extraction, attempts: Sequence[AttemptKey], old: Collection[PartitionKey], job: Job
    ) -> list[Extracted]:
        """The result of each attempt. `job` fetches some of them, with the limits in its first argument. Attempts of
        the partitions in `old` leave the reserve to others. Attempts whose requests are not in the quota end with the
        error class QUOTA, and no request is sent for them."""
        with self._paced(work) as paced:
            if not work.source.quotas:
                return job(paced, attempts)
            fresh = [attempt for attempt in attempts if attempt.partition not in old]
            aged = [attempt for attempt in attempts if attempt.partition in old]
            found = self._counted(paced, fresh, 0.0, job)
            return found + self._counted(paced, aged, self.reserve, job)

    # --- pace -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _paced(self, work: Extraction) -> Iterator[Extraction]:
        """The work with this worker's share of the pace, which is released at the end."""
        source, pace = work.source.name, work.source.pace
        if pace is None:
            yield work
            return
        share = self._wait_for_share(source, pace)
        try:
            yield replace(work, rate=share)
        finally:
            with suppress(PenstockError):  # if the database is gone, the share ends with the lease
                self.shares.release(source, self.worker_token)

    def _wait_for_share(self, source: str, pace: float) -> float:
        waits = False
        while (share := self.shares.take(source, pace, self.worker_token)) is None:
            if not waits:
                others = [one for one in self.shares.live(source) if one.per_second]
                names = ", ".join(f"{one.host} process {one.process.partition(':')[0]}" for one in others)
                self.say(f"waiting for a share of the rate of {source}, which is in use: {names}")
                waits = True
            self._wait(_POLL_SECONDS)
        return share

    # --- counted quotas -------------------------------------------------------------------------------------------

    def _counted(self, work: Extraction, attempts: Sequence[AttemptKey], share: float, job: Job) -> list[Extracted]:
        """Claim and fetch until every attempt has its result, or no request is left. A claim that sufficed for no
        span is followed by a larger one."""
        found: list[Extracted] = []
        left, growth, fruitless = list(attempts), 1.0, 0
        days = days_per_request(work.source, work.queries)
        while left:
            self._wait_for_window(work)
            began = time.time()
            spans = spans_of(left, lambda attempt: attempt.partition, days)
            claim = self.quotas.claim(work.source.name, work.source.quotas, len(spans), share=share, growth=growth)
            if not claim.requests:
                return found + [_used_up(attempt, claim.quota, share) for attempt in left]
            needed = max(1.0, (claim.quota.requests_per_span or 1.0) * growth)
            chosen = spans[: max(1, int(claim.requests / needed))]
            sent = [attempt for span in chosen for attempt in span]
            results = job(replace(work, claim=self._ticketed(claim, work, began)), sent)
            unsent, tried = {item.attempt for item in results if item.unsent}, set(sent)
            done = [span for span in chosen if not unsent.intersection(span)]
            self._settle(claim, sum(item.requests for item in results), len(done))
            found += [item for item in results if not item.unsent]
            left = [attempt for attempt in left if attempt in unsent or attempt not in tried]
            growth, fruitless = (growth, 0) if len(unsent) < len(sent) else (growth * _GROWTH, fruitless + 1)
            if fruitless == _FRUITLESS:
                return found + [_cut_off(attempt, claim) for attempt in left]
        return found

    def _ticketed(self, claim: Claim, work: Extraction, began: float) -> RequestClaim:
        """The claim as workers get it. It expires by the clock of this host, counted from before the claim."""
        expires_at = began + claim.seconds - self.margin
        renews = min(window.renews_at for window in claim.quota.windows)
        if renews != self._swept:
            delete_expired(open_lake(work.lake), time.time())
            self._swept = renews
        return RequestClaim(new_ulid(), work.source.name, claim.requests, expires_at, minute(renews))

    def _settle(self, claim: Claim, used: int, spans: int) -> None:
        """Return the unused requests. If the database does not respond they are lost until the window renews: better
        than to lose the fetched data."""
        try:
            self.quotas.settle(claim, used, spans)
        except TransientError as error:
            facts = {"source": claim.quota.source, "requests": claim.requests - used, "error": str(error)}
            log.warning("quota.not_settled", extra={"facts": facts})

    def _wait_for_window(self, work: Extraction) -> None:
        """Wait for the next window if the present one ends within the margin."""
        while True:
            quota = self.quotas.read(work.source.name, work.source.quotas)
            seconds = Claim(quota, 0).seconds
            if seconds > self.margin + 1:
                return
            self.say(f"waiting {seconds:.0f} s for the next window of the quota of {work.source.name}")
            self._wait(seconds + 0.01)

    def _wait(self, seconds: float) -> None:
        if self.stopped.wait(seconds):
            raise KeyboardInterrupt


def spans_of(items: Sequence[T], key: Callable[[T], PartitionKey], days: Mapping[str, int]) -> list[list[T]]:
    """Group the items as sources request them: days of one query and customer make one span, at most `days` of the
    query. The spans are in the order of their first items."""
    groups: dict[tuple[str, str], list[T]] = {}
    for item in items:
        groups.setdefault((key(item).query_name, key(item).customer_id), []).append(item)
    order = {id(item): number for number, item in enumerate(items)}
    spans = []
    for (query, _), group in groups.items():
        ordered, length = sorted(group, key=lambda item: key(item).logical_date), days.get(query, SPAN_DAYS)
        spans += [ordered[at : at + length] for at in range(0, len(ordered), length)]
    return sorted(spans, key=lambda span: min(order[id(item)] for item in span))


def fitting(
    items: Sequence[T],
    quota: SourceQuota,
    share: float,
    key: Callable[[T], PartitionKey],
    old: Callable[[T], bool],
    days: Mapping[str, int],
) -> list[T]:
    """The items whose requests are expected to be left in the quota, fresh ones first. Old items leave the reserved
    share. At least one span fits if a request is left."""
    per_span = max(1.0, quota.requests_per_span or 1.0)
    fresh = [item for item in items if not old(item)]
    chosen = spans_of(fresh, key, days)[: _spans(quota.left(), per_span)]
    left = max(0, quota.left(share) - int(len(chosen) * per_span))
    chosen += spans_of([item for item in items if old(item)], key, days)[: _spans(left, per_span)]
    return [item for span in chosen for item in span]


def _spans(requests: int, per_span: float) -> int:
    return max(1, int(requests / per_span)) if requests else 0


def shortage(quota: SourceQuota, partitions: int) -> str:
    """The message about partitions that wait for the next window, when some of a plan fit into this one."""
    least = min(quota.windows, key=lambda window: window.left())
    return f"{least.remaining}; {counted(partitions, 'partition waits', 'partitions wait')} for it"


def _used_up(attempt: AttemptKey, quota: SourceQuota, share: float) -> Extracted:
    seconds = (quota.renews_at(share) - quota.now).total_seconds()
    return _unsent(attempt, quota.used_up(share) or f"quota of {quota.source} is used up", seconds)


def _cut_off(attempt: AttemptKey, claim: Claim) -> Extracted:
    message = f"{claim.requests:,} requests of the quota of {claim.quota.source} did not suffice for one span"
    return _unsent(attempt, message, _SHORT_PAUSE)


def _unsent(attempt: AttemptKey, message: str, seconds: float) -> Extracted:
    return Extracted(attempt, None, None, None, ErrorClass.QUOTA, message, seconds, unsent=True)
