"""A lake belongs to one state database: a lost, older or foreign database publishes nothing and hides nothing."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import orjson
import pytest
import sqlalchemy as sa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from penstock.app import load_workspace
from penstock.db import schema
from penstock.errors import LakeMismatch, WarehouseError
from penstock.lake.local import LocalLake
from penstock.lake.protocol import Blobs
from penstock.partition import PartitionKey
from penstock.warehouse.catalog import RecordedHead
from penstock.warehouse.consistency import (
    known_publications,
    lake_ahead,
    mismatches,
    refuse_foreign_lake,
    unknown_commits,
)
from penstock.warehouse.delta_log import commits_after, log_path, parse_commit, table_locations
from penstock.warehouse.format import Commit
from penstock.warehouse.identity import IDENTITY, claim_lake, lake_identity
from penstock.warehouse.mismatch import Mismatch, MismatchKind, messages
from support import builders
from support.cli import penstock
from support.harness import Harness
from support.loader_processes import start
from support.workspaces import key, write_workspace

TABLE = "demo.campaign_daily"


@pytest.fixture
def house() -> Iterator[Harness]:
    with builders.quick_folder() as folder:
        made = Harness(Path(folder), queries=("campaign_daily", "network_daily"))
        made.deliver(slices(1, 2))
        made.publish()
        yield made


def slices(*customers: int, clicks: int = 1, query: str = "campaign_daily") -> dict[PartitionKey, int]:
    return {PartitionKey("demo", key(number).customer_id, query, key(1).logical_date): clicks for number in customers}


def back_up(house: Harness) -> Path:
    """A copy of the state database as it is now."""
    copy = house.folder / "backup.db"
    with sqlite3.connect(house.folder / "state.db") as source, sqlite3.connect(copy) as target:
        source.backup(target)
    return copy


def restore(house: Harness, copy: Path) -> Harness:
    lose_database(house)
    shutil.copy(copy, house.folder / "state.db")
    return Harness(house.folder)


def lose_database(house: Harness) -> None:
    house.workspace.context.database.close()
    for file in house.folder.glob("state.db*"):
        file.unlink()


def kinds(house: Harness) -> list[tuple[str | None, MismatchKind]]:
    return [(found.table, found.kind) for found in house.workspace.context.mismatches(everything=True)]


def table_of(house: Harness, query: str = "campaign_daily") -> DeltaTable:
    return DeltaTable(f"{house.workspace.context.lake.url}/warehouse/demo/{query}/v1")


def test_lake_and_database_carry_the_same_identity_and_agree(house: Harness) -> None:
    assert lake_identity(house.workspace.context.lake) is not None
    house.workspace.context.require_own_lake()
    assert kinds(house) == []


def test_an_older_database_publishes_nothing_to_a_table_that_is_ahead(house: Harness) -> None:
    copy = back_up(house)
    house.deliver(slices(2, 3, clicks=2))
    house.publish()
    ahead = table_of(house).version()
    old = restore(house, copy)
    assert kinds(old) == [(f"{TABLE}.v1", MismatchKind.LAKE_AHEAD)]
    run = old.deliver(slices(4, clicks=9))
    done = old.publish()
    assert (done.loaded, set(done.refused)) == (0, {f"{TABLE}.v1"})
    assert "recover --from lake" in done.refused[f"{TABLE}.v1"].message
    assert "recover --from database" in done.refused[f"{TABLE}.v1"].message
    # Readers keep the version of the head: the rows at the time of the backup.
    assert old.clicks() == {k: {1} for k in slices(1, 2)}
    assert not any(row["_run_id"] == run for row in table_of(old).to_pyarrow_table().to_pylist())
    for dry_run in (True, False):
        with pytest.raises(LakeMismatch, match="recover --from lake"):
            old.workspace.maintenance.vacuum((), timedelta(hours=1), dry_run=dry_run)
    assert table_of(old).version() == ahead  # not even a fence was written


def test_a_table_that_is_ahead_holds_up_no_other_table(house: Harness) -> None:
    copy = back_up(house)
    house.deliver(slices(3))
    house.publish()
    old = restore(house, copy)
    old.deliver(slices(4, clicks=9))
    old.deliver(slices(1, 2, query="network_daily"))
    done = old.publish()
    assert (done.loaded, set(done.refused)) == (2, {f"{TABLE}.v1"})
    assert old.workspace.context.pointers.waiting() == 1


def test_a_lost_database_is_not_replaced_silently(house: Harness) -> None:
    lose_database(house)
    workspace = load_workspace(house.folder)
    with pytest.raises(LakeMismatch, match=r"belongs to another state database.*penstock recover --from lake"):
        workspace.maintenance.migrate()
    (house.folder / "lake" / IDENTITY).unlink()
    with pytest.raises(LakeMismatch, match=r"tables that this database does not know \(demo.campaign_daily.v1\)"):
        workspace.maintenance.migrate()
    assert lake_identity(workspace.context.lake) is None
    with sqlite3.connect(house.folder / "state.db") as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)


def test_a_lake_without_an_identity_is_marked_by_the_next_migration(house: Harness) -> None:
    identity = lake_identity(house.workspace.context.lake)
    (house.folder / "lake" / IDENTITY).unlink()
    assert kinds(house) == [(None, MismatchKind.UNMARKED_LAKE)]
    with pytest.raises(LakeMismatch, match="penstock db migrate"):
        house.workspace.context.require_own_lake()
    house.workspace.maintenance.migrate()
    assert lake_identity(house.workspace.context.lake) == identity
    assert kinds(house) == []


def test_a_migration_that_dies_before_it_marks_the_lake_is_finished_by_the_next(tmp_path: Path) -> None:
    folder = write_workspace(tmp_path)
    assert penstock("db", "migrate", workspace=folder, PENSTOCK_FAILPOINT="migrate.committed").returncode < 0
    workspace = load_workspace(folder)
    assert lake_identity(workspace.context.lake) is None
    with pytest.raises(LakeMismatch, match="penstock db migrate"):
        workspace.context.require_own_lake()
    assert penstock("db", "migrate", workspace=folder).returncode == 0
    workspace.context.require_own_lake()


def test_commits_that_change_no_file_are_no_disagreement(house: Harness) -> None:
    house.workspace.maintenance.vacuum((), timedelta(hours=1), dry_run=False)
    table = table_of(house)
    marks = CommitProperties(app_transactions=[Transaction("somebody/else", 1)])
    table.create_write_transaction([], "append", table.schema(), ["_month"], commit_properties=marks)
    assert kinds(house) == []
    house.deliver(slices(5))
    assert house.publish().loaded == 1


def test_rows_that_another_tool_wrote_are_not_adopted(house: Harness) -> None:
    table = table_of(house)
    rows = table.to_pyarrow_table()
    write_deltalake(table, rows, mode="append")
    house.deliver(slices(6))
    assert set(house.publish().refused) == {f"{TABLE}.v1"}
    assert house.clicks() == {k: {1} for k in slices(1, 2)}


def test_an_older_lake_is_refused_and_never_read_as_the_recorded_version(house: Harness) -> None:
    lake = Path(house.workspace.context.lake.url)
    shutil.copytree(lake / "warehouse", house.folder / "older")
    house.deliver(slices(1, clicks=2))
    house.publish()
    shutil.rmtree(lake / "warehouse")
    shutil.copytree(house.folder / "older", lake / "warehouse")
    fresh = Harness(house.folder)
    assert kinds(fresh) == [(f"{TABLE}.v1", MismatchKind.LAKE_BEHIND)]
    with pytest.raises(WarehouseError, match=f"recover --from database --table {TABLE}"):
        fresh.clicks()
    fresh.deliver(slices(7))
    assert set(fresh.publish().refused) == {f"{TABLE}.v1"}


def test_another_table_under_the_same_version_number_is_not_read(house: Harness) -> None:
    """A table that was deleted and filled again by another database may well have as many versions."""
    lake = Path(house.workspace.context.lake.url)
    with builders.quick_folder() as folder:
        other = Harness(Path(folder))
        for clicks in (664, 665, 666):
            other.deliver(slices(1, 2, clicks=clicks))
            other.publish()
        house.deliver(slices(1))
        house.publish()
        shutil.rmtree(lake / "warehouse")
        shutil.copytree(f"{folder}/lake/warehouse", lake / "warehouse")
    fresh = Harness(house.folder)
    assert kinds(fresh) == [(f"{TABLE}.v1", MismatchKind.TABLE_REPLACED), (f"{TABLE}.v1", MismatchKind.LAKE_AHEAD)]
    with pytest.raises(WarehouseError, match="the lake was replaced or restored"):
        fresh.clicks()


def test_a_missing_table_is_named_and_not_created_again_empty(house: Harness) -> None:
    shutil.rmtree(Path(house.workspace.context.lake.url) / "warehouse")
    fresh = Harness(house.folder)
    assert kinds(fresh) == [(f"{TABLE}.v1", MismatchKind.TABLE_MISSING)]
    fresh.deliver(slices(7))
    assert set(fresh.publish().refused) == {f"{TABLE}.v1"}
    assert not (Path(fresh.workspace.context.lake.url) / "warehouse").exists()


def test_a_table_that_nobody_knows_is_reported(house: Harness) -> None:
    lake = Path(house.workspace.context.lake.url)
    shutil.copytree(lake / "warehouse/demo/campaign_daily", lake / "warehouse/demo/unknown_daily")
    assert kinds(house) == [("demo.unknown_daily.v1", MismatchKind.UNKNOWN_TABLE)]


def test_an_unfinished_publication_is_no_disagreement(house: Harness) -> None:
    """Prepared and committed, then killed: the database has the batch, so the next publisher finishes it."""
    house.deliver(slices(1, clicks=3))
    assert start("publish", house.folder, PENSTOCK_FAILPOINT="publish.committed").wait(120) < 0
    assert kinds(house) == []
    house.workers.mark_dead_workers()
    assert house.publish().refused == {}
    assert house.clicks() == {k: {v} for k, v in {**slices(1, clicks=3), **slices(2)}.items()}


def test_a_damaged_identity_file_is_an_error_that_names_the_fix(tmp_path: Path) -> None:
    lake = LocalLake(str(tmp_path))
    lake.create(IDENTITY, b"{")
    with pytest.raises(LakeMismatch, match="delete it, then run `penstock db migrate`"):
        lake_identity(lake)


def test_a_lake_of_another_database_is_refused_and_keeps_its_identity(house: Harness, tmp_path: Path) -> None:
    lake = LocalLake(str(tmp_path))
    lake.create(IDENTITY, b'{"format": 1, "identity": "another"}')
    with pytest.raises(LakeMismatch, match=r"belongs to another database \(its identity is another"):
        claim_lake(house.workspace.context.database, lake)
    assert lake.read(IDENTITY) == b'{"format": 1, "identity": "another"}'
    assert next(found.kind for found in mismatches(house.workspace.context.database, lake)) is MismatchKind.FOREIGN_LAKE


def test_the_identity_is_written_with_its_format(house: Harness) -> None:
    with house.workspace.context.database.snapshot() as connection:
        identity = connection.scalar(sa.select(schema.workspace.c.identity))
    assert orjson.loads(house.workspace.context.lake.read(IDENTITY)) == {"format": 1, "identity": identity}


@pytest.mark.parametrize(
    ("tables", "named"), [(1, "a0.q.v1"), (5, "a0.q.v1, .*, a4.q.v1"), (6, r".*, a4.q.v1, \.\.\.")]
)
def test_a_lake_with_unknown_tables_is_refused_and_a_few_are_named(
    house: Harness, tmp_path: Path, tables: int, named: str
) -> None:
    lake = LocalLake(str(tmp_path))
    for number in range(tables):
        lake.create(f"warehouse/a{number}/q/v1/_delta_log/{0:020d}.json", b"{}")
    with house.workspace.context.database.snapshot() as connection:
        with pytest.raises(LakeMismatch, match=rf"tables that this database does not know \({named}\)"):
            refuse_foreign_lake(connection, lake)
        refuse_foreign_lake(connection, lake, unknown_tables_too=False)
        refuse_foreign_lake(connection, house.workspace.context.lake)


# --- messages about mismatches ---------------------------------------------------------------------------------------


def test_disagreements_of_one_kind_are_one_line_and_a_few_tables_are_named() -> None:
    def of(kind: MismatchKind, count: int) -> list[Mismatch]:
        return [Mismatch(kind, f"demo.q{number}.v1", f"detail {number}") for number in range(count)]

    def said(*found: Mismatch) -> list[str]:
        return [line.partition(";")[0] for line in messages(found)]

    missing, behind = MismatchKind.TABLE_MISSING, MismatchKind.LAKE_BEHIND
    assert said() == []
    assert said(*of(missing, 1)) == ["table demo.q0.v1: detail 0"]
    assert said(*of(missing, 2)) == ["2 tables (demo.q0.v1, demo.q1.v1): for example demo.q0.v1: detail 0"]
    five = "demo.q0.v1, demo.q1.v1, demo.q2.v1, demo.q3.v1, demo.q4.v1"
    assert said(*of(missing, 5)) == [f"5 tables ({five}): for example demo.q0.v1: detail 0"]
    assert said(*of(missing, 6)) == [f"6 tables ({five}, ...): for example demo.q0.v1: detail 0"]
    [first, second] = said(*of(missing, 2), *of(behind, 1))
    assert (first.partition(" ")[0], second) == ("2", "table demo.q0.v1: detail 0")
    assert said(Mismatch(MismatchKind.FOREIGN_LAKE, None, "of another")) == ["of another"]
    assert said(*[Mismatch(MismatchKind.UNMARKED_LAKE, None, "no identity")] * 2) == ["no identity"]


def test_a_disagreement_belongs_to_an_asset_or_to_the_whole_lake() -> None:
    one = Mismatch(MismatchKind.LAKE_AHEAD, "demo.campaign_daily.v1", "")
    assert (one.source, one.asset) == ("demo", "demo.campaign_daily")
    whole = Mismatch(MismatchKind.FOREIGN_LAKE, None, "")
    assert (whole.source, whole.asset) == (None, None)


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        (range(7, 8), "its version 7 (readers see version 3)"),
        (range(7, 9), "its versions 7, 8 (readers see version 3)"),
        (range(5), "its versions 0, 1, 2, 3, 4 (readers see version 3)"),
        (range(6), "its versions 0, 1, 2, 3, 4, ... (readers see version 3)"),
    ],
)
def test_a_table_that_is_ahead_names_the_versions_and_what_readers_see(versions: range, words: str) -> None:
    head = RecordedHead("demo.q.v1", "w", 3, None)
    found = lake_ahead(head, [Commit(version, (), changes_files=True) for version in versions])
    assert (found.kind, found.table) == (MismatchKind.LAKE_AHEAD, "demo.q.v1")
    assert found.detail == f"this database did not write {words}"
    new = lake_ahead(RecordedHead("demo.q.v1", "w", None, None), [Commit(0, (), changes_files=True)])
    assert new.detail.endswith("its version 0 (readers see nothing of it)")


def test_only_publications_that_were_prepared_or_published_are_known(house: Harness) -> None:
    ends = {"prepared": None, "published": house.now(), "discarded": house.now()}
    facts = {"lease_token": "t", "prepared_at": house.now(), "body": {}}
    rows = [{**facts, "batch_id": status, "status": status, "finished_at": end} for status, end in ends.items()]
    house.workspace.context.database.transact(lambda connection: connection.execute(sa.insert(schema.load_batch), rows))
    commits = [
        Commit(1, ("prepared",), changes_files=True),
        Commit(2, ("discarded",), changes_files=True),
        Commit(3, (), changes_files=False),
        Commit(4, (), changes_files=True),
        Commit(5, ("nobody", "published"), changes_files=True),
        Commit(6, ("nobody",), changes_files=False),
    ]
    with house.workspace.context.database.snapshot() as connection:
        names = ["prepared", "published", "discarded", "nobody"]
        assert known_publications(connection, names) == {"prepared", "published"}
        assert known_publications(connection, ["published"]) == {"published"}
        assert known_publications(connection, []) == set()
        assert [commit.version for commit in unknown_commits(connection, commits)] == [2, 4]


@dataclass(frozen=True)
class WatchedLake(LocalLake):
    """A lake that notes which objects are requested together; something may happen before the first request."""

    before: Callable[[], object] = lambda: None
    requests: list[list[str]] = field(default_factory=list)

    def read_many(self, paths: Sequence[str]) -> Blobs:
        if not self.requests:
            self.requests.append([])
            self.before()
        self.requests.append([path.rpartition("/")[2] for path in paths])
        return super().read_many(paths)


def test_a_table_that_is_published_to_meanwhile_agrees_and_the_others_are_examined_all_the_same(
    house: Harness,
) -> None:
    house.deliver(slices(1, query="network_daily"))
    house.publish()
    shutil.rmtree(Path(house.workspace.context.lake.url) / "warehouse/demo/network_daily")
    house.deliver(slices(3))
    lake = WatchedLake(house.workspace.context.lake.url, house.publish)
    found = mismatches(house.workspace.context.database, lake)
    assert [(one.table, one.kind) for one in found] == [("demo.network_daily.v1", MismatchKind.TABLE_MISSING)]
    assert house.workspace.context.pointers.waiting() == 0


def test_a_mismatch_check_reads_two_log_entries_of_each_table_and_lists_no_unknown_ones(house: Harness) -> None:
    lake = WatchedLake(house.workspace.context.lake.url)
    shutil.copytree(f"{lake.url}/warehouse/demo/campaign_daily", f"{lake.url}/warehouse/demo/unknown_daily")
    assert mismatches(house.workspace.context.database, lake) == []
    head = table_of(house).version()
    assert lake.requests == [[], [f"{head + 1:020d}.json"], [f"{head:020d}.json"]]
    [unknown] = mismatches(house.workspace.context.database, lake, everything=True)
    assert (unknown.table, unknown.kind) == ("demo.unknown_daily.v1", MismatchKind.UNKNOWN_TABLE)


# --- the log of a table ----------------------------------------------------------------------------------------------


def lake_with_log(folder: Path, *versions: int) -> WatchedLake:
    lake = WatchedLake(str(folder))
    lake.requests.append([])
    for version in versions:
        lake.create(log_path("w/t", version), b'{"txn": {"appId": "penstock/pub/p%d"}}\n' % version)
    return lake


def test_commits_are_read_in_order_after_a_version_up_to_the_end_or_to_another(tmp_path: Path) -> None:
    lake = lake_with_log(tmp_path, *range(140))

    def found(*bounds: int) -> list[int]:
        commits = list(commits_after(lake, "w/t", *bounds))
        assert [commit.publications for commit in commits] == [(f"p{commit.version}",) for commit in commits]
        return [commit.version for commit in commits]

    assert found(-1) == list(range(140))
    assert found(137) == [138, 139]
    assert found(139) == []
    assert found(-1, 139) == list(range(140))
    assert found(3, 5) == [4, 5]
    assert found(4, 5) == [5]
    assert found(5, 5) == []


def test_few_commits_take_few_requests(tmp_path: Path) -> None:
    lake = lake_with_log(tmp_path, 0, 1, 2, 3)
    assert list(commits_after(lake, "w/t", 3)) == []
    assert [len(paths) for paths in lake.requests[1:]] == [1]
    lake.requests[1:] = []
    assert len(list(commits_after(lake, "w/t", -1))) == 4
    assert [len(paths) for paths in lake.requests[1:]] == [1, 2, 4]


def test_a_missing_log_entry_ends_an_open_range_and_counts_as_a_change_in_a_bounded_one(tmp_path: Path) -> None:
    lake = lake_with_log(tmp_path, 0, 1, 3)
    assert [commit.version for commit in commits_after(lake, "w/t", -1)] == [0, 1]
    found = list(commits_after(lake, "w/t", 0, 3))
    assert [(one.version, one.publications, one.changes_files) for one in found] == [
        (1, ("p1",), False),
        (2, (), True),
        (3, ("p3",), False),
    ]


@pytest.mark.parametrize(
    ("lines", "publications", "changes"),
    [
        ([], (), False),
        ([{"commitInfo": {}}, {"txn": {"appId": "penstock/fence"}}], (), False),
        ([{"txn": {"appId": "penstock/pub/A"}}, {"add": {}}], ("A",), True),
        (
            [{"remove": {}}, {"txn": {"appId": "penstock/pub/A"}}, {"txn": {"appId": "penstock/pub/B"}}],
            ("A", "B"),
            True,
        ),
        ([{"txn": {"appId": "another/penstock/pub/A"}}], (), False),
    ],
)
def test_a_commit_says_which_publications_it_is_and_whether_it_changes_files(
    lines: list[dict[str, object]], publications: tuple[str, ...], changes: bool
) -> None:
    data = b"\n\n".join(map(orjson.dumps, lines))
    assert parse_commit(4, data, "w/t") == Commit(4, publications, changes)


def test_a_log_entry_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    lake = lake_with_log(tmp_path, 0)
    for data in (b"{", b'{"txn": {}}', b'{"txn": 1}'):
        lake.delete([log_path("w/t", 1)])
        lake.create(log_path("w/t", 1), data)
        with pytest.raises(WarehouseError, match=f"the Delta log entry {log_path('w/t', 1)} cannot be read"):
            list(commits_after(lake, "w/t", -1))


def test_tables_are_the_folders_with_a_log_in_the_warehouse(tmp_path: Path) -> None:
    lake = LocalLake(str(tmp_path))
    for path in ("warehouse/a/b/v1/_delta_log/0.json", "warehouse/a/b/v1/_delta_log/1.json", "warehouse/a/b/v2/x"):
        lake.create(path, b"")
    lake.create("elsewhere/a/b/v1/_delta_log/0.json", b"")
    assert table_locations(lake) == {"warehouse/a/b/v1"}
