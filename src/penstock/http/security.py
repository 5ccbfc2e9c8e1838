"""Who calls, what the caller may do, and whether another site sent the request.

A request carries a token in the header Authorization, or the cookie of a page session. A browser sends a cookie with
requests of other sites, too, so unsafe requests with a cookie must come from this origin and repeat a value that only
pages of this origin can read. A token in a header needs neither. While no token was ever created, a server on a
loopback address serves its own user without one.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from penstock.app.context import os_user
from penstock.errors import AccessDenied, NotAuthenticated
from penstock.http.calls import Identity
from penstock.state.tokens import TokenRole

if TYPE_CHECKING:
    from penstock.app import Workspace
    from penstock.http.routes import Route

SESSION_COOKIE = "penstock_session"
CSRF_HEADER = "x-csrf-token"
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass(frozen=True, slots=True)
class Arrival:
    """The facts of a request that access depends on."""

    headers: Mapping[str, str]  # by lower-case name
    cookies: Mapping[str, str]
    client: str
    is_secure: bool


@dataclass(frozen=True, slots=True)
class Guard:
    """Checks the access of requests. `is_local` if the server listens on a loopback address only."""

    workspace: Workspace
    is_local: bool
    read_only: bool

    def identify(self, route: Route, arrival: Arrival) -> Identity:
        """The caller of a route that is not public. Raises NotAuthenticated without a valid token or session."""
        authorization = arrival.headers.get("authorization")
        if authorization is not None:
            scheme, _, text = authorization.partition(" ")
            token = self.workspace.tokens.find(text.strip()) if scheme.lower() == "bearer" else None
            if token is None:
                raise NotAuthenticated("the token is not valid: it is unknown or revoked")
            return Identity(token.name, token.role)
        if cookie := arrival.cookies.get(SESSION_COOKIE):
            session = self.workspace.logins.find(cookie)
            if session is None:
                raise NotAuthenticated("the session is over: log in again")
            if route.is_unsafe:
                self._refuse_forged(arrival, session.csrf)
            return Identity(session.name, session.role, session)
        if self.is_local and not self.workspace.logins.are_needed():
            refuse_other_host(arrival)
            if route.is_unsafe:
                self.refuse_other_origin(arrival)
            return Identity(os_user(), TokenRole.ADMIN)
        raise NotAuthenticated("the request has no token: send `Authorization: Bearer TOKEN`")

    def authorize(self, route: Route, identity: Identity) -> None:
        """Raise AccessDenied if the role of the caller does not allow the route, or the server only reads."""
        if not route.access.allows(identity.role):
            raise AccessDenied(
                f"{route.name} needs the role {route.access}: {identity.name} has the role {identity.role}"
            )
        if self.read_only and route.is_unsafe and route.changes:
            raise AccessDenied("the server only reads: it was started with --read-only")

    def refuse_other_origin(self, arrival: Arrival) -> None:
        """Raise AccessDenied if a browser says that another site sent the request."""
        origin, host = arrival.headers.get("origin"), arrival.headers.get("host", "").lower()
        if origin is not None:
            found = _split(origin)
            if found.netloc.lower() != host or found.scheme not in self._schemes(arrival, host):
                raise AccessDenied(f"the request comes from another origin: {origin[:200]}")
        if arrival.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise AccessDenied("the request comes from another site")

    def _schemes(self, arrival: Arrival, host: str) -> tuple[str, ...]:
        """The schemes of the pages of this server. `http://host` and `https://host` are different sites, but a proxy
        may add TLS to a server that has none."""
        public = urlsplit(self.workspace.settings.console.url or "")
        is_secure = arrival.is_secure or (public.scheme == "https" and public.netloc.lower() == host)
        return ("https",) if is_secure else ("http", "https")

    def _refuse_forged(self, arrival: Arrival, csrf: str) -> None:
        """Raise AccessDenied unless a page of this origin sent the request."""
        if "origin" not in arrival.headers:
            raise AccessDenied("a request of a session must name its Origin")
        self.refuse_other_origin(arrival)
        if not hmac.compare_digest(arrival.headers.get(CSRF_HEADER, "").encode(), csrf.encode()):
            raise AccessDenied("the header X-CSRF-Token does not have the csrf_token of the session")


def refuse_other_host(arrival: Arrival) -> None:
    """Raise AccessDenied if the name of the host is not a loopback name: another site may have made its own name point
    to this address."""
    if (_split(f"//{arrival.headers.get('host', '')}").hostname or "") not in LOOPBACK_NAMES:
        raise AccessDenied("a server without tokens serves only 127.0.0.1, localhost and [::1]")


def _split(address: str) -> SplitResult:
    """The parts of the address of an Origin or a Host. Raises AccessDenied if it is no address."""
    try:
        return urlsplit(address)
    except ValueError:
        raise AccessDenied(f"the Origin or Host of the request is no address: {address[:200]}") from None
