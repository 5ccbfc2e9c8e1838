"""Page sessions, and counts of failed logins. All instances of the server share both.

A session is a random value in a cookie; the database holds its digest, so a copy of the database opens no session.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.clock import Clock
from penstock.db import schema
from penstock.db.engine import Database
from penstock.errors import UsageError
from penstock.state.control import AuditEntry, record_audit
from penstock.state.tokens import TokenRole

WINDOW = timedelta(minutes=15)  # failures are counted this long
MAX_FAILURES = 10  # in one window and from one client

_SESSION, _FAILURE, _TOKEN = schema.login_session, schema.login_failure, schema.api_token

_COUNT = """
INSERT INTO login_failure AS f (client, failures, since) VALUES (:client, 1, :now)
ON CONFLICT (client) DO UPDATE SET
    failures = CASE WHEN f.since < :oldest THEN 1 ELSE f.failures + 1 END,
    since = CASE WHEN f.since < :oldest THEN excluded.since ELSE f.since END
"""


class LoginStore:
    """Creates and ends sessions, and counts failed logins by client."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def begin(
        self,
        digest: str,
        lifetime: timedelta,
        *,
        token_id: str | None = None,
        name: str | None = None,
        role: TokenRole | None = None,
    ) -> datetime:
        """Store a session of a token, or of a person with a role. Returns its end. Deletes sessions that are over."""
        now = self._clock()
        row = {"session_digest": digest, "created_at": now, "expires_at": now + lifetime}
        row |= {"token_id": token_id, "name": name, "role": role.value if role else None}

        def work(connection: Connection) -> None:
            connection.execute(sa.delete(_SESSION).where(_SESSION.c.expires_at <= now))
            connection.execute(sa.insert(_SESSION), row)

        self._database.transact(work)
        return now + lifetime

    def find(self, digest: str) -> tuple[str, TokenRole, datetime] | None:
        """The name and role of a session, and its end; None if it is over or its token is revoked."""
        name, role = (sa.func.coalesce(_TOKEN.c[part], _SESSION.c[part]).label(part) for part in ("name", "role"))
        statement = (
            sa.select(name, role, _SESSION.c.expires_at)
            .select_from(_SESSION.outerjoin(_TOKEN, _SESSION.c.token_id == _TOKEN.c.token_id))
            .where(
                _SESSION.c.session_digest == digest,
                _SESSION.c.expires_at > self._clock(),
                _TOKEN.c.revoked_at.is_(None),
            )
        )
        with self._database.snapshot() as connection:
            row = connection.execute(statement).one_or_none()
        return None if row is None else (row.name, TokenRole(row.role), row.expires_at)

    def end(self, digest: str) -> None:
        """End a session. Ending it again changes nothing."""
        mine = _SESSION.c.session_digest == digest
        self._database.transact(lambda connection: connection.execute(sa.delete(_SESSION).where(mine)))

    def end_all(self, name: str, entry: AuditEntry) -> int:
        """End every session of a token or person of this name. Returns their number. Raises UsageError, which lists
        the names with a session, if there is none."""
        now = self._clock()

        def work(connection: Connection) -> int:
            owner = sa.func.coalesce(_TOKEN.c.name, _SESSION.c.name)
            joined = _SESSION.outerjoin(_TOKEN, _SESSION.c.token_id == _TOKEN.c.token_id)
            rows = connection.execute(
                sa.select(_SESSION.c.session_digest, owner.label("owner"))
                .select_from(joined)
                .where(_SESSION.c.expires_at > now)
            ).all()
            mine = [row.session_digest for row in rows if row.owner == name]
            if not mine:
                known = ", ".join(sorted({row.owner for row in rows})) or "nobody"
                raise UsageError(f"{name} has no session (with a session: {known})")
            connection.execute(sa.delete(_SESSION).where(_SESSION.c.session_digest.in_(mine)))
            record_audit(connection, entry, len(mine), "done", now)
            return len(mine)

        return self._database.transact(work)

    def blocked_until(self, client: str) -> datetime | None:
        """When a client may log in again after too many failures; None if it may now."""
        found = sa.select(_FAILURE.c.failures, _FAILURE.c.since).where(_FAILURE.c.client == client)
        with self._database.snapshot() as connection:
            row = connection.execute(found).one_or_none()
        if row is None or row.failures < MAX_FAILURES or row.since + WINDOW <= self._clock():
            return None
        until: datetime = row.since + WINDOW
        return until

    def count_failure(self, client: str) -> None:
        """Count a failed login. Deletes the counts of clients whose window is over."""
        now = self._clock()
        statement = sa.text(_COUNT).bindparams(
            sa.bindparam("now", type_=_FAILURE.c.since.type), sa.bindparam("oldest", type_=_FAILURE.c.since.type)
        )

        def work(connection: Connection) -> None:
            connection.execute(statement, {"client": client, "now": now, "oldest": now - WINDOW})
            connection.execute(sa.delete(_FAILURE).where(_FAILURE.c.since < now - WINDOW))

        self._database.transact(work)
