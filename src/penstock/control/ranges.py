"""Arithmetic on ranges of expected partitions: pages, intersections, differences.

A range holds no list of its partitions, so a million partitions cost no more memory than their customers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import date, timedelta

from penstock.expected import ExpectedRange
from penstock.partition import PartitionKey

_DAY = timedelta(days=1)


def count_partitions(ranges: Iterable[ExpectedRange]) -> int:
    return sum(len(span) for span in ranges)


def in_key_order(ranges: Iterable[ExpectedRange]) -> list[ExpectedRange]:
    """The ranges that are not empty, in key order."""
    return sorted((span for span in ranges if len(span)), key=lambda span: (*_owner(span), span.first))


def without_frozen(ranges: Iterable[ExpectedRange]) -> list[ExpectedRange]:
    """The ranges without frozen days: their sources still keep the rest."""
    clipped = [span if span.frozen_before is None else _since(span, span.frozen_before) for span in ranges]
    return [span for span in clipped if len(span)]


def clip_days(ranges: Iterable[ExpectedRange], first: date, last: date) -> list[ExpectedRange]:
    """The ranges, cut to the days from `first` to `last`."""
    return [
        span
        if first <= span.first and span.last <= last
        else replace(span, first=max(span.first, first), last=min(span.last, last), over=span.over or span.last)
        for span in ranges
        if max(span.first, first) <= min(span.last, last)
    ]


def next_page(ranges: Sequence[ExpectedRange], after: PartitionKey | None, size: int) -> list[ExpectedRange]:
    """The next `size` partitions of `ranges`, which are in key order, after a key."""
    found: list[ExpectedRange] = []
    for span in _after(ranges, after):
        if size <= 0:
            break
        piece = replace(span, last=min(span.last, span.first + (size - 1) * _DAY))
        found.append(piece)
        size -= len(piece)
    return found


def iter_pages(ranges: Iterable[ExpectedRange], size: int) -> Iterator[list[ExpectedRange]]:
    """All partitions of `ranges` in key order, `size` at a time."""
    ordered, after = in_key_order(ranges), None
    while found := next_page(ordered, after, size):
        yield found
        after = last_key(found)


def between_keys(ranges: Sequence[ExpectedRange], first: PartitionKey, last: PartitionKey) -> list[ExpectedRange]:
    """The partitions of `ranges` from one key to another, both included."""
    found = []
    for span in ranges:
        low = span.first if _owner(span) != _owner(first) else max(span.first, first.logical_date)
        high = span.last if _owner(span) != _owner(last) else min(span.last, last.logical_date)
        if _owner(first) <= _owner(span) <= _owner(last) and low <= high:
            found.append(replace(span, first=low, last=high))
    return found


def subtract(ranges: Iterable[ExpectedRange], others: Iterable[ExpectedRange]) -> list[ExpectedRange]:
    """The partitions of `ranges` that are in none of the others."""
    taken: dict[tuple[str, str, str], list[tuple[date, date]]] = {}
    for span in others:
        taken.setdefault(_owner(span), []).append((span.first, span.last))
    return [piece for span in ranges for piece in _pieces(span, sorted(taken.get(_owner(span), ())))]


def intersect(ranges: Iterable[ExpectedRange], others: Iterable[ExpectedRange]) -> list[ExpectedRange]:
    """The partitions of `ranges` that are in one of the others, which do not overlap."""
    kept: dict[tuple[str, str, str], list[tuple[date, date]]] = {}
    for span in others:
        kept.setdefault(_owner(span), []).append((span.first, span.last))
    clipped = (
        replace(span, first=max(span.first, low), last=min(span.last, high), over=span.over or span.last)
        for span in ranges
        for low, high in sorted(kept.get(_owner(span), ()))
        if low <= span.last and span.first <= high
    )
    return [span for span in clipped if len(span)]


def ranges_of(keys: Iterable[PartitionKey]) -> list[ExpectedRange]:
    """Consecutive days of a customer and query as one range, in key order. Holds no list of the keys; they come in key
    order."""
    found: list[ExpectedRange] = []
    for key in keys:
        if found and _owner(found[-1]) == _owner(key) and found[-1].last + _DAY == key.logical_date:
            found[-1] = replace(found[-1], last=key.logical_date)
        else:
            found.append(ExpectedRange(*key[:3], key.logical_date, key.logical_date))
    return in_key_order(found)


def first_key(ranges: Sequence[ExpectedRange]) -> PartitionKey:
    return PartitionKey(ranges[0].source, ranges[0].customer_id, ranges[0].query_name, ranges[0].first)


def last_key(ranges: Sequence[ExpectedRange]) -> PartitionKey:
    return PartitionKey(ranges[-1].source, ranges[-1].customer_id, ranges[-1].query_name, ranges[-1].last)


def _after(ranges: Iterable[ExpectedRange], key: PartitionKey | None) -> Iterator[ExpectedRange]:
    for span in ranges:
        if key is None or _owner(span) > _owner(key):
            yield span
        elif _owner(span) == _owner(key) and span.last > key.logical_date:
            yield replace(span, first=max(span.first, key.logical_date + _DAY))


def by_customers(ranges: Iterable[ExpectedRange], after: str | None, size: int) -> Iterator[list[ExpectedRange]]:
    """The ranges of the customers after `after`, in the order of their ids, in groups of at least `size` partitions.
    The ranges of a customer are in one group."""
    group: list[ExpectedRange] = []
    held = 0
    for span in sorted(ranges, key=lambda span: span.customer_id):
        if after is not None and span.customer_id <= after:
            continue
        if held >= size and span.customer_id != group[-1].customer_id:
            yield group
            group, held = [], 0
        group.append(span)
        held += len(span)
    if group:
        yield group


def _pieces(span: ExpectedRange, taken: Sequence[tuple[date, date]]) -> Iterator[ExpectedRange]:
    first = span.first
    for low, high in taken:
        if low > first:
            yield from _valid(replace(span, first=first, last=min(span.last, low - _DAY)))
        first = max(first, high + _DAY)
    if first <= span.last:
        yield replace(span, first=first)


def _since(span: ExpectedRange, day: date) -> ExpectedRange:
    return replace(span, first=max(span.first, day))


def _valid(span: ExpectedRange) -> Iterator[ExpectedRange]:
    if len(span):
        yield span


def _owner(thing: ExpectedRange | PartitionKey) -> tuple[str, str, str]:
    return (thing.source, thing.customer_id, thing.query_name)


def clip_to_keys(ranges: Iterable[ExpectedRange], keys: Sequence[PartitionKey]) -> list[ExpectedRange]:
    """The ranges of these keys, each cut to the first to last day that the keys name."""
    days: dict[tuple[str, str, str], list[date]] = {}
    for key in keys:
        days.setdefault((key.source, key.customer_id, key.query_name), []).append(key.logical_date)
    found = []
    for span in ranges:
        named = days.get(_owner(span))
        if named is not None:
            found.append(replace(span, first=max(span.first, min(named)), last=min(span.last, max(named))))
    return [span for span in found if len(span)]
