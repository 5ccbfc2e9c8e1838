"""Recovery: a lost or older database is restored from the lake; damaged tables are rebuilt from raw."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
import sqlalchemy as sa
from deltalake import DeltaTable, write_deltalake

from penstock.app import Workspace, load_workspace
from penstock.app.recovery import LakeRecovery
from penstock.app.table_rebuild import TableRebuild
from penstock.contract.stored import store_contracts, stored_contracts
from penstock.control.lake_evidence import ExportedFacts, collect_evidence, exported_facts, tables_in
from penstock.control.select import Selection
from penstock.db import schema
from penstock.db.engine import Database
from penstock.db.migrate import migrate
from penstock.errors import ActRefused, ConfigError, LakeMismatch, UsageError, WarehouseError
from penstock.lifecycle import AttemptReason
from penstock.partition import AttemptKey, PartitionKey, RunId, new_run_id, new_ulid
from penstock.raw.layout import SEAL, run_folder
from penstock.raw.reader import RawReader
from penstock.state.authority import AuthorityStore
from penstock.state.records import Planned
from penstock.state.recovery import (
    AssetRows,
    FoundRun,
    SealedRun,
    deleted_raw,
    plan_recovery,
    read_asset,
)
from penstock.state.recovery_writes import apply_recovery
from penstock.warehouse import batch as batches
from penstock.warehouse.batch import Batch, TableChange
from penstock.warehouse.identity import lake_identity
from support import builders
from support.builders import Actors, audit_entry
from support.cli import in_process
from support.harness import Harness
from support.loader_processes import start
from support.workspaces import key, rows_by_partition, write_workspace

TABLE = "demo.campaign_daily"


def silent(share: float) -> None:
    """No progress is shown."""


@pytest.fixture(autouse=True)
def databases_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the connections of every handle that a test opens."""
    opened: list[Database] = []
    create = Database.__init__

    def remembered(self: Database, *arguments: Any, **options: Any) -> None:
        create(self, *arguments, **options)
        opened.append(self)

    monkeypatch.setattr(Database, "__init__", remembered)
    yield
    for database in opened:
        database.close()


@pytest.fixture(params=builders.BACKENDS)
def house(request: pytest.FixtureRequest) -> Iterator[Harness]:
    with builders.quick_folder() as folder:
        if request.param == "sqlite":
            made = Harness(Path(folder), queries=("campaign_daily", "network_daily"))
        else:
            url = request.getfixturevalue("postgres_url")
            made = Harness(Path(folder), ("campaign_daily", "network_daily"), url, f"t_{new_ulid().lower()}")
        made.deliver(slices(1, 2, 3))
        made.publish()
        yield made
        made.workspace.context.database.close()


def slices(*customers: int, clicks: int = 1, query: str = "campaign_daily", day: int = 9) -> dict[PartitionKey, int]:
    date = f"2024-06-{day:02}"
    return {PartitionKey("demo", key(n).customer_id, query, key(1, date).logical_date): clicks for n in customers}


def one(customer: int) -> PartitionKey:
    [found] = slices(customer)
    return found


def dump(database: Database) -> dict[str, list[dict[str, Any]]]:
    return builders.everything(database)


def run(database: Database, statement: sa.Executable, rows: Any = None) -> None:
    database.transact(lambda connection: connection.execute(statement, rows))


def restored(house: Harness, rows: dict[str, list[dict[str, Any]]]) -> Harness:
    """The same workspace with the rows that an older dump has, in a schema of its own."""
    old = empty(house)
    run(old.context.database, sa.delete(schema.workspace))
    for table in schema.metadata.sorted_tables:
        if found := rows[table.name]:
            run(old.context.database, sa.insert(table), found)
    if old.context.database.dialect == "postgresql":  # as a dump restores them
        for name, column in (("event", "position"), ("audit", "audit_id")):
            statement = (
                f"SELECT setval(pg_get_serial_sequence('{name}', '{column}'), (SELECT max({column}) FROM {name}))"
            )
            old.context.database.transact(lambda connection, text=statement: connection.execute(sa.text(text)))  # type: ignore[misc]
    return Harness(house.folder)


def empty(house: Harness) -> Workspace:
    """The workspace with a new database: the old one is lost."""
    database = house.workspace.context.database
    database.close()
    if database.dialect == "sqlite":
        for file in house.folder.glob("state.db*"):
            file.unlink()
    else:
        run(database, sa.text(f"DROP SCHEMA {database.schema} CASCADE"))
    workspace = load_workspace(house.folder)
    migrate(workspace.context.database, workspace.settings.tenant, workspace.settings.workspace)
    return workspace


def lost(house: Harness) -> Workspace:
    """The workspace without a database."""
    workspace = empty(house)
    workspace.context.database.close()
    if workspace.context.database.dialect == "sqlite":
        for file in house.folder.glob("state.db*"):
            file.unlink()
    else:
        run(workspace.context.database, sa.text(f"DROP SCHEMA {workspace.context.database.schema} CASCADE"))
    return load_workspace(house.folder)


def from_lake(workspace: Workspace) -> LakeRecovery:
    return workspace.maintenance.recovery.from_lake(silent, actor="ada")


def assert_sound(house: Harness) -> None:
    """There are no mismatches, nothing is due, and every row is the validated one."""
    assert house.workspace.context.mismatches(everything=True) == []
    assert house.workspace.maintenance.differences() == ([], {})
    verified = house.workspace.maintenance.verify((), silent, raw=True)
    assert (verified.wrong, verified.files) == ({}, {})


def seen(house: Harness) -> dict[PartitionKey, int]:
    found = house.clicks()
    assert all(len(values) == 1 for values in found.values())
    return {partition: next(iter(values)) for partition, values in found.items()}


def data_files(house: Harness) -> list[Path]:
    place = Path(house.workspace.context.lake.url) / "warehouse/demo/campaign_daily/v1"
    return sorted(path for path in place.rglob("*.parquet") if "_delta_log" not in path.parts)


# --- from the lake ---------------------------------------------------------------------------------------------------


def test_a_lost_database_is_rebuilt_and_readers_see_the_same_rows(house: Harness) -> None:
    house.deliver(slices(2, clicks=7))
    house.deliver(slices(1, query="network_daily"))
    house.publish()
    before = seen(house)
    workspace = lost(house)
    preview = workspace.maintenance.recovery.preview_from_lake(silent)
    assert (preview.database_is_new, preview.restored) == (True, 4)
    done = from_lake(workspace)
    assert [(a.asset, len(a.restored)) for a in done.assets] == [(TABLE, 3), ("demo.network_daily", 1)]
    again = Harness(house.folder)
    assert seen(again) == before
    assert_sound(again)
    expected = sum(len(span) for span in again.workspace.context.ranges(Selection()))
    assert again.workspace.status.board(Selection()).missing() == expected - 4
    # The run that was replaced is known, and nothing vouches for it.
    [newer, older] = again.workspace.context.state.attempts(one(2))
    assert (older.outcome, newer.outcome) == ("CANCELLED", "SUCCEEDED")


def test_the_report_about_a_lost_database_names_the_command_that_rebuilds_it(house: Harness) -> None:
    """Also after a refused `db migrate`, which names the same command and changes nothing."""
    lost(house).context.database.close()
    for tried in ("nothing", "db migrate"):
        if tried == "db migrate":
            refused = in_process("db", "migrate", workspace=house.folder)
            assert refused.code == 1
            assert "`penstock recover --from lake` rebuilds it" in refused.stderr
        told = in_process("recover", workspace=house.folder)
        assert told.code == 1
        assert "db migrate" not in told.stdout + told.stderr
        assert "is empty or does not exist" in " ".join(told.stdout.split())
        assert "`penstock recover --from lake` rebuilds it" in " ".join(told.stdout.split())
        [item] = in_process("recover", "--json", workspace=house.folder).document["items"]
        assert (item["kind"], item["table"]) == ("foreign_lake", None)
    (Path(house.workspace.context.lake.url) / "penstock.json").unlink()  # a lake from before identities
    items = in_process("recover", "--json", workspace=house.folder).document["items"]
    assert [(item["kind"], item["table"]) for item in items] == [("unknown_table", "demo.campaign_daily.v1")]
    assert "`penstock recover --from lake`" in items[0]["message"]
    done = in_process("recover", "--from", "lake", "--yes", workspace=house.folder)
    assert (done.code, in_process("recover", workspace=house.folder).code) == (0, 0)


def test_a_new_workspace_is_not_taken_for_one_with_a_lost_database(tmp_path: Path) -> None:
    told = in_process("recover", workspace=write_workspace(tmp_path))
    assert told.code == 1
    assert "there is no state database" in told.stderr
    assert "run `penstock db migrate`" in told.stderr


def test_an_older_database_is_brought_forward_and_goes_on(house: Harness) -> None:
    backup = dump(house.workspace.context.database)
    house.deliver(slices(2, 4, clicks=5))
    house.publish()
    before = seen(house)
    old = restored(house, backup)
    assert seen(old) == {**slices(1, 2, 3)}
    from_lake(old.workspace)
    assert seen(old) == before == {**slices(1, 3), **slices(2, 4, clicks=5)}
    assert_sound(old)
    states = {s.key: s for k in before if (s := old.workspace.context.state.state(k))}
    assert {k: (s.attempt_count, s.authority_version) for k, s in states.items()} == {
        one(1): (1, 1), one(2): (2, 2), one(3): (1, 1), one(4): (1, 1),
    }  # fmt: skip
    old.deliver(slices(1, clicks=9))
    assert old.publish().loaded == 1
    assert seen(old)[one(1)] == 9
    assert_sound(old)


def test_recovering_twice_is_the_same_as_once(house: Harness) -> None:
    backup = dump(house.workspace.context.database)
    house.deliver(slices(2, clicks=5))
    house.publish()
    old = restored(house, backup)
    from_lake(old.workspace)
    ignored = {"audit", "worker", "projection_head"}
    once = {name: rows for name, rows in dump(old.workspace.context.database).items() if name not in ignored}
    assert from_lake(old.workspace).is_nothing
    twice = {name: rows for name, rows in dump(old.workspace.context.database).items() if name not in ignored}
    assert once == twice


def test_a_run_that_was_open_or_rejected_at_the_backup_is_accepted_as_the_table_shows(house: Harness) -> None:
    token, run = house.workers.register(), RunId(new_run_id())
    planned = [Planned(one(4), 0, AttemptReason.MISSING, contract(house), "v1")]
    [issued], _ = house.control.issue(run, token, 0, planned)
    backup = dump(house.workspace.context.database)
    house.validator.judge([house._accepted(issued.attempt, 6, 3, token)])
    house.publish()
    old = restored(house, backup)
    from_lake(old.workspace)
    [attempt] = old.workspace.context.state.attempts(one(4))
    assert (attempt.run_id, attempt.outcome) == (run, "SUCCEEDED")
    assert seen(old)[one(4)] == 6
    assert_sound(old)


def contract(house: Harness) -> str:
    return house.workspace.context.contracts["campaign_daily"].fingerprint


def test_what_was_withdrawn_after_the_backup_does_not_come_back(house: Harness) -> None:
    backup = dump(house.workspace.context.database)
    [withdrawn] = house.workspace.context.state.attempts(one(2))
    AuthorityStore(house.workspace.context.database, house.now).demote(one(2), "wrong", audit_entry())
    house.publish()
    RawReader(house.workspace.context.lake).delete([AttemptKey(one(2), withdrawn.run_id)])
    old = restored(house, backup)
    done = from_lake(old.workspace)
    assert [a.raw_gone for a in done.assets] == [[AttemptKey(one(2), withdrawn.run_id)]]
    assert [a.withdrawn for a in done.assets] == [[one(2)]]
    state = old.workspace.context.state.state(one(2))
    assert state is not None
    assert (state.status, "withdrawn after the backup" in str(state.error_message)) == ("failed", True)
    assert seen(old) == slices(1, 3)
    assert old.publish().loaded == 0
    assert seen(old) == slices(1, 3)
    assert_sound(old)


def test_a_run_that_was_demoted_before_the_backup_stays_hidden(house: Harness) -> None:
    AuthorityStore(house.workspace.context.database, house.now).demote(one(2), "wrong", audit_entry())
    backup = dump(house.workspace.context.database)
    house.deliver(slices(4))
    house.publish()
    old = restored(house, backup)
    from_lake(old.workspace)
    old.publish()
    assert seen(old) == slices(1, 3, 4)
    assert_sound(old)


def test_a_run_that_was_fetched_again_after_the_restore_keeps_authority(house: Harness) -> None:
    backup = dump(house.workspace.context.database)
    house.deliver(slices(4, clicks=5))
    house.publish()
    old = restored(house, backup)
    old.deliver(slices(4, clicks=8))
    assert set(old.publish().refused) == {f"{TABLE}.v1"}
    from_lake(old.workspace)
    assert seen(old)[one(4)] == 5  # the one in the table, until the newer one is published
    assert old.publish().loaded == 1
    assert seen(old)[one(4)] == 8
    assert_sound(old)


def test_rows_of_two_runs_of_a_partition_are_never_shown(house: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an older release left them, which published to tables that were ahead of its database."""
    backup = dump(house.workspace.context.database)
    house.deliver(slices(1, clicks=5))
    house.publish()
    old = restored(house, backup)
    old.deliver(slices(1, clicks=6))
    with monkeypatch.context() as patch:
        patch.setattr("penstock.warehouse.publish.unknown_commits", lambda connection, commits: [])
        patch.setattr("penstock.warehouse.month_staging._dropped", lambda loads, hides: {})
        old.publish()
    old = restored(old, backup)
    monkeypatch.setattr(TableRebuild, "rebuilder", lambda self, *_, **__: old.rebuilder()[0])
    done = from_lake(old.workspace)
    assert [a.ambiguous for a in done.assets] == [[one(1)]]
    assert set(seen(old)) == set(slices(1, 2, 3))
    assert seen(old)[one(1)] == 6
    assert_sound(old)


def test_an_attempt_that_was_open_at_the_backup_is_closed_when_a_later_run_is_known(house: Harness) -> None:
    token = house.workers.register()
    planned = [Planned(one(4), 0, AttemptReason.MISSING, contract(house), "v1")]
    [open_one], _ = house.control.issue(RunId(new_run_id()), token, 0, planned)
    backup = dump(house.workspace.context.database)
    house.control.cancel([builders.cancelled(open_one.attempt, token)])
    later = house.deliver(slices(4, clicks=6))
    house.publish()
    old = restored(house, backup)
    from_lake(old.workspace)
    newest, oldest = old.workspace.context.state.attempts(one(4))
    assert (newest.run_id, newest.outcome, oldest.run_id, oldest.outcome) == (
        later, "SUCCEEDED", open_one.attempt.run_id, "CANCELLED",
    )  # fmt: skip
    assert old.workers.abandoned() == []
    assert seen(old)[one(4)] == 6
    old.deliver(slices(4, clicks=7))
    old.publish()
    assert seen(old)[one(4)] == 7


def test_raw_runs_that_were_deleted_after_the_backup_cannot_be_returned_to(house: Harness) -> None:
    house.deliver(slices(2, clicks=5))
    house.publish()
    _, oldest = house.workspace.context.state.attempts(one(2))
    backup = dump(house.workspace.context.database)
    RawReader(house.workspace.context.lake).delete([AttemptKey(one(2), oldest.run_id)])
    old = restored(house, backup)
    done = from_lake(old.workspace)
    assert [a.raw_gone for a in done.assets] == [[AttemptKey(one(2), oldest.run_id)]]
    with pytest.raises(ActRefused, match="was deleted at"):
        AuthorityStore(old.workspace.context.database, old.now).rollback(one(2), oldest.run_id, audit_entry())
    assert from_lake(old.workspace).is_nothing
    assert seen(old)[one(2)] == 5


def test_a_run_that_was_replaced_and_deleted_after_the_backup_cannot_be_returned_to(house: Harness) -> None:
    [replaced] = house.workspace.context.state.attempts(one(2))
    backup = dump(house.workspace.context.database)
    house.deliver(slices(2, clicks=5))
    house.publish()
    RawReader(house.workspace.context.lake).delete([AttemptKey(one(2), replaced.run_id)])
    old = restored(house, backup)
    from_lake(old.workspace)
    _, oldest = old.workspace.context.state.attempts(one(2))
    assert (oldest.run_id, oldest.raw_deleted_at is not None) == (replaced.run_id, True)
    assert_sound(old)


def test_rows_that_another_tool_doubled_or_deleted_are_rebuilt_and_not_adopted(
    house: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = seen(house)
    table = DeltaTable(f"{house.workspace.context.lake.url}/warehouse/demo/campaign_daily/v1")
    write_deltalake(table, table.to_pyarrow_table(), mode="append")
    monkeypatch.setattr(TableRebuild, "rebuilder", lambda self, *_, **__: house.rebuilder()[0])
    done = from_lake(house.workspace)
    assert [a.ambiguous for a in done.assets] == [sorted(before)]
    assert {key: len(rows) for key, rows in rows_by_partition(house.workspace, TABLE).items()} == dict.fromkeys(
        before, 3
    )
    assert_sound(house)


def test_a_run_that_waited_at_the_backup_and_was_withdrawn_since_does_not_come_back(house: Harness) -> None:
    house.deliver(slices(4, clicks=6))
    backup = dump(house.workspace.context.database)
    house.publish()
    AuthorityStore(house.workspace.context.database, house.now).demote(one(4), "wrong", audit_entry())
    house.publish()
    old = restored(house, backup)
    done = from_lake(old.workspace)
    assert [a.withdrawn for a in done.assets] == [[one(4)]]
    old.publish()
    assert seen(old) == slices(1, 2, 3)
    assert_sound(old)


def test_a_newer_run_that_waits_keeps_authority_over_the_one_in_the_table(house: Harness) -> None:
    house.deliver(slices(4, clicks=6))
    backup = dump(house.workspace.context.database)
    house.publish()
    old = restored(house, backup)
    newer = old.deliver(slices(4, clicks=8))
    from_lake(old.workspace)
    state = old.workspace.context.state.state(one(4))
    assert state is not None
    assert state.current_run_id == newer
    old.publish()
    assert seen(old)[one(4)] == 8
    assert_sound(old)


def test_withdrawn_partitions_stay_withdrawn_when_others_are_rebuilt(
    house: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = dump(house.workspace.context.database)
    AuthorityStore(house.workspace.context.database, house.now).demote(one(2), "wrong", audit_entry())
    house.publish()
    table = DeltaTable(f"{house.workspace.context.lake.url}/warehouse/demo/campaign_daily/v1")
    write_deltalake(table, table.to_pyarrow_table(), mode="append")
    old = restored(house, backup)
    monkeypatch.setattr(TableRebuild, "rebuilder", lambda self, *_, **__: old.rebuilder()[0])
    from_lake(old.workspace)
    old.publish()
    assert seen(old) == slices(1, 3)
    assert_sound(old)


def test_a_lost_database_is_rebuilt_beside_a_damaged_file(house: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    data_files(house)[0].write_bytes(b"PAR1")
    workspace = lost(house)
    monkeypatch.setattr(TableRebuild, "rebuilder", lambda self, *_, **__: Harness(house.folder).rebuilder()[0])
    done = from_lake(workspace)
    assert len(done.damaged_files) == 1
    again = Harness(house.folder)
    assert again.workspace.context.mismatches(everything=True) == []
    assert seen(again) == {}  # nothing shows which of its runs were accepted: they are fetched again


def test_an_older_database_is_brought_forward_to_a_table_that_was_created_again(house: Harness) -> None:
    for clicks in (2, 3, 4):
        house.deliver(slices(1, clicks=clicks))
        house.publish()
    backup = dump(house.workspace.context.database)
    shutil.rmtree(Path(house.workspace.context.lake.url) / "warehouse")
    fresh = Harness(house.folder)
    fresh.rebuild(TABLE)
    fresh.deliver(slices(4))
    fresh.publish()
    before = seen(fresh)
    old = restored(fresh, backup)
    from_lake(old.workspace)
    assert seen(old) == before == {**slices(1, clicks=4), **slices(2, 3, 4)}
    assert_sound(old)


def test_a_missing_table_holds_up_no_other_recovery(house: Harness) -> None:
    house.deliver(slices(1, query="network_daily"))
    house.publish()
    backup = dump(house.workspace.context.database)
    house.deliver(slices(4))
    house.publish()
    shutil.rmtree(Path(house.workspace.context.lake.url) / "warehouse/demo/network_daily")
    old = restored(house, backup)
    done = from_lake(old.workspace)
    assert [mismatch.table for mismatch in done.left_alone] == ["demo.network_daily.v1"]
    assert seen(old) == slices(1, 2, 3, 4)


def test_a_hole_in_the_log_hides_no_version(house: Harness) -> None:
    backup = dump(house.workspace.context.database)
    [(_, head)] = house.workspace.maintenance.tables()
    house.deliver(slices(2, 4, clicks=5))
    house.publish()
    place = Path(house.workspace.context.lake.url) / head.location
    DeltaTable(str(place)).create_checkpoint()
    (place / "_delta_log" / f"{head.version + 1:020d}.json").unlink()
    old = restored(house, backup)
    assert [found.table for found in old.workspace.context.mismatches(everything=True)] == [head.name]
    old.deliver(slices(4, clicks=9))
    assert set(old.publish().refused) == {head.name}
    assert seen(old) == slices(1, 2, 3)


def test_rows_without_their_raw_run_are_hidden_and_reported(house: Harness) -> None:
    backup = dump(house.workspace.context.database)
    house.deliver(slices(4))
    house.publish()
    shutil.rmtree(Path(house.workspace.context.lake.url) / f"raw/demo/customer_id={one(4).customer_id}")
    old = restored(house, backup)
    done = from_lake(old.workspace)
    [(attempt, reason)] = done.unusable.items()
    assert (attempt.partition, "no seal" in reason) == (one(4), True)
    assert seen(old) == slices(1, 2, 3)
    assert old.workspace.context.mismatches(everything=True) == []


def test_exported_events_say_what_was_demoted_and_accepted(house: Harness) -> None:
    house.deliver(slices(2, clicks=5))
    house.publish()
    AuthorityStore(house.workspace.context.database, house.now).demote(one(3), "wrong", audit_entry())
    house.deliver(slices(1, query="network_daily"))  # the newest event is never exported
    exported = house.workspace.ledger.export(-2000, actor="ada")
    assert exported["events"] > 0
    workspace = lost(house)
    from_lake(workspace)
    again = Harness(house.folder)
    assert seen(again) == {**slices(1), **slices(2, clicks=5)}
    second, first = again.workspace.context.state.attempts(one(2))
    assert (first.outcome, second.outcome) == ("SUCCEEDED", "SUCCEEDED")
    AuthorityStore(again.workspace.context.database, again.now).rollback(one(2), first.run_id, audit_entry())
    again.publish()
    assert seen(again) == slices(1, 2)


def test_contracts_are_kept_in_the_lake(house: Harness) -> None:
    contracts = list(house.workspace.context.contracts.values())
    store_contracts(house.workspace.context.lake, contracts)
    store_contracts(house.workspace.context.lake, contracts)
    assert stored_contracts(house.workspace.context.lake) == {c.fingerprint: c for c in contracts}


@pytest.mark.parametrize("gap", ["recover.created", "recover.prepared", "recover.committed", "recover.recorded"])
def test_a_recovery_that_dies_in_a_gap_is_finished_by_the_next(house: Harness, gap: str) -> None:
    house.deliver(slices(1, query="network_daily"))
    house.publish()
    before = seen(house)
    workspace = lost(house)
    workspace.context.database.close()
    assert start("recover", house.folder, PENSTOCK_FAILPOINT=gap).wait(120) < 0
    workspace = load_workspace(house.folder)
    from_lake(workspace)
    again = Harness(house.folder)
    again.publish()
    assert seen(again) == before
    assert len(again.clicks("network_daily")) == 1
    assert_sound(again)


def test_another_database_is_never_brought_forward(house: Harness) -> None:
    workspace = empty(house)
    with pytest.raises(LakeMismatch, match="they never belonged together"):
        from_lake(workspace)


def test_a_damaged_segment_is_named_and_the_others_are_read(house: Harness) -> None:
    AuthorityStore(house.workspace.context.database, house.now).demote(one(3), "wrong", audit_entry())
    house.deliver(slices(1, query="network_daily"))  # the newest event is never exported
    exported = house.workspace.ledger.export(-2000, actor="ada")
    lake = house.workspace.context.lake
    lake.create("ledger/00.parquet", b"PAR1")
    facts = exported_facts(lake)
    assert (facts.events, set(facts.damaged)) == (exported["events"], {"ledger/00.parquet"})
    [demoted] = house.workspace.context.state.attempts(one(3))
    assert facts.demoted == {AttemptKey(one(3), demoted.run_id)}
    assert {facts.outcomes[AttemptKey(one(n), demoted.run_id)] for n in (1, 2, 3)} == {("SUCCEEDED", None)}
    assert set(facts.digests) >= {AttemptKey(one(n), demoted.run_id) for n in (1, 2, 3)}


def test_sealed_runs_are_what_exported_events_say_of_them(house: Harness) -> None:
    """The runs of seven customers, none of them in a table; the seal of the first cannot be read."""
    run_id = house.deliver(slices(1, 2, 3, 4, 5, 6, 7, day=10))
    broken, good, without_digest, failed, cancelled, silent_one, is_known = (
        AttemptKey(k, run_id) for k in slices(1, 2, 3, 4, 5, 6, 7, day=10)
    )
    lake, asset = house.workspace.context.lake, ("demo", "campaign_daily")
    (Path(lake.url) / run_folder(broken) / SEAL).write_bytes(b"{")
    facts = ExportedFacts(
        outcomes={
            good: ("SUCCEEDED", None), without_digest: ("SUCCEEDED", None), failed: ("FAILED", "data"),
            cancelled: ("CANCELLED", None), broken: ("SUCCEEDED", None),
        },
        digests={good: "2:abc"},
        demoted={good, silent_one},
    )  # fmt: skip
    contracts = {c.fingerprint: c for c in house.workspace.context.contracts.values()}
    older = {
        AttemptKey(one(n), attempt.run_id): True
        for n in (1, 2, 3)
        for attempt in house.workspace.context.state.attempts(one(n))
    }
    found = collect_evidence(lake, asset, [], contracts, facts, {is_known: True, **older}, house.now(), silent)
    assert {run.attempt: (run.outcome, run.error_class, run.content_digest, run.demoted) for run in found.sealed} == {
        good: ("SUCCEEDED", "internal", "2:abc", True),
        without_digest: ("CANCELLED", "internal", None, False),
        failed: ("FAILED", "data", None, False),
        cancelled: ("CANCELLED", "internal", None, False),
        silent_one: ("CANCELLED", "internal", None, True),
    }
    assert [run.record_count for run in found.sealed] == [3] * 5
    assert (found.found, found.unusable, found.damaged) == ([], {}, {})
    assert set(found.in_raw) >= {good, is_known}
    assert [c.query_name for c in found.contracts] == ["campaign_daily"]


def test_only_tables_that_lie_where_penstock_puts_them_are_found(house: Harness) -> None:
    rows = DeltaTable(f"{house.workspace.context.lake.url}/warehouse/demo/campaign_daily/v1").to_pyarrow_table()
    for place in ("aaa", "aaa/b", "demo/campaign_daily/v1x/deep"):
        write_deltalake(f"{house.workspace.context.lake.url}/warehouse/{place}", rows)
    assert [table.name for table in tables_in(house.workspace.context.lake)] == ["demo.campaign_daily.v1"]


# --- decisions and writes --------------------------------------------------------------------------------------------

V1 = f"{TABLE}.v1"
EARLY, LATE = builders.NOW - timedelta(hours=1), builders.NOW + timedelta(hours=1)


@pytest.fixture(params=builders.BACKENDS)
def actors(request: pytest.FixtureRequest) -> Iterator[Actors]:
    with builders.quick_folder() as folder:
        database = builders.open_database(request.param, folder, lambda: request.getfixturevalue("postgres_url"))
        yield Actors.on(builders.migrated(database))
        database.close()


def in_table(attempt: AttemptKey, rows: int = 10, **changes: Any) -> FoundRun:
    """The rows of a run, as evidence that matches its verdict."""
    shown = FoundRun(attempt, V1, "v1", rows, f"sha-{attempt.run_id}", 200, f"content-{attempt.run_id}",
                     builders.FINGERPRINT, EARLY)  # fmt: skip
    return shown._replace(**changes)


def in_raw_only(attempt: AttemptKey, **changes: Any) -> SealedRun:
    return SealedRun(attempt, "v1", 4, "sha", 80, builders.FINGERPRINT, EARLY)._replace(**changes)


def known(actors: Actors) -> AssetRows:
    with actors.database.snapshot() as connection:
        return read_asset(connection, "demo", "campaign_daily")


def unknown_run(day: int) -> AttemptKey:
    return AttemptKey(builders.key(day), RunId(new_run_id()))


def by_day(rows: Iterable[dict[str, Any]], *names: str) -> dict[int, tuple[Any, ...]]:
    mine = [row for row in rows if row["query_name"] == "campaign_daily"]
    return {row["logical_date"].day: tuple(row[name] for name in names) for row in mine}


def test_a_recovery_writes_what_the_tables_show_and_touches_nothing_else(actors: Actors) -> None:
    day, other = builders.key, builders.key(3, query="keyword_daily")
    sealed, new = unknown_run(1), unknown_run(1)
    being_worked_on = actors.issue_one(day(2))
    for partition in (day(3), other):
        held = actors.issue_one(partition)
        verdict = builders.rejected(held, actors.token, record_count=3, payload_digest="p", payload_bytes=9)
        actors.validator.judge([replace(verdict, content_digest="c")])
        control = {"failures": 1, "failing_since": EARLY, "next_run_at": LATE, "strategy": "backoff"}
        row = {**builders.columns(partition), "cleared_attempt_no": 0, **control}
        actors.execute(sa.insert(schema.partition_control).values(**row))
    approved = AttemptKey(day(3), actors.reader.attempts(day(3))[0].run_id)
    returned_to, left = actors.accept(day(4)), actors.accept(day(4))
    actors.publish(day(4))
    served = actors.accept(day(5))
    actors.publish(day(5))
    waits = actors.accept(day(5))
    untouched = actors.accept(day(6))
    actors.accept(day(7))
    withdrawn = actors.accept(day(7))
    actors.publish(day(7))
    vanished = actors.accept(day(8))
    actors.publish(day(8))
    newer = actors.accept(day(8))
    demoted = actors.accept(day(9))
    actors.publish(day(9))
    abandoned, later = actors.issue_one(day(10)), unknown_run(10)
    overtaken, after = actors.accept(day(11)), unknown_run(11)
    foreign = unknown_run(12)
    same = actors.accept(day(13))
    actors.publish(day(13))
    due = schema.publish_due
    actors.execute(sa.delete(due).where(due.c.logical_date.in_([day(n).logical_date for n in (4, 7, 9)])))
    before = {name: rows for name, rows in dump(actors.database).items() if rows and "query_name" in rows[0]}
    of_other = {name: [row for row in rows if row["query_name"] == "keyword_daily"] for name, rows in before.items()}

    found = [
        in_table(new), in_table(being_worked_on), in_table(approved, 3, content_digest="c"), in_table(returned_to),
        in_table(served), in_table(demoted, demoted=True), in_table(later), in_table(after, demoted=True),
        in_table(foreign, usable=False), in_table(same),
    ]  # fmt: skip
    in_raw = {AttemptKey(k, RunId(run)) for k, runs in known(actors).attempts.items() for run in runs} - {left}
    plan = plan_recovery("demo", "campaign_daily", known(actors), found, [in_raw_only(sealed)], in_raw)
    token, moment = actors.workers.register(), builders.NOW + timedelta(days=1)
    actors.database.transact(lambda c: apply_recovery(c, plan, {V1: 7}, "B", token, moment))

    assert {d.run.attempt.partition.logical_date.day: str(d.ruling) for d in plan.decisions} == {
        1: "insert", 2: "close", 3: "approve", 4: "known", 5: "known", 9: "withdrawn", 10: "insert",
        11: "withdrawn", 12: "conflict", 13: "known",
    }  # fmt: skip
    columns = ("status", "current_run_id", "attempt_count", "authority_version")
    assert by_day(actors.rows(schema.partition_state), *columns) == {
        1: ("success", new.run_id, 1, 1), 2: ("success", being_worked_on.run_id, 1, 1),
        3: ("success", approved.run_id, 1, 1), 4: ("success", returned_to.run_id, 2, 3),
        5: ("success", waits.run_id, 2, 2), 6: ("success", untouched.run_id, 1, 1),
        7: ("failed", withdrawn.run_id, 2, 3), 8: ("success", newer.run_id, 2, 2),
        9: ("failed", demoted.run_id, 1, 2), 10: ("success", later.run_id, 1, 1),
        11: ("failed", overtaken.run_id, 1, 2), 13: ("success", same.run_id, 1, 1),
    }  # fmt: skip
    # Served runs are not due; waiting and hidden ones are.
    assert {n: version for n, (version,) in by_day(actors.rows(due), "authority_version").items()} == {
        5: 2, 6: 1, 7: 3, 8: 2, 9: 2, 11: 2,
    }  # fmt: skip
    pointers = actors.rows(schema.warehouse_pointer)
    assert by_day(pointers, "run_id", "available", "hidden_at", "table_version") == {
        1: (new.run_id, True, None, 7), 2: (being_worked_on.run_id, True, None, 7),
        3: (approved.run_id, True, None, 7), 4: (returned_to.run_id, True, None, 7),
        5: (served.run_id, True, None, 7), 7: (withdrawn.run_id, False, moment, 1),
        8: (vanished.run_id, False, moment, 1), 9: (demoted.run_id, False, None, 7),
        10: (later.run_id, True, None, 7), 11: (after.run_id, False, None, 7),
        12: (foreign.run_id, False, None, 7), 13: (same.run_id, True, None, 7),
    }  # fmt: skip
    attempts = {row["run_id"]: row for row in actors.rows(schema.partition_attempt)}
    assert foreign.run_id not in attempts, "nothing vouches for it"
    closed = {n.run_id: (attempts[n.run_id]["outcome"], attempts[n.run_id]["attempt_no"]) for n in
              (sealed, new, being_worked_on, approved, abandoned, later, after)}  # fmt: skip
    assert closed == {
        sealed.run_id: ("CANCELLED", 1), new.run_id: ("SUCCEEDED", 2), being_worked_on.run_id: ("SUCCEEDED", 1),
        approved.run_id: ("FAILED", 1), abandoned.run_id: ("CANCELLED", 1), later.run_id: ("SUCCEEDED", 2),
        after.run_id: ("CANCELLED", 2),
    }  # fmt: skip
    assert {attempts[run.run_id]["lost_count"] for run in (sealed, new, later, after)} == {0}
    assert [run for run, row in attempts.items() if row["approved_at"]] == [approved.run_id]
    assert {run for run, row in attempts.items() if row["demoted_at"]} == {withdrawn.run_id, demoted.run_id}
    assert [run for run, row in attempts.items() if row["raw_deleted_at"]] == [left.run_id]
    loads = by_day(actors.rows(schema.load_record), "run_id", "record_count", "table_name")
    assert sorted(loads) == [1, 2, 3, 4, 5, 9, 10, 11, 13]
    assert loads[3] == (approved.run_id, 3, V1)
    # Manual choices are held, and earlier failures do not count.
    held_names = ("held_by", "failures", "failing_since", "next_run_at", "strategy")
    assert by_day(actors.rows(schema.partition_control), *held_names) == {
        3: ("recover", 0, None, None, None), 4: ("recover", 0, None, None, None),
    }  # fmt: skip
    assert by_day(actors.rows(schema.retry_due), "attempt_no") == {}
    after_all = dump(actors.database)
    assert {n: [r for r in after_all[n] if r["query_name"] == "keyword_daily"] for n in before} == of_other
    changed = [(e["run_id"], e["act"], e["authority_version"]) for e in actors.events("AuthorityChanged")][-8:]
    assert set(changed) == {
        (new.run_id, "accept", 1), (being_worked_on.run_id, "accept", 1), (approved.run_id, "approve", 1),
        (returned_to.run_id, "rollback", 3), (later.run_id, "accept", 1), (withdrawn.run_id, "demote", 3),
        (demoted.run_id, "demote", 2), (overtaken.run_id, "demote", 2),
    }  # fmt: skip
    published = {e["run_id"] for e in actors.events("PartitionPublished")}
    assert published == {n.run_id for n in (new, being_worked_on, approved, returned_to, served, later, same)}


def test_attempts_that_nobody_knows_get_the_next_numbers_in_the_order_of_their_runs(actors: Actors) -> None:
    actors.reject(builders.key(2))
    actors.reject(builders.key(2))
    runs = {
        n: [AttemptKey(builders.key(n), RunId(run)) for run in sorted(new_run_id() for _ in range(3))] for n in (1, 2)
    }
    found = [in_table(runs[n][1]) for n in (1, 2)]
    sealed = [in_raw_only(runs[n][at]) for n in (2, 1) for at in (2, 0)]
    plan = plan_recovery("demo", "campaign_daily", known(actors), found, sealed, ())
    numbers = {run.attempt: number for run, number in plan.sealed} | {
        d.run.attempt: d.attempt_no for d in plan.decisions
    }
    assert numbers == {run: at + {1: 1, 2: 3}[n] for n in (1, 2) for at, run in enumerate(runs[n])}
    assert [d.authority_version for d in plan.decisions] == [1, 1]


def test_verdicts_in_exported_events_count_where_the_recovery_writes_a_state(actors: Actors) -> None:
    failed, good, alone = unknown_run(1), unknown_run(1), unknown_run(2)
    sealed = [in_raw_only(one, outcome="FAILED", error_class="data", demoted=True) for one in (failed, alone)]
    plan = plan_recovery("demo", "campaign_daily", known(actors), [in_table(good)], sealed, ())
    actors.publish(actors.accept(builders.key(20)).partition)
    actors.database.transact(lambda c: apply_recovery(c, plan, {V1: 1}, "B", actors.token, LATE))
    outcomes = {row["run_id"]: (row["outcome"], row["error_class"], row["demoted_at"])
                for row in actors.rows(schema.partition_attempt)}  # fmt: skip
    assert outcomes[failed.run_id] == ("FAILED", "data", LATE)
    assert outcomes[alone.run_id] == ("CANCELLED", "internal", None)
    state = actors.reader.state(builders.key(1))
    assert state is not None
    assert (state.attempt_count, actors.reader.state(builders.key(2))) == (2, None)


@pytest.mark.parametrize(
    ("judged", "shown", "rows", "ambiguous"),
    [
        ("2:abc", "2:abc", 10, False),
        ("2:abc", "abc", 10, False),  # as an earlier release spelled it
        ("2:abc", "2:other", 10, True),
        ("2:abc", "2:abc", 9, True),
        ("2:abc", "2:abc", 11, True),
        ("abc", "2:other", 10, False),  # may be of the first algorithm: it proves nothing
        ("abc", "2:other", 9, True),
    ],
)
def test_rows_are_compared_with_the_verdict_on_them(
    actors: Actors, judged: str, shown: str, rows: int, ambiguous: bool
) -> None:
    attempt = actors.issue_one(builders.key(1))
    actors.validator.judge([replace(builders.accepted(attempt, actors.token), content_digest=judged)])
    found = [in_table(attempt, rows, content_digest=shown), in_table(unknown_run(2))]
    plan = plan_recovery("demo", "campaign_daily", known(actors), found, [], ())
    assert (list(plan.ambiguous), plan.is_rebuilt) == (([builders.key(1)], True) if ambiguous else ([], False))


def test_a_trusted_run_in_no_table_was_withdrawn_if_a_later_publication_took_it(actors: Actors) -> None:
    """Day 1 was accepted before the newest publication, day 2 at its moment, day 3 has no rows. Day 4 replaced a run
    that is served; day 5 was published and hidden before the backup, day 6 was demoted."""
    actors.accept(builders.key(1))
    actors.accept(builders.key(6))
    AuthorityStore(actors.database, actors.clock).demote(builders.key(6), "wrong", audit_entry())
    actors.accept(builders.key(3), rows=0)
    for day in (4, 5):
        actors.accept(builders.key(day))
        actors.publish(builders.key(day))
    actors.accept(builders.key(4))
    pointer = schema.warehouse_pointer
    hidden = sa.update(pointer).values(hidden_at=builders.NOW, available=False)
    actors.execute(hidden.where(*builders.is_key(pointer, builders.key(5))))
    actors.clock.now = LATE
    actors.accept(builders.key(2))

    def gone(published_at: datetime | None) -> list[PartitionKey]:
        plan = plan_recovery("demo", "campaign_daily", known(actors), [], [], (), published_at)
        return list(plan.withdrawn)

    assert gone(LATE) == [builders.key(1), builders.key(4)]
    assert gone(None) == []
    assert gone(builders.NOW) == []
    assert gone(LATE + timedelta(seconds=1)) == [builders.key(1), builders.key(2), builders.key(4)]


def test_pointers_without_rows_are_withdrawn_or_hidden_by_what_is_trusted(actors: Actors) -> None:
    for day in (1, 2, 3, 4):
        actors.accept(builders.key(day))
        actors.publish(builders.key(day))
    actors.accept(builders.key(2))
    pointer = schema.warehouse_pointer
    on = {day: sa.update(pointer).where(*builders.is_key(pointer, builders.key(day))) for day in (3, 4)}
    actors.execute(on[3].values(hidden_at=builders.NOW, available=False))
    actors.execute(on[4].values(record_count=0))
    plan = plan_recovery("demo", "campaign_daily", known(actors), [], [], ())
    assert (plan.withdrawn, plan.hidden) == ([builders.key(1)], [builders.key(2)])


def test_raw_runs_that_are_needed_are_lost_and_not_deleted(actors: Actors) -> None:
    """Day 1 has an old run besides the trusted one, day 2 is served from its old run, day 3 is open, day 4 has none."""
    old, _ = actors.accept(builders.key(1)), actors.accept(builders.key(1))
    actors.accept(builders.key(2))
    actors.publish(builders.key(2))
    actors.accept(builders.key(2))
    actors.issue_one(builders.key(3))
    actors.reject(builders.key(4))
    demoted = actors.accept(builders.key(5))
    AuthorityStore(actors.database, actors.clock).demote(builders.key(5), "wrong", audit_entry())
    kept = actors.accept(builders.key(6)), actors.accept(builders.key(6))
    assert deleted_raw(known(actors), [kept[0]]) == [old, demoted]
    assert deleted_raw(known(actors), [], gone=[builders.key(6)]) == [old, demoted, *sorted(kept)]


# --- backups ---------------------------------------------------------------------------------------------------------


def restore_backup(house: Harness, folder: Path) -> Harness:
    """Replace the database with the copy, as docs/howto/backup-and-restore.md describes."""
    database = house.workspace.context.database
    database.close()
    if database.dialect == "sqlite":
        for file in house.folder.glob("state.db*"):
            file.unlink()
        shutil.copy(folder / "state.db", house.folder / "state.db")
        return Harness(house.folder)
    url = database.url
    where = [f"--host={url.host}", f"--port={url.port}", f"--username={url.username}", f"--dbname={url.database}"]
    command = ["pg_restore", "--clean", "--if-exists", "--no-owner", *where, str(folder / "state.dump")]
    subprocess.run(command, check=True, capture_output=True)
    return Harness(house.folder)


def test_a_backup_is_of_one_moment_and_names_the_heads_it_belongs_to(house: Harness) -> None:
    [(_, head)] = house.workspace.maintenance.tables()
    made = house.workspace.maintenance.backup(house.folder / "backup")
    told = orjson.loads((house.folder / "backup" / "backup.json").read_bytes())
    assert told["tables"] == [{"table": head.name, "version": head.version, "publication": head.publication}]
    assert (told["identity"], told["partitions"]) == (lake_identity(house.workspace.context.lake), 3)
    assert sorted(path.name for path in (house.folder / "backup").iterdir()) == ["backup.json", Path(made["file"]).name]
    with pytest.raises(UsageError, match="name a new one for each backup"):
        house.workspace.maintenance.backup(house.folder / "backup")


def test_a_backup_is_restored_and_brought_forward(house: Harness) -> None:
    house.workspace.maintenance.backup(house.folder / "backup")
    house.deliver(slices(2, 4, clicks=5))
    house.publish()
    before = seen(house)
    old = restore_backup(house, house.folder / "backup")
    assert seen(old) == slices(1, 2, 3)
    from_lake(old.workspace)
    assert seen(old) == before
    assert_sound(old)


def test_without_pg_dump_the_error_names_the_package(house: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    if house.workspace.context.database.dialect == "sqlite":
        return
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="postgresql-client"):
        house.workspace.maintenance.backup(house.folder / "backup")


# --- from the database -----------------------------------------------------------------------------------------------


def test_a_missing_data_file_is_rebuilt_from_raw(house: Harness) -> None:
    before = seen(house)
    data_files(house)[0].unlink()
    damage = house.workspace.maintenance.recovery.preview_from_database((), silent)[f"{TABLE}.v1"]
    assert (len(damage.files), set(damage.partitions)) == (1, set(before))
    assert house.rebuild(TABLE).loaded == 3
    assert seen(house) == before
    assert_sound(house)


@pytest.mark.parametrize("keep", [0, 100])
def test_a_damaged_data_file_is_rebuilt_from_raw(house: Harness, keep: int) -> None:
    before = seen(house)
    file = data_files(house)[0]
    file.write_bytes(file.read_bytes()[:keep])
    house.rebuild(TABLE)
    assert seen(house) == before
    assert_sound(house)


def test_a_lost_warehouse_is_rebuilt_from_raw(house: Harness) -> None:
    before = seen(house)
    house.deliver(slices(4))
    shutil.rmtree(Path(house.workspace.context.lake.url) / "warehouse")
    fresh = Harness(house.folder)
    fresh.rebuild(TABLE)
    assert seen(fresh) == before
    fresh.publish()
    assert seen(fresh) == {**before, **slices(4)}
    assert_sound(fresh)


def test_a_damaged_log_is_created_again(house: Harness) -> None:
    before = seen(house)
    for entry in (Path(house.workspace.context.lake.url) / "warehouse/demo/campaign_daily/v1/_delta_log").glob(
        "*.json"
    ):
        entry.write_text("{")
    fresh = Harness(house.folder)
    fresh.rebuild(TABLE)
    assert seen(fresh) == before
    assert_sound(fresh)


def test_the_database_is_right_about_versions_that_it_does_not_know(house: Harness) -> None:
    backup = dump(house.workspace.context.database)
    house.deliver(slices(2, 4, clicks=5))
    house.publish()
    old = restored(house, backup)
    old.rebuild(TABLE)
    assert seen(old) == slices(1, 2, 3)
    assert_sound(old)
    old.deliver(slices(4, clicks=6))
    old.publish()
    assert seen(old) == {**slices(1, 2, 3), **slices(4, clicks=6)}
    assert_sound(old)


def edit_statistics(house: Harness, edit: Callable[[dict[str, Any]], None]) -> Harness:
    """Change the entries of the Delta log about files, as a reader that opens the workspace later finds them."""
    log = Path(house.workspace.context.lake.url) / "warehouse/demo/campaign_daily/v1/_delta_log"
    for entry in log.glob("*.json"):
        actions = [orjson.loads(line) for line in entry.read_bytes().splitlines()]
        for action in actions:
            if "add" in action:
                edit(action["add"])
        entry.write_bytes(b"\n".join(map(orjson.dumps, actions)))
    return Harness(house.folder)


def test_wrong_statistics_are_repaired(house: Harness) -> None:
    before = seen(house)
    fresh = edit_statistics(house, lambda add: add.update(stats=add["stats"].replace("2024-06-09", "2024-06-12")))
    assert fresh.workspace.maintenance.verify((), silent, raw=False).files
    fresh.rebuild(TABLE)
    assert seen(fresh) == before
    assert_sound(fresh)


def test_a_log_without_statistics_is_created_again(house: Harness) -> None:
    before = seen(house)
    fresh = edit_statistics(house, lambda add: add.pop("stats"))
    with pytest.raises(WarehouseError, match="no statistics"):
        fresh.clicks()
    fresh.rebuild(TABLE)
    assert seen(fresh) == before
    assert_sound(fresh)


def test_a_partition_whose_raw_run_is_gone_as_well_is_hidden_and_named(house: Harness) -> None:
    data_files(house)[0].unlink()
    shutil.rmtree(Path(house.workspace.context.lake.url) / f"raw/demo/customer_id={one(2).customer_id}")
    done = house.rebuild(TABLE)
    assert set(done.broken) == {one(2)}
    assert seen(house) == slices(1, 3)
    assert not house.workspace.ready(TABLE, date="2024-06-09", customers=[one(2).customer_id])
    house.deliver(slices(2, clicks=9))
    house.publish()
    assert seen(house) == {**slices(1, 3), **slices(2, clicks=9)}
    assert_sound(house)


def test_a_partition_on_its_way_to_another_schema_version_is_not_lost_by_a_rebuild(house: Harness) -> None:
    newer = house.under("v2")
    newer.deliver(slices(2, clicks=7))
    data_files(house)[0].unlink()
    fresh = Harness(house.folder)
    fresh.rebuild(TABLE)
    assert seen(fresh) == slices(1, 3)
    newer.publish()
    assert seen(fresh) == {**slices(1, 3), **slices(2, clicks=7)}
    assert_sound(fresh)


def test_a_run_that_is_accepted_during_a_rebuild_leaves_no_pointer_without_rows(
    house: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_files(house)[0].unlink()
    fresh = Harness(house.folder)
    stage = fresh.stage

    def stage_and_accept(*arguments: Any) -> Any:
        monkeypatch.setattr(fresh, "stage", stage)
        fresh.deliver(slices(2, clicks=8))
        return stage(*arguments)

    monkeypatch.setattr(fresh, "stage", stage_and_accept)
    fresh.rebuild(TABLE)
    assert seen(fresh) == slices(1, 3)
    assert not fresh.workspace.ready(TABLE, date="2024-06-09", customers=[one(2).customer_id])
    fresh.publish()
    assert seen(fresh) == {**slices(1, 3), **slices(2, clicks=8)}
    assert_sound(fresh)


def test_a_table_without_a_column_of_its_contract_is_created_again(house: Harness) -> None:
    before = seen(house)
    table = DeltaTable(f"{house.workspace.context.lake.url}/warehouse/demo/campaign_daily/v1")
    rows = table.to_pyarrow_table().drop_columns(["clicks"])
    write_deltalake(table, rows, mode="overwrite", schema_mode="overwrite", partition_by=["_month"])
    fresh = Harness(house.folder)
    fresh.rebuild(TABLE)
    assert seen(fresh) == before
    assert_sound(fresh)


def test_the_preview_of_a_lost_table_lists_what_is_loaded_again(house: Harness) -> None:
    shutil.rmtree(Path(house.workspace.context.lake.url) / "warehouse")
    damage = Harness(house.folder).workspace.maintenance.recovery.preview_from_database((), silent)[f"{TABLE}.v1"]
    assert (damage.created, set(damage.partitions)) == ("there is no Delta table", set(slices(1, 2, 3)))


def test_the_preview_of_a_lost_table_leaves_out_what_has_no_rows_in_it(house: Harness) -> None:
    AuthorityStore(house.workspace.context.database, house.now).demote(one(2), "wrong", audit_entry())
    house.deliver(slices(4), rows=0)
    house.deliver(slices(1, query="network_daily"))
    house.publish()
    shutil.rmtree(Path(house.workspace.context.lake.url) / "warehouse/demo/campaign_daily")
    damage = Harness(house.folder).workspace.maintenance.recovery.preview_from_database((), silent)
    assert set(damage[f"{TABLE}.v1"].partitions) == set(slices(1, 3))
    assert damage["demo.network_daily.v1"].is_none


def test_pointers_name_versions_of_their_own_table_after_another_was_created_again(house: Harness) -> None:
    """Also the pointer of an empty partition, which has no rows to load."""
    for clicks in (2, 3):
        house.deliver(slices(1, clicks=clicks, query="network_daily"))
        house.publish()
    for clicks in (2, 3):
        house.deliver(slices(1, clicks=clicks))
        house.publish()
    house.deliver(slices(4), rows=0)
    house.publish()

    def named(house: Harness) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for pointer in house.workspace.context.pointers.find()[0]:
            found.setdefault(pointer.table, set()).add(pointer.table_version)
        return found

    def head(house: Harness, query: str) -> int:
        return DeltaTable(f"{house.workspace.context.lake.url}/warehouse/demo/{query}/v1").version()

    before, network = named(house), head(house, "network_daily")
    assert max(before[f"{TABLE}.v1"]) > network
    shutil.rmtree(Path(house.workspace.context.lake.url) / "warehouse/demo/campaign_daily")
    fresh = Harness(house.folder)
    fresh.rebuild(TABLE)
    assert head(fresh, "campaign_daily") < network
    assert named(fresh) == {f"{TABLE}.v1": {head(fresh, "campaign_daily")}, "demo.network_daily.v1": {network}}
    assert_sound(fresh)


def test_a_rebuild_ends_what_others_left_prepared_in_its_tables_and_nothing_else(house: Harness) -> None:
    house.deliver(slices(1, query="network_daily"))
    house.publish()
    for name, table in (("mine", f"{TABLE}.v1"), ("other", "demo.network_daily.v1")):
        left = Batch(name, {table: TableChange((), ())})
        house.workspace.context.database.transact(
            lambda c, b=left: batches.prepare(c, b, "gone", None, (), (), house.now())  # type: ignore[misc]
        )
    house.rebuild(TABLE)
    assert {name: status for name, status in house.batches().items() if name in ("mine", "other")} == {
        "mine": "discarded",
        "other": "prepared",
    }
    assert seen(house) == slices(1, 2, 3)


def test_vacuum_works_beside_a_snapshot_from_before_a_table_was_created_again(house: Harness) -> None:
    for clicks in (2, 3, 4):
        house.deliver(slices(1, clicks=clicks))
        house.publish()
    house.workspace.data.snapshots.take(
        "old", [("demo", "campaign_daily")], house.workspace.context.now(), timedelta(days=900)
    )
    shutil.rmtree(Path(house.workspace.context.lake.url) / "warehouse")
    fresh = Harness(house.folder)
    fresh.rebuild(TABLE)
    fresh.workspace.maintenance.vacuum((), timedelta(hours=1), dry_run=False)
    assert seen(fresh) == {**slices(1, clicks=4), **slices(2, 3)}
    with pytest.raises(WarehouseError):
        fresh.workspace.data.vouched(TABLE, as_of="old").arrow()


def test_a_rebuild_of_a_sound_table_loads_nothing(house: Harness) -> None:
    assert (house.rebuild(TABLE).loaded, seen(house)) == (0, slices(1, 2, 3))
    assert_sound(house)


@pytest.mark.parametrize("gap", ["rebuild.staged", "rebuild.prepared", "rebuild.committed", "rebuild.recorded"])
def test_a_rebuild_that_dies_in_a_gap_is_finished_or_repeated(house: Harness, gap: str) -> None:
    before = seen(house)
    house.workspace.context.database.close()
    data_files(house)[0].unlink()
    assert start("rebuild", house.folder, PENSTOCK_FAILPOINT=gap).wait(120) < 0
    fresh = Harness(house.folder)
    fresh.workers.mark_dead_workers()
    fresh.rebuild(TABLE)
    assert seen(fresh) == before
    assert_sound(fresh)
