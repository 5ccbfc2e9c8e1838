"""Splitting a publication into parts: every partition is in exactly one part, and untouched files stay untouched."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.partition import PartitionKey, RunId
from penstock.warehouse.format import DataFile
from penstock.warehouse.packing import NewSlice, plan_month

MB = 1024 * 1024
FIRST = date(2024, 6, 1)


def new_slice(day: int, customer: int, size: int = 15_000) -> NewSlice:
    key = PartitionKey("demo", f"{customer:010d}", "q", FIRST + timedelta(days=day))
    return NewSlice(key, RunId("01ARZ3NDEKTSV4RRFFQ69G5FAV"), 1, "digest", size)


def data_file(name: str, days: tuple[int, int], customers: tuple[int, int] = (0, 9), size: int = 32 * MB) -> DataFile:
    low, high = (FIRST + timedelta(days=day) for day in days)
    names = (f"{customers[0]:010d}", f"{customers[1]:010d}")
    return DataFile(name, "2024-06", size, 1, (low, names[0]), (high, names[1]), names)


def test_only_files_that_may_hold_a_replaced_partition_are_rewritten() -> None:
    files = [data_file("a", (0, 4)), data_file("b", (5, 9)), data_file("c", (5, 9), customers=(50, 59))]
    piece = new_slice(7, 3)
    plan = plan_month("2024-06", files, [piece], {piece.sort_key}, workers=2)
    assert plan.rewritten == ("b",)


def test_a_file_may_hold_what_lies_within_its_days_and_its_customers() -> None:
    file = data_file("a", (2, 4), customers=(5, 7))
    for day in range(7):
        for customer in range(10):
            within = 2 <= day <= 4 and 5 <= customer <= 7
            assert file.may_hold(new_slice(day, customer).sort_key) is within


def test_small_files_are_folded_when_something_is_written_anyway() -> None:
    files = [data_file("small", (0, 4), size=MB), data_file("large", (5, 9))]
    assert plan_month("2024-06", files, [new_slice(20, 1)], set(), workers=2).rewritten == ("small",)
    assert plan_month("2024-06", files, [], set(), workers=2).parts == ()


def test_a_small_file_is_copied_only_together_with_as_much_new_data() -> None:
    files = [data_file("small", (0, 4), size=8 * MB)]
    little, enough = new_slice(20, 1, size=6 * 7 * MB), new_slice(20, 1, size=6 * 9 * MB)
    assert plan_month("2024-06", files, [little], set(), workers=2).rewritten == ()
    assert plan_month("2024-06", files, [enough], set(), workers=2).rewritten == ("small",)


@given(st.lists(st.integers(1, 4 * MB), min_size=1, max_size=60))
def test_many_small_publications_leave_few_files_and_copy_no_row_often(sizes: list[int]) -> None:
    files: list[DataFile] = []
    copied = 0
    for number, size in enumerate(sizes):
        plan = plan_month("2024-06", files, [new_slice(20, 1, size=6 * size)], set(), workers=1)
        old = [file for file in files if file.path in plan.rewritten]
        copied += sum(file.size for file in old if file.size > MB)
        files = [file for file in files if file not in old]
        files.append(data_file(str(number), (0, 27), size=size + sum(file.size for file in old)))
    total = sum(sizes)
    assert sum(file.size for file in files) == total
    assert sum(file.size < 16 * MB for file in files) <= 6  # 1, 2, 4, 8 and 16 MB, and one more on its way
    assert copied <= 5 * total


def test_a_month_too_large_for_one_worker_is_cut_between_partitions() -> None:
    slices = [new_slice(day, customer, size=60 * MB) for day in range(20) for customer in range(2)]
    plan = plan_month("2024-06", [], slices, set(), workers=2)
    assert len(plan.parts) > 5
    assert [piece for part in plan.parts for piece in part.slices] == sorted(slices, key=lambda s: s.sort_key)


slices = st.lists(
    st.builds(new_slice, st.integers(0, 27), st.integers(0, 9), st.integers(0, 900 * MB)),
    unique_by=lambda piece: piece.key,
    max_size=30,
)
spans = st.tuples(st.integers(0, 27), st.integers(0, 27)).map(lambda pair: (min(pair), max(pair)))
files = st.lists(
    st.builds(data_file, st.uuids().map(str), spans, spans, st.integers(1, 80 * MB)),
    max_size=12,
    unique_by=lambda f: f.path,
)


@given(slices, files, st.integers(1, 8))
def test_each_slice_is_in_one_part_and_each_rewritten_row_falls_into_one_range(
    new: list[NewSlice], old: list[DataFile], workers: int
) -> None:
    dropped = {piece.sort_key for piece in new}
    plan = plan_month("2024-06", old, new, dropped, workers)
    assert sorted(s.key for part in plan.parts for s in part.slices) == sorted(s.key for s in new)
    edges: list[Any] = [part.low for part in plan.parts] + [part.high for part in plan.parts][-1:]
    if edges:
        assert (edges[0], edges[-1]) == (None, None)
        assert edges[1:-1] == sorted(edges[1:-1])
    assert {path for part in plan.parts for path in part.files} == set(plan.rewritten)
    for file in old:
        if any(file.may_hold(key) for key in dropped):
            assert file.path in plan.rewritten
        # A file is offered to every part that its rows can fall into.
        if file.path in plan.rewritten:
            for part in plan.parts:
                overlaps = (part.low is None or file.last >= part.low) and (part.high is None or file.first < part.high)
                assert (file.path in part.files) == overlaps
