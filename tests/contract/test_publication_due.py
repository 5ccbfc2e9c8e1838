"""Due publications: none after a publication, and a partition that changed meanwhile stays due."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import sqlalchemy as sa

from penstock.db import schema
from penstock.errors import LakeMismatch, LeaseLost, StateConflict, WarehouseError
from penstock.lake.local import LocalLake
from penstock.partition import PartitionKey
from penstock.state.authority import AuthorityStore
from penstock.warehouse import batch as batches
from penstock.warehouse import due as due_work
from penstock.warehouse import publish
from penstock.warehouse.batch import Batch, TableChange
from penstock.warehouse.due import DueTables, Hide, Load, Settled
from penstock.warehouse.format import StagedFile, table_format
from penstock.warehouse.lease import TableLeases
from penstock.warehouse.mismatch import Mismatch, MismatchKind
from support import builders
from support.builders import audit_entry
from support.harness import Harness
from support.workspaces import key

CAMPAIGN, NETWORK = "demo.campaign_daily.v1", "demo.network_daily.v1"


@pytest.fixture
def house() -> Iterator[Harness]:
    with builders.quick_folder() as folder:
        made = Harness(Path(folder), ("campaign_daily", "network_daily"))
        yield made
        made.workspace.context.database.close()


def waiting(house: Harness) -> int:
    return house.workspace.context.pointers.waiting()


def rows(house: Harness, *tables: sa.Table) -> dict[str, list[dict[str, Any]]]:
    return builders.everything(house.workspace.context.database, tables)


def due(house: Harness) -> dict[PartitionKey, int]:
    """The due partitions, each with the version of authority to publish."""
    found = rows(house, schema.publish_due)["publish_due"]
    return {PartitionKey(*(row[name] for name in schema.KEY)): row["authority_version"] for row in found}


def forget_due(house: Harness) -> None:
    execute(house, sa.delete(schema.publish_due))


def execute(house: Harness, statement: sa.Executable) -> None:
    house.workspace.context.database.transact(lambda connection: connection.execute(statement))


def read(house: Harness, question: Callable[[sa.Connection], Any]) -> Any:
    return house.workspace.context.database.transact(question)


def demote(house: Harness, partition: PartitionKey) -> None:
    assert AuthorityStore(house.workspace.context.database, house.now).demote(partition, "wrong", audit_entry())


def network(number: int) -> PartitionKey:
    return key(number, query="network_daily")


def at(monkeypatch: pytest.MonkeyPatch, **acts: Callable[[], object]) -> None:
    """Do something when a publication reaches a point (`publish.` and the name), the first time."""

    def reach(name: str) -> None:
        if act := acts.pop(name.removeprefix("publish."), None):
            act()

    monkeypatch.setattr(publish, "reach", reach)


def test_nothing_waits_after_a_publication(house: Harness) -> None:
    assert waiting(house) == 0
    house.deliver({key(1): 1, key(2): 1})
    assert waiting(house) == 2
    assert house.publish().loaded == 2
    assert waiting(house) == 0
    assert house.publish().loaded == 0


def test_what_was_accepted_while_its_publication_was_under_way_is_not_forgotten(
    house: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.deliver({key(1): 1, key(2): 1})
    newer: list[str] = []

    def reach(name: str) -> None:
        if name.endswith(".committed") and not newer:  # the rows are in the table, the pointers are not
            newer.append(house.deliver({key(1): 2}))

    monkeypatch.setattr(publish, "reach", reach)
    house.publish()
    assert newer
    house.publish()  # the first publisher may have published it, too
    assert waiting(house) == 0
    assert house.clicks() == {key(1): {2}, key(2): {1}}


# --- the record of a publication -------------------------------------------------------------------------------------


def test_when_a_publication_is_recorded_nothing_of_it_waits_any_more(
    house: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.deliver({key(1): 1, key(2): 1})
    seen: list[dict[PartitionKey, int]] = []
    at(monkeypatch, committed=lambda: house.deliver({key(3): 1}), recorded=lambda: seen.append(due(house)))
    house.publish()
    assert seen == [{key(3): 1}]
    assert house.clicks() == {key(1): {1}, key(2): {1}, key(3): {1}}


@pytest.mark.parametrize("struck", [False, True])
def test_when_a_publication_is_recorded_what_moved_on_meanwhile_waits(
    house: Harness, monkeypatch: pytest.MonkeyPatch, struck: bool
) -> None:
    """Also if another process deleted it because it found the partition in no table."""
    house.deliver({key(1): 1, key(2): 1})
    seen: list[dict[PartitionKey, int]] = []

    def move_on() -> None:
        house.deliver({key(1): 2})
        if struck:
            forget_due(house)

    at(monkeypatch, committed=move_on, recorded=lambda: seen.append(due(house)))
    house.publish()
    assert seen == [{key(1): 2}]


def test_what_waited_before_keeps_its_moment_when_a_publication_is_recorded(
    house: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.deliver({key(1): 1})
    seen: list[object] = []
    since = house.workspace.context.pointers.due_since

    def note() -> None:
        seen.append(since(key(1)))

    def move_on() -> None:
        house.deliver({key(1): 2})
        note()

    at(monkeypatch, committed=move_on, recorded=note)
    house.publish()
    assert seen[0] is not None
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("before", "meanwhile", "read"),
    [
        ("served", ["accept"], {2}),
        ("served", ["accept", "accept"], {2}),
        ("served", ["roll back"], set()),
        ("served", ["roll back", "accept"], set()),
        ("served", ["demote"], set()),
        ("served", ["demote", "accept"], set()),
        ("never served", ["accept"], set()),
        ("withdrawn", ["accept"], set()),
    ],
)
def test_a_run_is_read_after_its_publication_if_only_newer_ones_replaced_it(
    house: Harness, monkeypatch: pytest.MonkeyPatch, before: str, meanwhile: list[str], read: set[int]
) -> None:
    """And if readers saw the run before it: then they see this one until a newer one is published."""
    authority = AuthorityStore(house.workspace.context.database, house.now)
    if before != "never served":
        first = house.deliver({key(1): 1, key(2): 1})
        house.publish()
    if before == "withdrawn":
        demote(house, key(1))
    house.deliver({key(1): 2})
    acts: dict[str, Callable[[], object]] = {
        "accept": lambda: house.deliver({key(1): 3}),
        "roll back": lambda: authority.rollback(key(1), first, audit_entry()),
        "demote": lambda: demote(house, key(1)),
    }
    seen: list[set[int]] = []
    at(
        monkeypatch,
        committed=lambda: [acts[name]() for name in meanwhile],
        recorded=lambda: seen.append(house.clicks().get(key(1), set())),
    )
    house.publish()
    assert seen == [read]


def test_a_publication_records_nothing_of_another_that_is_prepared_at_the_same_time(
    house: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = house.deliver({network(1): 1, network(2): 1, network(3): 1})
    house.publish()
    house.deliver({network(3): 2})
    house.publish()
    demote(house, network(1))
    house.deliver({network(2): 2})
    AuthorityStore(house.workspace.context.database, house.now).rollback(network(3), first, audit_entry())
    forget_due(house)
    leases = TableLeases(house.workspace.context.database, house.workers.register())
    leases.acquire([NETWORK])
    kept = (schema.warehouse_pointer, schema.load_batch_item, schema.load_record, schema.load_batch)
    before: dict[str, list[dict[str, Any]]] = {}

    def prepare_another() -> None:
        def work(connection: sa.Connection) -> None:
            items = due_work.load_again(connection, [network(1), network(2), network(3)])
            loads = [item for item in items if isinstance(item, Load)]
            hides = [replace(item, authority_version=1) for item in items if isinstance(item, Hide)]
            assert (len(loads), len(hides)) == (2, 1)
            other = Batch("other", {NETWORK: TableChange((), ())})
            batches.prepare(connection, other, leases.token, None, loads, hides, house.now())

        house.workspace.context.database.transact(work)
        before.update(of_network(rows(house, *kept)))

    def of_network(found: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
        mine = ("network_daily", None)
        return {
            name: [row for row in some if row.get("query_name") in mine and row.get("batch_id", "other") == "other"]
            for name, some in found.items()
        }

    house.deliver({key(1): 1})
    at(monkeypatch, prepared=prepare_another)
    assert house.publish().loaded == 1
    assert of_network(rows(house, *kept)) == before
    assert [len(before[table.name]) for table in kept] == [3, 3, 4, 1]
    assert (due(house), house.clicks()) == ({}, {key(1): {1}})
    told = [row["payload"] for row in rows(house, schema.event)["event"] if row["type"].startswith("Partition")]
    assert not any(payload.get("batch_id") == "other" for payload in told)


def test_a_publication_is_ended_once_and_only_by_the_one_it_belongs_to(house: Harness) -> None:
    database, now = house.workspace.context.database, house.now()
    one, two = (Batch(name, {table: TableChange((), ())}) for name, table in (("1", CAMPAIGN), ("2", NETWORK)))
    for batch in (two, one):
        database.transact(lambda c, b=batch: batches.prepare(c, b, "first", None, (), (), now))  # type: ignore[misc]

    def left(*tables: str) -> list[str]:
        return [batch.batch_id for batch in read(house, lambda c: batches.prepared_batches(c, tables))]

    def discard(token: str) -> None:
        database.transact(lambda c: batches.discard(c, one, token, now))

    assert (left(CAMPAIGN, NETWORK), left(NETWORK), left("demo.other.v1")) == (["1", "2"], ["2"], [])
    before = rows(house, schema.load_batch)
    with pytest.raises(LeaseLost):
        discard("second")
    assert rows(house, schema.load_batch) == before
    database.transact(lambda c: batches.adopt(c, one, "second"))
    with pytest.raises(LeaseLost):
        discard("first")
    discard("second")
    with pytest.raises(LeaseLost):
        discard("second")
    database.transact(lambda c: batches.adopt(c, one, "third"))
    found = {r["batch_id"]: (r["status"], r["lease_token"]) for r in rows(house, schema.load_batch)["load_batch"]}
    assert found == {"1": ("discarded", "second"), "2": ("prepared", "first")}
    assert left(CAMPAIGN, NETWORK) == ["2"]


def test_a_change_of_a_table_is_kept_as_it_was() -> None:
    staged = (StagedFile("a", 1, 2, "2024-06", "{}"), StagedFile("b", 3, 4, "2024-07", "{}"))
    change = TableChange(staged, ("c", "d"))
    assert TableChange.from_dict(change.as_dict()) == change


# --- the due work ----------------------------------------------------------------------------------------------------


def test_due_work_is_read_in_the_order_of_tables_without_some_and_not_more_than_asked(house: Harness) -> None:
    wanted = [key(2, "2024-06-09"), key(1, "2024-06-10"), network(1)]
    house.deliver(dict.fromkeys(reversed(wanted), 1))

    def found(limit: int = 9, *without: str) -> list[PartitionKey]:
        return [item.key for item in read(house, lambda c: due_work.read_due(c, limit, without))]

    assert found() == wanted
    assert found(2) == wanted[:2]
    assert found(9, "demo.campaign_daily") == wanted[2:]
    assert found(9, "demo.network_daily") == wanted[:2]
    assert found(9, "demo.network_daily", "demo.campaign_daily") == []


def test_due_work_says_what_is_to_be_loaded_hidden_or_struck(house: Harness) -> None:
    house.deliver({key(1): 1, key(2): 1, key(3): 1, key(4): 1})
    house.publish()
    newer = house.deliver({key(1): 2})
    demote(house, key(2))
    again = dict.fromkeys((key(3), key(4)), 1)
    for partition in again:
        values = {**builders.columns(partition), "authority_version": 1, "since": house.now()}
        execute(house, sa.insert(schema.publish_due).values(values))
    pointer = schema.warehouse_pointer
    execute(house, sa.update(pointer).where(*builders.is_key(pointer, key(4))).values(available=False))
    one, two, three, four = read(house, lambda c: due_work.read_due(c, 9, ()))
    assert isinstance(one, Load)
    assert (one.slice.run_id, one.table, one.instead_of, one.authority_version) == (newer, CAMPAIGN, CAMPAIGN, 2)
    assert two == Hide(key(2), CAMPAIGN, 2)
    assert three == Settled(key(3), 1)
    assert isinstance(four, Load)
    assert due_work.tables_of([one, two, three, four]) == {CAMPAIGN}
    assert due_work.tables_of([three]) == set()
    assert due_work.tables_of([replace(one, schema_version="v2")]) == {CAMPAIGN, "demo.campaign_daily.v2"}
    assert due_work.tables_of([replace(one, instead_of=None)]) == {CAMPAIGN}
    # Selected by name, a served partition is loaded again, and nothing else changes.
    [hide, load] = read(house, lambda c: due_work.load_again(c, [key(3), key(2)]))
    assert (hide, load.key, type(load)) == (two, key(3), Load)
    house.publish()
    assert read(house, lambda c: due_work.load_again(c, [key(2)])) == [], "hidden, and nothing to load"


def test_only_what_is_settled_is_struck_from_the_list(house: Harness) -> None:
    house.deliver({key(1): 1, key(2): 1, key(3): 1})
    house.deliver({key(2): 2})
    assert due(house) == {key(1): 1, key(2): 2, key(3): 1}
    settled = [Settled(key(1), 1), Settled(key(2), 1)]
    house.workspace.context.database.transact(lambda c: due_work.delete_settled(c, settled))
    assert due(house) == {key(2): 2, key(3): 1}
    house.workspace.context.database.transact(lambda c: due_work.delete_settled(c, [Settled(key(3), 2)]))
    assert due(house) == {key(2): 2}


def test_a_load_is_authoritative_while_run_schema_and_status_are_the_same(house: Harness) -> None:
    house.deliver({key(number): 1 for number in range(1, 5)})
    loads = [item for item in read(house, lambda c: due_work.read_due(c, 9, ())) if isinstance(item, Load)]
    publisher, _ = house.publisher()
    assert publisher.authority(loads) == {key(number) for number in range(1, 5)}
    house.deliver({key(1): 2})
    demote(house, key(2))
    loads[2] = replace(loads[2], schema_version="v2")
    assert publisher.authority(loads) == {key(4)}
    assert publisher.authority(loads[:3]) == set()


def test_tables_gain_what_is_accepted_and_lose_what_is_replaced_or_withdrawn(house: Harness) -> None:
    house.deliver({key(1): 1})
    facts = {CAMPAIGN: ("demo", "campaign_daily", "v1")}
    assert read(house, due_work.due_tables) == DueTables(facts, set())
    house.publish()
    assert read(house, due_work.due_tables) == DueTables({}, set())
    demote(house, key(1))
    assert read(house, due_work.due_tables) == DueTables({}, {CAMPAIGN})
    house.publish()
    house.deliver({key(1): 2})
    found = read(house, due_work.due_tables)
    assert found == DueTables(facts, set()), "it is hidden: no table holds it"
    both = DueTables({**facts, NETWORK: ("demo", "network_daily", "v1")}, {NETWORK, "demo.campaign_daily.v0"})
    assert found.with_losing({NETWORK}).names == {CAMPAIGN, NETWORK}
    assert both.without(["demo.campaign_daily.v2"]).names == {NETWORK}
    assert both.without([NETWORK]).names == {CAMPAIGN, "demo.campaign_daily.v0"}
    assert both.without([]) == both


@pytest.mark.parametrize("served", [False, True])
def test_what_is_as_it_should_be_is_struck_without_a_publication(house: Harness, served: bool) -> None:
    house.deliver({key(1): 1})
    if served:
        house.publish()
        values = {**builders.columns(key(1)), "authority_version": 1, "since": house.now()}
        execute(house, sa.insert(schema.publish_due).values(values))
    else:
        demote(house, key(1))
    published = len(house.batches())
    assert waiting(house) == 1
    done = house.publish()
    assert (done.loaded, done.hidden, waiting(house)) == (0, 0, 0)
    assert len(house.batches()) == published


# --- batch by batch --------------------------------------------------------------------------------------------------


def test_all_batches_of_a_publication_are_counted(house: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    house.deliver({key(number): 1 for number in range(1, 6)})
    house.publish()
    demote(house, key(1))
    demote(house, key(2))
    house.deliver({key(3): 2, key(4): 2, network(1): 2})
    monkeypatch.setattr(publish, "BATCH_PARTITIONS", 1)
    before = len(house.batches())
    done = house.publish()
    assert (done.loaded, done.hidden, done.broken, done.refused) == (3, 2, {}, {})
    assert (len(house.batches()) - before, waiting(house)) == (5, 0)


def test_what_cannot_be_published_fills_no_batch(house: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken partitions and mismatched tables stay due, and all others are published, however small a batch is."""
    run = house.deliver({key(1): 1, key(2): 1})
    house.deliver({key(3): 1, key(4): 1, network(1): 1, network(2): 1})
    for payload in (house.folder / "lake/raw").rglob(f"run_id={run}/payload-*.jsonl"):
        payload.write_bytes(b"{}\n")
    monkeypatch.setattr(publish, "BATCH_PARTITIONS", 1)
    done = house.publish()
    assert (done.loaded, set(done.broken)) == (4, {key(1), key(2)})
    assert set(due(house)) == {key(1), key(2)}


def test_a_table_that_disagrees_fills_no_batch(house: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    house.deliver({key(1): 1, network(1): 1})
    house.publish()
    for path in (house.folder / "lake/warehouse/demo/campaign_daily/v1/_delta_log").glob("*"):
        path.unlink()
    house.deliver({key(1): 2, key(2): 2, network(1): 2, network(2): 2})
    monkeypatch.setattr(publish, "BATCH_PARTITIONS", 1)
    done = house.publish()
    assert (done.loaded, set(done.refused)) == (2, {CAMPAIGN})
    assert set(due(house)) == {key(1), key(2)}
    assert house.clicks("network_daily") == {network(1): {2}, network(2): {2}}


def test_what_is_settled_in_a_table_that_disagrees_stays_due(house: Harness) -> None:
    house.deliver({key(1): 1, key(2): 1})
    house.publish()
    for path in (house.folder / "lake/warehouse/demo/campaign_daily/v1/_delta_log").glob("*"):
        path.unlink()
    house.deliver({key(1): 2})
    values = {**builders.columns(key(2)), "authority_version": 1, "since": house.now()}
    execute(house, sa.insert(schema.publish_due).values(values))
    assert set(house.publish().refused) == {CAMPAIGN}
    assert set(due(house)) == {key(1), key(2)}


def test_an_unfinished_publication_keeps_all_of_its_tables_waiting_for_the_one_that_is_refused() -> None:
    def of(*tables: str) -> Batch:
        return Batch("-".join(tables), {table: TableChange((), ()) for table in tables})

    wrong = Mismatch(MismatchKind.TABLE_MISSING, "a", "gone")
    refused = {"a": wrong}
    publish._refuse_together([of("c", "d"), of("b", "c"), of("a", "b"), of("e", "f")], refused)
    assert refused == dict.fromkeys("abcd", wrong)


# --- leases ----------------------------------------------------------------------------------------------------------


def holders(house: Harness) -> dict[str, str | None]:
    return {row["table_name"]: row["lease_token"] for row in rows(house, schema.warehouse_table)["warehouse_table"]}


@pytest.fixture
def tables(house: Harness) -> Harness:
    """With two tables, each of which has been published to."""
    house.deliver({key(1): 1, network(1): 1})
    house.publish()
    return house


def leases_of(house: Harness, patience: float = -1.0) -> TableLeases:
    return TableLeases(house.workspace.context.database, house.workers.register(), patience)


def test_a_lease_is_held_by_one_until_it_is_released_or_its_worker_is_gone(tables: Harness) -> None:
    assert holders(tables) == {CAMPAIGN: None, NETWORK: None}
    token = tables.workers.register()
    first, second = TableLeases(tables.workspace.context.database, token, -1.0), leases_of(tables)
    first.acquire([CAMPAIGN])
    first.acquire([CAMPAIGN])  # ours already
    with pytest.raises(StateConflict, match=CAMPAIGN):
        second.acquire([NETWORK, CAMPAIGN])
    assert holders(tables) == {CAMPAIGN: first.token, NETWORK: None}, "taken in the order of names"
    second.acquire([NETWORK])
    second.release()
    assert holders(tables) == {CAMPAIGN: first.token, NETWORK: None}
    tables.workers.stop(token)
    second.acquire([CAMPAIGN])
    assert holders(tables) == {CAMPAIGN: second.token, NETWORK: None}
    tables.workspace.context.database.transact(lambda c: second.require(c, [CAMPAIGN]))
    for lost in ([CAMPAIGN, NETWORK], [NETWORK]):
        with pytest.raises(LeaseLost, match=f"took over {NETWORK} while"):
            tables.workspace.context.database.transact(lambda c, names=lost: second.require(c, names))  # type: ignore[misc]
    with pytest.raises(LeaseLost, match=CAMPAIGN):
        tables.workspace.context.database.transact(lambda c: first.require(c, [CAMPAIGN]))


def test_who_waits_for_a_lease_says_so_and_takes_it_when_it_is_free(
    tables: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.warehouse.lease._WAIT_SECONDS", 0)
    first, second = leases_of(tables), leases_of(tables, 60)
    first.acquire([CAMPAIGN])
    said: list[str] = []

    def waiting_for(table: str) -> None:
        said.append(table)
        if len(said) == 2:
            first.release()

    second.acquire([CAMPAIGN, NETWORK], waiting_for)
    assert said == [CAMPAIGN, CAMPAIGN]
    assert set(holders(tables).values()) == {second.token}


def test_leases_are_free_after_a_publication_however_it_ends(tables: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        assert holders(tables)[CAMPAIGN] is not None
        raise RuntimeError

    tables.deliver({key(1): 2})
    at(monkeypatch, staged=fail)
    with pytest.raises(RuntimeError):
        tables.publish()
    assert set(holders(tables).values()) == {None}
    publisher, _ = tables.publisher()
    with pytest.raises(RuntimeError), publisher.holding([CAMPAIGN]):
        fail()
    assert set(holders(tables).values()) == {None}


def test_who_finds_that_more_tables_are_needed_holds_none_while_waiting_for_them(
    tables: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases are taken in the order of names: a process that holds a later one would deadlock."""
    both = Batch("both", {CAMPAIGN: TableChange((), ()), NETWORK: TableChange((), ())})
    database = tables.workspace.context.database
    database.transact(lambda c: batches.prepare(c, both, "somebody", None, (), (), tables.now()))
    living = leases_of(tables)
    living.acquire([CAMPAIGN])
    publisher, token = tables.publisher()
    mine = TableLeases(database, token, -1.0)
    with pytest.raises(StateConflict, match=CAMPAIGN):
        publisher.lease(mine, DueTables({}, {NETWORK}))
    assert holders(tables) == {CAMPAIGN: living.token, NETWORK: None}
    living.release()
    assert publisher.lease(mine, DueTables({}, {NETWORK})) == [CAMPAIGN, NETWORK]
    assert set(holders(tables).values()) == {mine.token}


@pytest.mark.parametrize("point", ["staged", "committed"])
def test_a_publisher_whose_lease_was_taken_records_nothing(
    tables: Harness, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    tables.deliver({key(1): 2})
    publisher, token = tables.publisher()
    other = leases_of(tables)

    def lose() -> None:
        tables.workers.stop(token)
        other.acquire([CAMPAIGN])

    at(monkeypatch, **{point: lose})
    before = rows(tables, schema.warehouse_pointer, schema.publish_due, schema.load_record)
    with pytest.raises(LeaseLost, match=f"took over {CAMPAIGN} while we paused"):
        publisher.publish()
    assert rows(tables, schema.warehouse_pointer, schema.publish_due, schema.load_record) == before
    assert tables.unfinished() == (set() if point == "staged" else {CAMPAIGN})
    assert holders(tables)[CAMPAIGN] == other.token, "it is not ours to release"
    other.release()
    tables.publish()
    assert tables.clicks() == {key(1): {2}}


# --- the order of a publication --------------------------------------------------------------------------------------


def test_files_are_synced_before_the_publication_is_prepared_and_commits_before_it_is_recorded(
    tables: Harness,
) -> None:
    tables.deliver({key(1): 2})
    publisher, _ = tables.publisher()
    seen: list[tuple[set[str], int]] = []

    class NotingLake(LocalLake):
        def sync(self) -> None:
            table = table_format(tables.workspace.context.lake).open(CAMPAIGN, "warehouse/demo/campaign_daily/v1")
            assert tables.clicks() == {key(1): {1}}
            seen.append((tables.unfinished(), table.version))
            super().sync()

    publisher.lake = NotingLake(tables.workspace.context.lake.url)
    publisher.publish()
    [(none, before), (prepared, after)] = seen
    assert (none, prepared, after - before) == (set(), {CAMPAIGN}, 1)
    assert tables.clicks() == {key(1): {2}}


def test_a_compaction_that_would_lose_rows_changes_nothing(tables: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.warehouse.packing._small_neighbours", lambda files, written: [])
    tables.deliver({key(2): 1})
    tables.publish()
    publisher, _ = tables.publisher()
    stage = publisher.stage

    def lossy(*arguments: Any) -> Any:
        return [
            replace(piece, files=tuple(replace(file, records=file.records - 1) for file in piece.files))
            for piece in stage(*arguments)
        ]

    before = rows(tables, schema.load_batch, schema.warehouse_pointer)
    publisher.stage = lossy
    with pytest.raises(WarehouseError, match="would turn 6 rows into 5: nothing was changed"):
        publisher.compact(CAMPAIGN)
    assert rows(tables, schema.load_batch, schema.warehouse_pointer) == before
    publisher.stage = stage
    assert publisher.compact(CAMPAIGN) == publish.Compaction(CAMPAIGN, 2, 1)


def test_a_table_that_disagrees_is_not_held(tables: Harness) -> None:
    for path in (tables.folder / "lake/warehouse/demo/campaign_daily/v1/_delta_log").glob("*"):
        path.unlink()
    publisher, _ = tables.publisher()
    with pytest.raises(LakeMismatch, match=CAMPAIGN), publisher.holding([CAMPAIGN]):
        pytest.fail("it was held")
    with publisher.holding([NETWORK]) as (opened, leases):
        assert list(opened) == [NETWORK]
        assert holders(tables) == {CAMPAIGN: None, NETWORK: leases.token}


def test_a_commit_says_when_files_came_and_went_and_of_which_month_they_are(tables: Harness) -> None:
    tables.deliver({key(1): 2})
    moment = tables.now().replace(microsecond=5000)
    tables.now = lambda: moment  # type: ignore[method-assign]
    log = tables.folder / "lake/warehouse/demo/campaign_daily/v1/_delta_log"
    tables.publish()
    actions = [orjson.loads(line) for line in sorted(log.glob("*.json"))[-1].read_bytes().splitlines()]
    [added], [removed] = ([action[name] for action in actions if name in action] for name in ("add", "remove"))
    milliseconds = int(moment.timestamp()) * 1000 + 5
    assert (added["modificationTime"], removed["deletionTimestamp"]) == (milliseconds, milliseconds)
    assert added["partitionValues"] == removed["partitionValues"] == {"_month": "2024-06"}
    assert added["dataChange"] is removed["dataChange"] is True
    marks = {action["txn"]["appId"].rpartition("/")[0] for action in actions if "txn" in action}
    assert marks == {"penstock", "penstock/pub"}


def test_who_opened_a_table_before_its_fence_cannot_commit_to_it(tables: Harness) -> None:
    place = "warehouse/demo/campaign_daily/v1"
    opened = table_format(tables.workspace.context.lake)
    early, late = (opened.open(CAMPAIGN, place) for _ in range(2))
    fenced = late.fence()
    assert fenced.version == early.version + 1
    for commit in (early.fence, lambda: early.publish("batch", (), (), tables.now())):
        with pytest.raises(LeaseLost, match=f"table {CAMPAIGN} was changed by another process"):
            commit()
    assert not opened.open(CAMPAIGN, place).has_published("batch")
    assert fenced.publish("batch", (), (), tables.now()) == fenced.version + 1
    assert opened.open(CAMPAIGN, place).has_published("batch")
