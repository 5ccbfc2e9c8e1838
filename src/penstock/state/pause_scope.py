"""Pauses by selector, as values: which partitions a selector names, and which selector decides about a day.

The newest selector that names a partition decides: it pauses the partition, or takes an older pause back. A partition
that no selector names is not paused. Pauses therefore cost one row each, however many partitions they stop.

Selectors are found by their owner (source, customer, query), and the days of an owner are divided once among the
selectors that decide about them. The costs grow with the number of selectors and scopes, never with their product.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import product

from penstock.expected import ExpectedRange
from penstock.partition import PartitionKey

_FIRST, _END = date.min.toordinal(), date.max.toordinal() + 1

Owner = tuple[str | None, str | None, str | None]


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

    @property
    def days(self) -> tuple[int, int]:
        """The first and the last day as numbers."""
        first, last = self.first or date.min, self.last or date.max
        return first.toordinal(), last.toordinal()

    def covers(self, other: Scope) -> bool:
        """Whether every partition of the other scope is in this one."""
        (first, last), (others_first, others_last) = self.days, other.days
        return _covers(self.owner, other.owner) and first <= others_first and others_last <= last


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
        self._timelines: dict[Owner, _Timeline] = {}

    def pieces(self, span: ExpectedRange) -> list[tuple[date, date, int | None]]:
        """The days of a range, divided by the number of the selector that pauses them (None: not paused)."""
        if not self._by_owner:
            return [(span.first, span.last, None)]
        found = self._timeline((span.source, span.customer_id, span.query_name))
        pieces = found.pieces(span.first.toordinal(), span.last.toordinal())
        return [(date.fromordinal(first), date.fromordinal(last), _pause_no(by)) for first, last, by in pieces]

    def pauses(self, key: PartitionKey) -> bool:
        """Whether the newest selector that names this partition is a pause."""
        day = key.logical_date.toordinal()
        found = self._timeline((key.source, key.customer_id, key.query_name))
        return any(_pause_no(by) is not None for _, _, by in found.pieces(day, day))

    def meeting(self, owner: Owner) -> list[PauseSelector]:
        """The selectors whose customer and query can be those of this owner, oldest first."""
        source, customer_id, query_name = owner
        owners: Iterable[Owner] = product((source, None), (customer_id, None), (query_name, None))
        if None in owner:
            owners = [other for other in self._by_owner if _meets(other, owner)]
        found = [selector for other in owners for selector in self._by_owner.get(other, ())]
        return sorted(found, key=lambda selector: selector.selector_no)

    def _timeline(self, owner: Owner) -> _Timeline:
        if owner not in self._timelines:
            self._timelines[owner] = _Timeline(self.meeting(owner))
        return self._timelines[owner]


class _Timeline:
    """All days, divided by the selector that decides about them."""

    def __init__(self, selectors: Sequence[PauseSelector]) -> None:
        """Of these selectors, which are given oldest first, the last one that names a day decides."""
        days = [selector.scope.days for selector in selectors]
        bounds = sorted({_FIRST, _END, *(first for first, _ in days), *(last + 1 for _, last in days)})
        place = {day: number for number, day in enumerate(bounds)}
        by: list[PauseSelector | None] = [None] * (len(bounds) - 1)
        for selector, (first, last) in zip(selectors, days, strict=True):
            low, high = place[first], place[last + 1]
            by[low:high] = [selector] * (high - low)
        self._bounds, self._by = bounds, by

    def pieces(self, first: int, last: int) -> Iterator[tuple[int, int, PauseSelector | None]]:
        """The days from `first` to `last` in order, each piece with the selector that decides about it."""
        place = bisect_right(self._bounds, first) - 1
        while first <= last:
            until = min(last, self._bounds[place + 1] - 1)
            yield first, until, self._by[place]
            first, place = until + 1, place + 1

    def pauses(self, scope: Scope) -> Iterator[bool]:
        """For each piece of the days of a scope, whether a pause decides about it."""
        return (_pause_no(by) is not None for _, _, by in self.pieces(*scope.days))


@dataclass(frozen=True, slots=True)
class Change:
    """What has to be written so that scopes are paused or resumed: rows that end, and the scopes of new ones."""

    obsolete: Sequence[int] = ()
    inserts: Sequence[Scope] = ()

    def __bool__(self) -> bool:
        return bool(self.obsolete or self.inserts)


def paused_by(selectors: Sequence[PauseSelector], scopes: Iterable[Scope]) -> Change:
    """The change that pauses scopes that do not overlap; none for a scope that is paused as a whole."""
    existing = PauseSelectors(selectors)
    gone: set[int] = set()
    inserts: list[Scope] = []
    for owner, mine in _by_owner(scopes).items():
        near = existing.meeting(owner)
        # A pause of a part of the owner says nothing about the whole; a resume of a part does.
        about = _Timeline([one for one in near if not one.paused or _covers(one.scope.owner, owner)])
        needed = [scope for scope in mine if not all(about.pauses(scope))]
        gone |= _covered(near, needed)
        inserts += needed
    return Change(sorted(gone), inserts)


def resumed_by(selectors: Sequence[PauseSelector], scopes: Iterable[Scope]) -> Change:
    """The change that resumes scopes that do not overlap; none for a scope in which no selector pauses anything."""
    existing = PauseSelectors(selectors)
    gone: set[int] = set()
    inserts: list[Scope] = []
    for owner, mine in _by_owner(scopes).items():
        near = existing.meeting(owner)
        # A resume of a part of the owner says nothing about the whole; a pause of a part does.
        about = [one for one in near if one.paused or _covers(one.scope.owner, owner)]
        before = _Timeline(about)
        needed = [scope for scope in mine if any(before.pauses(scope))]
        gone |= _covered(near, needed)
        after = _Timeline([one for one in about if one.selector_no not in gone])
        inserts += [scope for scope in needed if any(after.pauses(scope))]
    gone |= _without_pause(selectors, gone)
    return Change(sorted(gone), inserts)


def _by_owner(scopes: Iterable[Scope]) -> dict[Owner, list[Scope]]:
    found: dict[Owner, list[Scope]] = {}
    for scope in dict.fromkeys(scopes):
        found.setdefault(scope.owner, []).append(scope)
    return found


def _covered(selectors: Iterable[PauseSelector], scopes: Iterable[Scope]) -> set[int]:
    """The selectors that one of these scopes covers, which have the same owner and do not overlap."""
    ordered = sorted(scopes, key=lambda scope: scope.days)
    starts = [scope.days[0] for scope in ordered]
    found = set()
    for selector in selectors:
        place = bisect_right(starts, selector.scope.days[0]) - 1
        if place >= 0 and ordered[place].covers(selector.scope):
            found.add(selector.selector_no)
    return found


def _without_pause(selectors: Sequence[PauseSelector], gone: set[int]) -> set[int]:
    """The resumed parts of pauses that are gone: they mean nothing any more."""
    if not any(selector.paused for selector in selectors if selector.selector_no in gone):
        return set()
    kept = [selector for selector in selectors if selector.selector_no not in gone]
    pauses = PauseSelectors(selector for selector in kept if selector.paused)
    resumed: dict[Owner, list[PauseSelector]] = {}
    for selector in kept:
        if not selector.paused:
            resumed.setdefault(selector.scope.owner, []).append(selector)
    found = set()
    for owner, mine in resumed.items():
        oldest = _Timeline(pauses.meeting(owner)[::-1])
        for selector in mine:
            below = (by for _, _, by in oldest.pieces(*selector.scope.days) if by is not None)
            if not any(by.selector_no < selector.selector_no for by in below):
                found.add(selector.selector_no)
    return found


def _covers(owner: Owner, other: Owner) -> bool:
    return all(mine in (None, theirs) for mine, theirs in zip(owner, other, strict=True))


def _meets(owner: Owner, other: Owner) -> bool:
    return all(a is None or b is None or a == b for a, b in zip(owner, other, strict=True))


def _pause_no(selector: PauseSelector | None) -> int | None:
    return selector.selector_no if selector is not None and selector.paused else None
