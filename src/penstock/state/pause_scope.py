"""Pauses by selector, as values: the partitions that a selector matches, and the selector that applies to a day.

The newest selector that matches a partition applies: it pauses the partition, or resumes it from an older pause. A
partition that no selector matches is not paused. A pause costs one row, however many partitions it matches.

Selectors are indexed by owner (source, customer, query), and the days of an owner are divided once among the selectors
that apply to them. The cost grows with the number of selectors plus the number of scopes, not with their product.
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
    """A set of partitions, by their common fields. None matches every source, customer, query or day."""

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
        """The first and the last day as ordinals."""
        first, last = self.first or date.min, self.last or date.max
        return first.toordinal(), last.toordinal()

    def covers(self, other: Scope) -> bool:
        """Whether every partition of the other scope is in this one."""
        (first, last), (others_first, others_last) = self.days, other.days
        return _covers(self.owner, other.owner) and first <= others_first and others_last <= last


@dataclass(frozen=True, slots=True)
class PauseSelector:
    """One row: a pause, or a resumed part of older pauses."""

    selector_no: int
    scope: Scope
    paused: bool


class PauseSelectors:
    """All selectors, indexed for queries about ranges and partitions."""

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
        """Whether the newest selector that matches this partition is a pause."""
        day = key.logical_date.toordinal()
        found = self._timeline((key.source, key.customer_id, key.query_name))
        return any(_pause_no(by) is not None for _, _, by in found.pieces(day, day))

    def matching(self, owner: Owner) -> list[PauseSelector]:
        """The selectors whose customer and query can match this owner, oldest first."""
        source, customer_id, query_name = owner
        owners: Iterable[Owner] = product((source, None), (customer_id, None), (query_name, None))
        if None in owner:
            owners = [other for other in self._by_owner if _overlaps(other, owner)]
        found = [selector for other in owners for selector in self._by_owner.get(other, ())]
        return sorted(found, key=lambda selector: selector.selector_no)

    def _timeline(self, owner: Owner) -> _Timeline:
        if owner not in self._timelines:
            self._timelines[owner] = _Timeline(self.matching(owner))
        return self._timelines[owner]


class _Timeline:
    """All days, divided by the selector that applies to them."""

    def __init__(self, selectors: Sequence[PauseSelector]) -> None:
        """`selectors` are ordered oldest first; the last one that matches a day applies."""
        days = [selector.scope.days for selector in selectors]
        bounds = sorted({_FIRST, _END, *(first for first, _ in days), *(last + 1 for _, last in days)})
        place = {day: number for number, day in enumerate(bounds)}
        by: list[PauseSelector | None] = [None] * (len(bounds) - 1)
        for selector, (first, last) in zip(selectors, days, strict=True):
            low, high = place[first], place[last + 1]
            by[low:high] = [selector] * (high - low)
        self._bounds, self._by = bounds, by

    def pieces(self, first: int, last: int) -> Iterator[tuple[int, int, PauseSelector | None]]:
        """The days from `first` to `last` in order, each piece with the selector that applies to it."""
        place = bisect_right(self._bounds, first) - 1
        while first <= last:
            until = min(last, self._bounds[place + 1] - 1)
            yield first, until, self._by[place]
            first, place = until + 1, place + 1

    def pauses(self, scope: Scope) -> Iterator[bool]:
        """For each piece of the days of a scope, whether a pause applies to it."""
        return (_pause_no(by) is not None for _, _, by in self.pieces(*scope.days))


@dataclass(frozen=True, slots=True)
class Change:
    """The rows to write so that scopes are paused or resumed: rows to delete, and the scopes of new rows."""

    obsolete: Sequence[int] = ()
    inserts: Sequence[Scope] = ()

    def __bool__(self) -> bool:
        return bool(self.obsolete or self.inserts)


def paused_by(selectors: Sequence[PauseSelector], scopes: Iterable[Scope]) -> Change:
    """Return the change that pauses non-overlapping scopes; it is empty for a scope that is paused as a whole."""
    existing = PauseSelectors(selectors)
    gone: set[int] = set()
    inserts: list[Scope] = []
    for owner, mine in _by_owner(scopes).items():
        near = existing.matching(owner)
        # A pause of a part of the owner does not pause the whole; a resumed part means that the whole is not paused.
        about = _Timeline([one for one in near if not one.paused or _covers(one.scope.owner, owner)])
        needed = [scope for scope in mine if not all(about.pauses(scope))]
        gone |= _covered(near, needed)
        inserts += needed
    return Change(sorted(gone), inserts)


def resumed_by(selectors: Sequence[PauseSelector], scopes: Iterable[Scope]) -> Change:
    """Return the change that resumes non-overlapping scopes; it is empty for a scope without a pause."""
    existing = PauseSelectors(selectors)
    gone: set[int] = set()
    inserts: list[Scope] = []
    for owner, mine in _by_owner(scopes).items():
        near = existing.matching(owner)
        # A resume of a part of the owner does not resume the whole; a paused part means that the whole is not resumed.
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
    """The selectors that these non-overlapping scopes of the same owner cover."""
    ordered = sorted(scopes, key=lambda scope: scope.days)
    starts = [scope.days[0] for scope in ordered]
    found = set()
    for selector in selectors:
        place = bisect_right(starts, selector.scope.days[0]) - 1
        if place >= 0 and ordered[place].covers(selector.scope):
            found.add(selector.selector_no)
    return found


def _without_pause(selectors: Sequence[PauseSelector], gone: set[int]) -> set[int]:
    """The resumed parts of deleted pauses: they have no effect any more."""
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
        oldest = _Timeline(pauses.matching(owner)[::-1])
        for selector in mine:
            below = (by for _, _, by in oldest.pieces(*selector.scope.days) if by is not None)
            if not any(by.selector_no < selector.selector_no for by in below):
                found.add(selector.selector_no)
    return found


def _covers(owner: Owner, other: Owner) -> bool:
    return all(mine in (None, theirs) for mine, theirs in zip(owner, other, strict=True))


def _overlaps(owner: Owner, other: Owner) -> bool:
    return all(a is None or b is None or a == b for a, b in zip(owner, other, strict=True))


def _pause_no(selector: PauseSelector | None) -> int | None:
    return selector.selector_no if selector is not None and selector.paused else None
