"""The partitions of a backfill: those of a stored selector, or those that failed in an earlier backfill.

Neither is held as a list of keys, so a backfill of a million partitions costs no more memory than one of its chunks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol

from penstock.config.settings import Settings
from penstock.control.ranges import (
    between_keys,
    count_partitions,
    first_key,
    in_key_order,
    last_key,
    next_page,
    without_frozen,
)
from penstock.control.select import Selection, by_kind, due_range, expected
from penstock.expected import ExpectedRange
from penstock.partition import PartitionKey
from penstock.state.backfills import Backfill, BackfillStore


@dataclass(frozen=True, slots=True)
class Page:
    """The next partitions of a backfill in key order. `ranges` leaves out those that cannot be attempted today."""

    first: PartitionKey
    last: PartitionKey
    partitions: int
    ranges: Sequence[ExpectedRange]


class BackfillPartitions(Protocol):
    """The partitions of a backfill, in key order."""

    def page(self, after: PartitionKey | None, size: int) -> Page | None:
        """At most `size` partitions after a key; None when there are no more."""

    def between(self, first: PartitionKey, last: PartitionKey) -> list[ExpectedRange]:
        """The partitions from one key to another, both included."""

    def count(self, after: PartitionKey | None) -> int:
        """The number of partitions after a key."""

    def sources(self) -> Set[str]:
        """The sources of these partitions."""

    def covered(self) -> Sequence[ExpectedRange]:
        """Missing days that only this backfill fetches: a round leaves them out."""


@dataclass(frozen=True, slots=True)
class SelectedPartitions:
    """The partitions of a stored selector; `ranges` are in key order."""

    ranges: Sequence[ExpectedRange]

    def page(self, after: PartitionKey | None, size: int) -> Page | None:
        found = next_page(self.ranges, after, size)
        return Page(first_key(found), last_key(found), count_partitions(found), found) if found else None

    def between(self, first: PartitionKey, last: PartitionKey) -> list[ExpectedRange]:
        return between_keys(self.ranges, first, last)

    def count(self, after: PartitionKey | None) -> int:
        return count_partitions(next_page(self.ranges, after, count_partitions(self.ranges)))

    def sources(self) -> Set[str]:
        return {span.source for span in self.ranges}

    def covered(self) -> Sequence[ExpectedRange]:
        return self.ranges


@dataclass(frozen=True, slots=True)
class RetriedPartitions:
    """The partitions that had failed in the backfill `retry_of` when `backfill` was created. Attempts are never
    deleted or changed, so the answer stays the same while the backfill runs."""

    store: BackfillStore
    settings: Settings
    backfill: Backfill
    retry_of: str
    now: datetime

    def page(self, after: PartitionKey | None, size: int) -> Page | None:
        keys = self.store.failed(self.retry_of, before=self.backfill.created_at, after=after, limit=size)
        return Page(keys[0], keys[-1], len(keys), self._ranges(keys)) if keys else None

    def between(self, first: PartitionKey, last: PartitionKey) -> list[ExpectedRange]:
        return self._ranges(self.store.failed(self.retry_of, before=self.backfill.created_at, since=first, until=last))

    def count(self, after: PartitionKey | None) -> int:
        return self.store.failed_count(self.retry_of, before=self.backfill.created_at, after=after)

    def sources(self) -> Set[str]:
        return self.store.failed_sources(self.retry_of, before=self.backfill.created_at) & self.settings.sources.keys()

    def covered(self) -> Sequence[ExpectedRange]:
        return ()  # partitions that failed are not missing

    def _ranges(self, keys: Sequence[PartitionKey]) -> list[ExpectedRange]:
        return _ranges_of_keys(self.settings, keys, self.now)


def partitions_of(store: BackfillStore, settings: Settings, backfill: Backfill, now: datetime) -> BackfillPartitions:
    """The partitions of a backfill by the present configuration."""
    retry_of = backfill.selector.get("retry_of")
    if retry_of and "keys" not in backfill.selector:  # earlier releases stored the keys
        return RetriedPartitions(store, settings, backfill, retry_of, now)
    return SelectedPartitions(ranges_of(settings, backfill.selector, now))


def ranges_of(settings: Settings, selector: Mapping[str, Any], now: datetime) -> list[ExpectedRange]:
    """The partitions of a stored selector by the present configuration, without frozen days and days that have not
    ended. Customers and queries that left the configuration are ignored."""
    chosen = Selection.from_dict(selector)
    if chosen.keys:
        return _ranges_of_keys(settings, chosen.keys, now)
    customers = tuple(name for name in chosen.customers if name in {customer.id for customer in settings.customers})
    queries = tuple(name for name in chosen.queries if name in settings.queries)
    gone = (chosen.customers and not customers) or (chosen.queries and not queries)
    if gone or (chosen.source and chosen.source not in settings.sources):
        return []
    selected = by_kind(expected(settings, replace(chosen, customers=customers, queries=queries), now)).fetched
    return in_key_order(without_frozen(selected))


def _ranges_of_keys(settings: Settings, keys: Sequence[PartitionKey], now: datetime) -> list[ExpectedRange]:
    known = [key for key in keys if _is_known(settings, key)]
    dues = [(key, due_range(settings, key, now)) for key in known]
    due = tuple(key for key, due in dues if due.first <= key.logical_date <= due.last)
    return in_key_order(without_frozen(by_kind(expected(settings, Selection(keys=due), now)).fetched)) if due else []


def _is_known(settings: Settings, key: PartitionKey) -> bool:
    query = settings.queries.get(key.query_name)
    known = any(customer.id == key.customer_id for customer in settings.customers)
    return (
        known
        and query is not None
        and query.source == key.source
        and (query.customers is None or key.customer_id in query.customers)
    )
