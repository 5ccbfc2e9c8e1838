"""Pauses by selector, as values: which partitions a selector names, and which selector decides about a day.

The newest selector that names a partition decides: it pauses the partition, or takes an older pause back. A partition
that no selector names is not paused. Pauses therefore cost one row each, however many partitions they stop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import product

from penstock.expected import ExpectedRange
from penstock.partition import PartitionKey

_DAY = timedelta(days=1)

Owner = tuple[str | None, str | None, str | None]
Days = tuple[date, date]


@dataclass(frozen=True, slots=True)
class Scope:
    """Partitions by what they have in common. None stands for every source, customer, query or day."""

    source: str | None = None
    customer_id: str | None = None
    query_name: str | None = None
    first: date | None = None
    last: date | None = None

    @property
    def owner(self) -> Owner:
        return (self.source, self.customer_id, self.query_name)

    def covers(self, other: Scope) -> bool:
        """Whether every partition of the other scope is in this one."""
        names = all(mine in (None, theirs) for mine, theirs in zip(self.owner, other.owner, strict=True))
        starts = self.first is None or (other.first is not None and self.first <= other.first)
        ends = self.last is None or (other.last is not None and self.last >= other.last)
        return names and starts and ends

    def meets(self, other: Scope) -> bool:
        """Whether a partition can be in both."""
        names = all(a is None or b is None or a == b for a, b in zip(self.owner, other.owner, strict=True))
        return names and _follows(self.last, other.first) and _follows(other.last, self.first)


@dataclass(frozen=True, slots=True)
class PauseSelector:
    """One row: a pause, or a part of older pauses that was resumed."""

    selector_no: int
    scope: Scope
    paused: bool


class PauseSelectors:
    """All selectors, ready to be asked about ranges and partitions."""

    def __init__(self, selectors: Iterable[PauseSelector]) -> None:
        self._by_owner: dict[Owner, list[PauseSelector]] = {}
        for selector in selectors:
            self._by_owner.setdefault(selector.scope.owner, []).append(selector)

    def pieces(self, span: ExpectedRange) -> list[tuple[date, date, int | None]]:
        """The days of a range, divided by the number of the selector that pauses them (None: not paused)."""
        left: list[Days] = [(span.first, span.last)]
        found: list[tuple[date, date, int | None]] = []
        for selector in self._about(span.source, span.customer_id, span.query_name):
            if not left:
                break
            inside, left = _divided(left, selector.scope)
            found += [(*days, selector.selector_no if selector.paused else None) for days in inside]
        return sorted([*found, *((*days, None) for days in left)], key=lambda piece: piece[0])

    def pauses(self, key: PartitionKey) -> bool:
        """Whether the newest selector that names this partition is a pause."""
        day = Scope(key.source, key.customer_id, key.query_name, key.logical_date, key.logical_date)
        about = self._about(key.source, key.customer_id, key.query_name)
        return next((selector.paused for selector in about if selector.scope.covers(day)), False)

    def _about(self, source: str, customer_id: str, query_name: str) -> list[PauseSelector]:
        """The selectors of this customer and query, newest first."""
        if not self._by_owner:
            return []
        owners = product((source, None), (customer_id, None), (query_name, None))
        found = [selector for owner in owners for selector in self._by_owner.get(owner, ())]
        return sorted(found, key=lambda selector: -selector.selector_no)


@dataclass(frozen=True, slots=True)
class Change:
    """What has to be written so that a scope is paused or resumed: rows that go, and whether a new one is needed."""

    obsolete: Sequence[int] = ()
    inserts: bool = False

    def __bool__(self) -> bool:
        return self.inserts or bool(self.obsolete)


def paused_by(selectors: Sequence[PauseSelector], scope: Scope) -> Change:
    """The change that pauses a scope; none if the whole of it is paused."""
    for selector in _newest_first(selectors, scope):
        if not selector.paused:
            break
        if selector.scope.covers(scope):
            return Change()
    return Change(_covered(selectors, scope), inserts=True)


def resumed_by(selectors: Sequence[PauseSelector], scope: Scope) -> Change:
    """The change that resumes a scope; none if nothing in it is paused by a selector."""
    if not any(selector.paused for selector in _newest_first(selectors, scope)):
        return Change()
    gone = set(_covered(selectors, scope))
    kept = [selector for selector in selectors if selector.selector_no not in gone]
    pauses = [selector for selector in kept if selector.paused]
    # A resumed part of pauses that are gone means nothing any more.
    gone |= {
        selector.selector_no
        for selector in kept
        if not selector.paused
        and not any(p.selector_no < selector.selector_no and p.scope.meets(selector.scope) for p in pauses)
    }
    return Change(sorted(gone), inserts=any(pause.scope.meets(scope) for pause in pauses))


def _newest_first(selectors: Iterable[PauseSelector], scope: Scope) -> Iterator[PauseSelector]:
    meeting = (selector for selector in selectors if selector.scope.meets(scope))
    return iter(sorted(meeting, key=lambda selector: -selector.selector_no))


def _covered(selectors: Iterable[PauseSelector], scope: Scope) -> list[int]:
    return [selector.selector_no for selector in selectors if scope.covers(selector.scope)]


def _divided(days: Iterable[Days], scope: Scope) -> tuple[list[Days], list[Days]]:
    """The parts of these days that are in a scope, and those that are not."""
    inside: list[Days] = []
    outside: list[Days] = []
    for first, last in days:
        low, high = max(first, scope.first or first), min(last, scope.last or last)
        if low > high:
            outside.append((first, last))
            continue
        inside.append((low, high))
        outside += [(first, low - _DAY)] if first < low else []
        outside += [(high + _DAY, last)] if high < last else []
    return inside, outside


def _follows(last: date | None, first: date | None) -> bool:
    return last is None or first is None or last >= first
