"""Models of tokens, sessions and health."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from penstock.http.schemas.base import Model
from penstock.state.tokens import TokenRole


class TokenBody(Model):
    """A token to create."""

    name: str = Field(min_length=1, max_length=63)
    role: TokenRole


class TokenItem(Model):
    """A token without its secret."""

    name: str
    role: TokenRole
    created_at: datetime
    created_by: str
    last_used_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None


class NewToken(TokenItem):
    """A new token with its text, which is shown once."""

    token: str


class Tokens(Model):
    """Every token."""

    items: list[TokenItem]
    total: int


class TokenRevoked(Model):
    """The revocation of a token."""

    name: str
    changed: int


class LoginBody(Model):
    """A token that is exchanged for a session."""

    token: str = Field(min_length=1, max_length=200)


class SessionDocument(Model):
    """The caller. Unsafe requests of a session repeat `csrf_token` in the header X-CSRF-Token."""

    name: str
    role: TokenRole
    csrf_token: str | None
    expires_at: datetime | None


class LoggedOut(Model):
    """The end of a session."""

    ended: bool


class Health(Model):
    """The state of the server."""

    status: str
