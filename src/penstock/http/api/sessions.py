"""Page sessions: login exchanges a token for a cookie; logout ends the session."""

from __future__ import annotations

from penstock.app.logins import LIFETIME, PageSession
from penstock.http.calls import Call, Reply
from penstock.http.routes import PREFIX, Access, Route
from penstock.http.schemas.access import LoggedOut, LoginBody, SessionDocument
from penstock.http.security import SESSION_COOKIE
from penstock.views.document import Document
from penstock.views.health import logout_document
from penstock.views.tokens import session_document


def login(call: Call) -> Reply:
    """Exchange a token for a session, in a cookie that scripts cannot read. An earlier session of the browser ends."""
    body: LoginBody = call.body
    session, cookie = begin_session(call, body.token)
    document = session_document(session.name, session.role, session.csrf, session.expires_at)
    return Reply(document, headers={"Set-Cookie": cookie})


def begin_session(call: Call, token: str) -> tuple[PageSession, str]:
    """Begin a session for the holder of a token and end the earlier one of the browser. Returns it with its cookie."""
    session = call.workspace.logins.login(token, call.client)
    if call.identity.session is not None:
        call.workspace.logins.logout(call.identity.session.cookie)
    return session, session_cookie(session.cookie, call.is_secure)


def session_cookie(value: str, is_secure: bool) -> str:
    """The cookie of a session. Scripts and other sites cannot use it."""
    secure = "; Secure" if is_secure else ""
    seconds = int(LIFETIME.total_seconds())
    return f"{SESSION_COOKIE}={value}; HttpOnly; SameSite=Strict; Path=/; Max-Age={seconds}{secure}"


def logout(call: Call) -> Reply:
    """End the session of the cookie."""
    ended, cookie = end_session(call)
    return Reply(logout_document(ended=ended), headers={"Set-Cookie": cookie})


def end_session(call: Call) -> tuple[bool, str]:
    """End the session of the caller. Returns whether there was one, and the cookie that removes it."""
    session = call.identity.session
    if session is not None:
        call.workspace.logins.logout(session.cookie)
    return session is not None, f"{SESSION_COOKIE}=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0"


def show_session(call: Call) -> Document:
    """Show the caller: name, role, and the value of X-CSRF-Token for unsafe requests of a session."""
    who, session = call.identity, call.identity.session
    return session_document(
        who.name, who.role, session.csrf if session else None, session.expires_at if session else None
    )


ROUTES = (
    Route(
        "POST",
        "/login",
        login,
        Access.PUBLIC,
        SessionDocument,
        "Begin a session",
        body=LoginBody,
        keeps_response=False,
        changes=False,
    ),
    Route(
        "POST",
        "/logout",
        logout,
        Access.VIEWER,
        LoggedOut,
        "End the session",
        keeps_response=False,
        changes=False,
    ),
    Route("GET", f"{PREFIX}/session", show_session, Access.VIEWER, SessionDocument, "Show the caller"),
)
