"""Stretches of days, each with no more in it than one run should hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from datetime import date, timedelta

from hypothesis import given
from hypothesis import strategies as st

from penstock.control.portions import Window, by_day, by_month, windows

DAYS = st.dates(date(2020, 1, 1), date(2025, 12, 31))
DUE = st.dictionaries(DAYS, st.integers(0, 40), max_size=60)
DAY = timedelta(days=1)


@given(DUE, st.integers(1, 100), st.sampled_from([by_day, by_month]))
def test_windows_follow_each_other_without_gaps_and_hold_every_day(
    due: dict[date, int], size: int, buckets: Callable[[Mapping[date, int]], dict[Window, int]]
) -> None:
    counts = buckets(due)
    found = windows(counts, size)
    assert all(first <= last for first, last in found)
    assert all(earlier[1] + DAY == later[0] for earlier, later in itertools.pairwise(found))
    assert all(sum(first <= day <= last for first, last in found) == 1 for day in due)


@given(DUE, st.integers(1, 100), st.sampled_from([by_day, by_month]))
def test_a_window_holds_no_more_than_it_should_unless_it_cannot_be_divided(
    due: dict[date, int], size: int, buckets: Callable[[Mapping[date, int]], dict[Window, int]]
) -> None:
    counts = buckets(due)
    for first, last in windows(counts, size):
        inside = [count for (begin, end), count in counts.items() if first <= begin and end <= last]
        assert sum(inside) <= size or len([count for count in inside if count]) == 1


def test_neighbours_are_put_together_as_long_as_there_is_room() -> None:
    due = {date(2024, 1, 5): 3, date(2024, 1, 20): 3, date(2024, 2, 1): 4, date(2024, 4, 30): 1, date(2024, 5, 2): 9}
    months = [(date(2024, 1, 1), date(2024, 2, 29)), (date(2024, 3, 1), date(2024, 5, 31))]
    assert windows(by_month(due), 10) == months
    days = [(date(2024, 1, 5), date(2024, 2, 1)), (date(2024, 2, 2), date(2024, 5, 2))]
    assert windows(by_day(due), 10) == days
    assert windows({}, 10) == []
