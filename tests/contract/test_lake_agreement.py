"""A lake belongs to one state database: a lost, older or foreign database publishes nothing and hides nothing."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

import builders
from cli import penstock
from house import House
from loaders import start
from penstock.app import load_workspace
from penstock.errors import LakeMismatch, WarehouseError
from penstock.lake.local import LocalLake
from penstock.partition import PartitionKey
from penstock.warehouse.consistency import IDENTITY, MismatchKind, lake_identity
from workspaces import key, write_workspace

TABLE = "demo.campaign_daily"


@pytest.fixture
def house() -> Iterator[House]:
    with builders.quick_folder() as folder:
        made = House(Path(folder), queries=("campaign_daily", "network_daily"))
        made.deliver(slices(1, 2))
        made.publish()
        yield made


def slices(*customers: int, clicks: int = 1, query: str = "campaign_daily") -> dict[PartitionKey, int]:
    return {PartitionKey("demo", key(number).customer_id, query, key(1).logical_date): clicks for number in customers}


def back_up(house: House) -> Path:
    """A copy of the state database as it is now."""
    copy = house.folder / "backup.db"
    with sqlite3.connect(house.folder / "state.db") as source, sqlite3.connect(copy) as target:
        source.backup(target)
    return copy


def restore(house: House, copy: Path) -> House:
    lose_database(house)
    shutil.copy(copy, house.folder / "state.db")
    return House(house.folder)


def lose_database(house: House) -> None:
    house.workspace.database.close()
    for file in house.folder.glob("state.db*"):
        file.unlink()


def kinds(house: House) -> list[tuple[str | None, MismatchKind]]:
    return [(found.table, found.kind) for found in house.workspace.mismatches(everything=True)]


def table_of(house: House, query: str = "campaign_daily") -> DeltaTable:
    return DeltaTable(f"{house.workspace.lake.url}/warehouse/demo/{query}/v1")


def test_lake_and_database_carry_the_same_identity_and_agree(house: House) -> None:
    assert lake_identity(house.workspace.lake) is not None
    house.workspace.require_own_lake()
    assert kinds(house) == []


def test_an_older_database_publishes_nothing_to_a_table_that_is_ahead(house: House) -> None:
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
    # Readers keep the version of the head: what was there when the backup was made.
    assert old.clicks() == {k: {1} for k in slices(1, 2)}
    assert not any(row["_run_id"] == run for row in table_of(old).to_pyarrow_table().to_pylist())
    for dry_run in (True, False):
        with pytest.raises(LakeMismatch, match="recover --from lake"):
            old.workspace.vacuum((), timedelta(hours=1), dry_run=dry_run)
    assert table_of(old).version() == ahead  # not even a fence was written


def test_a_table_that_is_ahead_holds_up_no_other_table(house: House) -> None:
    copy = back_up(house)
    house.deliver(slices(3))
    house.publish()
    old = restore(house, copy)
    old.deliver(slices(4, clicks=9))
    old.deliver(slices(1, 2, query="network_daily"))
    done = old.publish()
    assert (done.loaded, set(done.refused)) == (2, {f"{TABLE}.v1"})
    assert old.workspace.pointers.waiting() == 1


def test_a_lost_database_is_not_replaced_by_a_new_one_without_a_word(house: House) -> None:
    lose_database(house)
    workspace = load_workspace(house.folder)
    with pytest.raises(LakeMismatch, match=r"belongs to another state database.*penstock recover --from lake"):
        workspace.migrate()
    (house.folder / "lake" / IDENTITY).unlink()
    with pytest.raises(LakeMismatch, match=r"tables that this database does not know \(demo.campaign_daily.v1\)"):
        workspace.migrate()
    assert lake_identity(workspace.lake) is None
    with sqlite3.connect(house.folder / "state.db") as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)


def test_a_lake_without_an_identity_is_marked_by_the_next_migration(house: House) -> None:
    identity = lake_identity(house.workspace.lake)
    (house.folder / "lake" / IDENTITY).unlink()
    assert kinds(house) == [(None, MismatchKind.UNMARKED_LAKE)]
    with pytest.raises(LakeMismatch, match="penstock db migrate"):
        house.workspace.require_own_lake()
    house.workspace.migrate()
    assert lake_identity(house.workspace.lake) == identity
    assert kinds(house) == []


def test_a_migration_that_dies_before_it_marks_the_lake_is_finished_by_the_next(tmp_path: Path) -> None:
    folder = write_workspace(tmp_path)
    assert penstock("db", "migrate", workspace=folder, PENSTOCK_FAILPOINT="migrate.committed").returncode < 0
    workspace = load_workspace(folder)
    assert lake_identity(workspace.lake) is None
    with pytest.raises(LakeMismatch, match="penstock db migrate"):
        workspace.require_own_lake()
    assert penstock("db", "migrate", workspace=folder).returncode == 0
    workspace.require_own_lake()


def test_commits_that_change_no_file_are_no_disagreement(house: House) -> None:
    house.workspace.vacuum((), timedelta(hours=1), dry_run=False)
    table = table_of(house)
    marks = CommitProperties(app_transactions=[Transaction("somebody/else", 1)])
    table.create_write_transaction([], "append", table.schema(), ["_month"], commit_properties=marks)
    assert kinds(house) == []
    house.deliver(slices(5))
    assert house.publish().loaded == 1


def test_rows_that_another_tool_wrote_are_not_adopted(house: House) -> None:
    table = table_of(house)
    rows = table.to_pyarrow_table()
    write_deltalake(table, rows, mode="append")
    house.deliver(slices(6))
    assert set(house.publish().refused) == {f"{TABLE}.v1"}
    assert house.clicks() == {k: {1} for k in slices(1, 2)}


def test_an_older_lake_is_refused_and_never_read_as_the_recorded_version(house: House) -> None:
    lake = Path(house.workspace.lake.url)
    shutil.copytree(lake / "warehouse", house.folder / "older")
    house.deliver(slices(1, clicks=2))
    house.publish()
    shutil.rmtree(lake / "warehouse")
    shutil.copytree(house.folder / "older", lake / "warehouse")
    fresh = House(house.folder)
    assert kinds(fresh) == [(f"{TABLE}.v1", MismatchKind.LAKE_BEHIND)]
    with pytest.raises(WarehouseError, match=f"recover --from database --table {TABLE}"):
        fresh.clicks()
    fresh.deliver(slices(7))
    assert set(fresh.publish().refused) == {f"{TABLE}.v1"}


def test_another_table_under_the_same_version_number_is_not_read(house: House) -> None:
    """A table that was deleted and filled again by another database may well have as many versions."""
    lake = Path(house.workspace.lake.url)
    with builders.quick_folder() as folder:
        other = House(Path(folder))
        for clicks in (664, 665, 666):
            other.deliver(slices(1, 2, clicks=clicks))
            other.publish()
        house.deliver(slices(1))
        house.publish()
        shutil.rmtree(lake / "warehouse")
        shutil.copytree(f"{folder}/lake/warehouse", lake / "warehouse")
    fresh = House(house.folder)
    assert kinds(fresh) == [(f"{TABLE}.v1", MismatchKind.TABLE_REPLACED), (f"{TABLE}.v1", MismatchKind.LAKE_AHEAD)]
    with pytest.raises(WarehouseError, match="the lake was replaced or restored"):
        fresh.clicks()


def test_a_missing_table_is_named_and_not_created_again_empty(house: House) -> None:
    shutil.rmtree(Path(house.workspace.lake.url) / "warehouse")
    fresh = House(house.folder)
    assert kinds(fresh) == [(f"{TABLE}.v1", MismatchKind.TABLE_MISSING)]
    fresh.deliver(slices(7))
    assert set(fresh.publish().refused) == {f"{TABLE}.v1"}
    assert not (Path(fresh.workspace.lake.url) / "warehouse").exists()


def test_a_table_that_nobody_knows_is_reported(house: House) -> None:
    lake = Path(house.workspace.lake.url)
    shutil.copytree(lake / "warehouse/demo/campaign_daily", lake / "warehouse/demo/unknown_daily")
    assert kinds(house) == [("demo.unknown_daily.v1", MismatchKind.UNKNOWN_TABLE)]


def test_an_unfinished_publication_is_no_disagreement(house: House) -> None:
    """Prepared and committed, then dead: the database knows the publication, so the next publisher finishes it."""
    house.deliver(slices(1, clicks=3))
    assert start("publish", house.folder, PENSTOCK_FAILPOINT="publish.committed").wait(120) < 0
    assert kinds(house) == []
    house.workers.bury()
    assert house.publish().refused == {}
    assert house.clicks() == {k: {v} for k, v in {**slices(1, clicks=3), **slices(2)}.items()}


def test_a_damaged_identity_says_what_to_do(tmp_path: Path) -> None:
    lake = LocalLake(str(tmp_path))
    lake.create(IDENTITY, b"{")
    with pytest.raises(LakeMismatch, match="delete it, then run `penstock db migrate`"):
        lake_identity(lake)
