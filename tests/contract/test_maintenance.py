"""Maintenance of the warehouse: reconcile, compact, vacuum, snapshots, verify, readiness. Real tables, no Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from penstock.db import schema
from penstock.errors import ActRefused, LeaseLost, UsageError, WarehouseError
from penstock.partition import PartitionKey, new_run_id, new_ulid
from penstock.state.authority import AuthorityStore
from penstock.warehouse import batch as batches
from penstock.warehouse.batch import Batch, TableChange
from penstock.warehouse.compare import differences, queue_differences
from penstock.warehouse.format import table_format
from penstock.warehouse.heads import TableHead
from penstock.warehouse.lease import TableLeases
from penstock.warehouse.publish import Compaction
from penstock.warehouse.readiness import Coverage, Rule, wait_for
from penstock.warehouse.vacuum import preview_vacuum
from support import builders
from support.builders import audit_entry
from support.cli import penstock
from support.harness import Harness
from support.workspaces import key

TABLE = "demo.campaign_daily"


@pytest.fixture(params=builders.BACKENDS)
def house(request: pytest.FixtureRequest) -> Iterator[Harness]:
    with builders.quick_folder() as folder:
        if request.param == "sqlite":
            yield Harness(Path(folder))
            return
        url = request.getfixturevalue("postgres_url")
        made = Harness(Path(folder), state=url, schema=f"t_{new_ulid().lower()}")
        yield made
        made.workspace.context.database.close()


def days(*numbers: int, clicks: int = 1) -> dict[PartitionKey, int]:
    return {key(number, "2024-06-09"): clicks for number in numbers}


def publish_each(house: Harness, *numbers: int) -> None:
    """A publication of its own for each customer, so that there are several files."""
    for number in numbers:
        house.deliver(days(number), rows=3)
        house.publish()


def demote(house: Harness, partition: PartitionKey) -> None:
    AuthorityStore(house.workspace.context.database, house.now).demote(partition, "wrong", audit_entry())


def files(house: Harness) -> list[str]:
    [(_, head)] = house.workspace.maintenance.tables()
    table = table_format(house.workspace.context.lake).open(head.name, head.location, head.version)
    return [f.path for f in table.files()]


# --- reconcile -------------------------------------------------------------------------------------------------------


def test_the_comparison_says_what_is_to_be_loaded_replaced_and_hidden(house: Harness) -> None:
    first = house.deliver(days(1, 2, 3))
    house.publish()
    assert house.workspace.maintenance.differences() == ([], {})
    replaced, added = house.deliver(days(2, clicks=5)), house.deliver(days(4))
    demote(house, key(3))
    found, counts = house.workspace.maintenance.differences()
    assert {d.key: d.act for d in found} == {key(2): "replace", key(3): "hide", key(4): "load"}
    wanted = {d.key: (d.run_id, d.schema_version, d.served_run_id, d.served_schema_version) for d in found}
    assert wanted == {
        key(2): (replaced, "v1", first, "v1"),
        key(3): (None, None, first, "v1"),
        key(4): (added, "v1", None, None),
    }
    assert counts == {"hide": 1, "load": 1, "replace": 1}


def test_the_comparison_knows_what_is_hidden_unavailable_or_of_another_schema_version(house: Harness) -> None:
    first = house.deliver(days(1, 2, 3, 4))
    house.publish()
    demote(house, key(3))
    house.publish()
    assert house.workspace.maintenance.differences() == ([], {}), "hidden, as it should be"
    again = house.deliver(days(3))
    pointer = schema.warehouse_pointer

    def spoil(number: int, **values: Any) -> None:
        change = sa.update(pointer).where(*builders.is_key(pointer, key(number))).values(**values)
        house.workspace.context.database.transact(lambda connection: connection.execute(change))

    spoil(1, available=False)
    spoil(2, schema_version="v0")
    found, counts = differences(house.workspace.context.database, None)
    assert [(d.key, d.act, d.run_id, d.served_run_id, d.served_schema_version) for d in found] == [
        (key(1), "replace", first, first, "v1"),
        (key(2), "replace", first, first, "v0"),
        (key(3), "load", again, first, "v1"),
    ]
    assert counts == {"load": 1, "replace": 2}
    assert differences(house.workspace.context.database, 2) == (found[:2], counts)
    assert queue_differences(house.workspace.context.database, house.now()) == 2, "one waits already"
    assert house.publish().loaded == 3
    assert house.workspace.maintenance.differences() == ([], {})


def test_what_fell_off_the_list_of_due_work_is_found_and_published(house: Harness) -> None:
    house.deliver(days(1))
    house.publish()
    house.deliver(days(1, clicks=7))
    house.workspace.context.database.transact(lambda connection: connection.execute(sa.delete(schema.publish_due)))
    assert house.publish().loaded == 0
    assert queue_differences(house.workspace.context.database, house.now()) == 1
    assert queue_differences(house.workspace.context.database, house.now()) == 0
    assert house.publish().loaded == 1
    assert house.clicks() == {key(1): {7}}


# --- compact and vacuum ----------------------------------------------------------------------------------------------


def compact(house: Harness) -> Compaction:
    publisher, token = house.publisher()
    done = publisher.compact(f"{TABLE}.v1")
    house.workers.stop(token)
    return done


def split(house: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publications that fold no small neighbours in: several small files."""
    monkeypatch.setattr("penstock.warehouse.packing._small_neighbours", lambda files, written: [])
    publish_each(house, 1, 2, 3, 4)
    assert len(files(house)) == 4


def test_compaction_changes_files_and_nothing_else(house: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    split(house, monkeypatch)
    demote(house, key(4))  # hidden, and not yet gone from the table
    order = [("customer_id", "ascending"), ("campaign_id", "ascending")]
    before = house.workspace.data.vouched(TABLE).arrow().sort_by(order)
    assert compact(house) == Compaction(f"{TABLE}.v1", 4, 1)
    after = house.workspace.data.vouched(TABLE).arrow().sort_by(order)
    assert len(files(house)) == 1
    assert after.equals(before)
    assert compact(house) == Compaction(f"{TABLE}.v1", 0, 0)
    assert house.workspace.maintenance.verify((), lambda share: None, raw=True).wrong == {}
    house.deliver(days(1, clicks=9))
    house.publish()
    assert house.clicks()[key(1)] == {9}


def test_a_compaction_that_slept_through_its_lease_cannot_commit(
    house: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    split(house, monkeypatch)
    slow, token = house.publisher()
    stage = slow.stage

    def sleep_while_another_publishes(*arguments: object) -> object:
        house.workers.stop(token)
        house.deliver(days(5))
        house.publish()
        return stage(*arguments)  # type: ignore[arg-type]

    slow.stage = sleep_while_another_publishes  # type: ignore[assignment]
    with pytest.raises(LeaseLost):
        slow.compact(f"{TABLE}.v1")
    assert set(house.clicks()) == {key(number) for number in range(1, 6)}


def test_a_reader_that_took_its_snapshot_before_reads_on_through_compaction(
    house: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    split(house, monkeypatch)
    reader = house.workspace.data.vouched(TABLE)
    compact(house)
    assert reader.arrow().num_rows == 12


def vacuum(house: Harness, keep: set[int], retention: timedelta = timedelta(hours=1)) -> list[str]:
    [(_, head)] = house.workspace.maintenance.tables()
    versions: set[tuple[int, str | None]] = {(version, None) for version in (head.version, *keep)}
    database, lake = house.workspace.context.database, house.workspace.context.lake
    return preview_vacuum(database, lake, head, versions, retention)


def test_vacuum_refuses_a_retention_that_readers_could_notice(house: Harness) -> None:
    publish_each(house, 1)
    with pytest.raises(UsageError, match="at least 1:00:00"):
        vacuum(house, set(), timedelta(minutes=5))


def test_vacuum_leaves_alone_what_is_read_and_what_snapshots_name(house: Harness) -> None:
    long_ago = house.now() - timedelta(days=30)
    house.now = lambda: long_ago  # type: ignore[method-assign]
    house.deliver(days(1))
    house.publish()
    first = files(house)
    house.workspace.data.snapshots.take("then", [("demo", "campaign_daily")], long_ago, timedelta(days=60))
    house.deliver(days(1, clicks=2))
    house.publish()
    second = files(house)
    house.deliver(days(1, clicks=3))
    house.publish()
    [(_, then)] = house.workspace.data.snapshots.get("then", long_ago).tables
    assert {path.rsplit("/", 1)[-1] for path in vacuum(house, {then.version})} == {second[0].rsplit("/", 1)[-1]}
    gone = {path.rsplit("/", 1)[-1] for path in vacuum(house, set())}
    assert gone == {path.rsplit("/", 1)[-1] for path in (*first, *second)}


def test_vacuum_leaves_an_interrupted_publication_to_the_next_publisher(house: Harness) -> None:
    publish_each(house, 1)
    database, token = house.workspace.context.database, house.workers.register()
    leases = TableLeases(database, token)
    leases.acquire([f"{TABLE}.v1"])
    left = Batch(new_ulid(), {f"{TABLE}.v1": TableChange((), ())})
    database.transact(lambda c: batches.prepare(c, left, leases.token, None, (), (), house.now()))
    assert house.workspace.maintenance.vacuum((), timedelta(hours=1), dry_run=True) == {f"{TABLE}.v1": []}, (
        "it is under way"
    )
    house.workers.stop(token)
    for dry_run in (True, False):
        with pytest.raises(UsageError, match="penstock warehouse reconcile"):
            house.workspace.maintenance.vacuum((), timedelta(hours=1), dry_run=dry_run)
    assert house.unfinished() == {f"{TABLE}.v1"}
    [table] = builders.everything(database, [schema.warehouse_table])["warehouse_table"]
    assert table["lease_token"] is None
    house.publish()
    assert house.batches()[left.batch_id] == "discarded"
    house.workspace.maintenance.vacuum((), timedelta(hours=1), dry_run=False)


def test_a_preview_of_vacuum_takes_no_lease_and_changes_no_row(house: Harness) -> None:
    long_ago = house.now() - timedelta(days=30)
    house.now = lambda: long_ago  # type: ignore[method-assign]
    house.deliver(days(1))
    house.publish()
    replaced = {path.rsplit("/", 1)[-1] for path in files(house)}
    house.deliver(days(1, clicks=2))
    house.publish()
    house.grow_old()
    database = house.workspace.context.database
    leases = TableLeases(database, house.workers.register())
    leases.acquire(["demo.campaign_daily.v1"])  # a publisher is active: the preview does not wait
    before = builders.everything(database)
    [listed] = house.workspace.maintenance.vacuum((), timedelta(hours=1), dry_run=True).values()
    assert builders.everything(database) == before
    leases.release()
    assert {path.rsplit("/", 1)[-1] for path in listed} == replaced
    assert list(house.workspace.maintenance.vacuum((), timedelta(hours=1), dry_run=False).values()) == [listed]


@pytest.mark.parametrize(
    "command",
    [
        ("runs", "resume", "01JZZZZZZZZZZZZZZZZZZZZZZZ"),
        ("warehouse", "vacuum", "nope.table"),
        ("warehouse", "vacuum", "--retention", "5m"),
        ("warehouse", "vacuum", "nope.table", "--dry-run"),
        ("snapshot", "a/b"),
        ("snapshot", "then"),
    ],
    ids=" ".join,
)
def test_a_usage_mistake_leaves_no_line_in_the_audit_log(house: Harness, command: tuple[str, ...]) -> None:
    publish_each(house, 1)
    house.workspace.data.take_snapshot("then", actor="kim")
    before = builders.everything(house.workspace.context.database)
    ended = penstock(*command, workspace=house.folder)
    assert ended.returncode == 2, ended
    assert builders.everything(house.workspace.context.database) == before


def test_a_publisher_that_slept_while_vacuum_deleted_what_it_had_staged_cannot_commit(
    house: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_each(house, 1)
    house.deliver(days(1, clicks=2))
    slow, token = house.publisher()

    def sleep_for_hours(point: str) -> None:
        """Its files are staged and old, its lease has expired, and vacuum runs."""
        if point == "publish.staged":
            monkeypatch.setattr("penstock.warehouse.publish.reach", lambda _: None)
            house.workers.stop(token)
            house.grow_old()
            [deleted] = house.workspace.maintenance.vacuum((), timedelta(hours=1), dry_run=False).values()
            assert len(deleted) == 1

    monkeypatch.setattr("penstock.warehouse.publish.reach", sleep_for_hours)
    with pytest.raises(LeaseLost):
        slow.publish()
    assert house.clicks() == {key(1): {1}}
    house.publish()
    assert house.clicks() == {key(1): {2}}


# --- snapshots -------------------------------------------------------------------------------------------------------


def test_a_snapshot_reads_as_it_was_without_what_was_demoted_since(house: Harness) -> None:
    ws = house.workspace
    house.deliver(days(1, 2, 3))
    house.publish()
    ws.data.snapshots.take("before", [("demo", "campaign_daily")], house.now(), timedelta(days=1))
    house.deliver(days(1, clicks=5))
    demote(house, key(2))
    house.publish()
    now = {row["customer_id"]: row["clicks"] for row in ws.data.vouched(TABLE).arrow().to_pylist()}
    assert now == {key(1).customer_id: 5, key(3).customer_id: 1}
    heads = ws.data.snapshots.get("before", house.now())
    assert [asset for asset, _ in heads.tables] == [TABLE]
    vouched = ws.data.vouched(TABLE, as_of="before")
    by_sql = ws.sql(f"SELECT * FROM {TABLE}", as_of="before").read_all()
    for rows in (vouched.arrow(), vouched.duckdb().to_arrow_table(), by_sql):
        then = {row["customer_id"]: row["clicks"] for row in rows.to_pylist()}
        assert then == {key(1).customer_id: 1, key(3).customer_id: 1}
    assert ws.data.withdrawn_since("before", [TABLE]) == 1


def test_names_of_snapshots_are_given_once_and_expire(house: Harness) -> None:
    publish_each(house, 1)
    store, now = house.workspace.data.snapshots, house.now()
    store.take("one", [("demo", "campaign_daily")], now, timedelta(hours=1))
    with pytest.raises(UsageError, match="already"):
        store.take("one", [("demo", "campaign_daily")], now, timedelta(hours=1))
    with pytest.raises(UsageError, match="not a name"):
        store.take("../one", [("demo", "campaign_daily")], now, timedelta(hours=1))
    with pytest.raises(UsageError, match=r"unknown snapshot 'two' \(snapshots: one\)"):
        store.get("two", now)
    with pytest.raises(UsageError, match="expired"):
        store.get("one", now + timedelta(hours=2))
    store.delete_expired(now + timedelta(hours=2))
    assert store.all() == []


def test_a_snapshot_expires_at_its_moment_and_only_expired_ones_are_forgotten(house: Harness) -> None:
    publish_each(house, 1)
    store, now, instant = house.workspace.data.snapshots, house.now(), timedelta(microseconds=1)
    asset, end = [("demo", "campaign_daily")], now + timedelta(hours=1)
    store.take("first", asset, now, timedelta(hours=1))
    store.take("a-later-one", asset, now + instant, timedelta(hours=1))
    assert [taken.name for taken in store.all()] == ["first", "a-later-one"]
    assert store.get("first", end - instant).expires_at == end
    with pytest.raises(UsageError, match="expired"):
        store.get("first", end)
    store.delete_expired(end - instant)
    assert len(store.all()) == 2
    store.delete_expired(end)
    assert [taken.name for taken in store.all()] == ["a-later-one"]
    with pytest.raises(UsageError, match="already"):
        store.require_new("a-later-one")
    store.require_new("first")
    store.require_new("n" * 63)
    for name in ("n" * 64, "", "-a", "A"):
        with pytest.raises(UsageError, match="not a name"):
            store.require_new(name)
    store.take("second", asset, now, timedelta(hours=1))
    store.drop("a-later-one")
    assert [taken.name for taken in store.all()] == ["second"]


# --- verify ----------------------------------------------------------------------------------------------------------


def test_verify_names_what_is_damaged(house: Harness) -> None:
    ws = house.workspace
    house.deliver(days(1, 2, 3, 4))
    house.publish()
    assert ws.maintenance.verify((), lambda share: None, raw=True).wrong == {}
    pointer = schema.warehouse_pointer
    spoil = sa.update(pointer).where(pointer.c.customer_id == key(1).customer_id).values(record_count=99)
    ws.context.database.transact(lambda connection: connection.execute(spoil))
    attempt = schema.partition_attempt
    digest = sa.update(attempt).where(attempt.c.customer_id == key(2).customer_id).values(content_digest="other")
    builders.tamper(ws.context.database, digest)
    [payload] = [e.path for e in ws.context.lake.list("raw") if key(3).customer_id in e.path and "payload" in e.path]
    with ws.context.lake.writer(payload) as writer:
        writer.write(b"{}\n")
        writer.commit()
    wrong = ws.maintenance.verify((), lambda share: None, raw=True).wrong
    assert set(wrong) == {key(1), key(2), key(3)}
    assert wrong[key(1)] == ["the table has 3 rows, the pointer has 99"]
    assert wrong[key(2)] == ["the rows are not those that were validated"]
    assert wrong[key(3)][0].startswith("raw run ")
    assert set(ws.maintenance.verify((), lambda share: None, raw=False).wrong) == {key(1), key(2)}


def test_verify_names_the_partitions_of_a_file_that_is_gone(house: Harness) -> None:
    house.deliver(days(1, 2))
    house.publish()
    [(_, head)] = house.workspace.maintenance.tables()
    house.workspace.context.lake.delete([f"{head.location}/{path}" for path in files(house)])
    assert set(house.workspace.maintenance.verify((), lambda share: None, raw=False).wrong) == {key(1), key(2)}


@pytest.mark.parametrize(
    ("said", "edited", "hidden"),
    [
        ({"maxValues": {"logical_date": "2024-06-10"}}, {"maxValues": {"logical_date": "2024-06-09"}}, True),
        ({"minValues": {"logical_date": "2024-06-09"}}, {"minValues": {"logical_date": "2024-06-10"}}, True),
        ({"maxValues": {"customer_id": "1000000002"}}, {"maxValues": {"customer_id": "1000000001"}}, True),
        ({"minValues": {"customer_id": "1000000001"}}, {"minValues": {"customer_id": "1000000000"}}, False),
        ({"numRecords": 6}, {"numRecords": 7}, False),
        ({"size": None}, {"size": 7}, False),
    ],
)
def test_verify_compares_the_statistics_in_the_log_with_the_files(
    house: Harness, said: dict[str, Any], edited: dict[str, Any], hidden: bool
) -> None:
    ws = house.workspace
    house.deliver({key(1, "2024-06-09"): 1, key(2, "2024-06-10"): 1})
    house.publish()
    [(_, head)] = ws.maintenance.tables()
    [path] = files(house)
    edit_log(house, head, said, edited)
    done = ws.maintenance.verify((), lambda share: None, raw=False)
    [(where, words)] = done.files.items()
    assert where == (head.name, path)
    assert len(words) == 1
    assert words[0].startswith("the log has")
    assert bool(done.wrong) is hidden


def edit_log(house: Harness, head: TableHead, said: dict[str, Any], edited: dict[str, Any]) -> None:
    """Change the entry of the log about the one file of a table."""
    log = f"{head.location}/_delta_log/{head.version:020d}.json"
    lines = [json.loads(line) for line in house.workspace.context.lake.read(log).splitlines()]
    [add] = [line["add"] for line in lines if "add" in line]
    stats = json.loads(add["stats"])
    if "size" in edited:
        add["size"] = edited["size"]
    for name in edited.keys() & stats.keys():
        old, new = said[name], edited[name]
        if isinstance(new, dict):
            assert old.items() <= stats[name].items()
            stats[name] |= new
        else:
            assert stats[name] == old
            stats[name] = new
    add["stats"] = json.dumps(stats)
    with house.workspace.context.lake.writer(log) as writer:
        writer.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        writer.commit()


# --- damaged data files ----------------------------------------------------------------------------------------------


def publish_one_more(house: Harness) -> None:
    """The load stage at the end of a run, with a stager that needs no Spark job."""
    house.deliver(days(1, clicks=2))
    house.workspace.publications.publish(NO_SPARK, house.workers.register(), new_run_id(), None)


def compact_with_the_stager_of_runs(house: Harness) -> None:
    [(_, head)] = house.workspace.maintenance.tables()
    house.workspace.publications.publisher(NO_SPARK, house.workers.register(), None).compact(head.name)


# A session of which only the number of cores is used: the work is small enough for this process.
NO_SPARK: Any = SimpleNamespace(
    _sc=SimpleNamespace(master="local[4]", defaultParallelism=4, getConf=lambda: SimpleNamespace(get=lambda *_: None))
)
READERS: dict[str, Callable[[Harness], object]] = {
    "arrow": lambda house: house.workspace.data.vouched(TABLE).arrow(),
    "duckdb": lambda house: house.workspace.data.vouched(TABLE).duckdb().to_arrow_table(),
    "sql": lambda house: house.workspace.sql(f"SELECT sum(clicks) FROM {TABLE}").read_all(),
    "publish": publish_one_more,
    "compact": compact_with_the_stager_of_runs,
}


def lose(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def garble(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


# The log tells which files are missing or have another size, so all four are named. A file of the right size shows its
# damage only when it is read, and the first one ends the reading.
@pytest.mark.parametrize(
    ("spoil", "concerned"),
    [(lose, "4 partitions are"), (truncate, "4 partitions are"), (garble, "1 partition is")],
)
@pytest.mark.parametrize("reader", READERS)
def test_a_damaged_data_file_is_named_with_its_table_its_partitions_and_the_command(
    tmp_path: Path, reader: str, spoil: Callable[[Path], None], concerned: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = Harness(tmp_path)
    split(house, monkeypatch)
    [(_, head)] = house.workspace.maintenance.tables()
    for path in files(house):
        spoil(Path(house.workspace.context.lake.url, head.location, path))
    with pytest.raises(WarehouseError) as raised:
        READERS[reader](house)
    words = str(raised.value)
    assert words.startswith("table demo.campaign_daily.v1: its data file _month=2024-06/part-")
    assert f"; {concerned} concerned (demo/1000000001/campaign_daily/2024-06-09" in words
    assert "`penstock recover --from database --table demo.campaign_daily` rebuilds it from raw" in words
    assert raised.value.exit_code == 1


# --- readiness -------------------------------------------------------------------------------------------------------


def test_a_slice_is_ready_when_its_pointers_are_there(house: Harness) -> None:
    ws = house.workspace
    slices = {key(n, "2024-06-09"): 1 for n in range(1, 10)}
    assert ws.ready(TABLE, date="2024-06-09") is False
    house.deliver(slices)
    assert ws.ready(TABLE, date="2024-06-09") is False, "accepted is not published"
    house.publish()
    assert ws.ready(TABLE, date="2024-06-09") is True
    assert ws.ready(TABLE) is False  # the other day
    assert ws.ready(TABLE, require="any", since="2024-06-09", until="2024-06-09") is True
    demote(house, key(1))
    [day] = ws.coverage(TABLE, date="2024-06-09")
    assert (day.expected, day.available, day.absent) == (9, 8, (key(1),))
    assert ws.ready(TABLE, date="2024-06-09", require="80%") is True
    assert ws.ready(TABLE, date="2024-06-09", require="9") is False
    assert ws.ready(TABLE, date="2024-06-09", customers=(key(2).customer_id,)) is True
    with pytest.raises(UsageError, match="unknown table"):
        ws.ready("demo.nothing")
    with pytest.raises(UsageError, match="use all, any"):
        ws.ready(TABLE, require="most")
    assert ws.ready(TABLE, date="2031-01-01") is False


@pytest.mark.parametrize(
    ("text", "expected", "needed"),
    [
        ("all", 7, 7),
        ("any", 7, 1),
        ("3", 7, 3),
        ("95%", 7, 7),
        ("50%", 7, 4),
        ("1", 7, 1),
        ("99%", 200, 198),
        ("1%", 200, 2),
        ("100%", 7, 7),
    ],
)
def test_a_rule_says_how_many_it_needs(text: str, expected: int, needed: int) -> None:
    assert Rule(text).needed(expected) == needed


@pytest.mark.parametrize("text", ["0", "0%", "101%", "-1", "1.5", "", "%"])
def test_a_rule_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="use all, any, a number, or a share such as 95%"):
        Rule(text)


def test_waiting_ends_when_it_is_ready_or_patience_does() -> None:
    answers = iter([2, 1, 0, 0])
    now = [0.0]

    def ask() -> list[Coverage]:
        return [Coverage(TABLE, date(2024, 6, 9), 3, tuple(key(n) for n in range(next(answers))))]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    [day] = wait_for(ask, Rule("all"), timedelta(minutes=1), sleep, lambda: now[0])
    assert day.available == 3
    assert 0 < now[0] < 5
    answers = iter([1] * 100)
    [day] = wait_for(ask, Rule("all"), timedelta(seconds=9), sleep, lambda: now[0])
    assert day.available == 2


def test_coverage_is_computed_only_when_the_quick_check_passes_or_the_wait_ends() -> None:
    now, asked = [0.0], list[float]()

    def day(absent: int) -> Coverage:
        return Coverage(TABLE, date(2024, 6, 9), 3, tuple(key(n) for n in range(absent)))

    def wait(glances: list[int], answers: list[int]) -> int:
        def ask() -> list[Coverage]:
            asked.append(now[0])
            return [day(answers[len(asked) - 1])]

        def sleep(seconds: float) -> None:
            assert seconds > 0
            now[0] += seconds

        now[0], asked[:], seen = 0.0, [], iter(glances)
        patience = timedelta(seconds=9)
        [found] = wait_for(ask, Rule("all"), patience, sleep, lambda: now[0], lambda: [day(next(seen))])
        return found.available

    assert (wait([2, 1, 0], [0]), len(asked)) == (3, 1)
    assert (wait([0, 0, 0], [1, 1, 0]), len(asked)) == (3, 3), "a glance is not the answer"
    assert (wait([1] * 100, [1]), asked) == (2, [9.0])
    assert (wait([0] * 100, [1] * 100), asked[-1]) == (2, 9.0)


# --- garbage ---------------------------------------------------------------------------------------------------------


def raw_runs(house: Harness) -> set[str]:
    return {e.path.split("run_id=")[1].split("/")[0] for e in house.workspace.context.lake.list("raw")}


def collect(house: Harness) -> tuple[int, int]:
    """As of two hours from now, with an age of one."""
    ws, later = house.workspace, house.now() + timedelta(hours=2)
    ws.context.clock = lambda: later
    age = timedelta(hours=1)
    return ws.maintenance.collect_garbage(ws.maintenance.garbage(age), age, actor="ada")


def test_only_raw_runs_that_nothing_refers_to_are_collected(house: Harness) -> None:
    abandoned = house.deliver(days(1, 2))
    house.publish()
    served = house.deliver(days(1, clicks=2))
    house.publish()
    trusted = house.deliver(days(1, clicks=3))  # accepted, and not published yet
    assert house.workspace.maintenance.garbage(timedelta(hours=1)) == [], "too young"
    assert collect(house)[0] == 1
    assert raw_runs(house) == {abandoned, served, trusted}  # the first is still the trusted run of another partition
    assert collect(house) == (0, 0)
    assert house.publish().loaded == 1
    assert collect(house)[0] == 1
    assert raw_runs(house) == {abandoned, trusted}
    assert house.clicks() == {key(1): {3}, key(2): {1}}
    with pytest.raises(ActRefused, match="was deleted"):
        AuthorityStore(house.workspace.context.database, house.now).rollback(key(1), served, audit_entry())
    assert {line["command"] for line in house.workspace.context.state.audit()} == {"raw gc"}


def test_what_was_marked_by_one_who_died_is_deleted_by_the_next(house: Harness) -> None:
    house.deliver(days(1))
    house.publish()
    house.deliver(days(1, clicks=2))
    house.publish()

    def die(name: str) -> None:
        if name == "garbage.marked":
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.app.maintenance.reach", die)
        with pytest.raises(KeyboardInterrupt):
            collect(house)
    assert len(raw_runs(house)) == 2
    assert collect(house) == (0, 2)
    assert len(raw_runs(house)) == 1
