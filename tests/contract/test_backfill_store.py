"""Backfills on record: chunks, their limits, how far they are, and what of them failed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

import builders
from builders import BACKENDS, NOW, Actors, accepted, audit_entry, cancelled, key, planned, rejected
from penstock.errors import ActRefused, UsageError
from penstock.partition import PartitionKey, RunId, new_run_id, new_ulid
from penstock.state.backfills import Backfill, BackfillStore, Chunk, Progress


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
                self.actors.validator.accept([accepted(item.attempt, token)])
            elif fate == "reject":
                self.actors.validator.reject([rejected(item.attempt, token)])
            else:
                self.actors.control.cancel([cancelled(item.attempt, token)])


@pytest.fixture(params=BACKENDS)
def work(request: pytest.FixtureRequest) -> Iterator[Work]:
    with builders.quick_folder() as folder:
        database = builders.open_database(request.param, folder, lambda: request.getfixturevalue("postgres_url"))
        actors = Actors.on(builders.migrated(database))
        yield Work(actors, BackfillStore(database, actors.clock))
        database.close()


def test_progress_tells_finished_and_open_chunks_and_the_last_word_on_each_partition(work: Work) -> None:
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
    work.attempt(None, "cancel", key(2))  # nobody judged it: it is failed as before
    work.attempt(None, "reject", key(3))  # failed anew, for somebody else
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
