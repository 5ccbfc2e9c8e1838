"""Backfills on record: a selector with a cursor. What is done is told by chunks; no partition is enumerated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.clock import Clock
from penstock.db import schema
from penstock.db.engine import Database
from penstock.db.lease import worker_lives
from penstock.errors import ActRefused, UsageError
from penstock.partition import PartitionKey, RunId
from penstock.state.control import AuditEntry, record_audit

_BACKFILL, _CHUNK = schema.backfill, schema.backfill_chunk

# Which status may become which by hand.
_MOVES = {"paused": ("active",), "active": ("paused",), "cancelled": ("active", "paused")}


@dataclass(frozen=True, slots=True)
class Backfill:
    backfill_id: str
    status: str
    selector: Mapping[str, Any]
    reprocess: bool
    chunk_size: int
    priority: int
    max_chunks: int
    total: int
    cursor: PartitionKey | None
    created_at: datetime
    created_by: str
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stretch of a backfill that one run works on."""

    backfill_id: str
    chunk_no: int
    run_id: RunId
    first: PartitionKey
    last: PartitionKey
    partitions: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a backfill is: partitions of its finished chunks, and what became of them."""

    done: int
    accepted: int
    rejected: int
    skipped: int
    open_chunks: int
    began_at: datetime | None


class BackfillStore:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def create(self, backfill: Backfill, entry: AuditEntry) -> None:
        row = {name: getattr(backfill, name) for name in (column.name for column in _BACKFILL.c)} | {
            "cursor": None,
            "selector": dict(backfill.selector),
        }

        def work(connection: Connection) -> None:
            connection.execute(sa.insert(_BACKFILL), row)
            record_audit(connection, entry, backfill.total, "done", backfill.created_at)

        self._database.transact(work)

    def all(self, *statuses: str) -> list[Backfill]:
        """The most urgent first: by priority, then by age."""
        select = sa.select(_BACKFILL).order_by(_BACKFILL.c.priority.desc(), _BACKFILL.c.backfill_id)
        if statuses:
            select = select.where(_BACKFILL.c.status.in_(statuses))
        with self._database.snapshot() as connection:
            return [_backfill(row) for row in connection.execute(select)]

    def get(self, backfill_id: str) -> Backfill:
        found = next((backfill for backfill in self.all() if backfill.backfill_id == backfill_id), None)
        if found is None:
            raise UsageError(f"there is no backfill {backfill_id}: see `penstock backfill list`")
        return found

    def progress(self, backfill_id: str) -> Progress:
        done = _CHUNK.c.finished_at.is_not(None)
        select = sa.select(
            sa.func.coalesce(sa.func.sum(sa.case((done, _CHUNK.c.partitions), else_=0)), 0).label("done"),
            *(sa.func.coalesce(sa.func.sum(_CHUNK.c[n]), 0).label(n) for n in ("accepted", "rejected", "skipped")),
            sa.func.coalesce(sa.func.sum(sa.case((done, 0), else_=1)), 0).label("open_chunks"),
            sa.func.min(_CHUNK.c.started_at, type_=_CHUNK.c.started_at.type).label("began_at"),
        ).where(_CHUNK.c.backfill_id == backfill_id)
        with self._database.snapshot() as connection:
            row = connection.execute(select).one()
        return Progress(
            int(row.done), int(row.accepted), int(row.rejected), int(row.skipped), int(row.open_chunks), row.began_at
        )

    def move(self, backfill_id: str, status: str, entry: AuditEntry) -> bool:
        """Pause, resume or cancel; False if that is how it stands."""
        now = self._clock()

        def work(connection: Connection) -> bool:
            found = _locked(connection, backfill_id)
            if found.status == status:
                return False
            if found.status not in _MOVES[status]:
                raise ActRefused(f"backfill {backfill_id} is {found.status}: it cannot become {status}")
            values = {"status": status, "finished_at": now if status == "cancelled" else None}
            connection.execute(sa.update(_BACKFILL).where(_BACKFILL.c.backfill_id == backfill_id).values(**values))
            record_audit(connection, entry, 1, "done", now)
            return True

        return self._database.transact(work)

    def take_over(self, backfill_id: str, worker_token: str, run_id: RunId) -> Chunk | None:
        """A chunk that nobody works on any more: its worker is gone, or it is ours from an earlier round."""
        now = self._clock()

        def work(connection: Connection) -> Chunk | None:
            if _locked(connection, backfill_id).status != "active":
                return None
            lives = worker_lives(self._database.dialect, "backfill_chunk.worker_token")
            row = connection.execute(
                sa.select(_CHUNK)
                .where(
                    _CHUNK.c.backfill_id == backfill_id,
                    _CHUNK.c.finished_at.is_(None),
                    _CHUNK.c.run_id != run_id,
                    sa.or_(_CHUNK.c.worker_token == worker_token, sa.text(f"NOT {lives}")),
                )
                .order_by(_CHUNK.c.chunk_no)
                .limit(1)
            ).one_or_none()
            if row is None:
                return None
            connection.execute(
                sa.update(_CHUNK)
                .where(_CHUNK.c.backfill_id == backfill_id, _CHUNK.c.chunk_no == row.chunk_no)
                .values(worker_token=worker_token, run_id=run_id, started_at=now)
            )
            return _chunk(row, run_id)

        return self._database.transact(work)

    def claim(
        self,
        seen: Backfill,
        worker_token: str,
        run_id: RunId,
        first: PartitionKey,
        last: PartitionKey,
        partitions: int,
    ) -> Chunk | None:
        """The next stretch, if the cursor is still where we saw it and not too many chunks are open."""
        now = self._clock()

        def work(connection: Connection) -> Chunk | None:
            found = _locked(connection, seen.backfill_id)
            numbers = connection.execute(
                sa.select(
                    sa.func.coalesce(sa.func.max(_CHUNK.c.chunk_no), 0),
                    sa.func.count().filter(_CHUNK.c.finished_at.is_(None)),
                ).where(_CHUNK.c.backfill_id == seen.backfill_id)
            ).one()
            if found.status != "active" or found.cursor != seen.cursor or numbers[1] >= found.max_chunks:
                return None
            chunk = Chunk(seen.backfill_id, numbers[0] + 1, run_id, first, last, partitions)
            connection.execute(
                sa.insert(_CHUNK),
                {
                    "backfill_id": chunk.backfill_id, "chunk_no": chunk.chunk_no, "run_id": run_id,
                    "worker_token": worker_token, "first_key": str(first), "last_key": str(last),
                    "partitions": partitions, "started_at": now,
                },
            )  # fmt: skip
            connection.execute(
                sa.update(_BACKFILL).where(_BACKFILL.c.backfill_id == seen.backfill_id).values(cursor=str(last))
            )
            return chunk

        return self._database.transact(work)

    def finish(self, chunk: Chunk, *, at_the_end: bool) -> None:
        """The chunk's run is through with it. After the last one the backfill is finished."""
        now = self._clock()
        attempt = schema.partition_attempt
        mine = (attempt.c.run_id == chunk.run_id, attempt.c.reason == "backfill", *_inside(attempt, chunk))

        def work(connection: Connection) -> None:
            _locked(connection, chunk.backfill_id)
            accepted, rejected = connection.execute(
                sa.select(
                    sa.func.count().filter(attempt.c.outcome == "SUCCEEDED"),
                    sa.func.count().filter(attempt.c.outcome == "FAILED"),
                ).where(*mine)
            ).one()
            connection.execute(
                sa.update(_CHUNK)
                .where(
                    _CHUNK.c.backfill_id == chunk.backfill_id,
                    _CHUNK.c.chunk_no == chunk.chunk_no,
                    _CHUNK.c.run_id == chunk.run_id,
                    _CHUNK.c.finished_at.is_(None),
                )
                .values(
                    accepted=accepted,
                    rejected=rejected,
                    skipped=chunk.partitions - accepted - rejected,
                    finished_at=now,
                )
            )
            open_ones = sa.select(_CHUNK.c.chunk_no).where(
                _CHUNK.c.backfill_id == chunk.backfill_id, _CHUNK.c.finished_at.is_(None)
            )
            if at_the_end and connection.execute(open_ones).first() is None:
                self._end(connection, chunk.backfill_id, now)

        self._database.transact(work)

    def end(self, backfill_id: str) -> None:
        """Nothing is left to claim and no chunk is open: it is finished."""
        now = self._clock()

        def work(connection: Connection) -> None:
            _locked(connection, backfill_id)
            open_ones = sa.select(_CHUNK.c.chunk_no).where(
                _CHUNK.c.backfill_id == backfill_id, _CHUNK.c.finished_at.is_(None)
            )
            if connection.execute(open_ones).first() is None:
                self._end(connection, backfill_id, now)

        self._database.transact(work)

    def failed(self, backfill_id: str) -> list[PartitionKey]:
        """Exactly the partitions whose last word in this backfill was a rejection, and that nothing mended since."""
        attempt, runs = schema.partition_attempt, sa.select(_CHUNK.c.run_id).where(_CHUNK.c.backfill_id == backfill_id)
        newer = attempt.alias("newer")
        same = [newer.c[name] == attempt.c[name] for name in schema.KEY]
        select = (
            sa.select(*(attempt.c[name] for name in schema.KEY))
            .where(attempt.c.run_id.in_(runs), attempt.c.reason == "backfill", attempt.c.outcome == "FAILED")
            .where(~sa.exists().where(*same, newer.c.attempt_no > attempt.c.attempt_no, newer.c.outcome != "CANCELLED"))
            .order_by(*(attempt.c[name] for name in schema.KEY))
        )
        with self._database.snapshot() as connection:
            return [PartitionKey(*row) for row in connection.execute(select)]

    def _end(self, connection: Connection, backfill_id: str, now: datetime) -> None:
        connection.execute(
            sa.update(_BACKFILL)
            .where(_BACKFILL.c.backfill_id == backfill_id, _BACKFILL.c.status == "active")
            .values(status="finished", finished_at=now)
        )


def _inside(attempt: sa.Table, chunk: Chunk) -> list[sa.ColumnElement[bool]]:
    key = sa.tuple_(*(attempt.c[name] for name in schema.KEY))
    types = [attempt.c[name].type for name in schema.KEY]
    return [
        key >= sa.tuple_(*(sa.literal(v, t) for v, t in zip(chunk.first, types, strict=True))),
        key <= sa.tuple_(*(sa.literal(v, t) for v, t in zip(chunk.last, types, strict=True))),
    ]


def _locked(connection: Connection, backfill_id: str) -> Backfill:
    row = connection.execute(
        sa.select(_BACKFILL).where(_BACKFILL.c.backfill_id == backfill_id).with_for_update()
    ).one_or_none()
    if row is None:
        raise UsageError(f"there is no backfill {backfill_id}: see `penstock backfill list`")
    return _backfill(row)


def _backfill(row: Any) -> Backfill:
    values = dict(row._mapping)
    return Backfill(**values | {"cursor": PartitionKey.parse(row.cursor) if row.cursor else None})


def _chunk(row: Any, run_id: RunId) -> Chunk:
    first, last = PartitionKey.parse(row.first_key), PartitionKey.parse(row.last_key)
    return Chunk(row.backfill_id, row.chunk_no, run_id, first, last, row.partitions)
