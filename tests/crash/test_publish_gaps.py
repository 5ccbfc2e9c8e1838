"""The publish protocol stopped in every gap: readers see the old state or the new one, the next publisher finishes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from deltalake import DeltaTable

from penstock.db import schema
from penstock.errors import LeaseLost, UsageError
from penstock.partition import PartitionKey, RunId
from penstock.state.authority import AuthorityStore
from penstock.warehouse import publish as protocol
from penstock.warehouse.lease import TableLeases
from support.builders import audit_entry
from support.harness import Harness
from support.workspaces import key

QUERIES = ("campaign_daily", "network_daily")
GAPS = ("publish.staged", "publish.prepared", "publish.committed", "publish.committed:2", "publish.recorded")


class Killed(BaseException):
    """Simulates a power cut: no handler of ours catches it."""


def stop_at(gap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Die when the named point is reached; leases stay taken, as they would."""
    name, _, turn = gap.partition(":")
    arrivals: list[str] = []

    def reach(point: str) -> None:
        arrivals.append(point)
        if arrivals.count(name) == int(turn or 1):
            raise Killed

    monkeypatch.setattr(protocol, "reach", reach)
    monkeypatch.setattr(TableLeases, "release", lambda self: None)


def seen(house: Harness) -> dict[PartitionKey, set[int]]:
    return {k: clicks for query in QUERIES for k, clicks in house.clicks(query).items()}


def plain_rows(house: Harness, query: str) -> int:
    table = DeltaTable(house.workspace.context.lake.uri(f"warehouse/demo/{query}/v1"))
    return int(table.to_pyarrow_table().num_rows)


@pytest.mark.parametrize("gap", GAPS)
def test_a_publisher_that_dies_in_a_gap_is_finished_or_forgotten_by_the_next(
    gap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = Harness(tmp_path, QUERIES)
    keys = [key(n, day, query) for n in (1, 2) for day in ("2024-05-31", "2024-06-09") for query in QUERIES]
    old, new = {k: {1} for k in keys}, {k: {2} for k in keys}
    house.deliver(dict.fromkeys(keys, 1))
    house.publish()
    house.deliver(dict.fromkeys(keys, 2))

    publisher, token = house.publisher()
    with monkeypatch.context() as patch:
        stop_at(gap, patch)
        with pytest.raises(Killed):
            publisher.publish()
    house.workers.stop(token)
    assert seen(house) == (new if gap == "publish.recorded" else old)

    house.publish()
    assert seen(house) == new
    assert [plain_rows(house, query) for query in QUERIES] == [12, 12]
    with house.workspace.context.database.snapshot() as connection:
        unfinished = connection.scalars(
            sa.select(schema.load_batch.c.batch_id).where(schema.load_batch.c.status == "prepared")
        )
        assert list(unfinished) == []
        assert connection.scalar(sa.select(sa.func.count()).select_from(schema.publish_due)) == 0


def test_a_paused_publisher_that_wakes_after_its_batch_was_discarded_can_not_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = Harness(tmp_path)
    house.deliver({key(): 1})
    paused, token = house.publisher()

    def pause(point: str) -> None:
        """While the first publisher sleeps its lease ends, and a second one publishes."""
        if point == "publish.prepared":
            monkeypatch.setattr(protocol, "reach", lambda _: None)
            house.workers.stop(token)
            assert house.publish().loaded == 1

    monkeypatch.setattr(protocol, "reach", pause)
    with pytest.raises(LeaseLost):
        paused.publish()
    assert house.clicks() == {key(): {1}}
    assert plain_rows(house, "campaign_daily") == 3


def test_a_run_accepted_while_we_stage_is_published_and_the_older_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = Harness(tmp_path)
    house.deliver({key(1): 1, key(2): 1})
    staged: list[int] = []
    stage = house.stage

    def overtaken(*arguments: Any) -> Any:
        staged.append(1)
        if len(staged) == 1:
            house.deliver({key(1): 2})
        return stage(*arguments)

    monkeypatch.setattr(house, "stage", overtaken)
    house.publish()
    assert house.clicks() == {key(1): {2}, key(2): {1}}


def commit_and_die(house: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A publication that is committed to the table, and only prepared in the database."""
    publisher, token = house.publisher()
    with monkeypatch.context() as patch:
        stop_at("publish.committed", patch)
        with pytest.raises(Killed):
            publisher.publish()
    house.workers.stop(token)


def deliver_what_cannot_be_read(house: Harness, clicks: int) -> RunId:
    run_id = house.deliver({key(): clicks})
    [payload] = (house.folder / "lake/raw").rglob(f"run_id={run_id}/payload-*.jsonl")
    payload.write_bytes(b"{}\n")
    return run_id


@pytest.mark.damages_workspace(reason="an accepted payload is overwritten")
def test_a_run_that_was_replaced_while_it_was_published_is_read_until_its_successor_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = Harness(tmp_path)
    house.deliver({key(): 1})
    house.publish()
    house.deliver({key(): 2})
    commit_and_die(house, monkeypatch)
    deliver_what_cannot_be_read(house, 3)
    assert key() in house.publish().broken
    assert house.clicks() == {key(): {2}}
    house.deliver({key(): 4})
    assert house.clicks() == {key(): {2}}
    house.publish()
    assert house.clicks() == {key(): {4}}


@pytest.mark.damages_workspace(reason="an accepted payload is overwritten")
def test_a_run_that_was_abandoned_while_it_was_published_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = Harness(tmp_path)
    first = house.deliver({key(): 1})
    house.publish()
    house.deliver({key(): 2})
    commit_and_die(house, monkeypatch)
    AuthorityStore(house.workspace.context.database, house.now).rollback(key(), first, audit_entry())
    deliver_what_cannot_be_read(house, 3)
    house.publish()
    assert house.clicks() == {}


def test_the_batch_of_a_dead_publisher_in_another_schema_version_is_finished_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = Harness(tmp_path)
    newer = house.under("v2")
    house.deliver({key(1): 1})
    commit_and_die(house, monkeypatch)
    newer.deliver({key(1): 2})
    newer.publish()
    assert house.unfinished() == set()
    house.deliver({key(2): 3})
    house.publish()
    assert house.clicks() == {key(1): {2}, key(2): {3}}
    assert house.workspace.maintenance.differences() == ([], {})
    assert plain_rows(house, "campaign_daily") == 3


def test_publishers_of_two_schema_versions_of_a_query_do_not_overtake_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publisher that paused with a partition of v1 finds that the partition is in v2 now."""
    house = Harness(tmp_path)
    newer = house.under("v2")
    house.deliver({key(1): 1})
    slow, token = house.publisher()

    def sleep(point: str) -> None:
        if point == "publish.staged":
            monkeypatch.setattr(protocol, "reach", lambda _: None)
            house.workers.stop(token)
            newer.deliver({key(1): 2})
            newer.publish()

    monkeypatch.setattr(protocol, "reach", sleep)
    with pytest.raises(LeaseLost):
        slow.publish()
    house.deliver({key(2): 3})
    house.publish()
    assert house.clicks() == {key(1): {2}, key(2): {3}}
    assert house.workspace.maintenance.differences() == ([], {})
    assert plain_rows(house, "campaign_daily") == 3


@pytest.mark.parametrize("gap", ["publish.prepared", "publish.committed"])
def test_what_was_withdrawn_before_it_was_ever_read_is_taken_out_of_the_table_by_the_next(
    gap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = Harness(tmp_path)
    house.deliver({key(): 1})
    publisher, token = house.publisher()
    with monkeypatch.context() as patch:
        stop_at(gap, patch)
        with pytest.raises(Killed):
            publisher.publish()
    assert not house.workspace.context.pointers.interrupted(), "its worker lives"
    house.workers.stop(token)
    AuthorityStore(house.workspace.context.database, house.now).demote(key(), "wrong", audit_entry())
    assert house.workspace.context.pointers.interrupted()
    house.publish()
    assert not house.workspace.context.pointers.interrupted()
    assert house.clicks() == {}
    assert plain_rows(house, "campaign_daily") == 0


def test_what_vacuum_advises_after_an_interrupted_publication_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    house = Harness(tmp_path)
    ws = house.workspace
    house.deliver({key(1): 1})
    house.publish()
    house.deliver({key(2): 1})
    commit_and_die(house, monkeypatch)
    AuthorityStore(ws.context.database, house.now).demote(key(2), "wrong", audit_entry())
    ws.context.database.transact(lambda connection: connection.execute(sa.delete(schema.publish_due)))
    for dry_run in (True, False):
        with pytest.raises(UsageError, match="penstock warehouse reconcile"):
            ws.maintenance.vacuum((), timedelta(hours=1), dry_run=dry_run)
    assert ws.maintenance.differences() == ([], {})
    assert ws.maintenance.reconcile(spark=spark).hidden == 1
    ws.maintenance.vacuum((), timedelta(hours=1), dry_run=False)
    assert house.clicks() == {key(1): {1}}
    assert plain_rows(house, "campaign_daily") == 3


def test_what_was_struck_from_the_list_while_another_published_it_is_due_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = Harness(tmp_path)
    house.deliver({key(1): 1, key(2): 1})
    publisher, _ = house.publisher()

    def withdraw(point: str) -> None:
        """No pointer names the partition yet, so that other publishers find nothing to hide."""
        if point == "publish.committed":
            monkeypatch.setattr(protocol, "reach", lambda _: None)
            AuthorityStore(house.workspace.context.database, house.now).demote(key(1), "wrong", audit_entry())
            house.workspace.context.database.transact(
                lambda connection: connection.execute(sa.delete(schema.publish_due))
            )

    monkeypatch.setattr(protocol, "reach", withdraw)
    publisher.publish()
    assert house.clicks() == {key(2): {1}}
    assert plain_rows(house, "campaign_daily") == 3


@pytest.mark.damages_workspace(reason="an accepted payload is changed")
def test_a_slice_whose_raw_bytes_changed_is_not_published_and_holds_up_no_other(tmp_path: Path) -> None:
    house = Harness(tmp_path)
    house.deliver({key(1): 1, key(2): 1})
    house.publish()
    house.deliver({key(1): 2, key(2): 2})
    [payload] = sorted((tmp_path / "lake/raw").rglob(f"customer_id={key(1).customer_id}/**/payload-*.jsonl"))[-1:]
    payload.write_bytes(payload.read_bytes().replace(b'"clicks":2', b'"clicks":9'))

    done = house.publish()
    assert done.loaded == 1
    assert "is not what was sealed" in done.broken[key(1)]
    assert house.clicks() == {key(1): {1}, key(2): {2}}
    assert house.workspace.context.pointers.due_since(key(1)) is not None


def test_a_snapshot_that_was_taken_before_a_replacement_still_reads_the_same(tmp_path: Path) -> None:
    house = Harness(tmp_path)
    house.deliver({key(): 1})
    house.publish()
    before = house.workspace.data.vouched("demo.campaign_daily")
    house.deliver({key(): 2})
    house.publish()
    assert set(before.arrow().column("clicks").to_pylist()) == {1}
    assert house.clicks() == {key(): {2}}


def test_loading_the_same_run_again_changes_neither_rows_nor_record(tmp_path: Path) -> None:
    house = Harness(tmp_path)
    house.deliver({key(1): 1, key(2): 1})
    house.publish()

    def everything() -> tuple[Any, Any]:
        with house.workspace.context.database.snapshot() as connection:
            records = connection.execute(sa.select(schema.load_record).order_by(*schema.load_record.c)).all()
        return records, house.workspace.data.vouched("demo.campaign_daily").arrow().to_pylist()

    before = everything()
    pointer, due = schema.warehouse_pointer, schema.publish_due
    again = {**{name: getattr(key(1), name) for name in schema.KEY}, "authority_version": 1, "since": house.now()}

    def forget_the_load(connection: sa.Connection) -> None:
        connection.execute(
            sa.update(pointer).where(pointer.c.customer_id == key(1).customer_id).values(available=False)
        )
        connection.execute(sa.insert(due), again)

    house.workspace.context.database.transact(forget_the_load)
    assert house.publish().loaded == 1
    assert everything() == before


def test_an_unfinished_file_of_a_dead_run_is_never_read(tmp_path: Path) -> None:
    house = Harness(tmp_path)
    house.deliver({key(): 1})
    house.publish()
    folder = next((tmp_path / "lake/warehouse").rglob("_month=*"))
    (folder / "part-orphan.parquet").write_bytes(next(folder.glob("*.parquet")).read_bytes())
    assert house.workspace.data.vouched("demo.campaign_daily").arrow().num_rows == 3


def test_an_empty_slice_may_be_the_first_that_a_table_ever_gets(tmp_path: Path) -> None:
    house = Harness(tmp_path, QUERIES)
    house.deliver({key(1, query="network_daily"): 1}, rows=0)
    house.deliver({key(1): 1, key(2): 1})
    done = house.publish()
    assert (done.loaded, done.broken) == (3, {})
    assert seen(house) == {key(1): {1}, key(2): {1}}
    house.deliver({key(2, query="network_daily"): 5})
    house.publish()
    assert house.clicks("network_daily") == {key(2, query="network_daily"): {5}}


@pytest.mark.damages_workspace(reason="an accepted payload is replaced by a link")
def test_a_raw_object_that_can_not_be_read_holds_up_no_other(tmp_path: Path) -> None:
    house = Harness(tmp_path)
    house.deliver({key(1): 1, key(2): 1})
    [payload] = (tmp_path / "lake/raw").rglob(f"customer_id={key(1).customer_id}/**/payload-*.jsonl")
    payload.unlink()
    payload.symlink_to(payload.name)  # a loop: the system refuses to open it
    done = house.publish()
    assert (done.loaded, list(done.broken)) == (1, [key(1)])
    assert house.clicks() == {key(2): {1}}
