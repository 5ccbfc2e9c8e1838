"""`partition_status.parquet`: one complete row for each partition, which any Parquet reader can read directly.

The file is replaced as a whole, so a reader finds the old one or the new one. A pass writes the file first, and then
replaces the manifest that records it. If the process dies in between, the record is older than the file, and the next
pass writes the file again. A slow process can also replace a newer file by its older one and die. Each file therefore
carries a token, which the manifest records: a pass that finds another token writes the file again.

A small table is published by every pass. A larger one costs as much as all its rows, so it is published at intervals
that grow with its rows, ten minutes at most.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import datetime, timedelta

from penstock.clock import iso
from penstock.lake import Lake
from penstock.partition import new_ulid
from penstock.projections import files
from penstock.projections.manifest import PARTITION_STATUS, Manifest, Published
from penstock.projections.status import PARTIAL, joined
from penstock.projections.status_file import FILE
from penstock.projections.status_merge import merged

SMALL = 2_000  # rows; a table up to this size is written by every pass
_ROWS_PER_SECOND = 1_500  # of larger tables: one of 90,000 rows is written at most once a minute
_LONGEST = timedelta(minutes=10)


def is_due(lake: Lake, manifest: Manifest, now: datetime, *, verify: bool) -> bool:
    """True if the published file is behind the manifest and may be written again; with `verify`, also if the file is
    not the one that the manifest records."""
    last = manifest.published
    if last is None:
        return True
    if last.cursor == manifest.cursor:
        return verify and files.token_of(lake, PARTITION_STATUS) != last.token
    if last.at <= iso(now - _LONGEST):
        return True
    rows = sum(files.rows(lake, path) for path in (manifest.status_base, *manifest.status_deltas) if path)
    return rows <= SMALL or last.at <= iso(now - interval(rows))


def interval(rows: int) -> timedelta:
    """The minimum time between two publications of a table with so many rows, so that publishing takes a few percent of
    the time."""
    return min(_LONGEST, timedelta(seconds=rows / _ROWS_PER_SECOND))


def publish(lake: Lake, manifest: Manifest, owner: tuple[str, str], now: datetime) -> Manifest:
    """Replace the file with the rows of the manifest. Returns the manifest that records it."""
    base, token = manifest.status_base, new_ulid()
    if base is not None and not manifest.status_deltas and (own := files.token_of(lake, base)) is not None:
        token = own
        _copy(lake, base)
    else:
        news = joined(files.read_all(lake, manifest.status_deltas, PARTIAL))
        files.write_pieces(lake, PARTITION_STATUS, FILE, merged(lake, base, news, owner), token)
    return replace(manifest, published=Published(iso(now), manifest.cursor, token))


def _copy(lake: Lake, base: str) -> None:
    """Copy a base without deltas as bytes: its rows are complete."""
    with files.named(base), lake.open(base) as source, lake.writer(PARTITION_STATUS) as target:
        shutil.copyfileobj(source, target, 1 << 20)
        target.commit()
