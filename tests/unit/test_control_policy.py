"""The control plane's pure parts: retry policy, breaker, restatement ages, ranges, shares."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.assets import Restate, Retry
from penstock.control.breaker import CONFIRMATIONS, describe, gate, observed
from penstock.control.ranges import (
    between_keys,
    count_partitions,
    first_key,
    in_key_order,
    last_key,
    next_page,
    subtract,
)
from penstock.control.restate import Maturity, ages, maturity
from penstock.control.retry import Decision, Failures, decide, jittered, terminal
from penstock.control.share import allocate
from penstock.errors import ErrorClass
from penstock.expected import ExpectedRange
from penstock.flow.guard import Gate
from penstock.partition import PartitionKey
from penstock.state.records import Breaker, Observation, PartitionControl
from support.builders import NOW, query

MINUTES = timedelta(minutes=1)
POLICY = Retry(max_attempts=5, backoff=(5 * MINUTES, 30 * MINUTES, 120 * MINUTES), jitter=0.2)


def failures(count: int = 1, kind: ErrorClass = ErrorClass.TRANSIENT, due_at: datetime = NOW) -> Failures:
    return Failures(count, due_at, NOW, kind)


# --- retry ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "minutes"), [(1, 5), (2, 30), (3, 120), (4, 120)])
def test_pauses_grow_and_then_stay(count: int, minutes: int) -> None:
    assert decide(POLICY, failures(count), 0.5).next_run_at == NOW + minutes * MINUTES


def test_after_the_last_attempt_there_is_none() -> None:
    assert decide(POLICY, failures(5), 0.5).next_run_at is None


@pytest.mark.parametrize("kind", [ErrorClass.DATA, ErrorClass.CONFIG])
def test_what_a_person_must_mend_is_not_retried_unless_the_policy_says_so(kind: ErrorClass) -> None:
    assert decide(POLICY, failures(kind=kind), 0.5).next_run_at is None
    willing = POLICY.model_copy(update={"errors": ("transient", "data", "config")})
    assert decide(willing, failures(kind=kind), 0.5).next_run_at is not None


def test_a_partition_whose_day_is_too_old_is_left_alone() -> None:
    """However late its first failure was: the age of a partition counts from the moment its day was due."""
    due_at = NOW - timedelta(days=30) + 5 * MINUTES
    assert decide(POLICY, failures(1, due_at=due_at), 0.5) == Decision(
        None, f"none: due since {due_at:%Y-%m-%d %H:%M}, longer than the policy retries"
    )
    assert decide(POLICY, failures(1, due_at=due_at), 0.4).next_run_at is not None
    expires_at = due_at + POLICY.max_age
    words = f"due since {due_at:%Y-%m-%d %H:%M} UTC, the policy retries for 30 days"
    assert terminal(POLICY, PartitionControl(1, NOW), expires_at, expires_at) == words
    assert terminal(POLICY, PartitionControl(1, NOW), expires_at, expires_at - MINUTES) is None


def test_terminal_is_by_attempts_by_age_or_by_mark() -> None:
    assert terminal(POLICY, PartitionControl(), NOW + MINUTES, NOW) is None
    assert "5 failed attempts" in str(terminal(POLICY, PartitionControl(5, NOW), NOW + MINUTES, NOW))
    marked = PartitionControl(terminal_at=NOW, terminal_by="ada", terminal_reason="gone")
    assert terminal(POLICY, marked, None, NOW) == "marked by ada: gone"


@given(st.integers(1, 4), st.floats(0, 1), st.floats(0, 1))
def test_jitter_stays_inside_its_share(count: int, jitter: float, chance: float) -> None:
    pause = POLICY.backoff[min(count, 3) - 1]
    found = jittered(pause, jitter, chance)
    second = timedelta(seconds=1)
    assert pause * (1 - jitter) - second <= found <= pause * (1 + jitter) + second


@pytest.mark.parametrize(("chance", "minutes"), [(0.0, 4), (0.25, 4.5), (0.5, 5), (1.0, 6)])
def test_a_decision_spreads_retries_by_its_jitter(chance: float, minutes: float) -> None:
    assert decide(POLICY, failures(), chance).next_run_at == NOW + minutes * MINUTES


# --- breaker -------------------------------------------------------------------------------------------------------

CLOSED = Breaker("ads")
REFUSED = Observation(refused=1, message="renew the credentials")


def test_a_breaker_opens_after_a_few_confirmations() -> None:
    breaker = CLOSED
    for _ in range(CONFIRMATIONS - 1):
        breaker = observed(breaker, REFUSED, NOW)
        assert gate(breaker, NOW, by_hand=False) is Gate.OPEN
    breaker = observed(breaker, REFUSED, NOW)
    assert gate(breaker, NOW, by_hand=False) is Gate.SHUT
    assert "renew the credentials" in str(describe(breaker, NOW))


def test_one_successful_request_shows_that_the_source_works() -> None:
    breaker = observed(CLOSED, replace(REFUSED, refused=2), NOW)
    assert observed(breaker, Observation(succeeded=1, refused=50, message="no"), NOW) == CLOSED


def test_an_open_breaker_is_probed_ever_more_rarely_and_at_once_by_hand() -> None:
    breaker = observed(CLOSED, replace(REFUSED, refused=5), NOW)
    pauses = []
    for _ in range(4):
        assert breaker.probe_at is not None
        pauses.append((breaker.probe_at - NOW) / MINUTES)
        assert gate(breaker, breaker.probe_at, by_hand=False) is Gate.PROBE
        breaker = observed(breaker, REFUSED, NOW)
    assert pauses == [5, 30, 120, 120]
    assert gate(breaker, NOW, by_hand=True) is Gate.PROBE
    assert observed(breaker, Observation(succeeded=1), NOW) == CLOSED


def test_a_source_that_asks_everybody_for_a_pause_gets_it() -> None:
    breaker = observed(CLOSED, Observation(quota_pause=90.0), NOW)
    assert gate(breaker, NOW + timedelta(seconds=89), by_hand=False) is Gate.SHUT
    assert gate(breaker, NOW + timedelta(seconds=89), by_hand=True) is Gate.PROBE
    assert gate(breaker, NOW + timedelta(seconds=90), by_hand=False) is Gate.OPEN
    assert "asked for a pause" in str(describe(breaker, NOW))
    assert observed(CLOSED, Observation(succeeded=3, quota_pause=90.0), NOW) == CLOSED


# --- restatement ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("days", "expected"), [(1, (1,)), (3, (1, 2, 3)), (7, (1, 2, 3, 4, 6, 7)), (30, (1, 2, 3, 4, 6, 9, 13, 19, 28, 30))]
)
def test_ages_thin_out_and_end_at_the_horizon(days: int, expected: tuple[int, ...]) -> None:
    assert ages(Restate(days=days)) == expected


@given(st.integers(1, 400))
def test_ages_rise_and_pauses_never_shrink_before_the_last(days: int) -> None:
    found = ages(Restate(days=days))
    assert found[-1] == days
    steps = [after - before for before, after in pairwise(found)]
    assert all(step > 0 for step in steps)
    assert steps[:-1] == sorted(steps[:-1])


def test_a_query_may_list_its_ages() -> None:
    assert ages(Restate(days=30, ages=(7, 30))) == (7, 30)


def test_a_day_is_provisional_until_its_horizon() -> None:
    restated = query(restate=Restate(days=3))
    over = date(2024, 6, 10)
    assert [maturity(restated, date(2024, 6, d), over) for d in (10, 8, 7)] == [
        Maturity.PROVISIONAL, Maturity.PROVISIONAL, Maturity.SETTLED,
    ]  # fmt: skip
    assert maturity(query(), over, over) is Maturity.SETTLED


# --- ranges --------------------------------------------------------------------------------------------------------

FIRST = date(2024, 1, 1)
ranges = st.lists(
    st.tuples(st.sampled_from("123"), st.sampled_from("ab"), st.integers(0, 20), st.integers(0, 9)),
    unique_by=lambda r: (r[0], r[1]),
    max_size=6,
).map(
    lambda found: in_key_order(
        ExpectedRange("s", c, q, FIRST + timedelta(days=low), FIRST + timedelta(days=low + length - 1))
        for c, q, low, length in found
    )
)


def keys(found: list[ExpectedRange]) -> list[PartitionKey]:
    return [
        PartitionKey(r.source, r.customer_id, r.query_name, r.first + timedelta(days=n))
        for r in found
        for n in range(len(r))
    ]


@given(ranges, st.integers(1, 7))
def test_pages_cover_every_partition_once_in_order(found: list[ExpectedRange], size: int) -> None:
    seen: list[PartitionKey] = []
    while page := next_page(found, seen[-1] if seen else None, size):
        assert 1 <= count_partitions(page) <= size
        assert (first_key(page), last_key(page)) == (keys(page)[0], keys(page)[-1])
        assert keys(between_keys(found, first_key(page), last_key(page))) == keys(page)
        seen += keys(page)
    assert seen == keys(found) == sorted(seen)


@given(ranges, ranges, ranges)
def test_without_leaves_exactly_what_the_others_do_not_have(
    found: list[ExpectedRange], one: list[ExpectedRange], two: list[ExpectedRange]
) -> None:
    others = {*keys(one), *keys(two)}
    assert keys(subtract(found, [*one, *two])) == [key for key in keys(found) if key not in others]


# --- shares --------------------------------------------------------------------------------------------------------


@given(st.integers(2, 1000), st.integers(0, 2000), st.integers(0, 2000), st.floats(0.01, 0.99))
def test_a_round_is_full_when_enough_waits_and_both_sides_get_their_share(
    size: int, fresh: int, backfill: int, share: float
) -> None:
    for_fresh, for_backfill = allocate(size, fresh, backfill, share)
    assert for_fresh <= fresh
    assert for_backfill <= backfill
    assert for_fresh + for_backfill == min(size, fresh + backfill)
    reserved = min(size - 1, max(1, round(size * share)))
    assert for_backfill >= min(backfill, reserved)
    assert for_fresh >= min(fresh, size - reserved)


@given(
    st.integers(2, 50),
    st.floats(0.05, 0.95),
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=60),
)
def test_neither_side_starves_whatever_arrives(size: int, share: float, arrivals: list[tuple[int, int]]) -> None:
    """Simulated rounds: as long as a side has work waiting, it moves in every round, and at least by its share."""
    fresh = backfill = 0
    reserved = min(size - 1, max(1, round(size * share)))
    for new_fresh, new_backfill in arrivals:
        fresh, backfill = fresh + new_fresh, backfill + new_backfill
        for_fresh, for_backfill = allocate(size, fresh, backfill, share)
        assert for_fresh >= min(fresh, size - reserved)
        assert for_backfill >= min(backfill, reserved)
        fresh, backfill = fresh - for_fresh, backfill - for_backfill
    rounds = 0
    while fresh or backfill:
        for_fresh, for_backfill = allocate(size, fresh, backfill, share)
        fresh, backfill, rounds = fresh - for_fresh, backfill - for_backfill, rounds + 1
    assert rounds <= sum(a + b for a, b in arrivals) // size + 1


def test_midnight_is_where_the_account_lives() -> None:
    from penstock.clock import utc_offset

    assert utc_offset(datetime(2024, 7, 1, tzinfo=UTC), "Europe/Berlin") == 7200
