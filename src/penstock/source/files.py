"""The source of kind files: rows of delivered files, one or more for each day, in a folder or S3-compatible storage."""

from __future__ import annotations

import gzip
import io
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from typing import Any, BinaryIO, ClassVar, Literal, cast

import pydantic

from penstock.config.assets import Query
from penstock.config.checks import Field
from penstock.config.settings import Customer
from penstock.config.values import KeyDoc
from penstock.errors import AuthFailed, ConfigError, DataError, PenstockError, SourceUnavailable
from penstock.lake import Lake, open_lake
from penstock.lake.local import LocalLake
from penstock.lake.protocol import LakeObjectMissing, LakeRefused, LakeUnavailable
from penstock.source.connectivity import within
from penstock.source.formats import Format, Reader, csv_reader, format_of, json_lines, parquet_rows
from penstock.source.inflate import Inflated
from penstock.source.options import Options, naming_query, read_options
from penstock.source.protocol import COMPLETE, Row, RunContext
from penstock.source.template import filled, names_in, of_day


class Delivery(Options):
    """Options of files, for the source or a query; those of the query take precedence."""

    path: str | None = None
    format: Format | None = None
    missing: Literal["fail", "empty"] = "fail"
    delimiter: str = pydantic.Field(default=",", min_length=1, max_length=1)
    encoding: str = "utf-8-sig"
    follow_symlinks: bool = False
    max_inflated_bytes: int = pydantic.Field(default=4 * 1024**3, ge=1)
    max_inflate_ratio: int = pydantic.Field(default=200, ge=1)

    documentation: ClassVar = {
        "path": KeyDoc(
            "The files of one partition, with `{customer_id}`, `{query_name}`, `{date}`, and `*` in the last part.",
            '"{customer_id}/{date}-*.csv"',
        ),
        "format": KeyDoc("The file format. By default from the ending.", "csv"),
        "missing": KeyDoc("A partition without a file fails and is retried, or is empty.", "empty"),
        "delimiter": KeyDoc("The delimiter of CSV.", '";"'),
        "encoding": KeyDoc("The encoding of CSV.", "cp1252"),
        "follow_symlinks": KeyDoc("Whether links to places outside of the folder are followed.", "true"),
        "max_inflated_bytes": KeyDoc("The largest size of a `.gz` file after decompression.", "8589934592"),
        "max_inflate_ratio": KeyDoc("The largest compression ratio of a `.gz` file, beyond its first 64 MiB.", "500"),
    }

    @pydantic.field_validator("encoding")
    @classmethod
    def _known_encoding(cls, name: str) -> str:
        try:
            "x".encode(name)
        except LookupError:
            raise ValueError(f"{name!r} is not a known encoding: write for example utf-8-sig or cp1252") from None
        return name

    @pydantic.field_validator("path")
    @classmethod
    def _names_a_day(cls, path: str) -> str:
        names = names_in(path)
        if "date" not in names and not {"yyyy", "mm", "dd"} <= names:
            raise ValueError("must have {date}, or {yyyy}, {mm} and {dd}: every day has files of its own")
        if "*" in os.path.dirname(path):
            raise ValueError("* is allowed in the last part only")
        return path


class FilesOptions(Delivery):
    """Options of `sources.<name>` for kind files. Paths are relative to `folder`, by default that of the workspace."""

    folder: str | None = None

    documentation: ClassVar = {
        **Delivery.documentation,
        "folder": KeyDoc(
            "Where paths start: a folder or `s3://bucket/prefix`. By default the folder of the workspace file.",
            "s3://bucket/inbox",
        ),
    }

    @pydantic.field_validator("folder")
    @classmethod
    def _address(cls, folder: str | None) -> str | None:
        try:
            if folder is not None:
                _split(folder)
        except PenstockError:  # its text may contain the address with credentials
            raise ValueError("must be a folder, or s3://bucket/prefix without credentials") from None
        return folder


class FilesSource:
    """Implements the source protocol over a folder that it only reads."""

    in_date_order = True
    api_version = "files-1"

    @staticmethod
    def requests_in_flight(options: Mapping[str, Any]) -> int | None:
        """Requests to object storage wait for the network; local files only need cores."""
        places = (str(options.get("folder") or ""), str(options.get("path") or ""))
        return 16 if any(place.startswith("s3://") for place in places) else None

    @staticmethod
    def asks_by_day(options: Mapping[str, Any], query: Query) -> bool:
        """Each day has files of its own."""
        return True

    def __init__(self, options: Mapping[str, Any], context: RunContext) -> None:
        self._folder = read_options(FilesOptions, options).folder
        self._common = {name: value for name, value in options.items() if name != "folder"}
        self._budget = context.budget

    def refuse(self, query: Query) -> None:
        _, place, _ = self._asked(query)
        filled(place.template, _names("id", query, date.min))

    def probe(self, queries: Sequence[Query], seconds: float) -> list[str]:
        places = {place.lake.url: place for place in (self._asked(query)[1] for query in queries)}
        return [problem for place in places.values() for problem in place.problems(seconds)]

    def _asked(self, query: Query) -> tuple[Delivery, _Location, Reader]:
        delivery = read_options(Delivery, {**self._common, **query.options})
        place = _Location.of(self._folder, delivery)
        return delivery, place, _reader(delivery, place.template, query.fields)

    def extract(self, query: Query, customer: Customer, dates: Sequence[date]) -> Iterator[tuple[date, Row]]:
        with naming_query(query.name):
            delivery, place, reader = self._asked(query)
            paths = {day: filled(place.template, _names(customer.id, query, day)) for day in dates}
        for day, path in paths.items():
            try:
                for found in place.find(path):
                    self._budget.spend()
                    with place.open(found) as file:
                        for row in reader(file, found):
                            yield day, row
            except LakeObjectMissing as error:
                if delivery.missing == "fail" or error.path != path:  # it was listed, and deleted since
                    yield day, SourceUnavailable(f"there is no file {error.path} in {place.lake.url} yet")
                    continue
            except (DataError, ConfigError) as error:  # an error of this day; any other is of the storage
                yield day, error
                continue
            yield day, COMPLETE


@dataclass(frozen=True, slots=True)
class _Location:
    """The location of the files: the fixed part of the path as a lake, and the rest as a template."""

    lake: Lake
    template: str
    delivery: Delivery
    within: str  # the folder that links must not leave
    listed: dict[str, list[str]] = field(default_factory=dict)  # listed folders, cached for the span

    @classmethod
    def of(cls, folder: str | None, delivery: Delivery) -> _Location:
        path = delivery.path
        if path is None:
            raise ConfigError("path: is missing, and the source gives none: write for example {date}.jsonl")
        if "://" not in path and not os.path.isabs(path):
            if folder is None:
                raise ConfigError("path: must be absolute, or the source must define its folder")
            path = f"{folder.rstrip('/')}/{path}"
        lake, template = _split(path)
        # a path outside of `folder` that the workspace file names is its own boundary
        inside = folder is not None and f"{lake.url}/".startswith(f"{os.path.normpath(folder)}/")
        return cls(lake, template, delivery, folder if folder and inside else lake.url)

    def problems(self, seconds: float) -> list[str]:
        """Why the location cannot be read, with what to do."""
        if isinstance(self.lake, LocalLake):
            root = self.lake.root
            if not os.path.isdir(root):
                return [f"there is no folder {root}: create it, or correct `folder` or `path`"]
            if not os.access(root, os.R_OK | os.X_OK):
                return [f"the folder {root} cannot be read: give this user read access to it"]
            return []
        try:
            within(seconds, self._send_request, self.lake.url)
        except PenstockError as error:
            return [str(error)]
        return []

    def _send_request(self) -> None:
        with self._translated_errors(self.template):
            self.lake.exists("penstock-doctor")

    def find(self, path: str) -> list[str]:
        """The path itself, or the files that match its `*`, by name. Raises LakeObjectMissing if none matches."""
        folder, _, pattern = path.rpartition("/")
        if "*" not in pattern:
            return [path]
        if folder not in self.listed:
            with self._translated_errors(folder):
                self.listed[folder] = sorted(self._files_in(folder))
        fits = re.compile(".*".join(re.escape(part) for part in pattern.split("*")), re.DOTALL)
        found = [entry for entry in self.listed[folder] if fits.fullmatch(entry.rpartition("/")[2])]
        if not found:
            raise LakeObjectMissing(self.lake.url, path)
        return found

    def _files_in(self, folder: str) -> list[str]:
        if not isinstance(self.lake, LocalLake):
            return [entry.path for entry in self.lake.list(folder) if entry.path.rpartition("/")[0] == folder]
        # not recursive: links to other folders are not followed
        below = f"{folder}/" if folder else ""
        try:
            with os.scandir(f"{self.lake.root}/{folder}") as entries:
                return [f"{below}{entry.name}" for entry in entries if not entry.is_dir()]
        except (FileNotFoundError, NotADirectoryError):
            return []

    @contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        """Open a file; gzip is decompressed while it is read."""
        limits = self.delivery
        with self._translated_errors(path), self.lake.open(path) as file:
            self._refuse_link(path, file)
            if not path.endswith(".gz"):
                yield file
                return
            try:
                inflated = Inflated(file, path, limits.max_inflated_bytes, limits.max_inflate_ratio)
                yield cast(BinaryIO, io.BufferedReader(inflated))
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise DataError(f"{path}: not a whole gzip file: {error}") from error

    def _refuse_link(self, path: str, file: BinaryIO) -> None:
        """Raise ConfigError if the file is a link out of the folder. Checks the open file and not its name, which may
        be replaced by a link in between."""
        if self.delivery.follow_symlinks or not isinstance(self.lake, LocalLake):
            return
        try:
            found = os.readlink(f"/proc/self/fd/{file.fileno()}")
        except OSError:  # not Linux
            found = os.path.realpath(f"{self.lake.root}/{path}")
        within = os.path.realpath(self.within)
        if not found.startswith(f"{within.rstrip('/')}/"):
            raise ConfigError(
                f"{path} is a link to {found}, outside of {self.within}: deliver the file itself, or allow links with"
                " follow_symlinks: true"
            )

    @contextmanager
    def _translated_errors(self, path: str) -> Iterator[None]:
        """Translate errors of the lake to errors of a source."""
        try:
            yield
        except LakeRefused as error:
            # a bucket refuses every partition; a local file may be the only one that is refused
            kind = AuthFailed if self.lake.url.startswith("s3://") else ConfigError
            raise kind(f"{path} cannot be read: {error}") from error
        except (LakeUnavailable, OSError) as error:
            raise SourceUnavailable(f"{path} cannot be read: {error}") from error


def _split(path: str) -> tuple[Lake, str]:
    """The part of a path before its first placeholder, as a lake, and the rest. Raises ConfigError if the first part is
    not an address."""
    start = "s3://" if path.startswith("s3://") else ""
    parts = os.path.normpath(path.removeprefix(start)).split("/")
    fixed = next((number for number, part in enumerate(parts) if "{" in part or "*" in part), len(parts))
    return open_lake(start + "/".join(parts[:fixed]) or "/"), "/".join(parts[fixed:])


def _names(customer_id: str, query: Query, day: date) -> dict[str, str]:
    return {"customer_id": customer_id, "query_name": query.name, **of_day(day)}


def _reader(delivery: Delivery, path: str, fields: Sequence[Field]) -> Reader:
    kind = delivery.format or format_of(path)
    if kind == "csv":
        return csv_reader(fields, delivery.delimiter, delivery.encoding)
    if kind == "parquet" and path.endswith(".gz"):
        raise ConfigError("path: Parquet is compressed inside; it cannot be read from .gz")
    if kind is None:
        raise ConfigError("format: is missing, and the path does not end in .jsonl, .csv or .parquet")
    return json_lines if kind == "jsonl" else parquet_rows
