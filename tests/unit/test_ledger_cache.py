"""The cache of values that are derived from the ledger: how much it holds, and who computes a value."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from penstock.projections.ledger_cache import TOLERANCE, LedgerCache
from support.builders import NOW

WAIT = 30  # seconds; reached only if the cache is wrong


def computed(cache: LedgerCache[bytes], name: str, size: int, moment: int = 1) -> bool:
    """Whether the value of this name had to be computed."""
    calls = []

    def compute() -> tuple[bytes, None]:
        calls.append(name)
        return b"x" * size, None

    assert len(cache.get(name, lambda: moment, lambda: NOW, compute)) == size
    return bool(calls)


def test_the_oldest_values_leave_a_cache_that_has_too_many_bytes() -> None:
    cache: LedgerCache[bytes] = LedgerCache(64, 100, len)
    assert [computed(cache, name, 40) for name in ("a", "b", "a", "c")] == [True, True, False, True]
    assert [computed(cache, name, 40) for name in ("a", "c", "b")] == [False, False, True]


def test_a_value_that_is_larger_than_the_cache_is_not_kept_and_displaces_nothing() -> None:
    cache: LedgerCache[bytes] = LedgerCache(64, 100, len)
    computed(cache, "small", 40)
    assert [computed(cache, "large", 101) for _ in range(2)] == [True, True]
    assert not computed(cache, "small", 40)


def test_a_value_of_a_new_moment_replaces_the_bytes_of_the_old_one() -> None:
    cache: LedgerCache[bytes] = LedgerCache(64, 100, len)
    computed(cache, "other", 40)
    assert [computed(cache, "a", 60, moment) for moment in (1, 2, 3, 3)] == [True, True, True, False]
    assert not computed(cache, "other", 40)


def test_a_cache_without_sizes_holds_a_number_of_values() -> None:
    cache: LedgerCache[bytes] = LedgerCache(2)
    assert [computed(cache, name, 40) for name in ("a", "b", "c", "b", "a")] == [True, True, True, False, True]


class MovingLedger:
    """A ledger that has moved on at each look, and readers of one cache. A computation that is held ends only after
    the other readers have joined: each reader asks for the time twice, the second time inside the lock of the cache."""

    def __init__(self) -> None:
        self.seconds = 100.0
        self.computations: list[str] = []
        self.cache: LedgerCache[int] = LedgerCache(8, seconds=self._time)
        self._moments, self._values, self._asked = count(1), count(1), 0
        self._changed = threading.Condition()

    def _time(self) -> float:
        with self._changed:
            self._asked += 1
            self._changed.notify_all()
        return self.seconds

    def await_readers(self, readers: int) -> None:
        """Wait until so many readers have joined since the last call."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._asked >= 2 * readers, WAIT)
            self._asked = 0

    def read(self, name: str = "all", held: Callable[[], None] = lambda: None) -> int:
        def compute() -> tuple[int, None]:
            self.computations.append(name)
            held()
            return next(self._values), None

        return self.cache.get(name, lambda: next(self._moments), lambda: NOW, compute)


def test_readers_that_arrive_during_a_computation_wait_for_its_result() -> None:
    ledger, readers = MovingLedger(), 8
    with ThreadPoolExecutor(readers) as pool:
        held = lambda: ledger.await_readers(readers)  # noqa: E731
        found = [pool.submit(ledger.read, "all", held) for _ in range(readers)]
        assert [one.result(WAIT) for one in found] == [1] * readers
    assert ledger.computations == ["all"]


def test_readers_during_a_computation_get_the_value_before_if_it_was_just_valid() -> None:
    ledger, began, may_end = MovingLedger(), threading.Event(), threading.Event()
    assert ledger.read() == 1

    def held() -> None:
        began.set()
        assert may_end.wait(WAIT)

    with ThreadPoolExecutor(2) as pool:
        computing = pool.submit(ledger.read, "all", held)
        assert began.wait(WAIT)
        ledger.seconds += TOLERANCE
        assert [ledger.read() for _ in range(5)] == [1] * 5  # at once, while the other thread computes
        ledger.seconds += 0.1
        ledger.await_readers(0)
        waiting = pool.submit(ledger.read)  # the value before is too old
        ledger.await_readers(1)
        assert not waiting.done()
        may_end.set()
        assert computing.result(WAIT) == 2
        assert waiting.result(WAIT) == 2
    assert ledger.computations == ["all"] * 2


def test_without_a_computation_a_value_is_as_new_as_the_ledger() -> None:
    ledger = MovingLedger()
    assert [ledger.read() for _ in range(3)] == [1, 2, 3]


def test_a_reader_that_looked_at_the_ledger_earlier_does_not_replace_a_newer_value() -> None:
    cache: LedgerCache[int] = LedgerCache(8)
    moments, computations = iter([1, 2, 2, 2]), list[int]()

    def read(moment: Callable[[], int]) -> int:
        def compute() -> tuple[int, None]:
            computations.append(len(computations) + 1)
            return computations[-1], None

        return cache.get("all", moment, lambda: NOW, compute)

    def late() -> int:
        """Looks at the ledger first; before it continues, another reader has computed the value of a newer moment."""
        found = next(moments)
        if found == 1:
            assert read(late) == 1
        return found

    assert read(late) == 1
    assert read(lambda: 2) == 1
    assert computations == [1]


def test_names_do_not_wait_for_each_other() -> None:
    ledger, began, may_end = MovingLedger(), threading.Event(), threading.Event()

    def held() -> None:
        began.set()
        assert may_end.wait(WAIT)

    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(ledger.read, "slow", held)
        assert began.wait(WAIT)
        assert ledger.read("quick") == 1
        may_end.set()
        assert slow.result(WAIT) == 2


def test_an_error_of_a_computation_is_raised_by_its_reader_and_the_next_one_computes() -> None:
    ledger, readers = MovingLedger(), 3

    def fail() -> None:
        if len(ledger.computations) == 1:
            ledger.await_readers(readers)
            raise ValueError("the lake does not respond")

    with ThreadPoolExecutor(readers) as pool:
        found = [pool.submit(ledger.read, "all", fail) for _ in range(readers)]
        errors = [one.exception(WAIT) for one in found]
        assert sorted(type(error).__name__ for error in errors) == ["NoneType", "NoneType", "ValueError"]
    assert ledger.read() > 0


@pytest.mark.parametrize("pause", [0.0, 2 * TOLERANCE], ids=["at once", "after a pause"])
def test_each_round_of_readers_of_a_moving_ledger_computes_once(pause: float) -> None:
    ledger, readers, rounds = MovingLedger(), 8, 5
    held = lambda: ledger.await_readers(readers)  # noqa: E731
    with ThreadPoolExecutor(readers) as pool:
        for _ in range(rounds):
            for one in [pool.submit(ledger.read, "all", held) for _ in range(readers)]:
                one.result(WAIT)
            ledger.seconds += pause
    assert len(ledger.computations) == rounds  # of 40 reads
