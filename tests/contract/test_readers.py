"""How readers find their data: by indexes in the database, and by logs that are read once for each version."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pytest
import sqlalchemy as sa

from penstock.db.engine import Database
from penstock.errors import WarehouseError
from penstock.lake.protocol import LakeUnavailable
from penstock.partition import PartitionKey
from penstock.warehouse.heads import heads
from penstock.warehouse.scan import _spark_type
from penstock.warehouse.versions import Versions
from support import builders, servers
from support.harness import Harness
from support.workspaces import key, open_at

TABLE = "demo.campaign_daily"


@pytest.fixture
def house() -> Iterator[Harness]:
    with builders.quick_folder() as folder:
        yield Harness(Path(folder))


def clicks(house: Harness, **slice_of: Any) -> list[int]:
    return sorted(house.workspace.data.vouched(TABLE, **slice_of).arrow().column("clicks").to_pylist())


def days(*numbers: int, clicks: int = 1) -> dict[PartitionKey, int]:
    return {key(number, "2024-06-09"): clicks for number in numbers}


def test_the_log_of_a_version_is_read_once_and_a_new_version_is_seen_at_once(house: Harness) -> None:
    house.deliver(days(1, 2), rows=1)
    house.publish()
    assert clicks(house) == [1, 1]
    log = house.folder / "lake" / "warehouse" / "demo" / "campaign_daily" / "v1" / "_delta_log"
    aside = log.with_name("aside")
    log.rename(aside)
    assert clicks(house) == [1, 1]
    assert clicks(house, customers=[key(2).customer_id]) == [1]
    with pytest.raises(WarehouseError):  # a new reader has to read it
        open_at(house.folder).data.vouched(TABLE)
    aside.rename(log)
    house.deliver(days(2, clicks=7), rows=1)
    house.publish()
    assert clicks(house) == [1, 7]


def test_the_versions_that_were_asked_for_last_are_kept(house: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.warehouse.versions._KEPT", 2)
    house.deliver(days(1, 2), rows=1)
    house.publish()
    place = "warehouse/demo/campaign_daily/v1"
    versions = Versions(house.workspace.context.lake)

    def records(version: int) -> int:
        return sum(file.records for file in versions.contents(f"{TABLE}.v1", place, version).files)

    assert [records(version) for version in (1, 2, 1, 0)] == [0, 2, 0, 0]
    shutil.rmtree(house.folder / "lake" / place)
    assert [records(version) for version in (1, 0)] == [0, 0]
    with pytest.raises(WarehouseError):
        records(2)
    assert [records(version) for version in (1, 0)] == [0, 0]


def test_a_version_is_read_only_as_the_publication_that_was_recorded(house: Harness) -> None:
    for clicks_of in (1, 2):
        house.deliver(days(1, clicks=clicks_of), rows=1)
        house.publish()
    [head] = heads(house.workspace.context.database, "demo", "campaign_daily")
    versions = Versions(house.workspace.context.lake)
    found = versions.contents(head.name, head.location, head.version, head.publication)
    assert found.columns.names == ["customer_id", "logical_date", "campaign_id", "clicks", "_run_id"]
    for version, publication in ((head.version, "another"), (head.version - 2, head.publication)):
        with pytest.raises(WarehouseError, match="is not the publication"):
            versions.contents(head.name, head.location, version, publication)


def test_a_reader_keeps_its_version_while_others_go_on(house: Harness) -> None:
    house.deliver(days(1), rows=1)
    house.publish()
    before = house.workspace.data.vouched(TABLE)
    for number in range(2, 5):
        house.deliver(days(1, clicks=number), rows=1)
        house.publish()
        assert clicks(house) == [number]
    assert before.arrow().column("clicks").to_pylist() == [1]


def test_what_readers_must_not_see_is_found_by_its_index(house: Harness) -> None:
    """However many pointers there are: a reader asks only for those that are not available."""
    asked = statements(
        house.workspace.context.database, lambda: heads(house.workspace.context.database, "demo", "campaign_daily")
    )
    [(statement, values)] = [one for one in asked if "FROM warehouse_pointer" in one[0]]
    with house.workspace.context.database.snapshot() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
    assert [row.detail for row in plan] == ["SEARCH warehouse_pointer USING INDEX unavailable_pointers (source=?)"]


def statements(database: Database, act: Any) -> list[tuple[str, Any]]:
    """The database queries of an act."""
    found: list[tuple[str, Any]] = []

    def note(_c: Any, _cursor: Any, statement: str, values: Any, _context: Any, _many: bool) -> None:
        found.append((statement, values))

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        act()
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    return found


def test_types_are_spelled_so_that_no_session_reads_them_otherwise() -> None:
    kind = pa.struct([("order", pa.list_(pa.timestamp("us", "UTC"))), ("sum", pa.decimal128(10, 2))])
    assert _spark_type(kind) == "struct<`order`: array<timestamp_ltz>, `sum`: decimal(10,2)>"
    assert _spark_type(pa.int64()) == "bigint"


def test_a_workspace_that_was_begun_anew_in_the_same_place_is_read_as_it_is_now(house: Harness) -> None:
    house.deliver(days(1), rows=1)
    house.publish()
    assert clicks(house) == [1]
    house.workspace.context.database.close()
    for name in ("lake", "state.db", "state.db-wal", "state.db-shm", "penstock.yaml"):
        path = house.folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    again = Harness(house.folder)
    again.deliver(days(1, clicks=5), rows=1)
    again.publish()
    assert clicks(again) == [5]


def test_a_storage_that_stops_answering_in_the_middle_of_a_read_is_a_transient_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with servers.s3() as endpoint:
        for name, value in servers.s3_environment(endpoint).items():
            monkeypatch.setenv(name, value)
        boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket="gone")
        house = Harness(tmp_path, lake="s3://gone/lake")
        house.deliver(days(1), rows=1)
        house.publish()
        opened = house.workspace.data.vouched(TABLE)
        assert opened.arrow().num_rows == 1
    with pytest.raises(LakeUnavailable, match=r"table demo.campaign_daily.v1 cannot be read from s3://gone/lake"):
        opened.arrow()
