"""API tokens: a name, a role and the hash of a secret. Tokens are revoked, never deleted: the audit log names them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from penstock.clock import Clock
from penstock.db import schema
from penstock.db.engine import Database
from penstock.errors import ActRefused, UsageError
from penstock.state.control import AuditEntry, record_audit

_TOKEN = schema.api_token
_TOUCH_EVERY = timedelta(minutes=1)  # a request writes `last_used_at` at most this often


class TokenRole(StrEnum):
    """What a token allows. Each role includes the roles before it."""

    VIEWER = "viewer"  # reads everything but tokens
    OPERATOR = "operator"  # retries, pauses, backfills, runs
    ADMIN = "admin"  # changes authority, maintenance and tokens

    @property
    def rank(self) -> int:
        return list(TokenRole).index(self)

    def includes(self, other: TokenRole) -> bool:
        """Whether this role may do what `other` may do."""
        return self.rank >= other.rank


@dataclass(frozen=True, slots=True)
class ApiToken:
    """One token, without its secret."""

    token_id: str
    name: str
    role: TokenRole
    secret_hash: str
    created_at: datetime
    created_by: str
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None
    revoked_by: str | None = None


class TokenStore:
    """Creates, finds and revokes tokens. Creation and revocation write their audit entry in the same transaction."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def create(self, token_id: str, name: str, role: TokenRole, secret_hash: str, entry: AuditEntry) -> ApiToken:
        """Store a token. Raises ActRefused if a valid token has the name."""
        now = self._clock()
        row = {
            "token_id": token_id,
            "name": name,
            "role": role.value,
            "secret_hash": secret_hash,
            "created_at": now,
            "created_by": entry.actor,
        }

        def work(connection: Connection) -> None:
            if self._valid(connection, name) is not None:
                raise ActRefused(f"a token {name} exists: `penstock tokens revoke {name}`, or choose another name")
            connection.execute(sa.insert(_TOKEN), row)
            record_audit(connection, entry, 1, "done", now)

        self._database.transact(work)
        return ApiToken(token_id, name, role, secret_hash, now, entry.actor)

    def revoke(self, name: str, entry: AuditEntry) -> bool:
        """End the valid token of that name and its sessions. False if it is revoked already. Raises UsageError for an
        unknown name."""
        now = self._clock()

        def work(connection: Connection) -> bool:
            found = self._valid(connection, name)
            if found is None:
                if connection.execute(sa.select(_TOKEN.c.name).where(_TOKEN.c.name == name)).first() is None:
                    raise UsageError(f"there is no token {name}: `penstock tokens list` shows them")
                return False
            values = {"revoked_at": now, "revoked_by": entry.actor}
            connection.execute(sa.update(_TOKEN).where(_TOKEN.c.token_id == found.token_id).values(**values))
            session = schema.login_session
            connection.execute(sa.delete(session).where(session.c.token_id == found.token_id))
            record_audit(connection, entry, 1, "done", now)
            return True

        return self._database.transact(work)

    def find(self, token_id: str) -> ApiToken | None:
        """The valid token with this id; None if there is none or it is revoked."""
        valid = sa.select(_TOKEN).where(_TOKEN.c.token_id == token_id, _TOKEN.c.revoked_at.is_(None))
        with self._database.snapshot() as connection:
            row = connection.execute(valid).one_or_none()
        return None if row is None else token_of(row)

    def all(self) -> list[ApiToken]:
        """Every token, by name and age, with revoked ones."""
        with self._database.snapshot() as connection:
            rows = connection.execute(sa.select(_TOKEN).order_by(_TOKEN.c.name, _TOKEN.c.created_at)).all()
        return [token_of(row) for row in rows]

    def exist(self) -> bool:
        """Whether a token was ever created; a revoked one counts, so that revoking the last one opens nothing."""
        with self._database.snapshot() as connection:
            return connection.execute(sa.select(_TOKEN.c.token_id).limit(1)).first() is not None

    def touch(self, token: ApiToken) -> None:
        """Record the use of a token, at most once a minute. Never waits: while another transaction writes, the use is
        not recorded."""
        now = self._clock()
        if token.last_used_at is not None and now - token.last_used_at < _TOUCH_EVERY:
            return
        mine = (_TOKEN.c.token_id == token.token_id, _TOKEN.c.revoked_at.is_(None))
        self._database.transact_if_free(lambda c: c.execute(sa.update(_TOKEN).where(*mine).values(last_used_at=now)))

    def _valid(self, connection: Connection, name: str) -> Row[tuple[str]] | None:
        valid = sa.select(_TOKEN.c.token_id).where(_TOKEN.c.name == name, _TOKEN.c.revoked_at.is_(None))
        return connection.execute(valid.with_for_update()).one_or_none()


def token_of(row: Row[tuple[object, ...]]) -> ApiToken:
    """The token of a row of the table."""
    found = row._mapping
    names = (
        "token_id", "name", "role", "secret_hash", "created_at", "created_by", "last_used_at", "revoked_at",
        "revoked_by",
    )  # fmt: skip
    values = {name: found[name] for name in names}
    return ApiToken(**{**values, "role": TokenRole(values["role"])})
