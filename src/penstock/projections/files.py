"""Reading and writing the Parquet files of the projections, on any lake."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from penstock.lake import Lake
from penstock.lake.passage import Passage

_ROW_GROUP = 100_000


def write(lake: Lake, path: str, table: pa.Table) -> None:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", row_group_size=_ROW_GROUP)
    lake.create(path, buffer.getvalue())


def write_pieces(lake: Lake, path: str, schema: pa.Schema, pieces: Iterable[pa.Table]) -> None:
    """The pieces as one file, of which no more than a row group is in memory."""
    held: list[pa.Table] = []
    with lake.writer(path) as out:
        with pq.ParquetWriter(Passage(out.write), schema, compression="zstd") as parquet:
            for piece in pieces:
                held.append(piece)
                if sum(map(len, held)) >= _ROW_GROUP:
                    _write_group(parquet, held)
                    held.clear()
            if held:
                _write_group(parquet, held)
        out.commit()


def _write_group(parquet: pq.ParquetWriter, pieces: Sequence[pa.Table]) -> None:
    """As one row group, even if they are a few rows more: no splinter is left behind."""
    whole = pa.concat_tables(pieces)
    parquet.write_table(whole, row_group_size=max(1, len(whole)))


def read(lake: Lake, path: str, columns: Sequence[str] | None = None) -> pa.Table:
    # Not from a Python file: Arrow's threads may still let go of that when the process ends, and bring it down.
    return pq.read_table(pa.BufferReader(lake.read(path)), columns=None if columns is None else list(columns))


def read_all(lake: Lake, paths: Iterable[str], schema: pa.Schema) -> pa.Table:
    tables = [read(lake, path, schema.names).cast(schema) for path in paths]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def dataset(lake: Lake, paths: Sequence[str], schema: pa.Schema, repeated: Sequence[str] = ()) -> ds.Dataset:
    """The files as one lazy table: columns and row groups that nobody asks for are not read. Columns with `repeated`
    values stay encoded, as the files have them: comparing numbers is faster than comparing text."""
    filesystem, root = lake.filesystem()
    found = [f"{root}/{path}" for path in paths]
    options = ds.ParquetReadOptions(dictionary_columns=list(repeated))
    encoded = pa.dictionary(pa.int32(), pa.string())
    fields = [field.with_type(encoded) if field.name in repeated else field for field in schema]
    file_format = ds.ParquetFileFormat(read_options=options)
    return ds.dataset(found, schema=pa.schema(fields), format=file_format, filesystem=filesystem)


def newest(parts: Sequence[pa.Table], key: str) -> pa.Table:
    """Parts of one table as one: where several have rows of the same key, those of the last part hold."""
    kept: list[pa.Table] = []
    seen: pa.ChunkedArray | None = None
    for part in reversed(parts):
        mine = part if seen is None else part.filter(pc.invert(pc.is_in(part[key], value_set=seen)))
        kept.append(mine)
        seen = part[key] if seen is None else pa.chunked_array([*seen.chunks, *part[key].chunks], part[key].type)
    return pa.concat_tables(reversed(kept))


def rows(lake: Lake, path: str) -> int:
    with lake.open(path) as file:
        return int(pq.read_metadata(file).num_rows)
