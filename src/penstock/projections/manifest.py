"""The manifest: which files are the projections now. One JSON object in the lake, to which one database row points."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Self

import orjson
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from ulid import ULID

from penstock.clock import iso
from penstock.db import schema
from penstock.db.engine import Database
from penstock.errors import TerminalError
from penstock.lake import Lake
from penstock.lake.protocol import LakeObjectMissing
from penstock.partition import new_ulid
from penstock.projections.fact import START, Cursor

FOLDER = "projections"
PARTITION_STATUS = f"{FOLDER}/partition_status.parquet"  # complete rows, one per partition, for any Parquet reader
_FORMAT = 1
_READER_GRACE = timedelta(hours=1)  # how long a reader may use an older manifest


class ProjectionsLost(TerminalError):
    """A file of the projections is missing or damaged. The ledger still has all events to rebuild it."""

    remedy = "`penstock ledger rebuild` writes all projections again."

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)

    def __str__(self) -> str:
        path, reason = self.args
        return f"the projection file {path} {reason}: `penstock ledger rebuild` rebuilds all projections"


class RowsFile(NamedTuple):
    """A file and its number of rows."""

    path: str
    rows: int


class Published(NamedTuple):
    """The time of the last write of `partition_status.parquet`, the last event in it, and the token of the file."""

    at: str
    cursor: Cursor
    token: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A consistent set of files, and the last event in them. Immutable: a change makes a new manifest."""

    cursor: Cursor = START
    unknown: dict[str, int] = field(default_factory=dict)  # ignored event types and versions, counted
    status_base: str | None = None
    status_deltas: tuple[str, ...] = ()
    consumed: tuple[str, ...] = ()
    publications: tuple[RowsFile, ...] = ()  # a partition may be in several: its earliest publication counts
    runs: tuple[RowsFile, ...] = ()  # rows of later files replace those of earlier ones
    parts: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by run; later files replace earlier ones
    dropped: dict[str, str] = field(default_factory=dict)  # unused files, and since when
    published: Published | None = None  # the file that other tools read

    def dumps(self) -> bytes:
        written = {field.name: getattr(self, field.name) for field in fields(self)}
        written |= {name: [list(file) for file in written[name]] for name in ("runs", "publications")}
        written["cursor"] = list(self.cursor)
        last = self.published
        written["published"] = None if last is None else [last.at, *last.cursor, last.token]
        return orjson.dumps({"format": _FORMAT, **written})

    @classmethod
    def loads(cls, path: str, data: bytes) -> Self:
        """Parse the manifest at this path. Raises ProjectionsLost if it is damaged or has another format."""
        try:
            found: dict[str, Any] = orjson.loads(data)
            if found.pop("format") != _FORMAT:
                raise ProjectionsLost(path, "was written by another version of Penstock")
            return cls(
                cursor=Cursor(*map(int, found.pop("cursor"))),
                unknown={str(name): int(count) for name, count in found.pop("unknown").items()},
                status_base=_path_or_none(found.pop("status_base")),
                status_deltas=tuple(map(_path, found.pop("status_deltas"))),
                consumed=tuple(map(_path, found.pop("consumed"))),
                publications=_runs(found.pop("publications", None)),
                runs=_runs(found.pop("runs")),
                parts=_parts(found.pop("parts")),
                dropped={_path(name): _path(since) for name, since in found.pop("dropped").items()},
                published=_published(found.pop("published", None)),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ProjectionsLost(path, f"is damaged ({type(error).__name__}: {error})") from error

    def files(self) -> set[str]:
        """Every file that the manifest refers to."""
        single = {
            path for path in (self.status_base, *(file.path for file in (*self.runs, *self.publications))) if path
        }
        of_runs = {
            path(run, name) for run, names in self.parts.items() for name in names for path in (tasks_path, edges_path)
        }
        return single | {*self.status_deltas, *self.consumed} | of_runs

    def after(self, new: Manifest, seen: str | None, now: datetime) -> Manifest:
        """Return the successor `new` with a record of the files (and of this manifest, at the path `seen`) that it does
        not use. Records that are too old for any reader are removed."""
        gone = dict.fromkeys([*self._unused_in(new), *([seen] if seen else [])], iso(now))
        forgotten = self.deletable(now)
        return replace(new, dropped={p: at for p, at in self.dropped.items() if p not in forgotten} | gone)

    def _unused_in(self, new: Manifest) -> set[str]:
        """The files that `new` does not use. Runs with the same parts in both are skipped."""
        parts = {run: names for run, names in self.parts.items() if new.parts.get(run) != names}
        theirs = {run: new.parts[run] for run in parts if run in new.parts}
        return replace(self, parts=parts).files() - replace(new, parts=theirs).files()

    def deletable(self, now: datetime) -> set[str]:
        """Unused files that may be deleted."""
        return {path for path, since in self.dropped.items() if since < iso(now - _READER_GRACE)}


def _path(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a path")
    return value


def _path_or_none(value: object) -> str | None:
    return None if value is None else _path(value)


def _parts(value: dict[str, list[object]]) -> dict[str, tuple[str, ...]]:
    """Validate all entries at once: there is one for each retained run."""
    if not all(isinstance(name, str) for names in value.values() for name in names):
        raise TypeError("a part of a run has no name")
    return {run: tuple(names) for run, names in value.items()}  # type: ignore[arg-type]


def _runs(value: object) -> tuple[RowsFile, ...]:
    """Files with their rows. Manifests of earlier releases name one file, or none."""
    if value is None or isinstance(value, str):
        return () if value is None else (RowsFile(value, 0),)
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list of files")
    return tuple(RowsFile(_path(path), int(rows)) for path, rows in value)


def _published(value: object) -> Published | None:
    """None for manifests of earlier releases, which record less: the file is written again then."""
    if not isinstance(value, list) or len(value) != 4:
        return None
    at, transaction, position, token = value
    return Published(_path(at), Cursor(int(transaction), int(position)), _path(token))


def tasks_path(run_id: str, name: str) -> str:
    return f"{FOLDER}/tasks/run_id={run_id}/{name}.parquet"


def edges_path(run_id: str, name: str) -> str:
    return f"{FOLDER}/dep_satisfaction/run_id={run_id}/{name}.parquet"


def made_at(path: str, now: str) -> float:
    """When a file was created, by the ULID in its name; `now` for other names."""
    name = path.rsplit("/", 1)[-1].removesuffix(".parquet")
    try:
        return ULID.from_str(name).timestamp
    except ValueError:
        return ULID.from_str(now).timestamp


def new_path(table: str) -> str:
    return f"{FOLDER}/{table}/{new_ulid()}.parquet"


class ManifestPointer:
    """The database row that points to the manifest. `advance` is a compare-and-set on it."""

    def __init__(self, database: Database, lake: Lake) -> None:
        self._database = database
        self._lake = lake

    def read(self, known: tuple[str | None, Manifest] | None = None) -> tuple[str | None, Manifest]:
        """Return the path of the manifest, and the manifest. A manifest `known` by this path is not read again."""
        path = self._path()
        if path is None:
            return None, Manifest()
        if known is not None and known[0] == path:
            return path, known[1]
        try:
            return path, Manifest.loads(path, self._lake.read(path))
        except LakeObjectMissing as error:
            raise ProjectionsLost(path, "is missing") from error

    def read_if_there(self) -> tuple[str | None, Manifest]:
        """The same for a rebuild: a missing or damaged manifest counts as empty."""
        try:
            return self.read()
        except ProjectionsLost:
            return self._path(), Manifest()

    def _path(self) -> str | None:
        with self._database.snapshot() as connection:
            path: str | None = connection.scalar(sa.select(schema.projection_head.c.manifest))
            return path

    def advance(self, seen: str | None, new: Manifest, now: datetime) -> str | None:
        """Make `new` the manifest and return its path; None if another process replaced the manifest `seen` first."""
        path = f"{FOLDER}/manifest/{new_ulid()}.json"
        self._lake.create(path, new.dumps())
        self._lake.sync()
        table = schema.projection_head
        values = {"manifest": path, "advanced_at": now}

        def work(connection: Connection) -> bool:
            if seen is None:
                row = connection.execute(sa.select(table.c.one)).one_or_none()
                if row is None:
                    connection.execute(sa.insert(table), {"one": 1, **values})
                return row is None
            moved = connection.execute(sa.update(table).where(table.c.manifest == seen).values(**values))
            return moved.rowcount == 1

        if self._database.transact(work):
            return path
        self._lake.delete([path])
        return None
