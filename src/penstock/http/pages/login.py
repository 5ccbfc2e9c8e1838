"""The login page, and the end of a session."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import quote

from pydantic import Field

from penstock.errors import NotAuthenticated, TooManyLogins
from penstock.http.api.sessions import begin_session, end_session
from penstock.http.calls import Call, Reply
from penstock.http.pages.rendering import Page, render
from penstock.http.parameters import Parameter
from penstock.http.routes import PAGE, Access, Route
from penstock.http.schemas.base import Model, Text

_LONGEST_PATH = 2000  # bytes of the page to show after a login: a cookie holds it on the way through the provider
NEXT = Parameter("next", "The path of the page to show after the login.")


class LoginForm(Model):
    """The fields of the login page."""

    token: Text = ""
    next: str = Field(default="/", max_length=4000)


class EmptyForm(Model):
    """A form with a button only."""


def show_login(call: Call) -> Reply:
    """The login page."""
    return _page(call, own_path(call.query["next"]))


def login(call: Call) -> Reply:
    """Begin a session and show the page that the caller wanted."""
    form: LoginForm = call.body
    wanted = own_path(form.next)
    try:
        _, cookie = begin_session(call, form.token.strip())
    except NotAuthenticated as error:
        return _page(call, wanted, str(error), HTTPStatus.UNAUTHORIZED)
    except TooManyLogins as error:
        return _page(call, wanted, str(error), HTTPStatus.TOO_MANY_REQUESTS)
    target = quote(wanted, safe="/?#[]@!$&'()*+,;=:%~")  # a header holds ASCII
    return Reply(media_type=PAGE, status=HTTPStatus.SEE_OTHER, headers={"Location": target, "Set-Cookie": cookie})


def logout(call: Call) -> Reply:
    """End the session and show the login page."""
    _, cookie = end_session(call)
    return Reply(media_type=PAGE, status=HTTPStatus.SEE_OTHER, headers={"Location": "/login", "Set-Cookie": cookie})


def own_path(text: str | None) -> str:
    """A path of this server, without its query if it is long; the overview for anything else, such as an address of
    another site."""
    if not text or text[0] != "/" or text[1:2] in ("/", "\\") or not text.isprintable():
        return "/"
    short = (shown for shown in (text, text.partition("?")[0]) if len(shown.encode()) <= _LONGEST_PATH)
    return next(short, "/")


def _page(call: Call, wanted: str, message: str = "", status: int = HTTPStatus.OK) -> Reply:
    frame = Page("Log in", "")
    has_provider = call.workspace.oidc.is_configured
    return render(call, "login.html", frame, status=status, wanted=wanted, message=message, has_provider=has_provider)


ROUTES = (
    Route("GET", "/login", show_login, Access.PUBLIC, PAGE, "The login page", (NEXT,)),
    Route(
        "POST",
        "/pages/login",
        login,
        Access.PUBLIC,
        PAGE,
        "Begin a session",
        form=LoginForm,
        keeps_response=False,
        changes=False,
    ),
    Route(
        "POST",
        "/pages/logout",
        logout,
        Access.VIEWER,
        PAGE,
        "End the session",
        form=EmptyForm,
        keeps_response=False,
        changes=False,
    ),
)
