"""Output of rows: a table on the terminal, or CSV, Parquet, Arrow or JSON on stdout or in a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from penstock import interrupts
from penstock.cli.render import console, note
from penstock.cli.text_tables import table
from penstock.errors import UsageError
from penstock.plural import counted
from penstock.views.arrow_values import beyond_python, json_value, python_values
from penstock.views.rows import json_text, python_rows, write_rows_document

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("table", "csv", "parquet", "arrow", "json")

# The names of standard output in the file system. File descriptor 1 itself is reserved, see cli/stdout.py.
_STDOUT = ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
_SHOWN_ROWS = 50


def check_format(kind: str, as_json: bool) -> str:
    """Return the format to write. Raises UsageError for an unknown one."""
    if kind not in FORMATS:
        raise UsageError(f"--format {kind!r} is unknown: use {', '.join(FORMATS)}")
    return "json" if as_json else kind


def write_rows(
    reader: pa.RecordBatchReader,
    kind: str,
    output: Path | None,
    limit: int | None,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write at most `limit` rows to `output`, or to stdout if it is None. JSON also states the metadata."""
    output = None if str(output) in _STDOUT else output
    if kind == "table" and output is None:
        draw_rows(reader, _SHOWN_ROWS if limit is None else limit)
        return
    if kind == "table":
        raise UsageError("--output needs a --format: csv, parquet, arrow or json")
    if output is None:
        if kind in ("parquet", "arrow") and sys.stdout.isatty():
            raise UsageError(f"{kind} is binary: name a file with --output, or send it through a pipe")
        encode_rows(_limited(reader, limit), kind, sys.stdout.buffer, metadata)
        sys.stdout.flush()
        return
    _write_file(_limited(reader, limit), kind, output, metadata)


def draw_rows(reader: pa.RecordBatchReader, limit: int) -> None:
    """Print the first rows as a table."""
    rows: list[list[Any]] = []
    more = False
    for batch in reader:
        for row in python_rows(batch):
            if len(rows) >= limit:
                more = True
                break
            rows.append([_cell(value) for value in row])
        if more:
            break
    console().print(table(None, reader.schema.names, rows))
    if more:
        note(f"the first {counted(limit, 'row')}; --limit shows more, --output F --format csv writes them all")


def encode_rows(
    reader: pa.RecordBatchReader, kind: str, target: BinaryIO, metadata: Mapping[str, Any] | None = None
) -> None:
    """Write all rows in the format `kind`. Raises UsageError if the format has no representation for a column."""
    import pyarrow as pa

    try:
        _encode(reader, kind, target, metadata)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise UsageError(f"these columns cannot be written as {kind}: {error}") from error


def _write_file(reader: pa.RecordBatchReader, kind: str, output: Path, metadata: Mapping[str, Any] | None) -> None:
    """Write to a temporary file and rename it, so that other processes never see an incomplete file."""
    output = output.resolve()  # writes the target of a link and keeps the link
    special = output.exists() and not output.is_file()  # a pipe or a device cannot be replaced, only written to
    unfinished = output if special else output.with_name(f".{output.name}.part")
    _import_writer(kind)
    interrupts.begin_work()
    try:
        target = unfinished.open("wb")
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}") from error
    try:
        with target:
            encode_rows(reader, kind, target, metadata)
        if not special:
            unfinished.replace(output)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror or error}") from error
    finally:
        if not special:
            unfinished.unlink(missing_ok=True)


def _import_writer(kind: str) -> None:
    """Import the modules of the writer before the work begins: an interrupt during an import may be lost."""
    import importlib

    importlib.import_module({"csv": "pyarrow.csv", "parquet": "pyarrow.parquet", "json": "orjson"}.get(kind, "pyarrow"))


def _limited(reader: pa.RecordBatchReader, limit: int | None) -> pa.RecordBatchReader:
    import pyarrow as pa

    if limit is None:
        return reader

    def head() -> Iterator[pa.RecordBatch]:
        left = limit
        for batch in reader:
            if left <= 0:
                return
            yield batch.slice(0, left)
            left -= batch.num_rows

    return pa.RecordBatchReader.from_batches(reader.schema, head())


def _encode(reader: pa.RecordBatchReader, kind: str, target: BinaryIO, metadata: Mapping[str, Any] | None) -> None:
    import pyarrow as pa

    if kind == "csv":
        from pyarrow import csv

        if intervals := [f.name for f in reader.schema if pa.types.is_interval(f.type)]:
            raise UsageError(
                f"these columns cannot be written as csv: {', '.join(intervals)}; use json, parquet or arrow"
            )
        flat = pa.schema([pa.field(f.name, pa.string()) if _needs_text(f.type) else f for f in reader.schema])
        with csv.CSVWriter(target, flat) as writer:
            for batch in reader:
                writer.write(_flattened(batch, flat))
    elif kind == "parquet":
        from pyarrow import parquet

        with parquet.ParquetWriter(target, reader.schema, compression="zstd") as out:
            for batch in reader:
                out.write_batch(batch)
    elif kind == "arrow":
        with pa.ipc.new_stream(target, reader.schema) as stream:
            for batch in reader:
                stream.write_batch(batch)
    else:
        write_rows_document(reader, target, metadata)


def _needs_text(kind: pa.DataType) -> bool:
    """Whether CSV has no representation for values of this type."""
    import pyarrow as pa

    binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return pa.types.is_nested(kind) or binary or isinstance(kind, pa.BaseExtensionType)


def _flattened(batch: pa.RecordBatch, flat: pa.Schema) -> pa.RecordBatch:
    """Return the batch with arrays and structs as JSON text and bytes as Base64."""
    import pyarrow as pa

    columns = []
    for column, field in zip(batch.columns, flat, strict=True):
        if beyond_python(column):
            raise UsageError(
                f"these columns cannot be written as csv: {field.name} has infinite values, or years or hours beyond"
                " the calendar; cast it to VARCHAR, or use json, parquet or arrow"
            )
        text = _needs_text(column.type)
        columns.append(pa.array(map(_csv_text, python_values(column)), pa.string()) if text else column)
    return pa.RecordBatch.from_arrays(columns, schema=flat)


def _csv_text(value: Any) -> str | None:
    return str(json_value(value)) if isinstance(value, bytes) else json_text(value)


def _cell(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, list | dict):
        return json_text(value)
    if isinstance(value, bytes | tuple):
        return str(json_value(value))
    return f"{value:,.2f}" if isinstance(value, float) else str(value)
