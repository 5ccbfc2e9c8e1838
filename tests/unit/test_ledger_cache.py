"""The cache of values that are derived from the ledger: how much it holds."""

from __future__ import annotations

from penstock.projections.ledger_cache import LedgerCache
from support.builders import NOW


def computed(cache: LedgerCache[bytes], name: str, size: int, moment: int = 1) -> bool:
    """Whether the value of this name had to be computed."""
    calls = []

    def compute() -> tuple[bytes, None]:
        calls.append(name)
        return b"x" * size, None

    assert len(cache.get(name, moment, NOW, compute)) == size
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
