"""Login through an identity provider: the way to it, and the way back.

The browser keeps the login in progress in a cookie with SameSite=Lax, because the provider is another site. The cookie
of the session is SameSite=Strict: a browser does not send it while it follows redirects from another site. So the way
back ends with a page of this site, which then opens the page that the person wanted. For the same reason the cookie of
the login names the earlier session of the browser, which ends with the login.

Another site can make the browser of its visitor open the way back. Such a request has no login in progress, or not its
state, and is not counted as a failed login: ten of them would lock the visitor out.
"""

from __future__ import annotations

import base64
import re
from http import HTTPStatus

from penstock.app.oidc import PendingLogin
from penstock.errors import NotAuthenticated
from penstock.http.api.sessions import session_cookie
from penstock.http.calls import Call, Reply
from penstock.http.pages.login import NEXT, own_path
from penstock.http.pages.rendering import Page, render
from penstock.http.parameters import Parameter
from penstock.http.problems import RequestRefused
from penstock.http.routes import PAGE, Access, Route
from penstock.http.security import SESSION_COOKIE

COOKIE = "penstock_login"
CALLBACK = "/login/oidc/callback"
_SECONDS = 600
_TEXT = ("code", "state", "error")
_VALUE = r"[A-Za-z0-9_-]{1,128}"
# State, nonce, verifier, the reference of the earlier session of the browser, and the path of the page to show.
_PENDING = re.compile(rf"({_VALUE})\.({_VALUE})\.({_VALUE})\.([0-9a-f]*)\.([A-Za-z0-9_-]+)")


def begin(call: Call) -> Reply:
    """Send the browser to the identity provider."""
    _require_provider(call)
    address, pending = call.workspace.oidc.begin(_callback(call))
    earlier = call.cookies.get(SESSION_COOKIE)
    reference = call.workspace.logins.reference(earlier) if earlier else ""
    wanted = base64.urlsafe_b64encode(own_path(call.query["next"]).encode()).decode().rstrip("=")
    value = ".".join((pending.state, pending.nonce, pending.verifier, reference, wanted))
    secure = "; Secure" if call.is_secure else ""
    cookie = f"{COOKIE}={value}; HttpOnly; SameSite=Lax; Path=/login/oidc; Max-Age={_SECONDS}{secure}"
    headers = {"Location": address, "Set-Cookie": cookie, "Cache-Control": "no-store"}
    return Reply(media_type=PAGE, status=303, headers=headers)


def finish(call: Call) -> Reply:
    """Begin a session for the person whom the provider sent back. The earlier session of the browser ends."""
    _require_provider(call)
    if call.query["error"]:
        raise NotAuthenticated(f"the provider refused the login: {call.query['error'][:200]}")
    logins, provider = call.workspace.logins, call.workspace.oidc
    logins.refuse_blocked(call.client)
    pending, earlier, wanted = _pending(call.cookies.get(COOKIE, ""))
    state = call.query["state"] or ""
    try:
        name, role = provider.finish(pending, state, call.query["code"] or "", _callback(call))
    except NotAuthenticated:
        if pending.has_state(state):
            logins.count_failure(call.client)
        raise
    session = logins.begin_named(name, role)
    if earlier:
        logins.end(earlier)
    reply = render(call, "logged_in.html", Page("Logged in", ""), wanted=wanted, name=name, role=role.value)
    headers = {"Set-Cookie": session_cookie(session.cookie, call.is_secure), "Cache-Control": "no-store"}
    return Reply(content=reply.content, media_type=PAGE, headers=headers)


def _require_provider(call: Call) -> None:
    """Raise RequestRefused if the workspace has no identity provider."""
    if not call.workspace.oidc.is_configured:
        message = "the workspace file has no console.oidc: log in with a token"
        raise RequestRefused(message, HTTPStatus.NOT_FOUND)


def _pending(cookie: str) -> tuple[PendingLogin, str, str]:
    """The login in progress that the browser holds, the reference of its earlier session, and the page to show. Raises
    NotAuthenticated if there is none."""
    try:
        if found := _PENDING.fullmatch(cookie):
            state, nonce, verifier, earlier, path = found.groups()
            wanted = base64.urlsafe_b64decode(path + "=" * (-len(path) % 4)).decode()
            return PendingLogin(state, nonce, verifier), earlier, own_path(wanted)
    except ValueError:  # no base64, or no UTF-8
        pass
    raise NotAuthenticated("the login took too long, or was begun in another browser: log in again")


def _callback(call: Call) -> str:
    """The address to which the provider sends the browser back. The provider knows it, and refuses any other."""
    address = call.workspace.settings.console.url
    return (address or f"{'https' if call.is_secure else 'http'}://{call.host}") + CALLBACK


ROUTES = (
    Route("GET", "/login/oidc", begin, Access.PUBLIC, PAGE, "Log in through the identity provider", (NEXT,)),
    Route(
        "GET",
        CALLBACK,
        finish,
        Access.PUBLIC,
        PAGE,
        "The way back from the identity provider",
        tuple(Parameter(name, "Set by the provider.") for name in _TEXT),
        takes_others=True,
    ),
)
