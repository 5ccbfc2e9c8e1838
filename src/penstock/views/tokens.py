"""Documents of API tokens and sessions. No document holds a secret, except that of a token at its creation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.views.document import Document, listing

if TYPE_CHECKING:
    from datetime import datetime

    from penstock.state.tokens import ApiToken


def token_item(token: ApiToken) -> dict[str, Any]:
    """One token without its secret."""
    return {
        "name": token.name,
        "role": token.role,
        "created_at": token.created_at,
        "created_by": token.created_by,
        "last_used_at": token.last_used_at,
        "revoked_at": token.revoked_at,
        "revoked_by": token.revoked_by,
    }


def tokens_document(found: Sequence[ApiToken]) -> Document:
    """Every token."""
    return listing([token_item(token) for token in found], len(found))


def new_token_document(token: ApiToken, text: str) -> Document:
    """A new token with its text, which is shown once."""
    return Document({**token_item(token), "token": text})


def revoked_document(name: str, *, changed: bool) -> Document:
    """The revocation of a token."""
    return Document({"name": name, "changed": int(changed)})


def logout_document(name: str, ended: int) -> Document:
    """The end of the sessions of a token or person."""
    return Document({"name": name, "ended": ended})


def session_document(name: str, role: str, csrf: str | None, expires_at: datetime | None) -> Document:
    """The holder of a session. Unsafe requests repeat `csrf_token` in the header X-CSRF-Token; it is null for a token
    in the header Authorization."""
    return Document({"name": name, "role": role, "csrf_token": csrf, "expires_at": expires_at})
