"""The specified semantics of loads, pointers and load records, on both databases and real tables."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from penstock.db import schema
from penstock.expected import ExpectedRange
from penstock.lifecycle import AttemptReason
from penstock.partition import AttemptKey, PartitionKey, new_run_id, new_ulid
from penstock.state.authority import AuthorityStore
from penstock.state.marks import MarkStore
from penstock.state.records import Planned
from support import builders
from support.builders import audit_entry
from support.harness import Harness
from support.workspaces import key

TABLE = "demo.campaign_daily"
DAY = "2024-06-09"
LOADED = datetime(2024, 6, 11, 12, tzinfo=UTC)


@pytest.fixture(params=builders.BACKENDS)
def house(request: pytest.FixtureRequest) -> Iterator[Harness]:
    with builders.quick_folder() as folder:
        if request.param == "sqlite":
            made = Harness(Path(folder))
        else:
            made = Harness(
                Path(folder), state=request.getfixturevalue("postgres_url"), schema=f"t_{new_ulid().lower()}"
            )
        yield made
        made.workspace.context.database.close()


def slices(*numbers: int, clicks: int = 1) -> dict[PartitionKey, int]:
    return {key(number, DAY): clicks for number in numbers}


def demote(house: Harness, partition: PartitionKey) -> None:
    assert AuthorityStore(house.workspace.context.database, house.now).demote(partition, "wrong", audit_entry())


def requeue(house: Harness, partition: PartitionKey) -> None:
    assert house.control.requeue([partition], audit_entry()) == 1


def rows(house: Harness, table: sa.Table) -> list[dict[str, Any]]:
    return builders.everything(house.workspace.context.database, [table])[table.name]


def pointers(house: Harness) -> dict[PartitionKey, tuple[str, str]]:
    found, _ = house.workspace.context.pointers.find()
    return {pointer.key: (pointer.run_id, pointer.schema_version) for pointer in found if pointer.available}


def authority(house: Harness) -> dict[PartitionKey, tuple[str, str]]:
    states = [row for row in rows(house, schema.partition_state) if row["status"] == "success"]
    return {
        PartitionKey(*(row[name] for name in schema.KEY)): (row["current_run_id"], row["schema_version"])
        for row in states
    }


def test_pointers_mirror_authority_after_the_load_and_not_before(house: Harness) -> None:
    house.deliver(slices(1, 2))
    assert (pointers(house), house.clicks()) == ({}, {})
    house.publish()
    before = authority(house)
    assert pointers(house) == before
    newer = house.under("v2")
    newer.deliver(slices(2, clicks=2))
    newer.workspace.context.database.close()
    assert authority(house) != before
    assert (pointers(house), house.clicks()) == (before, {key(1): {1}, key(2): {1}})
    house.publish()
    assert pointers(house) == authority(house)
    assert pointers(house)[key(2)][1] == "v2"


def test_only_success_is_loaded(house: Harness) -> None:
    """One partition failed and one waits to be tried again; both have a sealed raw run and a place in the due list."""
    house.deliver(slices(1, 2, 3))
    demote(house, key(2))
    demote(house, key(3))
    requeue(house, key(3))
    due = rows(house, schema.publish_due)
    assert len(due) == 3
    assert house.publish().loaded == 1
    assert house.clicks() == {key(1): {1}}
    assert set(pointers(house)) == {key(1)}
    assert [row["customer_id"] for row in rows(house, schema.load_record)] == [key(1).customer_id]


@pytest.mark.parametrize("before", ["success", "failed", "pending"])
def test_a_new_run_replaces_the_rows_whatever_the_status_was(house: Harness, before: str) -> None:
    house.deliver(slices(1, 2))
    house.publish()
    if before != "success":
        demote(house, key(1))
    if before == "pending":
        requeue(house, key(1))
    [status] = [
        row["status"] for row in rows(house, schema.partition_state) if row["customer_id"] == key(1).customer_id
    ]
    assert status == before
    house.deliver(slices(1, clicks=2))
    assert house.publish().loaded == 1
    assert house.clicks() == {key(1): {2}, key(2): {1}}
    assert house.workspace.data.vouched(TABLE).arrow().num_rows == 6


def test_a_load_record_says_when_from_which_run_and_in_which_schema_version(house: Harness) -> None:
    house.now = lambda: LOADED  # type: ignore[method-assign]
    first = house.deliver(slices(1), rows=3)
    house.publish()
    house.now = lambda: LOADED + timedelta(hours=1)  # type: ignore[method-assign]
    second = house.deliver(slices(1, clicks=2), rows=4)
    house.publish()
    columns = ("run_id", "schema_version", "record_count", "loaded_at")
    kept = {tuple(row[name] for name in columns) for row in rows(house, schema.load_record)}
    assert kept == {(first, "v1", 3, LOADED), (second, "v1", 4, LOADED + timedelta(hours=1))}
    pointer = house.workspace.context.pointers.pointer(key(1))
    assert pointer is not None
    assert (pointer.run_id, pointer.loaded_at, pointer.record_count) == (second, LOADED + timedelta(hours=1), 4)
    [*_, newest], total = house.workspace.context.pointers.loads(keys=[key(1)])
    assert total == 2
    assert (newest.run_id, newest.loaded_at, newest.schema_version) == (second, pointer.loaded_at, "v1")


def test_sealed_raw_files_without_a_verdict_make_nothing_ready(house: Harness) -> None:
    house.deliver(slices(2))
    house.publish()
    contract = house.workspace.context.contracts["campaign_daily"]
    planned = Planned(key(1, DAY), 0, AttemptReason.MISSING, contract.fingerprint, contract.schema_version)
    token, run_id = house.workers.register(), new_run_id()
    issued, _ = house.control.issue(run_id, token, 0, [planned])
    assert [item.attempt for item in issued] == [AttemptKey(key(1), run_id)]
    house._accepted(AttemptKey(key(1), run_id), 1, 3, token)  # seals the payload, without a verdict
    [sealed], trusted = house.workspace.raw.runs(key(1))
    assert (sealed.seal is not None, trusted) == (True, None)
    assert house.publish().loaded == 0
    assert set(house.clicks()) == {key(2)}
    assert house.workspace.ready(TABLE, date=DAY, customers=(key(1).customer_id,)) is False
    assert house.workspace.ready(TABLE, date=DAY, customers=(key(2).customer_id,)) is True


def test_a_terminal_partition_stays_unavailable_to_consumers(house: Harness) -> None:
    house.deliver(slices(1, 2))
    house.publish()
    demote(house, key(1))
    marks = MarkStore(house.workspace.context.database, house.now)
    assert marks.mark_terminal([key(1)], "the account is gone", audit_entry()) == 1
    house.publish()
    assert set(house.clicks()) == {key(2)}
    [day] = house.workspace.coverage(TABLE, date=DAY, customers=(key(1).customer_id, key(2).customer_id))
    assert (day.expected, day.absent) == (2, (key(1),))
    one = key(1, DAY)
    alone = ExpectedRange(one.source, one.customer_id, one.query_name, one.logical_date, one.logical_date)
    later = house.workspace.context.now() + timedelta(days=365)
    assert house.workspace.context.state.reasons([alone], later, {}) == {"failed": 1}  # however long they wait


def test_the_order_of_loads_changes_nothing(tmp_path: Path) -> None:
    """Newest days first, oldest first, or all at once: each partition is independent of the others."""

    def loaded(name: str, *batches: tuple[str, ...]) -> list[tuple[Any, ...]]:
        house = Harness(tmp_path / name)
        for batch in batches:
            house.deliver({key(1, day): int(day[-2:]) for day in batch})
            house.publish()
        found = house.workspace.data.vouched(TABLE).arrow().to_pylist()
        house.workspace.context.database.close()
        return [(row["logical_date"], row["campaign_id"], row["clicks"]) for row in found]

    days = ("2024-06-09", "2024-06-10", "2024-06-11")
    at_once = loaded("at-once", days)
    assert len(at_once) == 9
    assert loaded("oldest", *((day,) for day in days)) == at_once
    assert loaded("newest", *((day,) for day in reversed(days))) == at_once
