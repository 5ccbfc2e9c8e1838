"""A test suite for sources: subclass it, set your source, and run pytest. It needs no Spark."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import orjson

from penstock.config.assets import Query
from penstock.config.settings import Customer, SourceSettings
from penstock.contract.complaint import summary
from penstock.contract.contract import Contract
from penstock.contract.evaluation import count_complaints, row_rules
from penstock.contract.parse import Parsed, parse_many
from penstock.errors import ConfigError, ErrorClass, PenstockError, QuotaExceeded, QuotaUsedUp
from penstock.lake import open_lake
from penstock.partition import new_run_id
from penstock.pipeline.extract import Extracted, extract_locally
from penstock.pipeline.source_requests import Extraction
from penstock.raw.reader import RawReader
from penstock.source.budget import Budget
from penstock.source.protocol import COMPLETE, Row, RunContext, Source
from penstock.source.registry import refuse_queries

__all__ = ["SourceSuite"]

Rows = dict[date, list[bytes]]


class SourceSuite:
    """The contract of a source, as tests.

    `options` are those of `sources.<name>`; `query` must succeed for `customer` on all `dates` and return some rows.
    With each of `failing_options` (a wrong password, a closed port) `extract` must raise or yield an error of
    `penstock.errors` other than INTERNAL. With each of `quota_options` the service asks for a pause. An autouse fixture
    may set attributes on `self` that are known only when a test runs, such as the port of a server.
    """

    source: Callable[[Mapping[str, Any], RunContext], Source]
    options: Mapping[str, Any]
    query: Query
    customer: Customer = Customer(id="1")
    dates: Sequence[date]
    failing_options: Sequence[Mapping[str, Any]] = ()
    quota_options: Sequence[Mapping[str, Any]] = ()
    asks_a_service: ClassVar[bool] = True  # False for a source that sends no requests, so has no rate limit

    def test_unknown_options_are_refused(self) -> None:
        refused: ConfigError | None = None
        try:
            self._source({**self.options, "no_such_option": 1})
        except ConfigError as error:
            refused = error
        assert refused, "the option no_such_option was accepted: raise a ConfigError in __init__"
        assert "no_such_option" in str(refused), f"the refusal does not name the option: {refused}"

    def test_its_query_is_not_refused(self) -> None:
        refuse_queries(self._source(), [self.query])

    def test_every_row_belongs_to_a_requested_day(self) -> None:
        found = {day for day, _ in self._extract()}
        assert found <= set(self.dates), f"rows for {sorted(found - set(self.dates))}, which were not requested"

    def test_it_returns_rows(self) -> None:
        assert any(self._rows().values()), "no row came for any day: the suite would prove nothing"

    def test_a_second_fetch_returns_the_same_rows(self) -> None:
        source = self._source()
        _same(self._rows(source), self._rows(source), "a second fetch by the same object")

    def test_a_new_object_with_pickled_options_returns_the_same_rows(self) -> None:
        """Options are pickled and sent to Spark's workers; every worker creates its own object."""
        options = pickle.loads(pickle.dumps(dict(self.options)))  # noqa: S301 - our own bytes
        _same(self._rows(), self._rows(self._source(options)), "another object")

    def test_a_single_day_returns_the_same_rows_as_in_a_span(self) -> None:
        whole = self._rows()
        alone = {day: self._rows(dates=[day])[day] for day in self.dates}
        _same(whole, alone, "each day on its own")

    def test_a_span_may_have_gaps(self) -> None:
        """Rows that a request returns for the missing days must not be yielded."""
        outer = sorted({self.dates[0], self.dates[-1]})
        whole = self._rows()
        _same({day: whole[day] for day in outer}, self._rows(dates=outer), "the first and the last day without others")

    def test_objects_work_concurrently(self) -> None:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: self._rows(), range(4)))
        for other in found[1:]:
            _same(found[0], other, "objects in four threads")

    def test_nothing_comes_after_a_day_is_complete(self) -> None:
        source = self._source()
        complete: set[date] = set()
        last: date | None = None
        for day, row in self._extract(source):
            assert day not in complete, f"{row!r} came for {day}, which was complete"
            if source.in_date_order:
                assert last is None or day >= last, f"{day} came after {last}, but in_date_order is true"
                last = day
            if row is COMPLETE:
                complete.add(day)

    def test_every_row_fits_the_contract(self) -> None:
        contract = Contract.of(self.query)
        for day, lines in self._rows().items():
            parsed = parse_many([b"".join(line + b"\n" for line in lines)], contract)
            _expect_no_complaints(day, contract, parsed, len(lines))

    def test_rows_are_sealed_and_read_back(self) -> None:
        contract = Contract.of(self.query)
        with TemporaryDirectory() as folder:
            reader = RawReader(open_lake(folder))
            for found in self._sealed(folder):
                day = found.attempt.partition.logical_date
                assert found.ok, f"{day} was not sealed: {found.error_class}: {found.error_message}"
                seal = reader.seal(found.attempt)
                assert seal is not None, f"{day} has no seal"
                parsed = parse_many([reader.payload(seal)], contract)
                _expect_no_complaints(day, contract, parsed, seal.record_count)

    def test_it_spends_its_budget(self) -> None:
        budget = _Counted()
        for _ in self._extract(self._source(context=RunContext(new_run_id(), budget))):
            pass
        if self.asks_a_service:
            assert budget.spent > 0, "no request was counted: call context.budget.spend() before each request"

    def test_it_ends_when_the_run_stops(self) -> None:
        """A run that is cancelled closes the iterator: nothing follows, and no further request is sent."""
        budget = _Counted()
        rows = iter(
            self._source(context=RunContext(new_run_id(), budget)).extract(self.query, self.customer, self.dates)
        )
        next(rows, None)
        spent = budget.spent
        close = getattr(rows, "close", lambda: None)
        try:
            close()
        except RuntimeError as error:
            raise AssertionError("it yields rows after it was closed: do not catch GeneratorExit") from error
        assert budget.spent == spent, "it sends requests after it was closed"
        assert next(rows, None) is None or not hasattr(rows, "close"), "it continues after it was closed"

    def test_a_used_up_quota_ends_the_span(self) -> None:
        """No request follows; the days that are complete by then are kept."""
        for allowed in range(3 if self.asks_a_service else 0):
            budget = _UsedUp(allowed)
            errors = list(self._errors_of(self._source(context=RunContext(new_run_id(), budget))))
            if budget.refused:
                named = [type(error).__name__ for error in errors]
                assert named == ["QuotaUsedUp"], f"QuotaUsedUp became {named or 'no error'}: let it pass"
                assert budget.refused == 1, "it asks for another request after QuotaUsedUp"

    def test_a_pause_that_the_service_asks_for_is_reported(self) -> None:
        for options in self.quota_options:
            errors = list(self._errors(options))
            assert errors, "the service asked for a pause, and no error was raised"
            for error in errors:
                assert isinstance(error, QuotaExceeded), f"{error!r} is not QuotaExceeded: the attempts would count"
                assert error.retry_after, "QuotaExceeded without retry_after: pass the seconds that the service names"

    def test_errors_have_an_error_class(self) -> None:
        for options in self.failing_options:
            errors = list(self._errors(options))
            assert errors, "options that cannot work brought rows, and no error"
            for error in errors:
                assert isinstance(error, PenstockError), f"{error!r} is not one of penstock.errors"
                known = isinstance(error, PenstockError) and error.error_class is not ErrorClass.INTERNAL
                assert known, f"{error!r} has the class INTERNAL: raise the error whose class names the cause"

    def _source(self, options: Mapping[str, Any] | None = None, context: RunContext | None = None) -> Source:
        make = type(self).source
        return make(self.options if options is None else options, context or RunContext(new_run_id()))

    def _extract(self, source: Source | None = None, dates: Sequence[date] | None = None) -> Iterator[tuple[date, Row]]:
        yield from (source or self._source()).extract(self.query, self.customer, dates or self.dates)

    def _rows(self, source: Source | None = None, dates: Sequence[date] | None = None) -> Rows:
        found: Rows = {day: [] for day in dates or self.dates}
        for day, row in self._extract(source, dates):
            if isinstance(row, PenstockError):
                raise AssertionError(f"{day} failed: {row}")
            assert day in found, f"a row came for {day}, which was not requested"
            if row is not COMPLETE:
                found[day].append(row if isinstance(row, bytes) else orjson.dumps(row))
        return found

    def _errors(self, options: Mapping[str, Any]) -> Iterator[Exception]:
        return self._errors_of(self._source(options))

    def _errors_of(self, source: Source) -> Iterator[Exception]:
        try:
            for _, row in self._extract(source):
                if isinstance(row, PenstockError):
                    yield row
        except Exception as error:  # noqa: BLE001 - which kind it is is the question
            yield error

    def _sealed(self, folder: str) -> list[Extracted]:
        settings = SourceSettings(name=self.query.source, kind="under_test")
        name = self.query.name
        extraction = Extraction(folder, new_run_id(), settings, {name: self.query}, {name: "under_test"})
        return extract_locally(extraction, self._source(), self.query, self.customer, self.dates)


class _Counted(Budget):
    """A budget without a limit that counts what was spent."""

    def __init__(self) -> None:
        super().__init__()
        self.spent = 0

    def spend(self, requests: int = 1) -> None:
        self.spent += requests


class _UsedUp(Budget):
    """A quota with some requests left."""

    def __init__(self, allowed: int) -> None:
        super().__init__()
        self._allowed = allowed
        self.refused = 0

    def spend(self, requests: int = 1) -> None:
        self._allowed -= requests
        if self._allowed < 0:
            self.refused += 1
            raise QuotaUsedUp("the quota is used up")


def _same(expected: Rows, found: Rows, who: str) -> None:
    for day, rows in expected.items():
        assert sorted(rows) == sorted(found[day]), f"{who} brought other rows for {day}: {found[day]}, not {rows}"


def _expect_no_complaints(day: date, contract: Contract, parsed: Parsed, count: int) -> None:
    """Check types, fields, and every check that does not need Spark."""
    complaints = [*parsed.complaints.get(0, ()), *count_complaints(contract, count, previous=None)]
    assert not complaints, f"{day} does not satisfy the contract: {summary(complaints)}"
    for rule in row_rules(contract):
        if (broken := rule.arrow_rule(contract)) is not None:
            rows = broken(parsed.table).to_pylist()
            assert not any(rows), f"{day}: {rule.message} (line {rows.index(True) + 1 if any(rows) else 0})"
