"""The publication queue and the last publication, for metrics and live views."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db import schema
from penstock.db.types import UtcTimestamp

_DUE, _BATCH = schema.publish_due, schema.load_batch


@dataclass(frozen=True, slots=True)
class PublishQueue:
    """The partitions of one table that wait for publication, and the time of the oldest."""

    table: str
    partitions: int
    oldest: datetime


@dataclass(frozen=True, slots=True)
class LastPublication:
    """The newest published batch: when its staged files were recorded, and when readers could see them."""

    prepared_at: datetime
    published_at: datetime


def publish_queues(connection: Connection) -> list[PublishQueue]:
    """The queue of each table that has one, in the order of their names."""
    oldest = sa.func.min(_DUE.c.since, type_=UtcTimestamp())
    groups = (_DUE.c.source, _DUE.c.query_name)
    rows = connection.execute(sa.select(*groups, sa.func.count(), oldest).group_by(*groups).order_by(*groups))
    return [PublishQueue(f"{source}.{name}", count, since) for source, name, count, since in rows]


def last_publication(connection: Connection) -> LastPublication | None:
    """The newest publication; None before the first. Batches are in the order of their preparation."""
    statement = (
        sa.select(_BATCH.c.prepared_at, _BATCH.c.finished_at)
        .where(_BATCH.c.status == "published")
        .order_by(_BATCH.c.batch_id.desc())
        .limit(1)
    )
    row = connection.execute(statement).one_or_none()
    return None if row is None else LastPublication(row.prepared_at, row.finished_at)
