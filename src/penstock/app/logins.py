"""Page sessions: a token is exchanged for a session with an end; failed logins are limited."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from penstock.app.context import Context, audit_entry
from penstock.app.oidc import PREFIX
from penstock.errors import NotAuthenticated, TooManyLogins
from penstock.state.audited import AuditedAct
from penstock.state.tokens import TokenRole

if TYPE_CHECKING:
    from penstock.app.tokens import TokenService

LIFETIME = timedelta(hours=12)


@dataclass(frozen=True, slots=True)
class PageSession:
    """A session: the value of its cookie, the value that unsafe requests must repeat, and whose it is."""

    cookie: str
    csrf: str
    name: str  # of the token, or of the person whom the identity provider knows
    role: TokenRole
    expires_at: datetime


class LoginService:
    """Begins, finds and ends sessions. The cookie of a session is random; the database holds only its digest."""

    def __init__(self, context: Context, tokens: TokenService) -> None:
        self._context = context
        self._tokens = tokens

    def login(self, text: str, client: str) -> PageSession:
        """Begin a session for the holder of a token. Raises NotAuthenticated for another text, and TooManyLogins after
        too many failures of the same client, before the token is looked at.

        >>> ws.logins.login("penstock_0123456789abcdef_...", "127.0.0.1")
        """
        self.refuse_blocked(client)
        token = self._tokens.find(text)
        if token is None:
            self.count_failure(client)
            raise NotAuthenticated("the token is not valid: it is unknown or revoked")
        cookie = secrets.token_urlsafe(32)
        expires_at = self._context.logins.begin(_digest("session", cookie), LIFETIME, token_id=token.token_id)
        return PageSession(cookie, csrf_value(cookie), token.name, token.role, expires_at)

    def begin_named(self, name: str, role: TokenRole) -> PageSession:
        """Begin a session for a person whom the identity provider has verified.

        >>> ws.logins.begin_named("kim@example.com", TokenRole.VIEWER)
        """
        cookie = secrets.token_urlsafe(32)
        expires_at = self._context.logins.begin(_digest("session", cookie), LIFETIME, name=name, role=role)
        return PageSession(cookie, csrf_value(cookie), name, role, expires_at)

    def are_needed(self) -> bool:
        """Whether callers must log in: a token was created, or the workspace file names an identity provider.

        >>> ws.logins.are_needed()
        """
        return self._context.settings.console.oidc is not None or self._tokens.exist()

    def count_failure(self, client: str) -> None:
        """Count a failed login of this client.

        >>> ws.logins.count_failure("127.0.0.1")
        """
        self._context.logins.count_failure(client)

    def refuse_blocked(self, client: str) -> None:
        """Raise TooManyLogins if too many logins of this client failed.

        >>> ws.logins.refuse_blocked("127.0.0.1")
        """
        if until := self._context.logins.blocked_until(client):
            raise TooManyLogins(f"too many failed logins from {client}: try again after {until:%Y-%m-%d %H:%M:%S} UTC")

    def find(self, cookie: str) -> PageSession | None:
        """The session of this cookie; None if it is over, or its token is revoked.

        >>> ws.logins.find("...")
        """
        found = self._context.logins.find(_digest("session", cookie))
        if found is None or (found[0].startswith(PREFIX) and self._context.settings.console.oidc is None):
            return None  # persons have sessions only while the provider is configured
        return PageSession(cookie, csrf_value(cookie), *found)

    def logout(self, cookie: str) -> None:
        """End the session of this cookie.

        >>> ws.logins.logout("...")
        """
        self.end(self.reference(cookie))

    def reference(self, cookie: str) -> str:
        """A text that names the session of a cookie and does not open it.

        >>> ws.logins.reference("...")
        """
        return _digest("session", cookie)

    def end(self, reference: str) -> None:
        """End the session with this reference.

        >>> ws.logins.end(ws.logins.reference("..."))
        """
        self._context.logins.end(reference)

    def end_all(self, name: str, *, actor: str | None = None) -> int:
        """End every session of a token or person at once. Returns their number. Audited. Raises UsageError if there is
        none.

        >>> ws.logins.end_all("oidc:kim@example.com", actor="lee")
        """
        return self._context.logins.end_all(name, audit_entry(actor, AuditedAct.TOKENS_LOGOUT, {"name": name}))


def csrf_value(cookie: str) -> str:
    """The value that unsafe requests of a session repeat in a header. Another site cannot read or compute it."""
    return _digest("csrf", cookie)


def _digest(purpose: str, cookie: str) -> str:
    return hashlib.sha256(f"{purpose}:{cookie}".encode()).hexdigest()
