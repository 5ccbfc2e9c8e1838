"""The horizon of a source: nothing before it is ever planned or fetched."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.assets import Query
from penstock.config.checks import Field
from penstock.config.settings import Customer, Settings, SourceSettings, StateSettings
from penstock.config.values import Keeps
from penstock.control.ranges import without_frozen
from penstock.control.select import Selection, due_range, expected
from penstock.expected import ExpectedRange
from penstock.lake import open_lake
from penstock.partition import PartitionKey, new_run_id
from penstock.pipeline.source_requests import Extraction, SpanRequest
from penstock.raw.sink import RawSink
from penstock.raw.uploads import UploadPool
from penstock.source.budget import Budget
from penstock.source.horizon import horizon
from penstock.source.protocol import RunContext
from penstock.source.registry import make_source
from support.builders import days

NOW = datetime(2026, 6, 10, 12, tzinfo=UTC)
QUERY = Query(name="q", source="shop", start_date=date(2026, 6, 1), fields=(Field(name="clicks", type="long"),))


def source(keeps: str | None = None, kind: str = "demo") -> SourceSettings:
    return SourceSettings.model_validate({"name": "shop", "kind": kind, "keeps": keeps})


def settings(keeps: str | None, zone: str = "UTC") -> Settings:
    return Settings(
        root=Path("/nowhere"),
        tenant="acme",
        workspace="ads",
        state=StateSettings(url="sqlite:///state.db"),
        lake="/nowhere/lake",
        customers=(Customer(id="1", time_zone=zone),),
        sources={"shop": source(keeps)},
        queries={"q": QUERY},
    )


@pytest.mark.parametrize(
    ("keeps", "today", "first"),
    [
        ("37 months", date(2026, 6, 10), date(2023, 5, 10)),
        ("1 month", date(2024, 3, 31), date(2024, 2, 29)),  # a month that is shorter ends earlier
        ("1 year", date(2024, 2, 29), date(2023, 2, 28)),
        ("12months", date(2024, 1, 1), date(2023, 1, 1)),
        ("10 days", date(2024, 3, 5), date(2024, 2, 24)),
        ("400d", date(2024, 3, 5), date(2023, 1, 30)),
        ("9999 years", date(2024, 3, 5), None),
        ("forever", date(2024, 3, 5), None),
    ],
)
def test_a_source_keeps_calendar_months_or_days(keeps: str, today: date, first: date | None) -> None:
    assert horizon(source(keeps), today) == first


def test_what_a_kind_is_known_to_keep_can_be_overruled() -> None:
    assert horizon(source(kind="google_ads"), date(2026, 6, 10)) == date(2023, 5, 10)
    assert horizon(source("forever", kind="google_ads"), date(2026, 6, 10)) is None
    assert horizon(source(kind="demo"), date(2026, 6, 10)) is None


@pytest.mark.parametrize("text", ["37", "0 days", "months", "-1 days", "37 moons", "1.5 years"])
def test_other_values_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write 37 months, 400 days or forever"):
        source(text)


@given(today=st.dates(date(1990, 1, 1), date(2090, 1, 1)), months=st.integers(1, 600), step=st.integers(0, 400))
def test_the_horizon_never_moves_back(today: date, months: int, step: int) -> None:
    kept = Keeps(months=months)
    first, later = kept.first_day(today), kept.first_day(today + timedelta(days=step))
    assert first is not None
    assert later is not None
    assert first <= later
    assert first <= today


def test_expected_days_stay_expected_when_they_freeze() -> None:
    [found] = expected(settings("3 days"), Selection(), NOW)
    assert (found.first, found.last, found.frozen_before) == (date(2026, 6, 1), date(2026, 6, 9), date(2026, 6, 7))
    [left] = without_frozen([found])
    assert (left.first, left.last) == (date(2026, 6, 7), date(2026, 6, 9))


def test_the_horizon_is_where_the_account_lives() -> None:
    key = PartitionKey("shop", "1", "q", date(2026, 6, 7))
    assert not due_range(settings("3 days"), key, NOW).is_frozen(key.logical_date)
    assert due_range(settings("3 days", "Pacific/Auckland"), key, NOW).is_frozen(key.logical_date)  # it is the 11th
    [named] = expected(settings("3 days", "Pacific/Auckland"), Selection(keys=(key,)), NOW)
    assert named.is_frozen(key.logical_date)


@given(
    low=st.integers(1, 25), length=st.integers(0, 5), frozen=st.none() | st.dates(date(2024, 5, 1), date(2024, 7, 31))
)
def test_thawing_leaves_exactly_the_days_that_are_not_frozen(low: int, length: int, frozen: date | None) -> None:
    span = days(low, low + length)
    span = ExpectedRange(span.source, span.customer_id, span.query_name, span.first, span.last, frozen_before=frozen)
    every = [span.first + timedelta(days=n) for n in range(len(span))]
    left = [piece.first + timedelta(days=n) for piece in without_frozen([span]) for n in range(len(piece))]
    assert left == [day for day in every if not span.is_frozen(day)]


class Ticking:
    """A clock that returns one time at first, and another from the given call on."""

    def __init__(self, first: datetime, then: datetime, after: int) -> None:
        self._moments = [first] * after
        self._then = then

    def __call__(self) -> datetime:
        return self._moments.pop() if self._moments else self._then


def fetched(folder: Path, clock: Ticking) -> dict[date, str]:
    dates = [date(2026, 6, day) for day in (6, 7, 8)]
    extraction = Extraction(str(folder), new_run_id(), source("3 days"), {"q": QUERY}, {"q": "hash"}, clock=clock)
    made = make_source(extraction.source, RunContext(extraction.run_id, Budget()))
    span = SpanRequest(extraction, RawSink(open_lake(str(folder))), UploadPool(1), made, QUERY, Customer(id="1"), dates)
    span.fetch()
    return {row["logical_date"]: row.get("error_message") or str(row["record_count"]) for row in span.outcomes()}


def test_a_day_that_froze_after_it_was_issued_is_not_fetched(tmp_path: Path) -> None:
    assert fetched(tmp_path, Ticking(NOW, NOW, 0)) == {
        date(2026, 6, 6): "the day is frozen: the source serves only 2026-06-07 and later",
        date(2026, 6, 7): "20",
        date(2026, 6, 8): "20",
    }


def test_a_day_that_froze_while_it_was_fetched_is_not_sealed(tmp_path: Path) -> None:
    found = fetched(tmp_path, Ticking(NOW, NOW + timedelta(days=1), 3))
    assert found[date(2026, 6, 7)] == "the day is frozen: the source serves only 2026-06-08 and later"
    assert found[date(2026, 6, 8)] == "20"
    assert not list((tmp_path / "raw").rglob("logical_date=2026-06-07/**/metadata.json"))
