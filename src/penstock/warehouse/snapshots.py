"""Named snapshots: the heads of all tables at one moment, stored in the lake."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Any, Self

import orjson
import sqlalchemy as sa

from penstock.clock import iso
from penstock.db import schema
from penstock.db.engine import Database
from penstock.errors import UsageError
from penstock.lake import Lake
from penstock.lake.protocol import LakeObjectMissing
from penstock.partition import AssetKind, asset_kind
from penstock.warehouse.heads import TableHead, heads_of_all
from penstock.warehouse.layout import SortKey
from penstock.warehouse.withdrawn import withdrawn_inputs

FOLDER = "snapshots"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The heads of all tables at one moment, under a name, until it expires."""

    name: str
    created_at: datetime
    expires_at: datetime
    tables: tuple[tuple[str, TableHead], ...]  # by asset

    def of(self, asset: str) -> list[TableHead]:
        return [head for name, head in self.tables if name == asset]

    def dumps(self) -> bytes:
        tables = [
            {
                "asset": asset,
                "name": head.name,
                "schema_version": head.schema_version,
                "location": head.location,
                "version": head.version,
                "publication": head.publication,
                "exceptions": _written(head.exceptions),
                "withdrawn_inputs": _written(head.withdrawn_inputs),
            }
            for asset, head in self.tables
        ]
        times = {"created_at": iso(self.created_at), "expires_at": iso(self.expires_at)}
        return orjson.dumps({"format": 1, "name": self.name, **times, "tables": tables})

    @classmethod
    def loads(cls, data: bytes) -> Self:
        found: dict[str, Any] = orjson.loads(data)
        tables = tuple((table["asset"], _head(table)) for table in found["tables"])
        created, expires = (datetime.fromisoformat(found[name]) for name in ("created_at", "expires_at"))
        return cls(found["name"], created, expires, tables)


class SnapshotStore:
    """Stores snapshots as objects in the lake. A name can be used once."""

    def __init__(self, database: Database, lake: Lake) -> None:
        self._database = database
        self._lake = lake

    def take(
        self,
        name: str,
        assets: Sequence[tuple[str, str]],
        now: datetime,
        keep: timedelta,
        hiding: Collection[str] = (),
    ) -> Snapshot:
        """Create a snapshot of the current heads of these assets (source and query). Raises UsageError if the name is
        not valid or exists."""
        _require_name(name)
        found = heads_of_all(self._database, assets, hiding)
        snapshot = Snapshot(name, now, now + keep, tuple(found))
        if not self._lake.create(_path(name), snapshot.dumps()):
            raise _taken(name)
        self._lake.sync()
        return snapshot

    def require_new(self, name: str) -> None:
        """Raise UsageError if `take` would refuse this name."""
        _require_name(name)
        with suppress(LakeObjectMissing):
            self._lake.read(_path(name))
            raise _taken(name)

    def get(self, name: str, now: datetime) -> Snapshot:
        """The snapshot of this name. Raises UsageError if it does not exist or has expired."""
        try:
            found = Snapshot.loads(self._lake.read(_path(name)))
        except LakeObjectMissing as error:
            known = ", ".join(sorted(s.name for s in self.all())) or "none"
            raise UsageError(f"unknown snapshot {name!r} (snapshots: {known})") from error
        if found.expires_at <= now:
            raise UsageError(f"the snapshot {name!r} expired at {found.expires_at:%Y-%m-%d %H:%M} UTC")
        return found

    def all(self) -> list[Snapshot]:
        paths = [entry.path for entry in self._lake.list(FOLDER)]
        return sorted(
            (Snapshot.loads(data) for data in self._lake.read_many(paths) if data), key=lambda s: s.created_at
        )

    def drop(self, name: str) -> None:
        self._lake.delete([_path(name)])

    def delete_expired(self, now: datetime) -> None:
        self._lake.delete([_path(snapshot.name) for snapshot in self.all() if snapshot.expires_at <= now])


def withdrawn_since(
    database: Database, source: str, query_name: str, moment: datetime
) -> frozenset[tuple[date, str, str]]:
    """The runs of an asset that were demoted after a moment: day, customer and run."""
    with database.snapshot() as connection:
        rows = connection.execute(demoted_since(source, query_name, moment))
        return frozenset((row.logical_date, row.customer_id, row.run_id) for row in rows)


def demoted_since(source: str, query_name: str, moment: datetime) -> sa.Select[tuple[date, str, str]]:
    a = schema.partition_attempt.c
    return sa.select(a.logical_date, a.customer_id, a.run_id).where(
        a.source == source, a.query_name == query_name, a.demoted_at > moment
    )


def as_of(
    database: Database, snapshot: Snapshot, source: str, query_name: str, hiding: Collection[str]
) -> list[TableHead]:
    """The heads of an asset in a snapshot, without the runs that were demoted since. Derived partitions with a demoted
    input are in `withdrawn_inputs`; they are left out if the model is in `hiding`."""
    withdrawn = withdrawn_since(database, source, query_name, snapshot.created_at)
    named: frozenset[SortKey] = frozenset()
    if asset_kind(source) is AssetKind.DERIVED:
        with database.snapshot() as connection:
            found = withdrawn_inputs(connection, query_name)
        named = frozenset(
            (one.key.logical_date, one.key.customer_id)
            for one in found
            if one.loaded_at is not None and one.loaded_at <= snapshot.created_at < one.last_demoted_at
        )
        if query_name in hiding:
            withdrawn |= {(one.key.logical_date, one.key.customer_id, one.run_id) for one in found}
    return [
        replace(head, withdrawn=withdrawn, withdrawn_inputs=head.withdrawn_inputs | named)
        for head in snapshot.of(f"{source}.{query_name}")
    ]


def _written(keys: Collection[SortKey]) -> list[list[str]]:
    return sorted([day.isoformat(), customer] for day, customer in keys)


def _read(keys: Sequence[Sequence[str]]) -> frozenset[SortKey]:
    return frozenset((date.fromisoformat(day), customer) for day, customer in keys)


def _head(table: dict[str, Any]) -> TableHead:
    return TableHead(
        table["name"],
        table["schema_version"],
        table["location"],
        table["version"],
        _read(table["exceptions"]),
        withdrawn_inputs=_read(table.get("withdrawn_inputs", ())),  # snapshots of earlier releases have none
        publication=table.get("publication"),
    )


def _require_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a name for a snapshot: use lower-case letters, digits, - and _")


def _taken(name: str) -> UsageError:
    return UsageError(f"there is a snapshot {name!r} already: a name is given once")


def _path(name: str) -> str:
    return f"{FOLDER}/{name}.json"
