"""Pauses by selector against a model that names every partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from penstock.expected import ExpectedRange
from penstock.partition import PartitionKey
from penstock.state.pause_scope import Change, PauseSelector, PauseSelectors, Scope, paused_by, resumed_by

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


def written(selectors: Sequence[PauseSelector], scope: Scope, change: Change, paused: bool) -> list[PauseSelector]:
    kept = [selector for selector in selectors if selector.selector_no not in change.obsolete]
    number = max((selector.selector_no for selector in selectors), default=0) + 1
    return [*kept, PauseSelector(number, scope, paused)] if change.inserts else kept


@given(st.lists(st.tuples(scopes, st.booleans()), max_size=8))
def test_the_last_act_on_a_partition_decides_and_no_row_is_kept_in_vain(acts: list[tuple[Scope, bool]]) -> None:
    selectors: list[PauseSelector] = []
    paused: set[PartitionKey] = set()
    for scope, pause in acts:
        named = {key for key in KEYS if names(scope, key)}
        after = paused | named if pause else paused - named
        change = (paused_by if pause else resumed_by)(selectors, scope)
        assert change or after == paused  # what changes nothing is seen, and an act that changes something is written
        selectors, paused = written(selectors, scope, change, pause), after
        found = PauseSelectors(selectors)
        assert {key for key in KEYS if found.pauses(key)} == paused
        assert {key for key in KEYS if key in by_ranges(found)} == paused
        assert not any(
            new.scope.covers(old.scope) for new in selectors for old in selectors if old.selector_no < new.selector_no
        )


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
        selectors = written(selectors, scope, (paused_by if pause else resumed_by)(selectors, scope), pause)
    assert len(selectors) == 3
    assert written(selectors, Scope(), resumed_by(selectors, Scope()), False) == []


def test_the_same_pause_again_changes_nothing() -> None:
    scope = Scope("demo", first=FIRST)
    selectors = written([], scope, paused_by([], scope), True)
    assert not paused_by(selectors, scope)
    assert not paused_by(selectors, replace(scope, customer_id="1", last=DAYS[3]))
    assert paused_by(selectors, replace(scope, first=None))
