"""Converts files to JSON lines in bounded memory: JSON lines unchanged, CSV by declared types, Parquet."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, AnyStr, BinaryIO, Literal

import orjson

from penstock.config.checks import Field
from penstock.errors import DataError
from penstock.source.values import json_line

if TYPE_CHECKING:
    from _csv import Reader as CsvRows

Format = Literal["jsonl", "csv", "parquet"]
Reader = Callable[[BinaryIO, str], Iterator[bytes]]  # from an open file and its name to its rows
Converter = Callable[[str], Any]  # from a cell that is not empty to its JSON value

LONGEST_LINE = 64 * 1024 * 1024
_ROWS_AT_A_TIME = 2_000
_PARQUET_BUFFER = 1024 * 1024

_EXTENSIONS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
# No two parts match the same character, so that long cells cause no backtracking.
_LOOSE_WHOLE = re.compile(r"([+-]?)([0-9]+)")
_LOOSE_NUMBER = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([eE][+-]?[0-9]+)?")


def format_of(path: str) -> Format | None:
    """The format by the extension of a file, compressed or not; None if it is unknown."""
    name = path.removesuffix(".gz")
    return next((found for ending, found in _EXTENSIONS.items() if name.endswith(ending)), None)


def json_lines(file: BinaryIO, name: str) -> Iterator[bytes]:
    """Every line as it was received; the validator rejects lines that are not JSON. Empty lines at the end are
    ignored."""
    empty = 0
    for number, line in enumerate(_lines(file, name), start=1):
        if line.isspace():
            empty = empty or number
        elif empty:
            raise DataError(f"{name}, line {empty}: expected one JSON document on each line, found none")
        else:
            yield line.removesuffix(b"\n")


def _lines(file: IO[AnyStr], name: str) -> Iterator[AnyStr]:
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise DataError(
                f"{name}, line {number}: longer than {LONGEST_LINE // 2**20} MB, the most that a line may have"
            )
        yield line


def csv_reader(fields: Sequence[Field], delimiter: str, encoding: str) -> Reader:
    """Return a reader that converts cells to the JSON value of their field's type. A cell that cannot be converted is
    passed on as text, and the contract rejects it; an empty one is null."""
    converters = {field.name: cell_converter(field.type) for field in fields}
    # The limit of the process is small by default; lines are bounded before they are parsed.
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))

    def read(file: BinaryIO, name: str) -> Iterator[bytes]:
        # Invalid bytes become surrogates, which JSON cannot encode, so they raise an error.
        with io.TextIOWrapper(file, encoding=encoding, errors="surrogateescape", newline="") as text:
            rows = csv.reader(_lines(text, name), delimiter=delimiter, strict=True)
            try:
                yield from _csv_rows(rows, converters, name)
            except csv.Error as error:
                raise DataError(f"{name}, line {rows.line_num}: not valid CSV: {error}") from error
            except (TypeError, UnicodeError) as error:
                raise DataError(f"{name}, line {rows.line_num or 1}: not {encoding} text") from error

    return read


def _csv_rows(rows: CsvRows, converters: Mapping[str, Converter], name: str) -> Iterator[bytes]:
    header = _header(next(rows, []), name)
    columns = [(column, converters.get(column, _as_text)) for column in header]
    for cells in rows:
        if not cells:
            continue
        if len(cells) != len(header):
            found = f"{len(cells)} cells, where the header names {len(header)} columns"
            raise DataError(f"{name}, line {rows.line_num}: {found}")
        pairs = zip(columns, cells, strict=True)
        yield orjson.dumps({column: convert(cell) if cell else None for (column, convert), cell in pairs})


def _header(cells: Sequence[str], name: str) -> list[str]:
    header = [cell.strip() for cell in cells]
    "".join(header).encode()
    if not header or not all(header):
        raise DataError(f"{name}, line 1: expected a header that names every column, found {','.join(cells)!r}")
    if twice := [column for column in header if header.count(column) > 1]:
        raise DataError(f"{name}, line 1: the column {twice[0]!r} occurs twice in the header")
    return header


def cell_converter(kind: str) -> Converter:
    """Return the conversion of a text that is not empty to the JSON value of a type. A text that does not fit stays."""
    match kind:
        case "long":
            return _as_whole
        case "double":
            return _as_number
        case "boolean":
            return _as_boolean
        case "string":
            return _as_text
        case _:  # JSON writes dates, times and decimals as text
            return str.strip


def _as_text(cell: str) -> str:
    return cell


def _as_whole(cell: str) -> Any:
    """All digits as they are; the contract checks whether they fit."""
    cell = cell.strip()
    if _WHOLE.fullmatch(cell):
        return orjson.Fragment(cell)
    if found := _LOOSE_WHOLE.fullmatch(cell):  # +7, 007
        return orjson.Fragment(found[1].strip("+") + (found[2].lstrip("0") or "0"))
    return cell


def _as_number(cell: str) -> Any:
    cell = cell.strip()
    if _NUMBER.fullmatch(cell):
        return orjson.Fragment(cell)
    found = _LOOSE_NUMBER.fullmatch(cell)  # +7, 007.5, .5, 7.
    if found and (found[2] or found[3]):
        whole, fraction = found[2].lstrip("0") or "0", found[3] or "0"
        sign, exponent = found[1].strip("+"), found[4] or ""
        return orjson.Fragment(f"{sign}{whole}.{fraction}{exponent}")
    return cell


def _as_boolean(cell: str) -> Any:
    return {"true": True, "false": False}.get(cell.strip().lower(), cell)


def parquet_rows(file: BinaryIO, name: str) -> Iterator[bytes]:
    import pyarrow as pa
    import pyarrow.parquet

    try:
        with pa.parquet.ParquetFile(file, buffer_size=_PARQUET_BUFFER, pre_buffer=False) as parquet:
            columns = parquet.schema_arrow.names
            if twice := [column for column in columns if columns.count(column) > 1]:
                raise DataError(f"{name}: the column {twice[0]!r} occurs twice")
            number = 0
            for batch in parquet.iter_batches(_ROWS_AT_A_TIME):
                for row in batch.to_pylist():
                    number += 1
                    yield _parquet_row(row, name, number)
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # an error of the disk; those of Parquet have no errno
            raise
        raise DataError(f"{name}: not a Parquet file that can be read: {error}") from error


def _parquet_row(row: dict[str, Any], name: str, number: int) -> bytes:
    try:
        return json_line(row)
    except TypeError as error:
        raise DataError(f"{name}, row {number}: {error}") from error
