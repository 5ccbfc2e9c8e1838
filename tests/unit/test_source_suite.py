"""The suite for third-party sources detects violations: each of its tests fails for some source."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from itertools import count
from typing import Any

import pytest

from penstock.config.assets import Query
from penstock.config.checks import Field, Rows
from penstock.config.settings import Customer
from penstock.errors import ConfigError, PenstockError, QuotaExceeded, QuotaUsedUp, SourceUnavailable
from penstock.source.protocol import COMPLETE, Row, RunContext
from penstock.testing import SourceSuite

D1, D2, D3 = DAYS = [date(2024, 6, day) for day in (1, 2, 3)]
SERIAL = count()


class Orderly:
    """A source that does everything right; the others each do one thing wrong."""

    in_date_order = True
    api_version = "1"

    def __init__(self, options: Mapping[str, Any], context: RunContext) -> None:
        if unknown := set(options) - {"down"}:
            raise ConfigError(f"unknown option {', '.join(unknown)}")
        self._down = options.get("down", False)
        self.budget = context.budget

    def extract(self, query: Query, customer: Customer, dates: Sequence[date]) -> Iterable[tuple[date, Row]]:
        self.budget.spend()
        if self._down:
            raise SourceUnavailable("it is down")
        for day in dates:
            yield day, {"n": day.day}
            yield day, COMPLETE


class Lax(Orderly):
    def __init__(self, options: Mapping[str, Any], context: RunContext) -> None:
        super().__init__({}, context)


class Curt(Orderly):
    def __init__(self, options: Mapping[str, Any], context: RunContext) -> None:
        if options:
            raise ConfigError("no")
        super().__init__(options, context)


class Generous(Orderly):
    def extract(self, query: Query, customer: Customer, dates: Sequence[date]) -> Iterable[tuple[date, Row]]:
        yield from super().extract(query, customer, [*dates, dates[-1] + timedelta(days=1)])


class Gapless(Orderly):
    def extract(self, query: Query, customer: Customer, dates: Sequence[date]) -> Iterable[tuple[date, Row]]:
        all_of_them = [dates[0] + timedelta(days=n) for n in range((dates[-1] - dates[0]).days + 1)]
        yield from super().extract(query, customer, all_of_them)


class Empty(Orderly):
    def extract(self, query: Query, customer: Customer, dates: Sequence[date]) -> Iterable[tuple[date, Row]]:
        return [(day, COMPLETE) for day in dates]


class Fickle(Orderly):
    def extract(self, query: Query, customer: Customer, dates: Sequence[date]) -> Iterable[tuple[date, Row]]:
        self.budget.spend()
        return [(day, {"n": next(SERIAL)}) for day in dates]


class Greedy(Orderly):
    """Returns more rows for a day when it is requested with others."""

    def extract(self, query: Query, customer: Customer, dates: Sequence[date]) -> Iterable[tuple[date, Row]]:
        self.budget.spend()
        return [(day, {"n": n}) for day in dates for n in range(len(dates))]


class Backwards(Orderly):
    def extract(self, query: Query, customer: Customer, dates: Sequence[date]) -> Iterable[tuple[date, Row]]:
        yield from super().extract(query, customer, dates[::-1])


class Talkative(Orderly):
    def extract(self, query: Query, customer: Customer, dates: Sequence[date]) -> Iterable[tuple[date, Row]]:
        for day, row in super().extract(query, customer, dates):
            yield day, row
            if row is COMPLETE:
                yield day, {"n": 9}


class Wordy(Orderly):
    def extract(self, query: Query, customer: Customer, dates: Sequence[date]) -> Iterable[tuple[date, Row]]:
        for day, row in super().extract(query, customer, dates):
            yield day, row if row is COMPLETE else {"n": "one"}


class Huge(Orderly):
    def extract(self, query: Query, customer: Customer, dates: Sequence[date]) -> Iterable[tuple[date, Row]]:
        for day, row in super().extract(query, customer, dates):
            yield day, row if row is COMPLETE else b'{"n":\n1}'


class Spendthrift(Orderly):
    def extract(self, query: Query, customer: Customer, dates: Sequence[date]) -> Iterable[tuple[date, Row]]:
        return [(day, {"n": 1}) for day in dates]


class Vague(Orderly):
    def extract(self, query: Query, customer: Customer, dates: Sequence[date]) -> Iterable[tuple[date, Row]]:
        try:
            yield from super().extract(query, customer, dates)
        except SourceUnavailable as error:
            raise ValueError("?") from error


class Internal(Orderly):
    def extract(self, query: Query, customer: Customer, dates: Sequence[date]) -> Iterable[tuple[date, Row]]:
        try:
            yield from super().extract(query, customer, dates)
        except SourceUnavailable:
            yield dates[0], PenstockError("?")


class Stubborn(Orderly):
    """Goes on although it was closed."""

    def extract(self, query: Query, customer: Customer, dates: Sequence[date]) -> Iterable[tuple[date, Row]]:
        for day in dates:
            self.budget.spend()
            try:
                yield day, {"n": day.day}
            except GeneratorExit:
                yield day, {"n": 0}


class Restless(Orderly):
    """Asks again after the quota is used up."""

    def extract(self, query: Query, customer: Customer, dates: Sequence[date]) -> Iterable[tuple[date, Row]]:
        try:
            yield from super().extract(query, customer, dates)
        except QuotaUsedUp:
            yield from super().extract(query, customer, dates)


class Blurred(Orderly):
    def extract(self, query: Query, customer: Customer, dates: Sequence[date]) -> Iterable[tuple[date, Row]]:
        try:
            yield from super().extract(query, customer, dates)
        except QuotaUsedUp as error:
            raise SourceUnavailable("?") from error


class Abrupt(Orderly):
    def extract(self, query: Query, customer: Customer, dates: Sequence[date]) -> Iterable[tuple[date, Row]]:
        raise QuotaExceeded("later")


class Unshakable(Orderly):
    def __init__(self, options: Mapping[str, Any], context: RunContext) -> None:
        super().__init__({name: value for name, value in options.items() if name != "down"}, context)


class Picky(Orderly):
    def refuse(self, query: Query) -> None:
        raise ConfigError("never")


class TestOrderly(SourceSuite):
    source = Orderly
    options: Mapping[str, Any] = {}
    query = Query(name="q", source="s", fields=(Field(name="n", type="long", required=True),), checks=(Rows(min=1),))
    dates = DAYS
    failing_options = [{"down": True}]  # noqa: RUF012 - as users of the suite write it


@pytest.mark.parametrize(
    ("source", "test", "message"),
    [
        (Lax, "test_unknown_options_are_refused", "was accepted"),
        (Curt, "test_unknown_options_are_refused", "does not name the option"),
        (Generous, "test_every_row_belongs_to_a_requested_day", "which were not requested"),
        (Gapless, "test_a_span_may_have_gaps", "2024-06-02, which was not requested"),
        (Empty, "test_it_returns_rows", "no row came"),
        (Fickle, "test_a_second_fetch_returns_the_same_rows", "brought other rows"),
        (Fickle, "test_a_new_object_with_pickled_options_returns_the_same_rows", "brought other rows"),
        (Fickle, "test_objects_work_concurrently", "brought other rows"),
        (Greedy, "test_a_single_day_returns_the_same_rows_as_in_a_span", "brought other rows"),
        (Backwards, "test_nothing_comes_after_a_day_is_complete", "but in_date_order is true"),
        (Talkative, "test_nothing_comes_after_a_day_is_complete", "which was complete"),
        (Talkative, "test_rows_are_sealed_and_read_back", "after that day was complete"),
        (Wordy, "test_every_row_fits_the_contract", "n is not a whole number"),
        (Wordy, "test_rows_are_sealed_and_read_back", "n is not a whole number"),
        (Empty, "test_every_row_fits_the_contract", "at least 1 expected"),
        (Huge, "test_rows_are_sealed_and_read_back", "a line break inside"),
        (Spendthrift, "test_it_spends_its_budget", "no request was counted"),
        (Vague, "test_errors_have_an_error_class", "is not one of penstock.errors"),
        (Internal, "test_errors_have_an_error_class", "has the class INTERNAL"),
        (Unshakable, "test_errors_have_an_error_class", "brought rows, and no error"),
        (Stubborn, "test_it_ends_when_the_run_stops", "do not catch GeneratorExit"),
        (Restless, "test_a_used_up_quota_ends_the_span", "another request after QuotaUsedUp"),
        (Blurred, "test_a_used_up_quota_ends_the_span", "QuotaUsedUp became ['SourceUnavailable']"),
        (Orderly, "test_a_pause_that_the_service_asks_for_is_reported", "is not QuotaExceeded"),
        (Unshakable, "test_a_pause_that_the_service_asks_for_is_reported", "no error was raised"),
        (Abrupt, "test_a_pause_that_the_service_asks_for_is_reported", "without retry_after"),
    ],
)
def test_each_violation_of_a_source_fails_its_test(source: type[Orderly], test: str, message: str) -> None:
    suite = type("Suite", (TestOrderly,), {"source": source, "quota_options": [{"down": True}]})()
    with pytest.raises(AssertionError) as told:
        getattr(suite, test)()
    assert message in str(told.value)


def test_a_source_that_refuses_its_own_query_fails_the_suite() -> None:
    suite = type("Suite", (TestOrderly,), {"source": Picky})()
    with pytest.raises(ConfigError, match=r"queries\.q\.options: never"):
        suite.test_its_query_is_not_refused()


def test_the_suite_needs_no_spark() -> None:
    probe = "import sys, penstock.testing; print(*{'pyspark', 'pytest', 'py4j'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []
