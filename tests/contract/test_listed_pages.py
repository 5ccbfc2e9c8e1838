"""Long lists in pages, on both databases: together the pages are the whole list, in its order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from typing import Any

import pytest
import sqlalchemy as sa

from penstock.db import schema
from penstock.lake.local import LocalLake
from penstock.ledger.read import LedgerReader
from penstock.ledger.segments import SegmentReader
from penstock.lifecycle import PartitionStatus
from penstock.partition import PartitionKey, RunId, new_ulid
from penstock.state.backfills import Backfill, BackfillStore
from penstock.state.marks import MarkStore
from penstock.warehouse.pointers import PointerReader
from support import builders
from support.builders import BACKENDS, NOW, Actors, accepted, audit_entry, key


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
        actors.validator.judge([accepted(attempt, actors.token)])
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


def test_pointers_and_load_records_are_found_by_each_limit_and_counted(actors: Actors) -> None:
    every = [
        key(day, customer, query, source)
        for source in ("demo", "other")
        for customer in ("1", "2")
        for query in ("a", "b")
        for day in (1, 2, 3)
    ]
    run = {"run_id": "A", "schema_version": "v1", "table_name": "t", "record_count": 7, "loaded_at": NOW}
    loads = [{**builders.columns(one), **run} for one in reversed(every)]
    pointers = [{**row, "table_version": 4, "available": False} for row in loads]
    table = {"table_name": "t", "source": "demo", "query_name": "a", "schema_version": "v1", "location": "w"}
    for target, rows in ((schema.warehouse_table, [table]), (schema.load_record, loads)):
        actors.database.transact(lambda c, t=target, r=rows: c.execute(sa.insert(t), r))  # type: ignore[misc]
    actors.database.transact(lambda connection: connection.execute(sa.insert(schema.warehouse_pointer), pointers))
    actors.accept(every[0])
    actors.reject(every[1])
    reader = PointerReader(actors.database)

    def found(**limits: Any) -> tuple[list[PartitionKey], int]:
        pointers, total = reader.find(**limits)
        keys = [pointer.key for pointer in pointers]
        loads, records = reader.loads(**limits)
        assert ([load.key for load in loads], records) == (keys, total)
        return keys, total

    cases: list[tuple[dict[str, Any], Callable[[PartitionKey], bool]]] = [
        ({}, lambda one: True),
        ({"keys": [every[3], every[20]]}, lambda one: one in (every[3], every[20])),
        ({"source": "other"}, lambda one: one.source == "other"),
        ({"customers": ["2"]}, lambda one: one.customer_id == "2"),
        ({"customers": ["1", "2"]}, lambda one: True),
        ({"queries": ["b"]}, lambda one: one.query_name == "b"),
        ({"since": date(2024, 6, 2)}, lambda one: one.logical_date.day >= 2),
        ({"until": date(2024, 6, 2)}, lambda one: one.logical_date.day <= 2),
        ({"since": date(2024, 6, 2), "until": date(2024, 6, 2)}, lambda one: one.logical_date.day == 2),
        ({"source": "demo", "queries": ["a"]}, lambda one: (one.source, one.query_name) == ("demo", "a")),
        ({"status": PartitionStatus.SUCCESS}, lambda one: one == every[0]),
        ({"status": PartitionStatus.FAILED}, lambda one: one == every[1]),
        ({"keys": [every[0]], "status": PartitionStatus.FAILED}, lambda one: False),
    ]
    for limits, holds in cases:
        wanted = [one for one in every if holds(one)]
        assert found(**limits) == (wanted, len(wanted)), limits
        assert found(**limits, limit=1) == (wanted[:1], len(wanted)), limits
    assert found(after=every[3], limit=2) == (every[4:6], len(every))
    assert found(after=every[-1]) == ([], len(every))
    one = reader.pointer(every[5])
    assert one is not None
    assert (one.key, one.run_id, one.table, one.table_version, one.available) == (every[5], "A", "t", 4, False)
    assert (one.schema_version, one.record_count, one.loaded_at) == ("v1", 7, NOW)
    assert reader.pointer(key(4, "1", "a")) is None
    assert reader.due_since(every[0]) == NOW
    assert (reader.due_since(every[1]), reader.waiting()) == (None, 1)
