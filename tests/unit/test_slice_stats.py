"""Checks on statistics of the fields of a partition."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.config.checks import Field, check_from_mapping
from penstock.contract.evaluation import measures, stats_complaints
from penstock.contract.slice_stats import FieldStats, SliceStats, as_numbers
from support.builders import contract

FIELDS = (Field(name="n", type="double"), Field(name="at", type="timestamp"))
DAY = date(2024, 6, 1)


def complaints(
    check: dict[str, Any], figures: FieldStats, previous: dict[str, float | None] | None = None
) -> list[str]:
    judged = contract(fields=FIELDS, checks=(check_from_mapping(check),))
    stats = SliceStats(DAY, 10, {"n": figures, "at": figures}, previous)
    return [complaint.message for complaint in stats_complaints(judged, stats)]


def moment(text: str) -> FieldStats:
    number = as_numbers(pa.chunked_array([pa.array([datetime.fromisoformat(text)], pa.timestamp("us", tz="UTC"))]))
    return FieldStats(1, 0, number[0].as_py(), number[0].as_py())


@pytest.mark.parametrize(
    ("newest", "lag", "fresh"),
    [
        ("2024-06-01T23:00:00+00:00", "1h", True),
        ("2024-06-01T22:59:59+00:00", "1h", False),
        ("2025-01-01T00:00:00+00:00", "1h", True),
        ("9999-12-31T23:59:59.999999+00:00", "1h", True),
        ("0001-01-01T00:00:00+00:00", "1h", False),
        ("1100-01-01T00:00:00+00:00", "365000d", True),
    ],
)
def test_freshness_depends_on_the_newest_time_alone(newest: str, lag: str, fresh: bool) -> None:
    check = {"freshness": {"field": "at", "max_lag": lag}}
    assert (complaints(check, moment(newest)) == []) is fresh
    assert "has no value in any row" in complaints(check, FieldStats())[0]


SUM = {"compare": {"field": "n", "function": "sum", "max_change": 0.5}}


@pytest.mark.parametrize(
    ("now", "before", "words"),
    [
        (150.0, 100.0, None),
        (151.0, 100.0, "a change of 51%, at most 50%"),
        (49.0, 100.0, "a change of 51%, at most 50%"),
        (-100.0, 100.0, "a change of 200%"),
        (-140.0, -100.0, None),
        (0.0, 0.0, None),
        (1.0, 0.0, "a change from nothing"),
        (1.0, None, None),
    ],
)
def test_a_change_is_measured_against_the_trusted_run(now: float, before: float | None, words: str | None) -> None:
    found = complaints(SUM, FieldStats(3, now, now, now), {"sum(n)": before})
    assert found == [] if words is None else words in found[0]


def test_an_aggregate_without_a_finite_result_is_none() -> None:
    huge = FieldStats(2, float("inf"), 1.0, 2.0)
    assert "has no value where the trusted run has 5" in complaints(SUM, huge, {"sum(n)": 5.0})[0]
    judged = contract(fields=FIELDS, checks=(check_from_mapping(SUM),))
    assert measures(judged, SliceStats(DAY, 2, {"n": huge})) == {"sum(n)": None}
    assert measures(judged, SliceStats(DAY, 0, {"n": FieldStats()})) == {"sum(n)": 0.0}
    assert [FieldStats().aggregate(name) for name in ("sum", "count", "avg", "min", "max")] == [
        0.0,
        0.0,
        None,
        None,
        None,
    ]


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 150), st.integers(0, 150), st.integers(1, 100))
def test_a_share_is_enough_or_not(there: int, more: int, percent: int) -> None:
    rows = there + more
    judged = contract(
        fields=FIELDS, checks=(check_from_mapping({"not_null_share": {"field": "n", "min": percent / 100}}),)
    )
    found = stats_complaints(judged, SliceStats(DAY, rows, {"n": FieldStats(there)}))
    assert [complaint.count for complaint in found] == ([more] if there * 100 < rows * percent else [])
    assert stats_complaints(judged, SliceStats(DAY, 0, {"n": FieldStats()})) == []


def test_values_that_are_not_numbers_are_only_counted() -> None:
    words = pa.chunked_array([pa.array(["a", None]), pa.array(["b"])])
    assert as_numbers(words).to_pylist() == [1.0, None, 1.0]
    assert as_numbers(pa.chunked_array([pa.array([[1], None, []])])).to_pylist() == [1.0, None, 1.0]
    assert datetime.fromtimestamp(moment("2024-06-01T00:00:00+00:00").most / 1e6, UTC).date() == DAY
