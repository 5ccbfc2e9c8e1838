"""Plans that are too large for one run: every partition once, whatever its outcome, on both databases."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from penstock.control import run_splitting
from penstock.control.plan import ASKED_FOR, Plan, asked_for
from penstock.control.run_splitting import RunBatches, by_month, windows
from penstock.expected import ExpectedRange
from penstock.lifecycle import PartitionStatus, PlanReason
from penstock.partition import PartitionKey
from support import builders
from support.builders import BACKENDS, Actors, contract

NOW = datetime(2024, 7, 1, 12, tzinfo=UTC)
QUERIES = ("campaign_daily", "keyword_daily")
APRIL, MAY, JUNE = ((date(2024, month, 26), date(2024, month + 1, 1) - timedelta(days=1)) for month in (4, 5, 6))


@pytest.fixture(params=BACKENDS)
def actors(request: pytest.FixtureRequest) -> Iterator[Actors]:
    with builders.quick_folder() as folder:
        database = builders.open_database(request.param, folder, lambda: request.getfixturevalue("postgres_url"))
        found = Actors.on(builders.migrated(database))
        found.clock.now = NOW
        yield found
        database.close()


def ranges(*sources: str, customers: int = 3) -> list[ExpectedRange]:
    """The last days of three months, for each customer and query: 5, 6 and 5."""
    return [
        ExpectedRange(source, str(1_000_000_000 + number), name, first, last)
        for source in sources or ("demo",)
        for number in range(customers)
        for name in QUERIES
        for first, last in (APRIL, MAY, JUNE)
    ]


def portions(actors: Actors, size: int, reasons: Sequence[PlanReason] = ASKED_FOR) -> RunBatches:
    contracts = {name: contract(name=name) for name in QUERIES}
    return RunBatches(actors.reader, contracts, actors.clock, {}, reasons, None, size)


def keys(plans: Sequence[Plan]) -> list[PartitionKey]:
    return [item.key for plan in plans for item in plan.items]


def every(spans: Sequence[ExpectedRange]) -> set[PartitionKey]:
    return {
        PartitionKey(span.source, span.customer_id, span.query_name, span.first + timedelta(days=number))
        for span in spans
        for number in range(len(span))
    }


def always(_source: str) -> bool:
    return True


@pytest.mark.parametrize("size", [1, 7, 12, 24, 40, 1000])
def test_every_partition_is_in_one_portion_and_no_portion_is_too_large(actors: Actors, size: int) -> None:
    found = list(portions(actors, size).of(lambda: ranges(), always))
    assert len(keys(found)) == len(set(keys(found)))
    assert set(keys(found)) == every(ranges())
    largest_customer = 2 * 6  # both queries and all days of a month
    assert all(len(plan.items) <= max(size, largest_customer) for plan in found)
    assert [plan.later for plan in found] == [
        len(keys(found)) - sum(len(plan.items) for plan in found[: at + 1]) for at in range(len(found))
    ]


def test_a_plan_examines_the_customers_that_it_may_hold_and_no_others(
    actors: Actors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_splitting, "_SMALLEST_READ", 0)
    asked: list[int] = []

    def count_ranges(_c: Any, _cursor: Any, _statement: str, parameters: Any, *_: Any) -> None:
        values = parameters.values() if isinstance(parameters, dict) else parameters
        asked.extend(len(json.loads(value)) for value in values if isinstance(value, str) and value.startswith("[["))

    spans = ranges(customers=50)
    plans = portions(actors, 24).of(lambda: spans, always)
    found = [next(plans)]
    sa.event.listen(actors.database.engine, "before_cursor_execute", count_ranges)
    found += plans
    assert set(keys(found)) == every(spans)
    per_customer = 2  # a range for each query, cut to one month
    assert max(asked) <= 3 * per_customer  # two customers fill a plan, the third shows that there is more


def test_customers_are_compared_in_one_order(actors: Actors, monkeypatch: pytest.MonkeyPatch) -> None:
    """Databases sort text by their own rules: no customer may be lost between two plans."""
    monkeypatch.setattr(run_splitting, "_SMALLEST_READ", 0)
    names = ["B", "a", "b", "A-1", "a1", "A1", "_", "10", "9"]
    spans = [replace(span, customer_id=name) for name in names for span in ranges(customers=1)]
    found = keys(list(portions(actors, 12).of(lambda: spans, always)))
    assert len(found) == len(set(found))
    assert set(found) == every(spans)


def test_newest_months_come_first_and_the_slices_of_a_customer_and_day_stay_together(actors: Actors) -> None:
    found = list(portions(actors, 13).of(lambda: ranges("ads", "demo"), always))
    months = [item.key.logical_date.month for plan in found for item in plan.items]
    assert months == sorted(months, reverse=True)
    seen: dict[tuple[str, date], int] = {}
    for number, plan in enumerate(found):
        for item in plan.items:
            assert seen.setdefault((item.key.customer_id, item.key.logical_date), number) == number
    assert len(found) == 9  # one customer with both sources in each: more than the size, and not divided


@pytest.mark.parametrize("fate", ["accept", "reject", "cancel", "leave"])
@pytest.mark.parametrize("reprocess", [False, True])
def test_whatever_becomes_of_a_partition_it_is_attempted_once(actors: Actors, fate: str, reprocess: bool) -> None:
    spans = ranges(customers=2)
    attempted: list[PartitionKey] = []
    for plan in portions(actors, 10, asked_for(reprocess)).of(lambda: spans, always):
        for item in plan.items:
            attempted.append(item.key)
            if fate == "accept":
                actors.accept(item.key)
            elif fate == "reject":
                actors.reject(item.key)
            elif fate == "cancel":
                actors.cancel(item.key)
    assert len(attempted) == len(set(attempted)) == len(every(spans))


def test_what_another_has_done_meanwhile_is_left_alone(actors: Actors) -> None:
    plans = portions(actors, 12).of(lambda: ranges(), always)
    first = next(plans)
    rest = every(ranges()) - set(keys([first]))
    done = sorted(rest)[:20]
    for partition in done:
        actors.accept(partition)
    assert set(keys(list(plans))) == rest - set(done)


def test_a_failing_source_is_probed_in_two_more_runs_then_left_out_and_counted(actors: Actors) -> None:
    found = list(portions(actors, 24).of(lambda: ranges("ads", "demo"), lambda source: source == "demo"))
    *planned, last = found
    assert all({key.source for key in keys([plan])} == {"ads", "demo"} for plan in planned[:3])
    assert {key.source for key in keys(planned[3:])} == {"demo"}
    left_out = every(ranges("ads", "demo")) - set(keys(found))
    assert {key.source for key in left_out} == {"ads"}
    assert (last.items, last.blocked) == ((), {"ads": len(left_out)})


def test_a_failing_source_that_comes_later_is_probed(actors: Actors) -> None:
    """An operator who starts a run may have fixed the source: the run that includes the source sends a probe."""
    demo, ads = ranges("demo", customers=1), [replace(span, customer_id="2") for span in ranges("ads", customers=1)]
    found = list(portions(actors, 10).of(lambda: [*demo, *ads], lambda source: source == "demo"))
    assert [sorted({key.source for key in keys([plan])}) for plan in found] == [["demo"], ["ads"]] * 3


def test_after_a_pause_a_source_goes_on(actors: Actors) -> None:
    answers = iter([False, False, False, *[True] * 20])
    found = list(portions(actors, 12).of(lambda: ranges(), lambda source: next(answers)))
    *planned, last = found
    left_out = every(ranges()) - set(keys(planned))
    assert left_out == {key for key in every(ranges()) if key.logical_date.month == 5}
    assert last.blocked == {"demo": len(left_out)}


def test_a_source_that_recovers_may_fail_as_often_as_before(actors: Actors) -> None:
    """It is tried in three portions; then it may go on, and is tried in three more before it is left out."""
    answers = iter([False, False, True, *[False] * 20])
    found = list(portions(actors, 12).of(lambda: ranges(customers=8), lambda source: next(answers)))
    *planned, last = found
    assert len(planned) == 6
    assert last.blocked == {"demo": len(every(ranges(customers=8))) - len(keys(planned))}


def test_what_is_exactly_as_large_as_a_portion_is_not_divided(actors: Actors) -> None:
    newest = [span for span in ranges(customers=2) if span.first == JUNE[0]]
    assert [len(plan.items) for plan in portions(actors, 20).of(lambda: newest, always)] == [20]
    assert [len(plan.items) for plan in portions(actors, 19).of(lambda: newest, always)] == [10, 10]


def test_a_failing_source_without_remaining_work_is_not_reported(actors: Actors) -> None:
    some = [*ranges("demo"), *(span for span in ranges("ads") if span.first == JUNE[0])]
    found = list(portions(actors, 24).of(lambda: some, lambda source: source == "demo"))
    assert set(keys(found)) == every(some)
    assert all(plan.items and not plan.blocked for plan in found)


def test_windows_hold_neighbours_as_long_as_they_fit_in_the_order_of_time() -> None:
    months = [(date(2024, n, 1), date(2024, n + 1, 1) - timedelta(days=1)) for n in (1, 2, 3, 4, 5)]
    counts = dict(zip(reversed(months), (5, 9, 1, 4, 6), strict=True))  # January has 6, February 4, ...
    jan, feb, mar, apr, may = months
    assert windows(counts, 10) == [(jan[0], feb[1]), (mar[0], apr[1]), may]
    assert windows(counts, 9) == [jan, (feb[0], mar[1]), apr, may]
    assert windows(counts, 1) == months
    assert windows({}, 10) == []


def test_days_are_counted_in_their_months_whatever_their_source() -> None:
    counts = {("a", date(2024, 2, 1)): 1, ("b", date(2024, 2, 29)): 2, ("a", date(2024, 12, 31)): 4}
    assert by_month(counts) == {
        (date(2024, 2, 1), date(2024, 2, 29)): 3,
        (date(2024, 12, 1), date(2024, 12, 31)): 4,
    }


def test_days_that_freeze_before_their_turn_comes_are_not_planned(actors: Actors) -> None:
    frozen_before = date.min
    asked = lambda: [replace(span, frozen_before=frozen_before) for span in ranges()]  # noqa: E731 - read again each time
    plans = portions(actors, 12).of(asked, always)
    first = next(plans)
    frozen_before = date(2024, 5, 1)
    rest = keys(list(plans))
    assert {key.logical_date.month for key in rest} == {5, 6}
    assert set(rest) == {key for key in every(ranges()) if key.logical_date >= frozen_before} - set(keys([first]))


def test_a_filter_by_status_holds_in_portions(actors: Actors) -> None:
    spans = ranges(customers=2)
    done = {key for key in every(spans) if key.logical_date.day % 2}
    for partition in done:
        actors.accept(partition)
    only_success = replace(portions(actors, 5, asked_for(True)), status=PartitionStatus.SUCCESS)
    found = list(only_success.of(lambda: spans, always))
    assert len(found) > 2
    assert sorted(keys(found)) == sorted(done)


def test_days_are_restated_in_portions_by_their_age_and_not_by_the_window_they_are_in(actors: Actors) -> None:
    spans = [replace(span, over=date(2024, 7, 30)) for span in ranges(customers=2)]
    for partition in every(spans):
        actors.accept(partition)
    again = replace(portions(actors, 5, (PlanReason.RESTATE,)), restated={QUERIES[0]: (30,)})
    actors.clock.now += timedelta(days=30)
    found = keys(list(again.of(lambda: spans, always)))
    # The days of June became so old after their verdict; those before were that old when it was passed.
    assert sorted(found) == sorted(k for k in every(spans) if k.query_name == QUERIES[0] and k.logical_date.month == 6)


def test_when_nothing_is_due_there_is_no_portion(actors: Actors) -> None:
    assert list(portions(actors, 5).of(list, always)) == []
    spans = ranges(customers=1)[:1]
    for partition in every(spans):
        actors.accept(partition)
    assert list(portions(actors, 5).of(lambda: spans, always)) == []
