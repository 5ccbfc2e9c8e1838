"""Values that are derived from the ledger, kept in memory until the ledger, the days or a deadline change them."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, NamedTuple, TypeVar

from penstock.projections.staleness import microseconds

T = TypeVar("T")

TOLERANCE = 1.0  # seconds by which a value may be behind the ledger while another thread computes the next one


class _Entry(NamedTuple, Generic[T]):
    moment: Hashable
    since: int
    until: int | None
    value: T
    size: int


@dataclass(slots=True)
class _Computation(Generic[T]):
    """One thread computes the value of a name, others wait for it."""

    began: float
    is_done: threading.Event = field(default_factory=threading.Event)
    found: tuple[T, int | None] | None = None  # None if it failed


class LedgerCache(Generic[T]):
    """Values that are valid for one moment of the ledger, until a deadline. Safe in several threads.

    One thread computes the value of a name. Meanwhile the others get the value before, if it was valid within the last
    second, or wait for the result, which belongs to the moment at which the computation began. Names do not wait for
    each other. Without a computation in progress, a value is as new as the ledger. A value never replaces a newer one,
    because its moment is read when its computation begins.

    It holds at most `entries` values and, if `size_of` returns the bytes of a value, at most `most_bytes`. A value that
    is larger is returned, and computed again for the next caller.
    """

    def __init__(
        self,
        entries: int,
        most_bytes: int = 0,
        size_of: Callable[[T], int] = lambda value: 0,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most_entries = entries
        self._most_bytes = most_bytes
        self._size_of = size_of
        self._seconds = seconds
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry[T]] = OrderedDict()
        self._valid_at: dict[Hashable, float] = {}  # when an entry was last known to be valid
        self._computations: dict[Hashable, _Computation[T]] = {}
        self._bytes = 0

    def get(
        self,
        name: Hashable,
        moment: Callable[[], Hashable],
        now: Callable[[], datetime],
        compute: Callable[[], tuple[T, int | None]],
    ) -> T:
        """The value of this name at the moment that `moment` returns, computed if it is not there."""
        return self.entry(name, moment, now, compute)[0]

    def entry(
        self,
        name: Hashable,
        moment: Callable[[], Hashable],
        now: Callable[[], datetime],
        compute: Callable[[], tuple[T, int | None]],
    ) -> tuple[T, int | None]:
        """The value of this name at the moment that `moment` returns, computed if it is not there, and the end of its
        validity."""
        arrived = self._seconds()
        wanted = moment()
        while True:
            with self._lock:
                seconds, at = self._seconds(), microseconds(now())
                if (known := self._valid(name, wanted, at, arrived)) is not None:
                    return known
                running = self._computations.get(name)
                if running is None:
                    mine = self._computations[name] = _Computation(seconds)
                    break
                if (recent := self._recent(name, at, seconds)) is not None:
                    return recent
            running.is_done.wait()
            if running.found is not None:
                return running.found
        try:
            mine.found = self._computed(name, mine.began, moment, now, compute)
            return mine.found
        finally:
            with self._lock:
                del self._computations[name]
            mine.is_done.set()

    def _computed(
        self,
        name: Hashable,
        began: float,
        moment: Callable[[], Hashable],
        now: Callable[[], datetime],
        compute: Callable[[], tuple[T, int | None]],
    ) -> tuple[T, int | None]:
        """Compute the value of the moment at which this computation begins, unless another thread has just done it."""
        begins = moment()
        with self._lock:
            at = microseconds(now())
            if (known := self._valid(name, begins, at, began)) is not None:
                return known
            if name in self._entries and self._recent(name, at, began) is None:
                self._remove(name)  # nobody gets it any more: its memory is free for the computation
        value, until = compute()
        with self._lock:
            self._keep(name, _Entry(begins, at, until, value, self._size_of(value)), began)
        return value, until

    def _valid(self, name: Hashable, moment: Hashable, at: int, seconds: float) -> tuple[T, int | None] | None:
        """The value of this moment; None if there is none. `seconds` is when the moment was current."""
        known = self._entries.get(name)
        if known is None or known.moment != moment or not _holds(known, at):
            return None
        self._entries.move_to_end(name)
        self._valid_at[name] = max(seconds, self._valid_at[name])
        return known.value, known.until

    def _recent(self, name: Hashable, at: int, seconds: float) -> tuple[T, int | None] | None:
        """The value of an earlier moment, if it was valid within the last second."""
        known = self._entries.get(name)
        if known is None or not _holds(known, at) or self._valid_at[name] < seconds - TOLERANCE:
            return None
        return known.value, known.until

    def _keep(self, name: Hashable, entry: _Entry[T], seconds: float) -> None:
        if name in self._entries:
            self._remove(name)
        if entry.size > self._most_bytes:
            return
        self._entries[name] = entry
        self._valid_at[name] = seconds
        self._bytes += entry.size
        while len(self._entries) > self._most_entries or self._bytes > self._most_bytes:
            self._remove(next(iter(self._entries)))

    def _remove(self, name: Hashable) -> None:
        self._bytes -= self._entries.pop(name).size
        del self._valid_at[name]


def _holds(entry: _Entry[T], now: int) -> bool:
    return entry.since <= now and (entry.until is None or now <= entry.until)
