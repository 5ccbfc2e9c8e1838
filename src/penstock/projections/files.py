"""Reading and writing the Parquet files of the projections, on any lake."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from penstock.lake import Lake
from penstock.lake.arrow_sink import ArrowSink
from penstock.lake.protocol import LakeObjectMissing
from penstock.projections.manifest import ProjectionsLost

_ROW_GROUP = 100_000
_TOKEN = "penstock.token"  # in the metadata of a file: identifies its writer
LOOKED_UP = 5_000  # rows per row group in tables that are read by key: readers skip the other groups
_DISTINCT = {"task_key", "partition_key", "upstream_task_key", "downstream_task_key", "row_version"}


class Creates(Protocol):
    """A lake, or its concurrent writes."""

    def create(self, path: str, data: bytes) -> object: ...


def write(lake: Creates, path: str, table: pa.Table) -> None:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", row_group_size=_ROW_GROUP)
    lake.create(path, buffer.getvalue())


def write_sorted(lake: Creates, path: str, table: pa.Table) -> None:
    """Write rows that are sorted by a key, in small row groups with the bounds of each. Keys that do not repeat are
    written without a dictionary, which would hide their similarity from the compression."""
    buffer, repeated = io.BytesIO(), [name for name in table.column_names if name not in _DISTINCT]
    pq.write_table(table, buffer, compression="zstd", row_group_size=LOOKED_UP, use_dictionary=repeated)
    lake.create(path, buffer.getvalue())


def write_pieces(
    lake: Lake, path: str, schema: pa.Schema, pieces: Iterable[pa.Table], token: str | None = None
) -> None:
    """Write the pieces as one file, with at most one row group in memory. `token` is stored in its metadata."""
    held: list[pa.Table] = []
    with lake.writer(path) as out:
        with pq.ParquetWriter(ArrowSink(out.write), schema, compression="zstd") as parquet:
            if token is not None:
                parquet.add_key_value_metadata({_TOKEN: token})
            for piece in pieces:
                held.append(piece)
                if sum(map(len, held)) >= _ROW_GROUP:
                    _write_group(parquet, held)
                    held.clear()
            if held:
                _write_group(parquet, held)
        out.commit()


def _write_group(parquet: pq.ParquetWriter, pieces: Sequence[pa.Table]) -> None:
    """Write as one row group, even if it is a few rows too large, so that no tiny group follows."""
    whole = pa.concat_tables(pieces)
    parquet.write_table(whole, row_group_size=max(1, len(whole)))


@contextmanager
def named(path: str) -> Iterator[None]:
    """Translate errors of a missing or damaged file into ProjectionsLost."""
    try:
        yield
    except (LakeObjectMissing, FileNotFoundError) as error:
        raise ProjectionsLost(path, "is missing") from error
    except (pa.ArrowException, ValueError, KeyError, EOFError) as error:
        raise _damaged(path, error) from error
    except OSError as error:
        if error.errno is not None:  # an error of the storage; Arrow's errors about the content have no number
            raise
        raise _damaged(path, error) from error


def _damaged(path: str, error: Exception) -> ProjectionsLost:
    return ProjectionsLost(path, f"is damaged ({str(error).partition(chr(10))[0]})")


def read(lake: Lake, path: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Read the file, or some of its columns. Raises ProjectionsLost if it is missing or damaged."""
    with named(path):
        # Not from a Python file: Arrow's threads may release it while the process ends, which crashes the process.
        return pq.read_table(pa.BufferReader(lake.read(path)), columns=None if columns is None else list(columns))


def read_all(lake: Lake, paths: Iterable[str], schema: pa.Schema) -> pa.Table:
    tables = [_cast(path, read(lake, path, schema.names), schema) for path in paths]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def _cast(path: str, table: pa.Table, schema: pa.Schema) -> pa.Table:
    with named(path):
        return table.cast(schema)


def dataset(lake: Lake, paths: Sequence[str], schema: pa.Schema, repeated: Sequence[str] = ()) -> ds.Dataset:
    """The files as one lazy table: only requested columns and row groups are read. Columns with `repeated` values stay
    dictionary-encoded, as in the files: comparing numbers is faster than comparing text."""
    filesystem, root = lake.filesystem()
    found = [f"{root}/{path}" for path in paths]
    options = ds.ParquetReadOptions(dictionary_columns=list(repeated))
    encoded = pa.dictionary(pa.int32(), pa.string())
    fields = [field.with_type(encoded) if field.name in repeated else field for field in schema]
    file_format = ds.ParquetFileFormat(read_options=options)
    return ds.dataset(found, schema=pa.schema(fields), format=file_format, filesystem=filesystem)


def newest(parts: Sequence[pa.Table], key: str) -> pa.Table:
    """Concatenate parts of one table. If several parts have rows of the same key, those of the last part stay."""
    kept: list[pa.Table] = []
    seen: pa.ChunkedArray | None = None
    for part in reversed(parts):
        mine = part if seen is None else part.filter(pc.invert(pc.is_in(part[key], value_set=seen)))
        kept.append(mine)
        seen = part[key] if seen is None else pa.chunked_array([*seen.chunks, *part[key].chunks], part[key].type)
    return pa.concat_tables(reversed(kept))


def token_of(lake: Lake, path: str) -> str | None:
    """The token in the metadata of a file; None without one, and for a missing or damaged file."""
    try:
        with named(path), lake.open(path) as file:
            token = (pq.read_metadata(file).metadata or {}).get(_TOKEN.encode())
    except ProjectionsLost:
        return None
    return None if token is None else token.decode()


def rows(lake: Lake, path: str) -> int:
    with named(path), lake.open(path) as file:
        return int(pq.read_metadata(file).num_rows)
