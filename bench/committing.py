"""Time of a commit as a table grows: ours with its fence, compared with a plain commit of delta-rs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from bench.measure import timed
from penstock.lake import Lake, open_lake
from penstock.partition import new_ulid
from penstock.warehouse.format import StagedFile, Table, table_format
from penstock.warehouse.layout import MONTH

_NAME, _PATH = "bench.commits.v1", "warehouse/bench/commits/v1"
_TRIES = 7
_BOUNDS = '{"customer_id":"%s","logical_date":"%s"}'


def measure_committing(folder: Path, sizes: Sequence[int]) -> Iterator[dict[str, object]]:
    """Opening a table and committing one file to it. The files themselves need not exist for that."""
    ours, plain = (open_lake(str(folder / name)) for name in ("ours", "plain"))
    held = 0
    for size in sizes:
        files = [_staged(number) for number in range(held, size)]
        held = size
        for lake in (ours, plain):
            table_format(lake).create(_PATH, pa.schema([("clicks", pa.int64())]))
            _table(lake).publish(new_ulid(), files, [], _now())
        seconds = {
            "penstock": median(timed(_publish_one, ours, size + number) for number in range(_TRIES)),
            "plain": median(timed(_commit_one, plain, size + number) for number in range(_TRIES)),
        }
        rounded = {name: round(value, 4) for name, value in seconds.items()}
        ratio = round(seconds["penstock"] / seconds["plain"], 2)
        yield {"what": "commit", "files": size, "seconds": rounded, "in plain": ratio}


def _publish_one(lake: Lake, number: int) -> None:
    """Commit as a publication does: open, fence, open again, commit."""
    _table(lake).fence().publish(new_ulid(), [_staged(number)], [], _now())


def _commit_one(lake: Lake, number: int) -> None:
    table, staged = DeltaTable(lake.uri(_PATH)), _staged(number)
    action = AddAction(staged.path, staged.size, {MONTH: staged.month}, 0, True, staged.stats)
    table.create_write_transaction([action], "append", table.schema(), [MONTH])


def _staged(number: int) -> StagedFile:
    month = f"{2020 + number // 12 % 5}-{number % 12 + 1:02d}"
    low, high = _BOUNDS % ("1", f"{month}-01"), _BOUNDS % ("9", f"{month}-28")
    nulls = '{"customer_id":0,"logical_date":0}'
    stats = f'{{"numRecords":1000,"minValues":{low},"maxValues":{high},"nullCount":{nulls}}}'
    return StagedFile(f"{MONTH}={month}/part-{new_ulid()}.parquet", 1_000_000, 1000, month, stats)


def _table(lake: Lake) -> Table:
    return table_format(lake).open(_NAME, _PATH)


def _now() -> datetime:
    return datetime.now(UTC)
