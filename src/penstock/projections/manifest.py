"""Which files are the projections now: one JSON object in the lake, named by one row in the database."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Self

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
_FORMAT = 1
_READERS_NEED = timedelta(hours=1)  # how long a reader may still stand on an older manifest


class ProjectionsLost(TerminalError):
    """A file of the projections is missing or damaged; the ledger still has everything they were made from."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)

    def __str__(self) -> str:
        path, reason = self.args
        return f"the projection file {path} {reason}: `penstock ledger rebuild` makes all projections again"


@dataclass(frozen=True, slots=True)
class Manifest:
    """A consistent set of files, and the last event that went into them. A value: the next one is a new one."""

    cursor: Cursor = START
    unknown: dict[str, int] = field(default_factory=dict)  # types and versions that folded to nothing, counted
    status_base: str | None = None
    status_deltas: tuple[str, ...] = ()
    consumed: tuple[str, ...] = ()
    runs: str | None = None
    parts: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of each run, later ones hold over earlier ones
    dropped: dict[str, str] = field(default_factory=dict)  # files that nobody needs any more, and since when

    def dumps(self) -> bytes:
        return orjson.dumps({"format": _FORMAT, **asdict(self), "cursor": list(self.cursor)})

    @classmethod
    def loads(cls, path: str, data: bytes) -> Self:
        """The manifest that lies at this path; ProjectionsLost if the data is none, or one of another format."""
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
                runs=_path_or_none(found.pop("runs")),
                parts={str(run): tuple(map(_path, names)) for run, names in found.pop("parts").items()},
                dropped={_path(name): _path(since) for name, since in found.pop("dropped").items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ProjectionsLost(path, f"is damaged ({type(error).__name__}: {error})") from error

    def files(self) -> set[str]:
        """Every file that the manifest stands on."""
        single = {path for path in (self.status_base, self.runs) if path}
        of_runs = {
            path(run, name) for run, names in self.parts.items() for name in names for path in (tasks_path, edges_path)
        }
        return single | {*self.status_deltas, *self.consumed} | of_runs

    def after(self, new: Manifest, seen: str | None, now: datetime) -> Manifest:
        """The successor `new`, remembering which of our files (and we ourselves, under the name `seen`) it does
        without. What was dropped so long ago that no reader can stand on it is forgotten."""
        gone = dict.fromkeys([*(self.files() - new.files()), *([seen] if seen else [])], iso(now))
        forgotten = self.forgotten(now)
        return replace(new, dropped={p: at for p, at in self.dropped.items() if p not in forgotten} | gone)

    def forgotten(self, now: datetime) -> set[str]:
        """Files that may be deleted."""
        return {path for path, since in self.dropped.items() if since < iso(now - _READERS_NEED)}


def _path(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no path")
    return value


def _path_or_none(value: object) -> str | None:
    return None if value is None else _path(value)


def tasks_path(run_id: str, name: str) -> str:
    return f"{FOLDER}/tasks/run_id={run_id}/{name}.parquet"


def edges_path(run_id: str, name: str) -> str:
    return f"{FOLDER}/dep_satisfaction/run_id={run_id}/{name}.parquet"


def made_at(path: str, now: str) -> float:
    """When a file was made, by the ULID that is its name; what has another name is as old as `now`."""
    name = path.rsplit("/", 1)[-1].removesuffix(".parquet")
    try:
        return ULID.from_str(name).timestamp
    except ValueError:
        return ULID.from_str(now).timestamp


def new_path(table: str) -> str:
    return f"{FOLDER}/{table}/{new_ulid()}.parquet"


class Head:
    """The row that names the manifest. Whoever advances it must have seen the one before."""

    def __init__(self, database: Database, lake: Lake) -> None:
        self._database = database
        self._lake = lake

    def read(self) -> tuple[str | None, Manifest]:
        path = self._path()
        if path is None:
            return None, Manifest()
        try:
            return path, Manifest.loads(path, self._lake.read(path))
        except LakeObjectMissing as error:
            raise ProjectionsLost(path, "is missing") from error

    def read_if_there(self) -> tuple[str | None, Manifest]:
        """The same for a rebuild: a manifest that is missing or damaged counts as an empty one."""
        try:
            return self.read()
        except ProjectionsLost:
            return self._path(), Manifest()

    def _path(self) -> str | None:
        with self._database.snapshot() as connection:
            path: str | None = connection.scalar(sa.select(schema.projection_head.c.manifest))
            return path

    def advance(self, seen: str | None, new: Manifest, now: datetime) -> str | None:
        """Make `new` the manifest, unless somebody else was first: then None."""
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
