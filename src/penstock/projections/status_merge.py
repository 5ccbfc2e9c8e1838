"""Merges the base of the partition status with later rows, piece by piece and in the order of the file, so that the
whole table is never in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.lake import Lake
from penstock.projections import files
from penstock.projections.status import PARTIAL, joined
from penstock.projections.status_columns import ORDER
from penstock.projections.status_file import FILE, marked, marks

PIECE_ROWS = 25_000  # rows
_ORDER = ORDER.split(", ")


def merged(
    lake: Lake, base: str | None, news: pa.Table, owner: tuple[str, str], stale: pa.Table | None = None
) -> Iterator[pa.Table]:
    """Yield complete rows of a base and newer rows, which have the same order. With `stale`, exactly these partitions
    are marked; without, the marks of the base stay."""
    since = _Upward(news)
    to_mark = None if stale is None else _Upward(stale.sort_by([(name, "ascending") for name in _ORDER]))
    for old in _pieces(lake, base):
        last = _key(old, len(old) - 1)
        new = since.until(last)
        if not len(new) and to_mark is None:
            yield old
            continue
        rows = old.select(PARTIAL.names)
        if len(new):
            rows = joined(pa.concat_tables([rows, new]))
        yield marked(rows, marks(old) if to_mark is None else to_mark.until(last), owner)
    after, left = since.rest(), marks(FILE.empty_table()) if to_mark is None else to_mark.rest()
    for begin in range(0, len(after), PIECE_ROWS):
        yield marked(after.slice(begin, PIECE_ROWS), left, owner)


def _pieces(lake: Lake, path: str | None) -> Iterator[pa.Table]:
    if path is None:
        return
    with files.named(path), lake.open(path) as file:
        parquet = pq.ParquetFile(file)
        for number in range(parquet.num_row_groups):
            rows = parquet.read_row_group(number, columns=FILE.names).cast(FILE)
            for begin in range(0, len(rows), PIECE_ROWS):
                yield rows.slice(begin, PIECE_ROWS)


class _Upward:
    """A sorted table that is consumed from its start."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self._at = 0

    def until(self, key: tuple[Any, ...]) -> pa.Table:
        """Consume and return the rows up to this key."""
        begin, numbers = self._at, range(len(self._rows))
        self._at = bisect_right(numbers, key, begin, key=lambda number: _key(self._rows, number))
        return self._rows.slice(begin, self._at - begin)

    def rest(self) -> pa.Table:
        return self._rows.slice(self._at)


def _key(rows: pa.Table, number: int) -> tuple[Any, ...]:
    return tuple(rows[name][number].as_py() for name in _ORDER)
