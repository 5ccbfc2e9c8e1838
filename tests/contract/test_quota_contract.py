"""Request quotas on both databases: claims, returns, windows, and shares of a rate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Barrier
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa

from penstock.config.rates import RateLimit, RateWindow
from penstock.db import schema
from penstock.db.engine import Database
from penstock.db.lease import seconds_ago
from penstock.errors import ImpossibleRow
from penstock.state.quota import KEPT, QuotaStore
from penstock.state.shares import ACTIVE_SECONDS, ShareStore, equal_share
from support import builders
from support.builders import BACKENDS, Actors, another_handle

T = TypeVar("T")

DAILY = (RateLimit(100, RateWindow.DAY),)
BOTH = (RateLimit(100, RateWindow.DAY), RateLimit(40, RateWindow.HOUR))
NOON = datetime(2026, 11, 17, 12, 30, tzinfo=UTC)


@pytest.fixture(params=BACKENDS)
def actors(request: pytest.FixtureRequest) -> Iterator[Actors]:
    def url() -> str:
        found: str = request.getfixturevalue("postgres_url")
        return found

    with builders.quick_folder() as folder:
        database = builders.open_database(request.param, folder, url)
        yield Actors.on(builders.migrated(database))
        database.close()


def at_once(actors: Actors, sides: Sequence[Callable[[Database], T]]) -> list[T]:
    """Call all functions at the same time, each with the database as another process opens it."""
    barrier = Barrier(len(sides))

    def run(side: Callable[[Database], T]) -> T:
        handle = another_handle(actors.database)
        try:
            barrier.wait(30)
            return side(handle)
        finally:
            handle.close()

    with ThreadPoolExecutor(len(sides)) as pool:
        return list(pool.map(run, sides))


def at(actors: Actors, now: datetime) -> QuotaStore:
    """The store at this time of the database clock."""
    return QuotaStore(actors.database, sa.literal(now, schema.source_quota.c.window_start.type))


def rows(actors: Actors) -> list[tuple[Any, ...]]:
    found = actors.rows(schema.source_quota)
    columns = ("source", "window_name", "budget", "claimed", "used")
    return sorted(tuple(row[name] for name in columns) for row in found)


def test_claims_of_several_processes_never_exceed_the_budget(actors: Actors) -> None:
    granted = at_once(actors, [lambda handle: QuotaStore(handle).claim("ads", DAILY, 20)] * 4)
    assert sum(claim.requests for claim in granted) == 100
    assert QuotaStore(actors.database).read("ads", DAILY).left() == 0


def test_unused_requests_are_returned_and_the_claim_of_a_dead_process_is_not(actors: Actors) -> None:
    store = at(actors, NOON)
    mine, lost = store.claim("ads", DAILY, 10), store.claim("ads", DAILY, 10)
    assert (mine.requests, lost.requests) == (25, 25)  # two for each span, and five more
    store.settle(mine, used=12, spans=10)
    assert rows(actors) == [("ads", "day", 100, 37, 12)]
    assert store.read("ads", DAILY).left() == 63
    assert store.claim("ads", DAILY, 10).requests == 20  # 1.2 requests for a span, a quarter more, and five


def test_a_claim_is_limited_by_every_window(actors: Actors) -> None:
    store = at(actors, NOON)
    assert store.claim("ads", BOTH, 100).requests == 40
    assert store.claim("ads", BOTH, 100).requests == 0
    assert store.read("ads", BOTH).renews_at() == NOON.replace(hour=13, minute=0)
    later = at(actors, NOON + timedelta(hours=1))
    assert later.claim("ads", BOTH, 100).requests == 40
    last = at(actors, NOON + timedelta(hours=2))
    assert last.claim("ads", BOTH, 100).requests == 20
    used_up = last.read("ads", BOTH)
    assert used_up.renews_at() == datetime(2026, 11, 18, tzinfo=UTC)
    assert used_up.used_up() == "quota of ads is used up until 2026-11-18 00:00 UTC"


def test_a_window_renews_by_the_clock_of_the_database(actors: Actors) -> None:
    midnight = datetime(2026, 11, 18, tzinfo=UTC)
    before, after = at(actors, midnight - timedelta(microseconds=1)), at(actors, midnight)
    late = before.claim("ads", DAILY, 100)
    assert (late.requests, round(late.seconds, 6)) == (100, 0.000001)
    assert before.claim("ads", DAILY, 1).requests == 0
    assert after.claim("ads", DAILY, 100).requests == 100
    before.settle(late, used=0, spans=0)  # returned to its own window
    assert after.claim("ads", DAILY, 1).requests == 0
    with actors.database.snapshot() as connection:
        now = connection.scalar(sa.select(sa.func.current_timestamp()))
    moment = datetime.fromisoformat(str(now))
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    found = QuotaStore(actors.database).read("other", DAILY)
    assert abs(found.now - moment) < timedelta(seconds=30)
    assert found.windows[0].starts_at == found.now.replace(hour=0, minute=0, second=0, microsecond=0)


def test_old_data_leaves_the_reserve_to_fresh_data(actors: Actors) -> None:
    store = at(actors, NOON)
    assert store.claim("ads", DAILY, 1000, share=0.2).requests == 80
    assert store.claim("ads", DAILY, 1000, share=0.2).requests == 0
    quota = store.read("ads", DAILY)
    assert quota.used_up() is None
    assert quota.used_up(0.2) == (
        "quota of ads for backfills and history is used up until 2026-11-18 00:00 UTC: the rest is for fresh data"
    )
    assert store.claim("ads", DAILY, 1000).requests == 20


def test_fresh_data_counts_against_what_old_data_may_use(actors: Actors) -> None:
    store = at(actors, NOON)
    fresh = store.claim("ads", DAILY, 35)  # 75 requests
    assert (fresh.requests, store.claim("ads", DAILY, 1000, share=0.2).requests) == (75, 5)


def test_another_rate_applies_at_the_next_claim_and_claimed_requests_stay(actors: Actors) -> None:
    store = at(actors, NOON)
    store.claim("ads", DAILY, 1000)
    more = (RateLimit(130, RateWindow.DAY),)
    assert store.read("ads", more).left() == 30
    assert store.claim("ads", more, 1000).requests == 30
    fewer = (RateLimit(50, RateWindow.DAY),)
    assert store.claim("ads", fewer, 1000).requests == 0
    assert rows(actors) == [("ads", "day", 50, 130, 0)]
    assert store.read("ads", fewer).left() == 0


def test_old_windows_are_deleted_by_the_next_claim(actors: Actors) -> None:
    at(actors, NOON - KEPT - timedelta(days=1)).claim("ads", BOTH, 1)
    at(actors, NOON - KEPT - timedelta(days=1)).claim("other", BOTH, 1)
    at(actors, NOON - timedelta(days=1)).claim("ads", BOTH, 1)
    at(actors, NOON).claim("ads", BOTH, 1)
    assert [row[:2] for row in rows(actors)] == [
        *[("ads", "day")] * 2, *[("ads", "hour")] * 2, ("other", "day"), ("other", "hour"),
    ]  # fmt: skip


def test_sources_have_quotas_of_their_own(actors: Actors) -> None:
    store = at(actors, NOON)
    store.claim("ads", DAILY, 1000)
    assert store.claim("shop", DAILY, 1000).requests == 100


def test_reading_changes_nothing(actors: Actors) -> None:
    assert at(actors, NOON).read("ads", BOTH).left() == 40
    assert rows(actors) == []


def test_a_claim_is_a_few_statements_whatever_it_is_for(actors: Actors) -> None:
    statements: list[str] = []
    sa.event.listen(actors.database.engine, "before_cursor_execute", lambda *found: statements.append(found[2]))
    QuotaStore(actors.database).claim("ads", DAILY, 1)
    few = len(statements)
    QuotaStore(actors.database).claim("ads", (RateLimit(10**9, RateWindow.DAY),), 100_000)
    assert len(statements) - few == few <= 8


def test_the_database_refuses_more_used_than_claimed_requests(actors: Actors) -> None:
    at(actors, NOON).claim("ads", DAILY, 1)
    with pytest.raises(ImpossibleRow, match="used_requests_were_claimed"):
        actors.execute(sa.update(schema.source_quota).values(used=schema.source_quota.c.claimed + 1))


# Shares of a rate


def test_shares_of_live_workers_never_exceed_the_rate(actors: Actors) -> None:
    store, others = ShareStore(actors.database), [actors.workers.register() for _ in range(3)]
    assert store.take("ads", 8.0, actors.token) == 8.0
    assert [store.take("ads", 8.0, token) for token in others] == [None] * 3
    store.release("ads", actors.token)
    assert [store.take("ads", 8.0, token) for token in others] == [2.0] * 3
    assert store.take("ads", 8.0, actors.token) == 2.0
    assert sum(share.per_second for share in store.live("ads")) == 8.0


def test_shares_that_are_taken_at_the_same_time_never_exceed_the_rate(actors: Actors) -> None:
    store = ShareStore(actors.database)
    store.take("ads", 8.0, actors.token)  # the row to lock exists
    store.release("ads", actors.token)
    for _ in range(10):
        tokens = [actors.workers.register() for _ in range(4)]
        at_once(actors, [partial(take, token) for token in tokens])
        assert 0 < sum(share.per_second for share in store.live("ads")) <= 8.0
        for token in tokens:
            actors.workers.stop(token)


def test_a_share_ends_with_the_lease_of_its_worker(actors: Actors) -> None:
    store, stopped, silent = ShareStore(actors.database), actors.workers.register(), actors.workers.register()
    assert store.take("ads", 8.0, stopped) == 8.0
    actors.workers.stop(stopped)
    assert store.take("ads", 8.0, silent) == 8.0
    age(actors, schema.worker.c.token, silent, "heartbeat_at", 3600)
    assert store.live("ads") == []
    assert store.take("ads", 8.0, actors.token) == 8.0
    assert store.take("ads", 8.0, silent) is None  # until its next heartbeat
    actors.workers.heartbeat(silent)
    store.release("ads", actors.token)
    assert store.take("ads", 8.0, silent) == 4.0


def test_a_worker_that_fetches_nothing_any_more_leaves_the_whole_rate(actors: Actors) -> None:
    store, other = ShareStore(actors.database), actors.workers.register()
    assert store.take("ads", 8.0, other) == 8.0
    store.release("ads", other)
    assert store.take("ads", 8.0, actors.token) == 4.0  # the other was active until now
    age(actors, schema.source_share.c.worker_token, other, "touched_at", ACTIVE_SECONDS + 5)
    assert store.take("ads", 8.0, actors.token) == 8.0


def test_a_lower_rate_waits_until_shares_of_the_old_one_are_released(actors: Actors) -> None:
    store, other = ShareStore(actors.database), actors.workers.register()
    assert store.take("ads", 8.0, other) == 8.0
    assert store.take("ads", 2.0, actors.token) is None
    store.release("ads", other)
    assert store.take("ads", 2.0, actors.token) == 1.0


def test_an_equal_share_is_limited_by_what_others_leave() -> None:
    assert equal_share(12.0, []) == 12.0
    assert equal_share(12.0, [0.0, 0.0]) == 4.0
    assert equal_share(12.0, [6.0, 4.0]) == 2.0
    assert equal_share(12.0, [6.0, 5.5]) is None


def take(token: str, handle: Database) -> float | None:
    return ShareStore(handle).take("ads", 8.0, token)


def age(actors: Actors, token: sa.Column[str], value: str, column: str, seconds: int) -> None:
    """Move a time of a row into the past, by the clock of the database."""
    past = seconds_ago(actors.database.dialect, seconds)
    actors.execute(sa.update(token.table).where(token == value).values({column: past}))
