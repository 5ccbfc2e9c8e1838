"""Splits large plans into several runs, to bound the driver's memory.

One command attempts a partition at most once, even if its state changes meanwhile. The partitions of a customer and
day are never split, because one may reference another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from penstock.contract.contract import Contract
from penstock.control.plan import Plan, make_plan
from penstock.control.ranges import by_customers, clip_days, without_frozen
from penstock.expected import ExpectedRange
from penstock.lifecycle import PartitionStatus, PlanReason
from penstock.state.reader import StateReader
from penstock.state.records import Planned

Window = tuple[date, date]  # from the first to the last day

_PROBED = 2  # runs with a probe of a source whose breaker is open: perhaps only some of its customers fail
_SMALLEST_READ = 20_000  # expected partitions that one query examines: fewer cost more queries than they save
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class RunBatches:
    """Plans of at most `size` fetched partitions, each created when its run begins."""

    reader: StateReader
    contracts: Mapping[str, Contract]
    clock: Callable[[], datetime]
    restated: Mapping[str, Sequence[int]]
    reasons: Sequence[PlanReason]
    status: PartitionStatus | None
    size: int

    def of(self, ranges: Callable[[], Sequence[ExpectedRange]], may_continue: Callable[[str], bool]) -> Iterator[Plan]:
        """Plans of the due partitions, newest months first. `ranges` is called for each plan, because days freeze
        while others are fetched. A source for which `may_continue` is false gets a probe in a few more plans, of other
        customers, and is then left out until it is true. The last plan counts the partitions that were left out."""
        now = without_frozen(ranges())
        due = self.reader.due_by_day(now, self.reasons, self.clock(), self.restated, self.status)
        left = Counter[str]()
        for (source, _), count in due.items():
            left[source] += count
        newest = max((span.last for span in now), default=date.min)
        tried = Counter[str]()  # by source: the number of plans since it might continue
        left_out: set[str] = set()
        for first, last in windows(by_month(due), self.size)[::-1]:
            after: str | None = None
            is_last = False
            while not is_last:
                for source in tried:
                    tried[source] = 0 if may_continue(source) else tried[source]
                out = {source for source, plans in tried.items() if plans > _PROBED}
                left_out |= out
                some = [span for span in ranges() if span.source not in out]
                page, is_last = self._page(clip_days(some, first, min(last, newest)), after)
                if page:
                    left.subtract(item.key.source for item in page)
                    tried.update({item.key.source for item in page})
                    after = page[-1].key.customer_id
                    yield Plan(page, later=sum((+left).values()))
        if blocked := {source: left[source] for source in sorted(left_out) if left[source] > 0}:
            yield Plan((), blocked=blocked)

    def _page(self, ranges: Sequence[ExpectedRange], after: str | None) -> tuple[Sequence[Planned], bool]:
        """The due partitions of the next customers, and whether these are the last. A customer is never split, even if
        it has more than `size` partitions. Reads some customers at a time, so that a page costs the same among
        thousands of customers and among hundreds of thousands."""
        found: list[Planned] = []
        for some in by_customers(ranges, after, max(self.size + 1, _SMALLEST_READ)):
            found += sorted(self._due(some), key=_customer_first)
            if len(found) > self.size:
                beyond = found[self.size].key.customer_id
                whole = [item for item in found if item.key.customer_id < beyond]
                return whole or [item for item in found if item.key.customer_id == beyond], False
        return found, True

    def _due(self, ranges: Sequence[ExpectedRange]) -> Sequence[Planned]:
        return make_plan(
            self.reader,
            ranges,
            self.contracts,
            self.clock(),
            restated=self.restated,
            reasons=self.reasons,
            status=self.status,
        ).items


def _customer_first(item: Planned) -> tuple[str, str, str, date]:
    key = item.key
    return (key.customer_id, key.source, key.query_name, key.logical_date)


def windows(counts: Mapping[Window, int], size: int) -> list[Window]:
    """Merge neighbouring windows while they hold no more than `size` partitions, in the order of time."""
    found: list[Window] = []
    inside = 0
    for (first, last), count in sorted(counts.items()):
        if found and inside + count <= size:
            found[-1], inside = (found[-1][0], last), inside + count
        else:
            found.append((first, last))
            inside = count
    return found


def by_month(counts: Mapping[tuple[str, date], int]) -> dict[Window, int]:
    """The counts by month, because one request fetches the days of a customer in a month."""
    found: dict[Window, int] = {}
    for (_, day), count in counts.items():
        first = day.replace(day=1)
        month = (first, (first + 31 * _DAY).replace(day=1) - _DAY)
        found[month] = found.get(month, 0) + count
    return found
