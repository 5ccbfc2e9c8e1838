"""Cached status counts: after any history, and whenever they are asked for, they are those of a new board."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import ActRefused
from penstock.expected import ExpectedRange
from penstock.projections import status_board
from penstock.projections.staleness import Policy, moment
from penstock.projections.status_board import Board
from penstock.projections.status_cache import StatusCounts, status_counts
from penstock.state.authority import AuthorityStore
from penstock.user_cache import UserCache
from support import builders
from support.builders import FINGERPRINT, accepted, audit_entry, key, rejected
from support.ledger_harness import LedgerHarness, attempt

DAYS = (1, 2, 3)
EXPECTED = ExpectedRange("demo", "1000000001", "campaign_daily", date(2024, 6, 1), date(2024, 6, 4), date(2024, 6, 5))
MAX_LAG = timedelta(hours=36)
GROUPS = (["query"], ["customer", "month"])

a_step = st.one_of(
    st.tuples(st.sampled_from(["accept", "reject", "demote"]), st.sampled_from(DAYS)),
    st.tuples(st.sampled_from(["advance", "rebuild"]), st.just(0)),
    st.tuples(st.just("wait"), st.sampled_from([1, 35, 36, 37, 100])),
    st.tuples(st.just("deadline"), st.sampled_from([-1, 0, 1])),
)


def policy(restate_days: int) -> Policy:
    return Policy("demo", "campaign_daily", FINGERPRINT, None, MAX_LAG, restate_days)


def uncached(harness: LedgerHarness, rules: list[Policy], groups: list[str]) -> StatusCounts:
    board = Board(harness.current(), [EXPECTED], rules, harness.actors.clock())
    return StatusCounts(board.counts(groups), board.flags())


def cached(harness: LedgerHarness, rules: list[Policy], groups: list[str], cache: UserCache) -> StatusCounts:
    return status_counts(cache, harness.current(), [EXPECTED], rules, harness.actors.clock(), groups)


def act(harness: LedgerHarness, name: str, value: int) -> None:
    actors = harness.actors
    if name in ("accept", "reject"):
        run_id = harness.start(value)
        verdict = accepted if name == "accept" else rejected
        actors.validator.judge([verdict(attempt(run_id, value), actors.token)])
    elif name == "demote":
        try:
            AuthorityStore(actors.database, actors.clock).demote(key(value), "wrong", audit_entry())
        except ActRefused:
            pass
    elif name == "wait":
        actors.clock.now += timedelta(hours=value)
    elif name == "deadline":  # to a microsecond before, at or after the moment at which a partition becomes late
        found = Board(harness.current(), [EXPECTED], [policy(2)], actors.clock()).next_deadline()
        if found is not None:
            actors.clock.now = moment(found + value) or actors.clock.now
    else:
        getattr(harness.projector, name)()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(story=st.lists(a_step, min_size=2, max_size=6), restate_days=st.sampled_from([0, 2]))
def test_cached_counts_are_those_of_a_new_board_after_every_step(
    story: list[tuple[str, int]], restate_days: int
) -> None:
    rules = [policy(restate_days)]
    with ExitStack() as stack:
        folder = stack.enter_context(builders.quick_folder())
        harness = stack.enter_context(LedgerHarness.on(builders.open_database("sqlite", folder, str), folder))
        cache = UserCache(Path(folder, "cache"))
        for step, (name, value) in enumerate([("accept", 1), ("advance", 0), *story, ("advance", 0)]):
            act(harness, name, value)
            groups = GROUPS[step % 2]
            assert cached(harness, rules, groups, cache) == uncached(harness, rules, groups)


def test_an_entry_is_used_until_another_partition_becomes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        folder = stack.enter_context(builders.quick_folder())
        harness = stack.enter_context(LedgerHarness.on(builders.open_database("sqlite", folder, str), folder))
        cache, rules, clock = UserCache(Path(folder, "cache")), [policy(5)], harness.actors.clock
        act(harness, "accept", 1)
        harness.projector.advance()
        made_at = clock.now
        fresh = cached(harness, rules, ["query"], cache)
        assert fresh.flags == {"unpublished": 1}
        with monkeypatch.context() as patch:
            patch.delattr(status_board, "Board")  # nothing is computed
            clock.now = made_at + MAX_LAG
            assert cached(harness, rules, ["query"], cache) == fresh
        clock.now = made_at + MAX_LAG + timedelta(microseconds=1)
        assert cached(harness, rules, ["query"], cache).flags == {"late": 1, "unpublished": 1}
        clock.now = made_at
        assert cached(harness, rules, ["query"], cache).flags == {"unpublished": 1}
