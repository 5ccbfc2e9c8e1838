"""Pauses by selector against a model that enumerates every partition."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date, timedelta
from itertools import product
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.expected import ExpectedRange
from penstock.partition import PartitionKey
from penstock.state.pause_scope import Change, PauseSelector, PauseSelectors, Scope, paused_by, resumed_by

Decide = Callable[[Sequence[PauseSelector], Sequence[Scope]], Change]

FIRST = date(2024, 6, 1)
DAYS = [FIRST + timedelta(days=n) for n in range(6)]
KEYS = [PartitionKey(*names) for names in product(("ads", "demo"), ("1", "2"), ("clicks", "spend"), DAYS)]

some_day = st.none() | st.sampled_from(DAYS)
scopes = st.builds(
    Scope,
    st.sampled_from((None, "ads", "demo")),
    st.sampled_from((None, "1", "2")),
    st.sampled_from((None, "clicks", "spend")),
    some_day,
    some_day,
).filter(lambda scope: scope.first is None or scope.last is None or scope.first <= scope.last)


def names(scope: Scope, key: PartitionKey) -> bool:
    return (
        scope.source in (None, key.source)
        and scope.customer_id in (None, key.customer_id)
        and scope.query_name in (None, key.query_name)
        and (scope.first or key.logical_date) <= key.logical_date <= (scope.last or key.logical_date)
    )


def written(selectors: Sequence[PauseSelector], change: Change, paused: bool) -> list[PauseSelector]:
    kept = [selector for selector in selectors if selector.selector_no not in change.obsolete]
    number = max((selector.selector_no for selector in selectors), default=0) + 1
    return [*kept, *(PauseSelector(no, scope, paused) for no, scope in enumerate(change.inserts, start=number))]


def single(keys: Sequence[PartitionKey]) -> list[Scope]:
    """A scope of one day for each of these partitions."""
    return [Scope(key.source, key.customer_id, key.query_name, key.logical_date, key.logical_date) for key in keys]


@given(st.lists(st.tuples(scopes, st.booleans()), max_size=8))
def test_the_last_act_on_a_partition_decides_and_no_row_is_kept_in_vain(acts: list[tuple[Scope, bool]]) -> None:
    selectors: list[PauseSelector] = []
    paused: set[PartitionKey] = set()
    for scope, pause in acts:
        named = {key for key in KEYS if names(scope, key)}
        after = paused | named if pause else paused - named
        decide = paused_by if pause else resumed_by
        change = decide(selectors, [scope])
        assert change or after == paused  # an empty change has no effect, and an act with an effect is written
        if None not in (*scope.owner, scope.first, scope.last):
            assert bool(change) == (after != paused)
        selectors, paused = written(selectors, change, pause), after
        assert not decide(selectors, [scope])
        found = PauseSelectors(selectors)
        assert {key for key in KEYS if found.pauses(key)} == paused
        assert {key for key in KEYS if key in by_ranges(found)} == paused
        assert not any(
            new.scope.covers(old.scope) for new in selectors for old in selectors if old.selector_no < new.selector_no
        )


some_keys = st.lists(st.sampled_from(KEYS), min_size=1, max_size=12, unique=True)


@given(st.lists(st.tuples(st.lists(scopes, max_size=1) | some_keys.map(single), st.booleans()), max_size=8))
def test_many_scopes_in_one_act_change_what_they_change_one_by_one(acts: list[tuple[list[Scope], bool]]) -> None:
    selectors: list[PauseSelector] = []
    paused: set[PartitionKey] = set()
    for chosen, pause in acts:
        named = {key for key in KEYS for scope in chosen if names(scope, key)}
        decide = paused_by if pause else resumed_by
        selectors = written(selectors, decide(selectors, chosen), pause)
        paused = paused | named if pause else paused - named
        found = PauseSelectors(selectors)
        assert {key for key in KEYS if found.pauses(key)} == paused
        assert not decide(selectors, chosen)


def by_ranges(found: PauseSelectors) -> set[PartitionKey]:
    """The same, asked about ranges as the reader does it: every day is in one piece."""
    paused: set[PartitionKey] = set()
    for owner in product(("ads", "demo"), ("1", "2"), ("clicks", "spend")):
        pieces = found.pieces(ExpectedRange(*owner, DAYS[0], DAYS[-1]))
        days = [first + timedelta(days=n) for first, last, _ in pieces for n in range((last - first).days + 1)]
        assert days == DAYS
        paused |= {
            PartitionKey(*owner, day) for first, last, no in pieces if no for day in DAYS if first <= day <= last
        }
    return paused


def test_resuming_all_leaves_no_row() -> None:
    selectors: list[PauseSelector] = []
    for scope, pause in ((Scope("demo"), True), (Scope(customer_id="1"), False), (Scope(customer_id="2"), True)):
        selectors = written(selectors, (paused_by if pause else resumed_by)(selectors, [scope]), pause)
    assert len(selectors) == 3
    assert written(selectors, resumed_by(selectors, [Scope()]), False) == []


def test_the_same_pause_again_changes_nothing() -> None:
    scope = Scope("demo", first=FIRST)
    selectors = written([], paused_by([], [scope]), True)
    assert not paused_by(selectors, [scope])
    assert not paused_by(selectors, [replace(scope, customer_id="1", last=DAYS[3])])
    assert paused_by(selectors, [replace(scope, first=None)])


def test_a_repeated_resume_of_a_part_changes_nothing() -> None:
    query, day = Scope(query_name="clicks"), Scope(query_name="clicks", first=FIRST, last=FIRST)
    selectors = written([], paused_by([], [query]), True)
    change = resumed_by(selectors, [day])
    assert change == Change([], [day])
    selectors = written(selectors, change, False)
    assert not resumed_by(selectors, [day])
    assert not resumed_by(selectors, [replace(day, customer_id="1")])
    following = replace(day, first=DAYS[1], last=DAYS[2])
    selectors = written(selectors, resumed_by(selectors, [following]), False)
    assert not resumed_by(selectors, [replace(day, last=DAYS[2])])  # both parts together


def calls(work: Callable[[], object]) -> int:
    """How many functions are called: a measure of the work that does not depend on the machine."""
    count = 0

    def seen(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("decide", [paused_by, resumed_by])
@pytest.mark.parametrize("paused_before", [True, False])
def test_twice_the_scopes_and_selectors_are_twice_the_work(decide: Decide, paused_before: bool) -> None:
    """Every second day of one query: the selectors are single days, or resumed days of one pause."""

    def work(size: int) -> int:
        days = [FIRST + timedelta(days=2 * number) for number in range(size)]
        chosen = single([PartitionKey("ads", "1", "clicks", day) for day in days])
        selectors = [PauseSelector(number, scope, paused_before) for number, scope in enumerate(chosen, start=2)]
        selectors = [PauseSelector(1, Scope("ads"), True), *selectors]
        span = ExpectedRange("ads", "1", "clicks", FIRST, days[-1])
        found = PauseSelectors(selectors)
        planned = [PartitionKey("ads", "1", "clicks", day) for day in days]
        return calls(lambda: (decide(selectors, chosen), found.pieces(span), [found.pauses(key) for key in planned]))

    assert work(800) < 2.5 * work(400)
