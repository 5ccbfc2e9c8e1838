"""Stored backfills: chunks, their limits, progress, and failed partitions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from penstock.db import schema
from penstock.errors import ActRefused, UsageError
from penstock.partition import PartitionKey, RunId, new_run_id, new_ulid
from penstock.state.backfills import Backfill, BackfillStore, Chunk, Progress
from support import builders
from support.builders import BACKENDS, NOW, Actors, accepted, audit_entry, cancelled, key, planned, rejected


@dataclass
class Work:
    """A store, and attempts that are issued for a backfill."""

    actors: Actors
    store: BackfillStore

    def create(self, **changes: Any) -> Backfill:
        made = Backfill(new_ulid(), "active", {}, False, 2, 0, 2, 9, None, NOW, "ada")
        made = replace(made, **changes)
        self.store.create(made, audit_entry(command="backfill create"))
        return made

    def claim(self, backfill: Backfill, first: int, last: int, token: str | None = None) -> Chunk | None:
        seen = self.store.get(backfill.backfill_id)
        who = token or self.actors.token
        return self.store.claim(seen, who, new_run_id(), key(first), key(last), last - first + 1)

    def attempt(self, backfill: Backfill | None, fate: str, *partitions: PartitionKey) -> None:
        seen = {p: max((a.attempt_no for a in self.actors.reader.attempts(p)), default=0) for p in partitions}
        name = backfill.backfill_id if backfill else None
        items = [replace(planned(p, seen[p]), backfill_id=name) for p in partitions]
        issued, _ = self.actors.try_to_issue(*items)
        for item in issued:
            token = self.actors.token
            if fate == "accept":
                self.actors.validator.judge([accepted(item.attempt, token)])
            elif fate == "reject":
                self.actors.validator.judge([rejected(item.attempt, token)])
            else:
                self.actors.control.cancel([cancelled(item.attempt, token)])


@pytest.fixture(params=BACKENDS)
def work(request: pytest.FixtureRequest) -> Iterator[Work]:
    with builders.quick_folder() as folder:
        database = builders.open_database(request.param, folder, lambda: request.getfixturevalue("postgres_url"))
        actors = Actors.on(builders.migrated(database))
        yield Work(actors, BackfillStore(database, actors.clock))
        database.close()


def test_progress_counts_finished_and_open_chunks_and_the_last_verdict_on_each_partition(work: Work) -> None:
    mine, other = work.create(), work.create()
    assert work.store.progress(mine.backfill_id) == Progress(0, 0, 0, 0, 0, None)
    first = work.claim(mine, 1, 4)
    assert first is not None
    work.actors.clock.now += timedelta(hours=1)
    assert work.claim(mine, 5, 6) is not None
    assert work.claim(other, 1, 9) is not None
    work.attempt(mine, "accept", key(1))
    work.attempt(mine, "reject", key(2), key(3))
    work.attempt(mine, "accept", key(3))
    work.attempt(mine, "cancel", key(4))
    work.attempt(None, "accept", key(8))
    work.attempt(other, "reject", key(9))
    assert work.store.progress(mine.backfill_id) == Progress(0, 2, 1, 6, 2, NOW)
    work.store.finish(first)
    found = work.store.progress(mine.backfill_id)
    assert found == Progress(4, 2, 1, 2, 1, NOW)
    assert found.skipped == 1
    assert replace(found, done=0).skipped == 0
    assert work.store.failed(mine.backfill_id) == [key(2)]
    assert work.store.failed(other.backfill_id) == [key(9)]


def test_what_was_mended_since_is_not_failed(work: Work) -> None:
    mine = work.create()
    work.attempt(mine, "reject", key(1), key(2), key(3))
    work.attempt(None, "accept", key(1))
    work.attempt(None, "cancel", key(2))  # closed without a verdict: it is failed as before
    work.attempt(None, "reject", key(3))  # failed again, outside the backfill
    assert work.store.failed(mine.backfill_id) == [key(2)]
    with pytest.raises(UsageError, match="backfill list"):
        work.store.get("nothing")


def test_a_chunk_is_claimed_once_and_not_beyond_the_limit(work: Work) -> None:
    mine = work.create(max_chunks=2)
    stale = work.store.get(mine.backfill_id)
    first, second = work.claim(mine, 1, 2), work.claim(mine, 3, 4)
    assert first is not None
    assert second is not None
    assert (first.chunk_no, second.chunk_no, second.partitions) == (1, 2, 2)
    assert work.store.get(mine.backfill_id).cursor == key(4)
    assert work.claim(mine, 5, 6) is None, "two are open"
    work.store.stall(first, work.actors.clock() + timedelta(minutes=1))
    third = work.claim(mine, 5, 6)
    assert third is not None, "one that waits holds up no other"
    work.store.finish(second)
    assert work.store.claim(stale, work.actors.token, new_run_id(), key(1), key(2), 2) is None, "the cursor moved on"
    work.actors.clock.now += timedelta(minutes=1)
    assert work.claim(mine, 7, 8) is None, "the first waits no longer"


def test_chunks_of_dead_workers_and_our_own_of_earlier_rounds_are_taken_over(work: Work) -> None:
    mine, other = work.create(max_chunks=9), work.create()
    gone, alive = work.actors.workers.register(), work.actors.workers.register()
    ours, dead, busy = work.claim(mine, 1, 2), work.claim(mine, 3, 4, gone), work.claim(mine, 5, 6, alive)
    assert ours is not None
    assert dead is not None
    assert busy is not None
    assert work.claim(other, 1, 2, gone) is not None
    work.actors.expire(gone)
    token = work.actors.token
    assert work.store.take_over(mine.backfill_id, token, ours.run_id) == replace(dead, run_id=ours.run_id)
    again = new_run_id()
    taken = [work.store.take_over(mine.backfill_id, token, again) for _ in range(3)]
    assert taken == [replace(ours, run_id=again), replace(dead, run_id=again), None]
    work.store.finish(ours)  # under a run that lost it
    assert work.store.progress(mine.backfill_id).open_chunks == 3
    work.store.finish(replace(ours, run_id=again))
    assert work.store.progress(mine.backfill_id).open_chunks == 2
    work.store.stall(replace(dead, run_id=again), work.actors.clock() + timedelta(minutes=1))
    late = new_run_id()
    assert work.store.take_over(mine.backfill_id, token, late) is None
    work.actors.clock.now += timedelta(minutes=1)
    assert work.store.take_over(mine.backfill_id, token, late) == replace(dead, run_id=late)
    work.store.move(mine.backfill_id, "paused", audit_entry())
    assert work.store.take_over(mine.backfill_id, token, RunId(new_run_id())) is None


def test_a_backfill_is_paused_resumed_cancelled_and_finished_in_order(work: Work) -> None:
    mine, other = work.create(), work.create(priority=5)
    assert [one.backfill_id for one in work.store.all()] == [other.backfill_id, mine.backfill_id]
    assert work.store.move(mine.backfill_id, "paused", audit_entry())
    assert not work.store.move(mine.backfill_id, "paused", audit_entry())
    assert work.claim(mine, 1, 2) is None
    assert [one.backfill_id for one in work.store.all("active")] == [other.backfill_id]
    assert work.store.move(mine.backfill_id, "active", audit_entry())
    chunk = work.claim(mine, 1, 2)
    assert chunk is not None
    work.store.end(mine.backfill_id)
    assert work.store.get(mine.backfill_id).status == "active", "a chunk is open"
    work.store.finish(chunk)
    work.store.end(mine.backfill_id)
    ended = work.store.get(mine.backfill_id)
    assert (ended.status, ended.finished_at) == ("finished", NOW)
    with pytest.raises(ActRefused, match="finished"):
        work.store.move(mine.backfill_id, "paused", audit_entry())
    assert work.claim(other, 1, 2) is not None
    assert work.store.move(other.backfill_id, "cancelled", audit_entry())
    assert work.store.progress(other.backfill_id).open_chunks == 0
    assert work.store.get(other.backfill_id).finished_at == NOW


def test_the_failures_of_a_backfill_are_listed_within_bounds_of_keys_and_of_time(work: Work) -> None:
    mine, other = work.create(), work.create()
    work.attempt(mine, "reject", *(key(day) for day in (1, 2, 3, 4, 5)), key(3, source="ads"))
    work.attempt(mine, "accept", key(6))
    work.attempt(other, "reject", key(7), key(1, "x"))
    then = work.actors.clock.now = NOW + timedelta(hours=1)
    work.attempt(None, "accept", key(5))
    store, name = work.store, mine.backfill_id
    ads = key(3, source="ads")
    assert store.failed(name) == [ads, *(key(day) for day in (1, 2, 3, 4))]
    assert store.failed(name, before=then) == [ads, *(key(day) for day in (1, 2, 3, 4, 5))]
    assert store.failed(name, before=then + timedelta(seconds=1)) == store.failed(name)
    assert store.failed(name, after=key(2)) == [key(3), key(4)]
    assert store.failed(name, since=key(2), until=key(3)) == [key(2), key(3)]
    assert store.failed(name, limit=2) == [ads, key(1)]
    assert store.failed_count(name) == 5
    assert store.failed_count(name, before=then) == 6
    assert store.failed_count(name, after=key(2)) == 2
    assert store.failed_sources(name) == {"ads", "demo"}
    assert store.failed_sources(other.backfill_id) == {"demo"}
    assert (store.failed("nothing"), store.failed_count("nothing"), store.failed_sources("nothing")) == ([], 0, set())


def test_backfills_are_listed_by_urgency_and_then_by_age_page_by_page(work: Work) -> None:
    low = [work.create(priority=1) for _ in range(3)]
    high = [work.create(priority=2) for _ in range(2)]
    names = [one.backfill_id for one in [*sorted(high, key=_id), *sorted(low, key=_id)]]
    assert [one.backfill_id for one in work.store.all()] == names
    seen: list[str] = []
    while found := work.store.page(2, seen[-1] if seen else None)[0]:
        assert len(found) <= 2
        seen += [one.backfill_id for one in found]
    assert seen == names
    assert work.store.page(1)[1] == work.store.page(1, names[3])[1] == 5
    work.store.move(names[0], "paused", audit_entry())
    work.store.move(names[1], "cancelled", audit_entry())
    assert [one.backfill_id for one in work.store.all("active", "paused")] == [names[0], *names[2:]]


def _id(backfill: Backfill) -> str:
    return backfill.backfill_id


def test_an_act_on_a_backfill_touches_no_other(work: Work) -> None:
    mine, other = work.create(), work.create()
    chunk, theirs = work.claim(mine, 1, 2), work.claim(other, 1, 2)
    assert chunk is not None
    assert theirs is not None
    later = work.actors.clock.now = NOW + timedelta(hours=1)

    def of_other() -> tuple[Backfill, Progress]:
        return work.store.get(other.backfill_id), work.store.progress(other.backfill_id)

    before = of_other()
    entry = audit_entry(command="backfill pause")
    lines = len(work.actors.reader.audit())
    assert work.store.move(mine.backfill_id, "paused", entry, rehearsal=True)
    assert work.store.get(mine.backfill_id).status == "active"
    assert work.store.move(mine.backfill_id, "paused", entry)
    assert work.store.get(mine.backfill_id).finished_at is None
    work.store.end(mine.backfill_id)
    assert work.store.get(mine.backfill_id).status == "paused", "only an active one is finished"
    assert work.store.move(mine.backfill_id, "cancelled", entry)
    assert work.store.get(mine.backfill_id).finished_at == later
    assert work.store.progress(mine.backfill_id).open_chunks == 0
    for status in ("active", "paused"):
        with pytest.raises(ActRefused, match=f"is cancelled: it cannot become {status}"):
            work.store.move(mine.backfill_id, status, entry, rehearsal=True)
    assert not work.store.move(mine.backfill_id, "cancelled", entry)
    assert len(work.actors.reader.audit()) == lines + 2
    assert of_other() == before
    third = work.create()
    work.store.end(third.backfill_id)
    assert (work.store.get(third.backfill_id).status, of_other()) == ("finished", before)
    work.store.end(other.backfill_id)
    assert of_other() == before, "its chunk is open"


def test_a_chunk_that_is_taken_over_waits_no_longer_and_keeps_its_place(work: Work) -> None:
    mine = work.create(max_chunks=9)
    one, two = work.claim(mine, 1, 2), work.claim(mine, 3, 4)
    assert one is not None
    assert two is not None
    work.store.stall(one, NOW + timedelta(minutes=1))
    mine_now, again = work.actors.token, RunId(new_run_id())
    assert work.store.take_over(mine.backfill_id, mine_now, again) == replace(two, run_id=again)
    work.actors.clock.now += timedelta(minutes=1)
    assert work.store.take_over(mine.backfill_id, mine_now, again) == replace(one, run_id=again)
    rows = {row["chunk_no"]: row for row in work.actors.rows(schema.backfill_chunk)}
    assert {n: (row["run_id"], row["stalled_until"]) for n, row in rows.items()} == {1: (again, None), 2: (again, None)}
    work.store.finish(replace(one, run_id=again))
    work.store.stall(replace(one, run_id=again), NOW)
    rows = {row["chunk_no"]: row for row in work.actors.rows(schema.backfill_chunk)}
    assert (rows[1]["finished_at"], rows[1]["stalled_until"]) == (work.actors.clock(), None)
    assert rows[2]["finished_at"] is None
