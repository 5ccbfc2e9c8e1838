"""Values that are derived from the ledger, kept in memory until the ledger, the days or a deadline change them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from datetime import datetime
from typing import Generic, NamedTuple, TypeVar

from penstock.projections.staleness import microseconds

T = TypeVar("T")


class _Entry(NamedTuple, Generic[T]):
    moment: Hashable
    since: int
    until: int | None
    value: T
    size: int


class LedgerCache(Generic[T]):
    """Values that are valid for one moment of the ledger, until a deadline. Safe in several threads: one computes a
    value, the others wait for it.

    It holds at most `entries` values and, if `size_of` returns the bytes of a value, at most `most_bytes`. A value that
    is larger is returned, and computed again for the next caller.
    """

    def __init__(self, entries: int, most_bytes: int = 0, size_of: Callable[[T], int] = lambda value: 0) -> None:
        self._most_entries = entries
        self._most_bytes = most_bytes
        self._size_of = size_of
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry[T]] = OrderedDict()
        self._bytes = 0

    def get(self, name: Hashable, moment: Hashable, now: datetime, compute: Callable[[], tuple[T, int | None]]) -> T:
        """The value of this name and moment, computed if it is not there."""
        return self.entry(name, moment, now, compute)[0]

    def entry(
        self, name: Hashable, moment: Hashable, now: datetime, compute: Callable[[], tuple[T, int | None]]
    ) -> tuple[T, int | None]:
        """The value of this name and moment, computed if it is not there, and the end of its validity."""
        with self._lock:
            known = self._entries.get(name)
            if known is not None and known.moment == moment and _holds(known, microseconds(now)):
                self._entries.move_to_end(name)
                return known.value, known.until
            if known is not None:  # not valid any more: its memory is free for the computation
                self._remove(name)
            value, until = compute()
            self._keep(name, _Entry(moment, microseconds(now), until, value, self._size_of(value)))
            return value, until

    def _keep(self, name: Hashable, entry: _Entry[T]) -> None:
        if entry.size > self._most_bytes:
            return
        self._entries[name] = entry
        self._bytes += entry.size
        while len(self._entries) > self._most_entries or self._bytes > self._most_bytes:
            self._remove(next(iter(self._entries)))

    def _remove(self, name: Hashable) -> None:
        self._bytes -= self._entries.pop(name).size


def _holds(entry: _Entry[T], now: int) -> bool:
    return entry.since <= now and (entry.until is None or now <= entry.until)
