"""Exported ranges of the ledger as files in the lake: written with their digest, then deleted from the database."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db import schema
from penstock.db.engine import Database
from penstock.errors import PenstockError
from penstock.lake import Lake
from penstock.partition import new_ulid
from penstock.projections.fact import Fact


class SegmentDamaged(PenstockError):
    """An exported segment does not match its digest."""

    remedy = "Restore the file from a backup of the lake."


class SegmentReader:
    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def facts(self, path: str, sha256: str) -> list[Fact]:
        data = self._lake.read(path)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise SegmentDamaged(f"the exported ledger segment {path} was changed: restore it from a backup")
        import pyarrow as pa
        import pyarrow.parquet as pq

        from penstock.ledger.segment_tables import from_table

        return from_table(pq.read_table(pa.BufferReader(data)))


def export(database: Database, lake: Lake, facts: Sequence[Fact], now: datetime, audit: sa.Insert) -> str:
    """Write the facts as a segment, then delete them from the database, in one audited transaction. A crash before the
    transaction leaves a file that nothing refers to."""
    import pyarrow.parquet as pq

    from penstock.ledger.segment_tables import to_table

    path = f"ledger/{facts[0].position:015d}-{facts[-1].position:015d}-{new_ulid()}.parquet"
    buffer = io.BytesIO()
    pq.write_table(to_table(facts), buffer, compression="zstd")
    lake.create(path, buffer.getvalue())
    lake.sync()
    row = {
        "first_position": facts[0].position,
        "last_position": facts[-1].position,
        "events": len(facts),
        "path": path,
        "sha256": hashlib.sha256(buffer.getvalue()).hexdigest(),
        "exported_at": now,
    }

    def work(connection: Connection) -> None:
        connection.execute(sa.insert(schema.ledger_segment), row)
        connection.execute(audit)
        event = schema.event
        gone = connection.execute(
            sa.delete(event).where(event.c.position.between(row["first_position"], row["last_position"]))
        ).rowcount
        if gone != len(facts):
            raise PenstockError(f"the ledger changed while it was exported: {gone} events, expected {len(facts)}")

    database.transact(work)
    return path
