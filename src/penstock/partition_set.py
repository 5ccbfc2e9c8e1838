"""A set of partitions in compact form: consecutive days of a customer are one range."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from functools import lru_cache

from penstock.partition import PartitionKey

# By asset and customer, for example "2024-06-01..2024-06-30 2024-07-04".
CompactRanges = Mapping[str, Mapping[str, str]]


def compact_ranges(keys: Iterable[PartitionKey]) -> dict[str, dict[str, str]]:
    """Return the partitions by asset and customer as ranges of days, independent of the order of `keys`."""
    days: dict[tuple[str, str], set[int]] = {}
    for key in keys:
        days.setdefault((key.asset, key.customer_id), set()).add(key.logical_date.toordinal())
    written: dict[str, dict[str, str]] = {}
    for asset, customer_id in sorted(days):
        written.setdefault(asset, {})[customer_id] = " ".join(_ranges(sorted(days[asset, customer_id])))
    return written


def _ranges(days: list[int]) -> Iterator[str]:
    first = last = days[0]
    for day in [*days[1:], None]:
        if day == last + 1:
            last = day
            continue
        yield _iso(first) if first == last else f"{_iso(first)}..{_iso(last)}"
        if day is not None:
            first = last = day


def iter_keys(slices: CompactRanges) -> Iterator[str]:
    """Yield the partition keys as text, in the order of asset, customer and day."""
    for asset, customers in slices.items():
        source, _, query_name = asset.partition(".")
        for customer_id, ranges in customers.items():
            for part in ranges.split():
                first, _, last = part.partition("..")
                for day in range(_ordinal(first), _ordinal(last or first) + 1):
                    yield f"{source}/{customer_id}/{query_name}/{_iso(day)}"


def count_keys(slices: CompactRanges) -> int:
    """Return the number of partitions, without listing them."""
    parts = (part for customers in slices.values() for ranges in customers.values() for part in ranges.split())
    bounds = (part.partition("..") for part in parts)
    return sum(_ordinal(last or first) - _ordinal(first) + 1 for first, _, last in bounds)


@lru_cache(maxsize=50_000)
def _iso(ordinal: int) -> str:
    return date.fromordinal(ordinal).isoformat()


@lru_cache(maxsize=50_000)
def _ordinal(text: str) -> int:
    return date.fromisoformat(text).toordinal()
