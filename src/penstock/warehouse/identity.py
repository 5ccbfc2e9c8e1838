"""The identity that a lake and its state database share: a lake belongs to one database."""

from __future__ import annotations

import orjson
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db import schema
from penstock.db.engine import Database
from penstock.errors import LakeMismatch
from penstock.lake import Lake
from penstock.lake.protocol import LakeObjectMissing
from penstock.warehouse.mismatch import Mismatch, MismatchKind

IDENTITY = "penstock.json"


def lake_identity(lake: Lake) -> str | None:
    """The identity of the lake; None if it has none. Raises LakeMismatch if the file is damaged."""
    try:
        data = lake.read(IDENTITY)
    except LakeObjectMissing:
        return None
    try:
        return str(orjson.loads(data)["identity"])
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise LakeMismatch(
            f"{lake.url}/{IDENTITY} is damaged ({error}): delete it, then run `penstock db migrate`"
        ) from error


def database_identity(connection: Connection) -> str | None:
    """The identity of the database; None before the first migration that assigns one."""
    found: str | None = connection.scalar(sa.select(schema.workspace.c.identity))
    return found


def claim_lake(database: Database, lake: Lake) -> None:
    """Write the database's identity into a lake that has none. Raises LakeMismatch if another database was first."""
    with database.snapshot() as connection:
        identity = database_identity(connection)
    if lake_identity(lake) is None:
        lake.create(IDENTITY, orjson.dumps({"format": 1, "identity": identity}))
        lake.sync()
    require_own_lake(database, lake)


def require_own_lake(database: Database, lake: Lake) -> None:
    """Raise LakeMismatch unless the lake has the identity of this database."""
    for mismatch in identity_mismatches(database, lake):
        raise LakeMismatch(mismatch.message)


def identity_mismatches(database: Database, lake: Lake) -> list[Mismatch]:
    """The mismatch if the identities differ; otherwise nothing."""
    found = lake_identity(lake)
    with database.snapshot() as connection:
        own = database_identity(connection)
    if found == own:
        return []
    if found is None:
        detail = f"the lake {lake.url} carries no identity: it is new, was emptied or was replaced"
        return [Mismatch(MismatchKind.UNMARKED_LAKE, None, detail)]
    detail = f"the lake {lake.url} belongs to another database (its identity is {found}, this one's is {own})"
    return [Mismatch(MismatchKind.FOREIGN_LAKE, None, detail)]
