"""Staging one part in this process: order, replacement, and slices too large for memory."""

from __future__ import annotations

from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.partition import MODELS, AttemptKey, PartitionKey, new_run_id
from penstock.pipeline import load
from penstock.pipeline import slices as sizes
from penstock.raw.layout import run_folder
from penstock.raw.sink import RawSink
from penstock.warehouse import files as packed
from penstock.warehouse.packing import NewSlice, Part, plan_month
from penstock.warehouse.staging import StagePart
from support.harness import Harness
from support.workspaces import key


@pytest.fixture
def house(tmp_path: Path) -> Harness:
    return Harness(tmp_path)


def stored(house: Harness) -> list[pa.Table]:
    root = Path(house.workspace.context.lake.url)
    paths = [path for share in house.workspace.data.vouched("demo.campaign_daily").scan_tasks() for path in share.files]
    assert all(path.startswith("warehouse/") for path in paths)
    return [pq.read_table(root / path, partitioning=None) for path in paths]


def is_sorted(table: pa.Table) -> bool:
    keys = list(zip(table.column("logical_date").to_pylist(), table.column("customer_id").to_pylist(), strict=True))
    return keys == sorted(keys)


def test_rows_are_sorted_and_merged_with_what_stays_of_the_old_file(house: Harness) -> None:
    days = ("2024-06-03", "2024-06-05", "2024-06-07")
    house.deliver({key(n, day): 1 for n in (1, 3, 5) for day in days})
    house.publish()
    house.deliver({key(n, day): 2 for n in (2, 3) for day in ("2024-06-04", "2024-06-05")})
    house.publish()
    [table] = stored(house)
    assert is_sorted(table)
    assert house.clicks()[key(3, "2024-06-05")] == {2}
    assert house.clicks()[key(3, "2024-06-03")] == {1}
    assert len(house.clicks()) == 12
    lines = table.filter(pa.compute.equal(table.column("clicks"), 2)).column("campaign_id").to_pylist()
    assert lines == [0, 1, 2] * 4  # the order of the payload survives the merge


def test_a_slice_too_large_for_memory_is_streamed_into_its_place(
    house: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.deliver({key(n, "2024-06-05"): 1 for n in (1, 2, 3)})
    house.publish()
    monkeypatch.setattr(sizes, "LARGE_BYTES", 1000)
    monkeypatch.setattr(sizes, "BLOCK_BYTES", 2000)
    monkeypatch.setattr("penstock.raw.reader._BLOCK_BYTES", 700)
    house.deliver({key(2, "2024-06-05"): 2}, rows=500)
    assert house.publish().broken == {}
    [table] = stored(house)
    assert is_sorted(table)
    large = table.filter(pa.compute.equal(table.column("clicks"), 2)).column("campaign_id").to_pylist()
    assert large == list(range(500))
    assert table.num_rows == 506


def test_files_roll_over_at_the_target_size(house: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "TARGET_BYTES", 2_000)
    monkeypatch.setattr(packed, "_HELD_BYTES", 1_000)
    monkeypatch.setattr(sizes, "GROUP_SLICES", 2)
    house.deliver({key(n, f"2024-06-{day:02d}"): n for n in range(1, 7) for day in range(1, 5)}, rows=50)
    house.publish()
    tables = stored(house)
    assert len(tables) > 3
    assert all(is_sorted(table) for table in tables)
    assert sum(table.num_rows for table in tables) == 24 * 50
    assert is_sorted(pa.concat_tables(tables))


def share(slices: int, weight: int) -> StagePart:
    pieces = tuple(NewSlice(key(n), new_run_id(), 1, "digest", 10) for n in range(slices))
    return StagePart(
        "demo.x.v1", "warehouse/x", pa.schema([]), frozenset(), Part("2024-06", None, None, pieces, (), weight)
    )


@pytest.mark.parametrize(
    ("shares", "here"),
    [
        ([share(1, 100)], True),
        ([share(64, 2**19)] * 4, True),  # every limit reached, none passed
        ([share(1, 100)] * 5, False),
        ([share(64, 100)] * 3 + [share(65, 100)], False),
        ([share(1, 2**19)] * 3 + [share(1, 2**19 + 1)], False),
    ],
)
def test_a_few_light_slices_need_no_job(shares: list[StagePart], here: bool) -> None:
    assert load._is_small(shares, load._LOCAL_BYTES) is here


def test_a_slice_of_a_model_weighs_what_its_file_does() -> None:
    derived = PartitionKey(MODELS, "all", "daily", key().logical_date)
    weights = []
    for owner in (key(), derived):
        piece = NewSlice(owner, new_run_id(), 1, "digest", 6000)
        [part] = plan_month("2024-06", [], [piece], set(), workers=1).parts
        weights.append(part.weight)
    assert weights == [1000, 6000]


@pytest.mark.parametrize("large", [False, True], ids=["read together", "streamed"])
def test_only_the_content_that_was_accepted_is_loaded(
    house: Harness, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    """A raw run that is whole, with a seal that fits its payload, and that is not the one the verdict was about."""
    if large:
        monkeypatch.setattr(sizes, "LARGE_BYTES", 1)
    changed, fine = key(1), key(2)
    run_id = house.deliver({changed: 1, fine: 1})
    lake = house.workspace.context.lake
    lake.delete([entry.path for entry in lake.list(run_folder(AttemptKey(changed, run_id)))])
    writer = RawSink(lake).writer(AttemptKey(changed, run_id))
    for number in range(3):
        writer.write(orjson.dumps({"campaign_id": number, "clicks": 99}))
    writer.seal(house.now(), "v1", "1", "q", "UTC")
    done = house.publish()
    assert set(done.broken) == {changed}
    assert "not the one that was accepted" in done.broken[changed]
    assert house.clicks() == {fine: {1}}
