"""Windows of days, each with no more partitions than one run may have."""

from __future__ import annotations

from datetime import date
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.control.run_splitting import by_month, windows

DUE = st.dictionaries(
    st.tuples(st.sampled_from(["ads", "demo"]), st.dates(date(2020, 1, 1), date(2025, 12, 31))),
    st.integers(0, 40),
    max_size=60,
)


@given(DUE, st.integers(1, 100))
def test_windows_do_not_overlap_and_hold_every_day(due: dict[tuple[str, date], int], size: int) -> None:
    found = windows(by_month(due), size)
    assert all(first <= last for first, last in found)
    assert all(earlier[1] < later[0] for earlier, later in pairwise(found))
    assert all(sum(first <= day <= last for first, last in found) == 1 for _, day in due)


@given(DUE, st.integers(1, 100))
def test_a_window_holds_no_more_than_it_should_unless_it_is_one_month(
    due: dict[tuple[str, date], int], size: int
) -> None:
    months = by_month(due)
    for first, last in windows(months, size):
        inside = [count for (begin, end), count in months.items() if first <= begin and end <= last]
        assert sum(inside) <= size or len([count for count in inside if count]) == 1


def test_neighbours_are_put_together_as_long_as_there_is_room() -> None:
    days = {date(2024, 1, 5): 3, date(2024, 1, 20): 3, date(2024, 2, 1): 4, date(2024, 4, 30): 1, date(2024, 5, 2): 9}
    due = {("demo", day): count for day, count in days.items()}
    expected = [(date(2024, 1, 1), date(2024, 2, 29)), (date(2024, 4, 1), date(2024, 5, 31))]
    assert windows(by_month(due), 10) == expected
    assert windows({}, 10) == []
