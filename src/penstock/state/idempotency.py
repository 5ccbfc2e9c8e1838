"""Keys of repeated requests: a request with the same key is executed once, and its response is kept for a day."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.clock import Clock
from penstock.db import schema
from penstock.db.engine import Database
from penstock.db.lease import worker_lives
from penstock.partition import new_ulid

KEPT = timedelta(days=1)

_KEY = schema.idempotency_key


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A request with its key. `is_mine` if this call has to execute it; otherwise another process does, or did."""

    request_digest: str
    reserved_id: str
    is_mine: bool
    status: int | None = None
    response: str | None = None


class IdempotencyStore:
    """Lets one process execute a request. If the request fails or the process dies, the next call with the key executes
    it again, with the same reserved id: what the request creates has that id, so it is created once."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def begin(self, actor: str, key: str, digest: str, worker_token: str) -> RequestRecord:
        """Record a request, or return the record that exists. Deletes records that are older than a day. The caller
        ensures that its process does not execute the request: an unanswered record of its own worker is an orphan."""
        now = self._clock()
        lives = worker_lives(self._database.dialect, "idempotency_key.worker_token")
        held: sa.ColumnElement[bool] = sa.literal_column(lives, sa.Boolean)
        mine = (_KEY.c.actor == actor, _KEY.c.request_key == key)

        def work(connection: Connection) -> RequestRecord:
            connection.execute(sa.delete(_KEY).where(_KEY.c.created_at <= now - KEPT))
            found = connection.execute(
                sa.select(_KEY, held.label("held")).where(*mine).with_for_update(of=_KEY)
            ).one_or_none()
            if found is None:
                record = RequestRecord(digest, new_ulid(), is_mine=True)
                row = {
                    "actor": actor,
                    "request_key": key,
                    "request_digest": digest,
                    "reserved_id": record.reserved_id,
                    "worker_token": worker_token,
                    "created_at": now,
                }
                connection.execute(sa.insert(_KEY), row)
                return record
            is_free = not found.held or found.worker_token == worker_token
            is_orphan = found.status is None and is_free and found.request_digest == digest
            if is_orphan:
                connection.execute(sa.update(_KEY).where(*mine).values(worker_token=worker_token))
            return RequestRecord(found.request_digest, found.reserved_id, is_orphan, found.status, found.response)

        return self._database.transact(work)

    def find(self, actor: str, key: str) -> RequestRecord | None:
        """The record of a request that is executed elsewhere; None if there is none."""
        statement = sa.select(_KEY).where(_KEY.c.actor == actor, _KEY.c.request_key == key)
        with self._database.snapshot() as connection:
            found = connection.execute(statement).one_or_none()
        if found is None:
            return None
        return RequestRecord(found.request_digest, found.reserved_id, False, found.status, found.response)

    def finish(self, actor: str, key: str, worker_token: str, status: int, response: str) -> None:
        """Keep the response of a request."""
        self._change(actor, key, worker_token, sa.update(_KEY).values(status=status, response=response))

    def give_up(self, actor: str, key: str, worker_token: str) -> None:
        """Give up a request that failed in the server, so that it can be repeated. The reserved id stays: what the
        request created may be committed."""
        self._change(actor, key, worker_token, sa.update(_KEY).values(worker_token=None))

    def _change(self, actor: str, key: str, worker_token: str, statement: sa.Update) -> None:
        mine = (
            _KEY.c.actor == actor,
            _KEY.c.request_key == key,
            _KEY.c.worker_token == worker_token,
            _KEY.c.status.is_(None),
        )
        self._database.transact(lambda connection: connection.execute(statement.where(*mine)))
