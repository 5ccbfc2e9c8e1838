"""Commits to Delta logs: what other processes, delta-rs and the storage do between and after them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.errors import LeaseLost, WarehouseError
from penstock.lake import Lake, open_lake
from penstock.lake.local import LocalLake
from penstock.warehouse.delta import DeltaFormat, Table
from penstock.warehouse.delta_log import log_path
from penstock.warehouse.format import FileStatistics, StagedFile
from support import builders

PLACE = "warehouse/t"
FIELDS = pa.schema([("clicks", pa.int64())])
NOW = datetime(2024, 6, 17, tzinfo=UTC)
DAY = NOW.date()


@pytest.fixture(params=["local", "s3"])
def lake(request: pytest.FixtureRequest) -> Iterator[Lake]:
    if request.param == "s3":
        yield open_lake(f"{request.getfixturevalue('s3_url')}/{uuid4().hex}")
        return
    with builders.quick_folder() as folder:
        yield open_lake(folder)


def opened(lake: Lake) -> Table:
    tables = DeltaFormat(lake)
    tables.create(PLACE, FIELDS)
    return tables.open("a.b.v1", PLACE)


def by_delta_rs(lake: Lake) -> DeltaTable:
    return DeltaTable(lake.uri(PLACE), storage_options=lake.storage_options())


def staged(lake: Lake, name: str) -> StagedFile:
    stats = DeltaFormat(lake).encode_statistics(FileStatistics(1, (DAY, DAY), ("1", "1")))
    return StagedFile(f"_month=2024-06/{name}.parquet", 10, 1, "2024-06", stats)


def names(table: Table) -> list[str]:
    return sorted(file.path.rpartition("/")[2] for file in table.files())


def test_delta_rs_reads_what_is_committed(lake: Lake) -> None:
    table = opened(lake)
    fenced = table.fence()
    assert (table.version, fenced.version) == (0, 1)
    assert fenced.publish("b1", [staged(lake, "x"), staged(lake, "y")], [], NOW) == 2
    again = opened(lake).fence()
    assert (again.version, names(again)) == (3, ["x.parquet", "y.parquet"])
    assert again.publish("b2", [staged(lake, "z")], ["_month=2024-06/x.parquet"], NOW) == 4
    last = opened(lake)
    assert (last.version, names(last)) == (4, ["y.parquet", "z.parquet"])
    assert [last.has_published(name) for name in ("b1", "b2", "b3")] == [True, True, False]
    assert [last.has_published(*place) for place in (("b1", 2), ("b1", 3), ("b1", 9), ("b3", 2))] == [True] * 3 + [
        False
    ]
    delta = by_delta_rs(lake)
    assert delta.transaction_version("penstock/fence") == 4
    assert delta.metadata().partition_columns == ["_month"]
    assert delta.schema().to_arrow() == opened(lake).arrow_schema()
    assert [entry["operation"] for entry in delta.history()] == ["WRITE"] * 4 + ["CREATE TABLE"]


def test_of_two_that_opened_one_version_the_second_cannot_commit(lake: Lake) -> None:
    first, second = opened(lake), opened(lake)
    first.fence()
    with pytest.raises(LeaseLost, match=r"table a\.b\.v1 was changed by another process"):
        second.fence()
    with pytest.raises(LeaseLost):
        second.publish("b", [staged(lake, "x")], [], NOW)
    assert (opened(lake).version, names(opened(lake))) == (1, [])


def test_a_publisher_behind_an_older_fence_cannot_commit(lake: Lake) -> None:
    paused = opened(lake).fence()
    opened(lake).fence()
    with pytest.raises(LeaseLost):
        paused.publish("b", [staged(lake, "x")], [], NOW)
    assert (opened(lake).version, names(opened(lake))) == (2, [])


def test_a_commit_of_delta_rs_fails_after_ours(lake: Lake) -> None:
    paused = opened(lake)
    opened(lake).fence()
    with pytest.raises(LeaseLost):
        paused._commit_by_delta_rs([], [])
    assert opened(lake).version == 1


@pytest.mark.parametrize("versions", [0, 1, 2, 3, 4])
def test_a_publisher_that_slept_while_the_log_was_begun_again_cannot_commit(lake: Lake, versions: int) -> None:
    """The new log may be shorter than the old one, as long, or longer."""
    table = opened(lake)
    table.fence().publish("b1", [staged(lake, "x")], [], NOW)
    paused = opened(lake).fence()
    assert paused.version == 3
    DeltaFormat(lake).reset(PLACE)
    for _ in range(versions):
        opened(lake).fence()
    before = {entry.path for entry in lake.list(PLACE)}
    with pytest.raises(LeaseLost):
        paused.publish("b2", [staged(lake, "y")], [], NOW)
    assert {entry.path for entry in lake.list(PLACE)} == before, "a stray entry would damage the new log"


def test_every_fiftieth_commit_writes_a_checkpoint(lake: Lake) -> None:
    table = opened(lake).fence()
    assert table.publish("first", [staged(lake, "x")], [], NOW) == 2
    while (table := opened(lake)).version < 48:
        table.fence()
    fenced = table.fence()  # by delta-rs
    assert (fenced.version, names(fenced)) == (49, ["x.parquet"])
    assert fenced.publish("second", [staged(lake, "y")], [], NOW) == 50
    assert lake.exists(f"{PLACE}/_delta_log/{49:020d}.checkpoint.parquet")
    lake.delete([log_path(PLACE, number) for number in range(49)])
    last = opened(lake)
    assert (last.version, names(last)) == (50, ["x.parquet", "y.parquet"])
    assert last.has_published("first", 2)


def test_a_publication_that_writes_a_checkpoint_follows_our_fence(tmp_path: Path) -> None:
    lake = open_lake(str(tmp_path))
    while (table := opened(lake)).version < 47:
        table.fence()
    fenced = table.fence()
    assert fenced.version == 48
    assert fenced.publish("b", [staged(lake, "x")], [], NOW) == 49
    assert lake.exists(f"{PLACE}/_delta_log/{49:020d}.checkpoint.parquet")
    assert names(opened(lake)) == ["x.parquet"]


def test_a_log_without_the_entry_of_its_newest_version_is_not_continued(lake: Lake) -> None:
    opened(lake).fence().publish("b1", [staged(lake, "x")], [], NOW)
    by_delta_rs(lake).create_checkpoint()
    table = opened(lake)
    lake.delete([log_path(PLACE, 2)])
    with pytest.raises(WarehouseError, match="Invalid table version: 2"):
        table.fence()
    assert not lake.exists(log_path(PLACE, 3))


def test_a_table_with_a_newer_protocol_is_left_to_delta_rs(lake: Lake) -> None:
    opened(lake)
    by_delta_rs(lake).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    table = opened(lake)
    assert by_delta_rs(lake).protocol().min_writer_version > 2
    fenced = table.fence()
    assert fenced.version == table.version + 1
    assert fenced.publish("b", [staged(lake, "x")], [], NOW) == table.version + 2
    assert by_delta_rs(lake).history(1)[0]["engineInfo"].startswith("delta-rs")
    assert names(opened(lake)) == ["x.parquet"]


class LosesResponses(LocalLake):
    """Storage whose response to a successful write is lost: the client repeats the request and finds its own object."""

    def create(self, path: str, data: bytes) -> bool:
        super().create(path, data)
        return False


def test_a_commit_whose_response_was_lost_is_recognised(tmp_path: Path) -> None:
    table = opened(open_lake(str(tmp_path)))
    table._lake = LosesResponses(str(tmp_path))
    fenced = table.fence()
    assert fenced.publish("b", [staged(table._lake, "x")], [], NOW) == 2
    with pytest.raises(LeaseLost):
        table.fence()
