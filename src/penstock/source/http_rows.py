"""Rows of a web service: records of pages and files as lines of JSON, with their days."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from typing import Any, BinaryIO

import orjson

from penstock.config.checks import Field
from penstock.errors import DataError
from penstock.source.days import Days
from penstock.source.formats import cell_converter, csv_reader, json_lines
from penstock.source.http_options import Request
from penstock.source.inflate import Inflated
from penstock.source.response import Record, ResponsePage, inside, trail

_MOST_INFLATED = 16 * 1024**3
_MOST_RATIO = 1000
_LARGEST_DOCUMENT = 64 * 1024 * 1024


class RowMaker:
    """Makes rows of records: the declared columns, or the record as it was received, without a surplus day."""

    def __init__(self, request: Request, fields: Sequence[Field], dates: Sequence[date]) -> None:
        known = {field.name: field for field in fields}
        self._day_field = request.date_field
        self._day_path = trail(request.columns.get(request.date_field or "", "")) or (request.date_field or "",)
        self._format = request.date_format
        self._days = Days(dates, request.date_field or "")
        self._only = dates[0]
        self._surplus = None if request.date_field is None or request.date_field in known else request.date_field
        self._columns = [
            (name, trail(path), cell_converter(known[name].type if name in known else "string"))
            for name, path in request.columns.items()
            if name != self._surplus
        ]

    def row(self, record: Record) -> tuple[date, bytes] | None:
        """The day and the line of a record; None for a day that was not requested. Raises DataError."""
        day = self._only if self._day_field is None else self._days.of(self._cell(record))
        return None if day is None else (day, self._line(record))

    def _cell(self, record: Record) -> object:
        cell = inside(record.value, self._day_path)
        if self._format is None or cell is None:
            return cell
        try:
            return datetime.strptime(str(cell), self._format).date()  # noqa: DTZ007 - a day has no time zone
        except ValueError as error:
            raise DataError(f"{self._day_field} is {str(cell)[:50]!r}, not a day as {self._format}") from error

    def _line(self, record: Record) -> bytes:
        if not self._columns:
            return record.line(without=self._surplus)
        try:
            values = record.exact()
        except ValueError as error:
            raise DataError(f"is not valid: {error}") from error
        row: dict[str, Any] = {}
        for name, path, convert in self._columns:
            value = inside(values, path)
            row[name] = (convert(value) if value else None) if isinstance(value, str) else value
        return orjson.dumps(row)


def file_records(file: BinaryIO, name: str, request: Request, fields: Sequence[Field]) -> Iterator[tuple[int, Record]]:
    """The records of a downloaded file with their numbers, in bounded memory but for a single JSON document."""
    try:
        with _opened(file, name, request) as content:
            if request.format == "json":
                yield from enumerate(_document(content, name, request), start=1)
                return
            read = json_lines if request.format == "jsonl" else csv_reader(fields, request.delimiter, "utf-8-sig")
            for number, line in enumerate(read(content, name), start=1):
                try:
                    yield number, Record.of_line(line)
                except DataError as error:
                    raise DataError(f"{name}, record {number} {error}") from error
    except (EOFError, zlib.error, zipfile.BadZipFile, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # an error of the disk
            raise
        raise DataError(f"{name}: the {request.compression} file is damaged or incomplete: {error}") from error


def _opened(file: BinaryIO, name: str, request: Request) -> BinaryIO:
    if request.compression == "none":
        return file
    member: Any = None
    if request.compression == "zip":
        archive = zipfile.ZipFile(file)
        names = [one for one in archive.namelist() if not one.endswith("/")]
        if len(names) != 1:
            raise DataError(f"{name}: expected one file in the archive, found {len(names)}")
        member = archive.open(names[0])
    most = _LARGEST_DOCUMENT if request.format == "json" else _MOST_INFLATED
    return io.BufferedReader(Inflated(file, name, most, _MOST_RATIO, member))


def _document(content: BinaryIO, name: str, request: Request) -> list[Record]:
    body = content.read(_LARGEST_DOCUMENT + 1)
    if len(body) > _LARGEST_DOCUMENT:
        raise DataError(f"{name} is a JSON document of more than {_LARGEST_DOCUMENT // 2**20} MB: use jsonl or csv")
    try:
        return ResponsePage(body.decode("utf-8"), trail(request.records), is_optional=request.records_optional).records
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not UTF-8 text (at byte {error.start + 1})") from error
    except DataError as error:
        raise DataError(f"{name} {error}") from error
