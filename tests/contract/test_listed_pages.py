"""Long lists in pages, on both databases: together the pages are the whole list, in its order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

import builders
from builders import BACKENDS, NOW, Actors, accepted, audit_entry, key
from penstock.db import schema
from penstock.lake.local import LocalLake
from penstock.ledger.read import LedgerReader
from penstock.ledger.segments import SegmentReader
from penstock.partition import PartitionKey, RunId, new_ulid
from penstock.state.backfills import Backfill, BackfillStore
from penstock.state.marks import MarkStore
from penstock.warehouse.pointers import PointerReader


@pytest.fixture(params=BACKENDS)
def actors(request: pytest.FixtureRequest) -> Iterator[Actors]:
    def url() -> str:
        found: str = request.getfixturevalue("postgres_url")
        return found

    with builders.quick_folder() as folder:
        database = builders.open_database(request.param, folder, url)
        yield Actors.on(builders.migrated(database))
        database.close()


def test_backfills_in_pages_keep_the_most_urgent_first(actors: Actors) -> None:
    store = BackfillStore(actors.database, actors.clock)
    for priority in (0, 5, -3, 5, 0):
        made = Backfill(new_ulid(), "active", {}, False, 7, priority, 2, 10, None, NOW, "ada")
        store.create(made, audit_entry())
    whole = [found.backfill_id for found in store.all()]
    pages: list[str] = []
    while len(pages) < 10:
        found, total = store.page(2, pages[-1] if pages else None)
        assert total == 5
        if not found:
            break
        pages += [backfill.backfill_id for backfill in found]
    assert pages == whole


def test_a_rehearsed_move_of_a_backfill_changes_nothing_and_refuses_the_same(actors: Actors) -> None:
    store = BackfillStore(actors.database, actors.clock)
    store.create(Backfill("one", "active", {}, False, 7, 0, 2, 10, None, NOW, "ada"), audit_entry())
    before = builders.everything(actors.database)
    assert store.move("one", "paused", audit_entry(), rehearsal=True)
    assert not store.move("one", "active", audit_entry(), rehearsal=True)
    assert builders.everything(actors.database) == before


def test_the_audit_log_continues_after_an_entry_and_counts_all(actors: Actors) -> None:
    marks = MarkStore(actors.database, actors.clock)
    for day in range(1, 5):
        marks.pause([key(day)], None, audit_entry(flags={"day": day}))
    first = actors.reader.audit(2)
    rest = actors.reader.audit(10, after=first[-1]["audit_id"])
    assert [row["flags"]["day"] for row in (*first, *rest)] == [4, 3, 2, 1]
    assert actors.reader.audit_count() == 4


def test_events_are_counted_by_run_and_type(actors: Actors) -> None:
    attempts = [actors.issue_one(key(day)) for day in (1, 2)]
    for attempt in attempts:
        actors.validator.accept([accepted(attempt, actors.token)])
    ledger = LedgerReader(actors.database, SegmentReader(LocalLake("/nowhere")))
    everything = ledger.tail(1000)
    assert ledger.count() == len(everything) > 2
    run = attempts[0].run_id
    assert ledger.count(run_id=run) == sum(event["run_id"] == run for event in everything)
    assert ledger.count(kind="AuthorityChanged") == 2


def test_loads_continue_inside_a_partition(actors: Actors) -> None:
    rows = [
        {**builders.columns(key(day)), "run_id": run, "schema_version": "v1", "table_name": "t", "record_count": 1,
         "loaded_at": NOW}
        for day in (1, 2)
        for run in ("A", "B", "C")
    ]  # fmt: skip
    actors.database.transact(lambda connection: connection.execute(sa.insert(schema.load_record), rows))
    reader = PointerReader(actors.database)
    seen: list[tuple[PartitionKey, RunId]] = []
    after, run = None, None
    while len(seen) < 10:
        found, total = reader.loads(after=after, after_run=run, limit=2)
        assert total == 6
        if not found:
            break
        seen += [(load.key, load.run_id) for load in found]
        after, run = seen[-1]
    assert seen == [(key(day), run) for day in (1, 2) for run in ("A", "B", "C")]
    assert [load.run_id for load in reader.loads(after=key(1))[0]] == ["A", "B", "C"]
