"""What is too much for one run, in portions: several runs after each other, none larger than a process can hold.

Every partition is in one portion at most, whatever becomes of it meanwhile: one command attempts it once. A customer's
slices of a day are never in two of them, because one may refer to another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from penstock.contract.contract import Contract
from penstock.control import spans
from penstock.control.models import ModelPlan, ModelPlanner
from penstock.control.plan import Plan, make_plan
from penstock.expected import ExpectedRange
from penstock.lifecycle import PartitionStatus
from penstock.partition import PartitionKey
from penstock.state.reader import StateReader
from penstock.state.records import Planned

Window = tuple[date, date]  # from the first to the last day

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Portions:
    """Plans of at most `size` partitions, each made when its turn comes."""

    reader: StateReader
    contracts: Mapping[str, Contract]
    clock: Callable[[], datetime]
    restated: Mapping[str, Sequence[int]]
    reasons: Sequence[str]
    status: PartitionStatus | None
    size: int

    def fetched(self, ranges: Sequence[ExpectedRange], may_go_on: Callable[[str], bool]) -> Iterator[Plan]:
        """What is due in these ranges of sources, newest months first. After the first portion a source is left out
        when it may not go on."""
        due = self.reader.due_by_day(spans.thawed(ranges), self.reasons, self.clock(), self.restated, self.status)
        later, all_sources = sum(due.values()), {span.source for span in ranges}
        for first, last in windows(by_month(due), self.size)[::-1]:
            after: str | None = None
            is_last = False
            while not is_last:
                page, is_last = self._page(spans.clipped(ranges, first, last), after)
                if page:
                    later = max(0, later - len(page))
                    yield Plan(page, later=later)
                    after = page[-1].key.customer_id
                    ranges = [span for span in ranges if may_go_on(span.source)]
        if later and all_sources - {span.source for span in ranges}:
            yield Plan((), blocked=later)

    def made(self, ranges: Sequence[ExpectedRange], planner: Callable[[], ModelPlanner]) -> Iterator[Plan]:
        """What is due in these ranges of models when its turn comes, oldest days first: later ones may read them."""
        due = self.reader.due_by_day(ranges, self.reasons, self.clock(), {}, self.status)
        for first, last in _windows_of_models(ranges, due, planner(), self.size):
            some = spans.clipped(ranges, first, last)
            found = planner().plan(some, (), self.clock(), self.reasons, self.status)
            if found.items:
                yield Plan(found.items, fan_ins=found.fan_ins, waiting=found.waiting)

    def _page(self, ranges: Sequence[ExpectedRange], after: str | None) -> tuple[Sequence[Planned], bool]:
        """The next customers, all that is due of each (one alone may be more than a portion), and whether there is no
        other."""
        found = self._due(ranges, after, self.size + 1)
        if len(found) <= self.size:
            return found, True
        last = found[-1].key.customer_id
        whole = [item for item in found if item.key.customer_id != last]
        return whole or self._due([span for span in ranges if span.customer_id == last], None, None), False

    def _due(self, ranges: Sequence[ExpectedRange], after: str | None, limit: int | None) -> Sequence[Planned]:
        return make_plan(
            self.reader,
            ranges,
            self.contracts,
            self.clock(),
            restated=self.restated,
            reasons=self.reasons,
            status=self.status,
            order="customer",
            after_customer=after,
            limit=limit,
        ).items


def newest_models(
    reader: StateReader,
    planner: ModelPlanner,
    ranges: Sequence[ExpectedRange],
    inside: Collection[PartitionKey],
    now: datetime,
    reasons: Sequence[str],
    size: int,
) -> ModelPlan:
    """What of these ranges of models can be made in a run that brings the slices `inside`, newest days first: about
    `size` slices, however many are due."""
    plan = ModelPlan()
    due = reader.due_by_day(ranges, reasons, now, {})
    for first, last in _windows_of_models(ranges, due, planner, size)[::-1]:
        plan = plan.and_also(planner.plan(spans.clipped(ranges, first, last), inside, now, reasons))
        if len(plan.items) >= size:
            break
    return plan


def _windows_of_models(
    ranges: Sequence[ExpectedRange], due: Mapping[date, int], planner: ModelPlanner, size: int
) -> list[Window]:
    """All days of the ranges, because what was not due may become so by what is made before it."""
    counts = Counter(due)
    counts.update(key.logical_date for key in planner.stale())
    for day in (min(span.first for span in ranges), max(span.last for span in ranges)):
        counts[day] += 0
    return windows(by_day(counts), size)


def windows(counts: Mapping[Window, int], size: int) -> list[Window]:
    """Neighbours together as long as there are no more than `size` in them; in the order of time, and without gaps."""
    found: list[Window] = []
    inside = 0
    for (first, last), count in sorted(counts.items()):
        if found and inside + count <= size:
            found[-1], inside = (found[-1][0], last), inside + count
        else:
            found.append((found[-1][1] + _DAY if found else first, last))
            inside = count
    return found


def by_month(counts: Mapping[date, int]) -> dict[Window, int]:
    """Days are counted in their months: in one of them the days of a customer are asked for together."""
    found: dict[Window, int] = {}
    for day, count in counts.items():
        first = day.replace(day=1)
        month = (first, (first + 31 * _DAY).replace(day=1) - _DAY)
        found[month] = found.get(month, 0) + count
    return found


def by_day(counts: Mapping[date, int]) -> dict[Window, int]:
    return {(day, day): count for day, count in counts.items()}
