"""Laws of the comparison of two runs: an equal run has no differences, counts add up, sides can be swapped."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.app.run_comparison import UNPARSED, Comparison, RowDifference, compare_lines

scalars = st.none() | st.booleans() | st.integers(-3, 12) | st.sampled_from(["", "a", "<b>", "ü"]) | st.floats(-2, 2)
rows = st.dictionaries(st.sampled_from(["id", "day", "clicks"]), scalars | st.lists(scalars, max_size=2), max_size=3)
lines = st.lists(
    rows.map(lambda row: json.dumps(row).encode()) | st.sampled_from([b"", b"no JSON", b"[1]", b'{"id": NaN}']),
    max_size=12,
)
keys = st.sampled_from([(), ("id",), ("id", "day")])


def shape(row: RowDifference) -> str:
    return repr((row.kind, row.left, row.right, sorted(row.changed_fields)))


def swapped(row: RowDifference) -> RowDifference:
    return RowDifference(row.right, row.left, row.changed_fields)


@given(lines, keys, st.randoms())
def test_a_run_has_no_differences_from_itself_in_any_order(run: list[bytes], key: tuple[str, ...], random: Any) -> None:
    other = list(run)
    random.shuffle(other)
    assert compare_lines(run, other, key) == Comparison(key, len(run), 0, 0, 0, [])


@given(lines, lines, keys)
def test_counts_add_up(left: list[bytes], right: list[bytes], key: tuple[str, ...]) -> None:
    found = compare_lines(left, right, key)
    assert found.same + found.removed + found.changed == len(left)
    assert found.same + found.added + found.changed == len(right)
    kinds = Counter(row.kind for row in found.rows)
    assert (kinds["added"], kinds["removed"], kinds["changed"]) == (found.added, found.removed, found.changed)
    assert found.different == len(found.rows)
    assert all(row.changed_fields for row in found.rows if row.kind == "changed")
    assert not key or not any(set(key) & set(row.changed_fields) for row in found.rows)


@given(lines, lines, keys)
def test_swapped_sides_swap_the_differences(left: list[bytes], right: list[bytes], key: tuple[str, ...]) -> None:
    one, other = compare_lines(left, right, key), compare_lines(right, left, key)
    assert (one.same, one.added, one.removed, one.changed) == (other.same, other.removed, other.added, other.changed)
    assert sorted(map(shape, one.rows)) == sorted(shape(swapped(row)) for row in other.rows)


@given(lines, lines, keys, st.integers(0, 5))
def test_a_limit_lists_the_first_differences_and_counts_all(
    left: list[bytes], right: list[bytes], key: tuple[str, ...], limit: int
) -> None:
    whole, short = compare_lines(left, right, key), compare_lines(left, right, key, limit)
    assert short.rows == whole.rows[:limit]
    assert (short.same, short.different) == (whole.same, whole.different)


@given(lines, lines, keys)
def test_whole_rows_are_a_multiset(left: list[bytes], right: list[bytes], key: tuple[str, ...]) -> None:
    """A key changes how differences are shown, not how many rows are the same."""
    assert compare_lines(left, right, key).same == compare_lines(left, right).same


def test_a_row_with_the_same_key_is_changed_and_its_other_fields_are_named() -> None:
    left = [b'{"id": 9, "clicks": 1, "name": "a"}', b'{"id": 10, "clicks": 1}', b'{"id": 3}']
    right = [b'{"id": 10, "clicks": 1.0}', b'{"name": "a", "id": 9.0, "clicks": 2}', b'{"id": 100}']
    found = compare_lines(left, right, ("id",))
    assert (found.same, found.added, found.removed, found.changed) == (1, 1, 1, 1)
    assert [row.kind for row in found.rows] == ["removed", "changed", "added"]  # by key: 3, 9, 100
    assert found.rows[1].changed_fields == ("clicks",)
    assert found.rows[1].right == {"name": '"a"', "id": "9.0", "clicks": "2"}
    assert found.fields == ("id", "clicks", "name")


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("12345678901234567890123456789012345678901234567890", "12345678901234567890123456789012345678901234567891"),
        ("0.1000000000000000000001", "0.1000000000000000000002"),
        ("true", "1"),
        ('"1"', "1"),
        ("null", '"null"'),
        ("1e999999999", "1e999999998"),
    ],
)
def test_different_values_are_never_the_same(left: str, right: str) -> None:
    found = compare_lines([f'{{"a": {left}}}'.encode()], [f'{{"a": {right}}}'.encode()])
    assert (found.same, found.added, found.removed) == (0, 1, 1)


@pytest.mark.parametrize(
    ("left", "right"), [("1", "1.0"), ("100", "1e2"), ("0", "-0.0"), ("0.5", "5e-1"), ('"\\u00fc"', '"ü"')]
)
def test_equal_values_may_be_written_differently(left: str, right: str) -> None:
    assert compare_lines([f'{{"a": {left}}}'.encode()], [f'{{"a": {right}}}'.encode()]).same == 1


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}", b"1" * 10_000, b"\xff"])
def test_lines_that_cannot_be_parsed_are_shown_as_text(line: bytes) -> None:
    found = compare_lines([line], [], ("a",))
    [row] = found.rows
    assert row.left is not None
    assert list(row.left) in ([UNPARSED], ["a"])
