"""Stored backfills: a selector with a cursor. Chunks record the progress; partitions are not enumerated."""

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

# Status changes that an operator may make.
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
    """A range of a backfill that one run works on."""

    backfill_id: str
    chunk_no: int
    run_id: RunId
    first: PartitionKey
    last: PartitionKey
    partitions: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a backfill: partitions of its finished chunks, by result."""

    done: int
    accepted: int
    rejected: int
    claimed: int  # partitions of chunks that are not finished
    open_chunks: int
    began_at: datetime | None

    @property
    def skipped(self) -> int:
        """Partitions of finished chunks that needed no attempt, or that another run attempted."""
        return max(0, self.done - self.accepted - self.rejected)


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
        """Return backfills in the order of priority, then age."""
        select = sa.select(_BACKFILL).order_by(_BACKFILL.c.priority.desc(), _BACKFILL.c.backfill_id)
        if statuses:
            select = select.where(_BACKFILL.c.status.in_(statuses))
        with self._database.snapshot() as connection:
            return [_backfill(row) for row in connection.execute(select)]

    def page(self, limit: int, after: str | None = None) -> tuple[list[Backfill], int]:
        """Return a page of backfills in the order of `all`, from behind the backfill `after`, and the total count."""
        select = sa.select(_BACKFILL).order_by(_BACKFILL.c.priority.desc(), _BACKFILL.c.backfill_id).limit(limit)
        if after is not None:
            last = self.get(after)
            less_urgent = _BACKFILL.c.priority < last.priority
            same = sa.and_(_BACKFILL.c.priority == last.priority, _BACKFILL.c.backfill_id > after)
            select = select.where(sa.or_(less_urgent, same))
        with self._database.snapshot() as connection:
            total = connection.scalar(sa.select(sa.func.count()).select_from(_BACKFILL)) or 0
            return [_backfill(row) for row in connection.execute(select)], total

    def get(self, backfill_id: str) -> Backfill:
        with self._database.snapshot() as connection:
            row = connection.execute(sa.select(_BACKFILL).where(_BACKFILL.c.backfill_id == backfill_id)).one_or_none()
        if row is None:
            raise UsageError(f"there is no backfill {backfill_id}: see `penstock backfill list`")
        return _backfill(row)

    def progress(self, backfill_id: str) -> Progress:
        """Count partitions of finished chunks, and the last verdict on each partition attempted for this backfill."""
        done = _CHUNK.c.finished_at.is_not(None)
        chunks = sa.select(
            sa.func.coalesce(sa.func.sum(sa.case((done, _CHUNK.c.partitions), else_=0)), 0).label("done"),
            sa.func.coalesce(sa.func.sum(sa.case((done, 0), else_=_CHUNK.c.partitions)), 0).label("claimed"),
            sa.func.coalesce(sa.func.sum(sa.case((done, 0), else_=1)), 0).label("open_chunks"),
            sa.func.min(_CHUNK.c.started_at, type_=_CHUNK.c.started_at.type).label("began_at"),
        ).where(_CHUNK.c.backfill_id == backfill_id)
        mine = _last_verdicts(backfill_id).subquery()
        outcomes = sa.select(
            sa.func.count().filter(mine.c.outcome == "SUCCEEDED"), sa.func.count().filter(mine.c.outcome == "FAILED")
        )
        with self._database.snapshot() as connection:
            row = connection.execute(chunks).one()
            accepted, rejected = connection.execute(outcomes).one()
        return Progress(int(row.done), accepted, rejected, int(row.claimed), int(row.open_chunks), row.began_at)

    def move(self, backfill_id: str, status: str, entry: AuditEntry, *, rehearsal: bool = False) -> bool:
        """Pause, resume or cancel; False if it has that status already. A rehearsal raises the same errors and changes
        nothing."""
        now = self._clock()

        def work(connection: Connection) -> bool:
            found = _locked(connection, backfill_id)
            if found.status == status:
                return False
            if found.status not in _MOVES[status]:
                raise ActRefused(f"backfill {backfill_id} is {found.status}: it cannot become {status}")
            if rehearsal:
                return True
            values = {"status": status, "finished_at": now if status == "cancelled" else None}
            connection.execute(sa.update(_BACKFILL).where(_BACKFILL.c.backfill_id == backfill_id).values(**values))
            if status == "cancelled":
                open_ones = (_CHUNK.c.backfill_id == backfill_id, _CHUNK.c.finished_at.is_(None))
                connection.execute(sa.update(_CHUNK).where(*open_ones).values(finished_at=now))
            record_audit(connection, entry, 1, "done", now)
            return True

        return self._database.transact(work)

    def take_over(self, backfill_id: str, worker_token: str, run_id: RunId) -> Chunk | None:
        """Claim a chunk that no live worker holds: its worker is gone, or it is ours from an earlier round."""
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
                    sa.or_(_CHUNK.c.stalled_until.is_(None), _CHUNK.c.stalled_until <= now),
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
                .values(worker_token=worker_token, run_id=run_id, stalled_until=None)
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
        """Claim the next chunk, if the cursor has not moved since it was read and not too many chunks are open."""
        now = self._clock()

        def work(connection: Connection) -> Chunk | None:
            found = _locked(connection, seen.backfill_id)
            numbers = connection.execute(
                sa.select(
                    sa.func.coalesce(sa.func.max(_CHUNK.c.chunk_no), 0),
                    # a chunk that waits for a pause to end does not block others
                    sa.func.count().filter(
                        _CHUNK.c.finished_at.is_(None),
                        sa.or_(_CHUNK.c.stalled_until.is_(None), _CHUNK.c.stalled_until <= now),
                    ),
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

    def finish(self, chunk: Chunk) -> None:
        """Mark the chunk as finished: none of its partitions is left to be attempted for this backfill."""
        self._close(chunk, finished_at=self._clock())

    def stall(self, chunk: Chunk, until: datetime) -> None:
        """Keep the chunk open until a later time, because some of its partitions could not be attempted now."""
        self._close(chunk, stalled_until=until)

    def _close(self, chunk: Chunk, **values: Any) -> None:
        still_ours = (
            _CHUNK.c.backfill_id == chunk.backfill_id,
            _CHUNK.c.chunk_no == chunk.chunk_no,
            _CHUNK.c.run_id == chunk.run_id,
            _CHUNK.c.finished_at.is_(None),
        )
        self._database.transact(lambda c: c.execute(sa.update(_CHUNK).where(*still_ours).values(**values)))

    def end(self, backfill_id: str) -> None:
        """Finish the backfill if nothing is left to claim and no chunk is open."""
        now = self._clock()

        def work(connection: Connection) -> None:
            _locked(connection, backfill_id)
            open_ones = sa.select(_CHUNK.c.chunk_no).where(
                _CHUNK.c.backfill_id == backfill_id, _CHUNK.c.finished_at.is_(None)
            )
            if connection.execute(open_ones).first() is None:
                connection.execute(
                    sa.update(_BACKFILL)
                    .where(_BACKFILL.c.backfill_id == backfill_id, _BACKFILL.c.status == "active")
                    .values(status="finished", finished_at=now)
                )

        self._database.transact(work)

    def failed(
        self,
        backfill_id: str,
        *,
        before: datetime | None = None,
        after: PartitionKey | None = None,
        since: PartitionKey | None = None,
        until: PartitionKey | None = None,
        limit: int | None = None,
    ) -> list[PartitionKey]:
        """Return the partitions whose last verdict in this backfill was a rejection and that have no later attempt, in
        key order. With `before`, attempts issued at or after that time do not count. `after` is an exclusive lower
        bound of the keys; `since` and `until` are inclusive bounds."""
        failed, key = _failed(backfill_id, before)
        if after is not None:
            failed = failed.where(sa.tuple_(*key) > _bound(after))
        if since is not None:
            failed = failed.where(sa.tuple_(*key) >= _bound(since))
        if until is not None:
            failed = failed.where(sa.tuple_(*key) <= _bound(until))
        with self._database.snapshot() as connection:
            return [PartitionKey(*row) for row in connection.execute(failed.order_by(*key).limit(limit))]

    def failed_count(
        self, backfill_id: str, *, before: datetime | None = None, after: PartitionKey | None = None
    ) -> int:
        """The number of partitions that `failed` lists."""
        failed, key = _failed(backfill_id, before)
        if after is not None:
            failed = failed.where(sa.tuple_(*key) > _bound(after))
        with self._database.snapshot() as connection:
            return connection.scalar(sa.select(sa.func.count()).select_from(failed.subquery())) or 0

    def failed_sources(self, backfill_id: str, *, before: datetime | None = None) -> set[str]:
        """The sources of the partitions that `failed` lists."""
        failed = _failed(backfill_id, before)[0].subquery()
        with self._database.snapshot() as connection:
            return set(connection.scalars(sa.select(failed.c.source).distinct()))


def _failed(backfill_id: str, before: datetime | None) -> tuple[sa.Select[Any], list[sa.ColumnElement[Any]]]:
    """Return the query of `BackfillStore.failed`, and its key columns."""
    attempt, newer = schema.partition_attempt, schema.partition_attempt.alias("newer")
    same = [newer.c[name] == attempt.c[name] for name in schema.KEY]
    conditions = [*same, newer.c.attempt_no > attempt.c.attempt_no, newer.c.outcome != "CANCELLED"]
    if before is not None:
        conditions.append(newer.c.issued_at < before)
    key: list[sa.ColumnElement[Any]] = [attempt.c[name] for name in schema.KEY]
    again = sa.exists().where(*conditions)
    select = _last_verdicts(backfill_id).with_only_columns(*key).where(attempt.c.outcome == "FAILED", ~again)
    return select, key


def _bound(key: PartitionKey) -> sa.Tuple:
    return sa.tuple_(*(sa.literal(getattr(key, name), schema.partition_attempt.c[name].type) for name in schema.KEY))


def _last_verdicts(backfill_id: str) -> sa.Select[Any]:
    """The last verdict on each partition that was attempted for this backfill."""
    attempt, later = schema.partition_attempt, schema.partition_attempt.alias("later")
    same = [later.c[name] == attempt.c[name] for name in schema.KEY]
    judged = ("SUCCEEDED", "FAILED")
    return sa.select(attempt).where(
        attempt.c.backfill_id == backfill_id,
        attempt.c.outcome.in_(judged),
        ~sa.exists().where(
            *same,
            later.c.backfill_id == backfill_id,
            later.c.attempt_no > attempt.c.attempt_no,
            later.c.outcome.in_(judged),
        ),
    )


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
