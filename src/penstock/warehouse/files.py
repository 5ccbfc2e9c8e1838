"""Writes and reads data files: rows in table order, in Parquet files of about the target size."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from datetime import date
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.lake import Lake
from penstock.partition import new_ulid
from penstock.warehouse.format import FileStatistics, StagedFile, TableFormat, table_format
from penstock.warehouse.layout import MONTH, SortKey

TARGET_BYTES = 64 * 1024 * 1024
_ROWS_PER_GROUP = 128 * 1024
_HELD_BYTES = 32 * 1024 * 1024


class PackedWriter:
    """Writes rows to files of about the target size. Readers do not see the files before they are committed to a
    table."""

    def __init__(self, lake: Lake, table_path: str, month: str, schema: pa.Schema) -> None:
        self._filesystem, root = lake.filesystem()
        self._has_folders = lake.requests_in_flight == 1  # object storage needs none: a request less for each level
        self._format = table_format(lake)
        self._table_path = f"{root}/{table_path}"
        self._month = month
        self._schema = schema
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self._file: _OpenFile | None = None
        self.staged: list[StagedFile] = []

    def write(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes >= _HELD_BYTES:
            self._flush()

    def close(self) -> list[StagedFile]:
        """Finish the last file. Returns all staged files."""
        self._flush()
        self._roll()
        return self.staged

    def _flush(self) -> None:
        if not self._held:
            return
        rows = pa.concat_tables(self._held)
        self._held, self._held_bytes = [], 0
        if self._file is None:
            path = f"{MONTH}={self._month}/part-{new_ulid()}.parquet"
            if self._has_folders:
                self._filesystem.create_dir(f"{self._table_path}/{MONTH}={self._month}")
            self._file = _OpenFile(self._filesystem, self._format, self._table_path, path, self._schema)
        self._file.write(rows)
        if self._file.size >= TARGET_BYTES:
            self._roll()

    def _roll(self) -> None:
        if self._file is not None:
            self.staged.append(self._file.close(self._month))
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if self._file is not None:  # the unfinished file belongs to no table; vacuum deletes it
            self._file.abandon()


class _OpenFile:
    def __init__(
        self, filesystem: Any, table_format: TableFormat, table_path: str, path: str, schema: pa.Schema
    ) -> None:
        self._path = path
        self._format = table_format
        self._sink = filesystem.open_output_stream(f"{table_path}/{path}")
        self._writer = pq.ParquetWriter(self._sink, schema, compression="zstd", compression_level=1)
        self._records = 0
        self._bounds = _Bounds()

    @property
    def size(self) -> int:
        return int(self._sink.tell())

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=_ROWS_PER_GROUP)
        self._records += rows.num_rows
        self._bounds.add(rows)

    def close(self, month: str) -> StagedFile:
        self._writer.close()
        size = self.size
        self._sink.close()
        stats = self._format.encode_statistics(self._bounds.statistics(self._records))
        return StagedFile(self._path, size, self._records, month, stats)

    def abandon(self) -> None:
        self._writer.close()
        self._sink.close()


class _Bounds:
    """Collects the smallest and largest keys of a file, by which readers decide whether to open it."""

    def __init__(self) -> None:
        self._dates: list[date] = []
        self._customers: list[str] = []

    def add(self, rows: pa.Table) -> None:
        for column, kept in (("logical_date", self._dates), ("customer_id", self._customers)):
            ends = pc.min_max(rows.column(column)).as_py()
            kept += [ends["min"], ends["max"]]

    def statistics(self, records: int) -> FileStatistics:
        days = (min(self._dates), max(self._dates))
        return FileStatistics(records, days, (min(self._customers), max(self._customers)))


def read_rows(lake: Lake, table_path: str, files: Iterable[str], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of these files in the columns of `schema`, one row group at a time, because a file can be many times
    larger in memory."""
    filesystem, root = lake.filesystem()
    for path in files:
        with filesystem.open_input_file(f"{root}/{table_path}/{path}") as stream:
            file = pq.ParquetFile(stream)
            for number in range(file.num_row_groups):
                yield file.read_row_group(number).select(schema.names).cast(schema)


def without(rows: pa.Table, dropped: set[SortKey]) -> pa.Table:
    """`rows` without the partitions in `dropped`."""
    if not dropped or not rows.num_rows:
        return rows
    gone = pa.array([_key(key) for key in dropped])
    return rows.filter(pc.invert(pc.is_in(_keys(rows), value_set=gone)))


def between(rows: pa.Table, low: SortKey | None, high: SortKey | None) -> pa.Table:
    """The rows whose key is at least `low` and below `high`."""
    for bound, keep in ((low, pc.greater_equal), (high, pc.less)):
        if bound is not None and rows.num_rows:
            rows = rows.filter(keep(_keys(rows), _key(bound)))
    return rows


def in_table_order(rows: pa.Table) -> pa.Table:
    """The rows sorted by day and customer; a stable sort."""
    order = pc.sort_indices(rows, sort_keys=[("logical_date", "ascending"), ("customer_id", "ascending")])
    return rows.take(order)


class SortedRows:
    """Returns rows in table order, each row once."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        runs = pc.run_end_encode(_keys(rows).combine_chunks())
        self._names: list[str] = runs.values.to_pylist()  # the rows of one partition are contiguous
        self._ends: list[int] = runs.run_ends.to_pylist()
        self._returned = 0

    def before(self, key: SortKey) -> pa.Table:
        """The remaining rows before the partition `key`."""
        return self._until(bisect_left(self._names, _key(key)))

    def through(self, key: SortKey) -> pa.Table:
        """The remaining rows up to and including the partition `key`."""
        return self._until(bisect_right(self._names, _key(key)))

    def rest(self) -> pa.Table:
        return self._until(len(self._names))

    def _until(self, partitions: int) -> pa.Table:
        end = self._ends[partitions - 1] if partitions else 0
        begin, self._returned = self._returned, max(end, self._returned)
        return self._rows.slice(begin, self._returned - begin)


def _key(key: SortKey) -> str:
    return f"{key[0].isoformat()}/{key[1]}"


def _keys(rows: pa.Table) -> pa.ChunkedArray:
    days = rows.column("logical_date").cast(pa.string())
    return pc.binary_join_element_wise(days, rows.column("customer_id"), "/")
