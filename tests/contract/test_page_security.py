"""Access to pages and what pages contain, tried for every page of the route table: a new page is tried without a change
here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

import penstock.http.pages
from penstock.app import Workspace
from penstock.control.action_kinds import ActionKind
from penstock.control.select import Selection
from penstock.db import schema
from penstock.http.api.plans import ACTION_ROLES
from penstock.http.pages.login import own_path
from penstock.http.pages.rendering import SECTIONS, environment
from penstock.http.routes import PAGES, Access, Route, all_routes
from penstock.http.security import HEADERS, SESSION_COOKIE
from penstock.partition import new_ulid
from penstock.state.tokens import TokenRole
from support import builders
from support.api import ADDRESS, ORIGIN, bearer, served
from support.builders import everything
from support.console_site import ConsoleHouse, subjects_of
from support.made_secrets import NAMES, SECRETS, facts_of, secretive
from support.page_routes import PAGE_ROUTES, SHOWN, address_of, route_id, shows

FOLDER = Path(str(penstock.http.pages.__file__)).parent
CLOSED = [route for route in PAGE_ROUTES if route.access is not Access.PUBLIC]
UNSAFE = [route for route in CLOSED if route.is_unsafe]
FORMS = [route for route in PAGE_ROUTES if route.form is not None]
ABOVE = [route for route in CLOSED if route.access is not Access.VIEWER]
IN_PATH = [route for route in CLOSED if "{" in route.path]
NO_PAGES = {"__init__", "command_lines", "rendering"}  # modules of the package without routes
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
HOSTILE = """</code><script>alert(1)</script><img src=x onerror=alert(2)>"'{{7*1234567}}&amp;\u202e"""


@pytest.fixture(scope="module")
def house() -> Iterator[ConsoleHouse]:
    with builders.quick_folder() as folder:
        made = ConsoleHouse(Path(folder))
        made.fill()
        yield made
        made.live.close()
        made.workspace.close()


@pytest.fixture(scope="module")
def workspace(house: ConsoleHouse) -> Workspace:
    return house.live


@pytest.fixture(scope="module")
def subjects(house: ConsoleHouse) -> dict[str, str]:
    return subjects_of(house)


@pytest.fixture(scope="module")
def tokens(workspace: Workspace) -> dict[TokenRole, str]:
    return {role: workspace.tokens.create(f"{role}-token", role, actor="ada")[1] for role in TokenRole}


@pytest.fixture(scope="module")
def server(workspace: Workspace, tokens: dict[TokenRole, str]) -> Iterator[TestClient]:
    with served(workspace) as client:
        client.follow_redirects = False
        yield client


@pytest.fixture
def pages(server: TestClient, workspace: Workspace) -> Iterator[TestClient]:
    """A browser without a session, of which no login has failed."""
    server.cookies.clear()
    workspace.context.database.transact(lambda connection: connection.execute(sa.delete(schema.login_failure)))
    yield server
    server.cookies.clear()


@pytest.fixture
def unchanged(workspace: Workspace) -> Iterator[None]:
    """The test changes no row, except what a request itself records: the use of tokens, logins and their failures."""
    recorded = {"api_token", "login_failure", "login_session"}
    before = everything(workspace.context.database)
    yield
    after = everything(workspace.context.database)
    assert {name for name in before if before[name] != after[name]} <= recorded


def log_in(pages: TestClient, token: str) -> tuple[str, str]:
    """Log in and return the cookie and the CSRF token of the session. The client keeps no cookie."""
    response = pages.post("/pages/login", data={"token": token}, headers=ORIGIN)
    assert response.status_code == 303, response.text
    cookie = response.cookies[SESSION_COOKIE]
    pages.cookies.clear()
    shown = pages.get("/", headers=cookie_of(cookie))
    [csrf] = set(re.findall(r'name="csrf_token" value="([^"]+)"', shown.text))
    return cookie, csrf


def cookie_of(value: str) -> dict[str, str]:
    return {"Cookie": f"{SESSION_COOKIE}={value}"}


def send(pages: TestClient, route: Route, subjects: dict[str, str], **options: Any) -> Any:
    if route.is_unsafe and "content" not in options:
        options.setdefault("data", {})
    if not options.get("data"):
        options.setdefault("headers", {})
        if route.is_unsafe:
            options["headers"] = {**FORM, **options["headers"]}
    return pages.request(route.method, address_of(route, subjects), **options)


def error_page(response: Any, status: int) -> str:
    """The text of an error page."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["cache-control"] == "no-store"
    assert f"Status {status} " in response.text
    check_markup(response.text)
    return str(response.text)


class Markup(HTMLParser):
    """Collects whatever the content security policy would refuse, and addresses of other hosts."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._script = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self._script = tag == "script"
        if tag in ("style", "base", "object", "embed", "iframe", "frame"):
            self.found.append(f"<{tag}>")
        if tag == "script" and not values.get("src"):
            self.found.append("an inline script")
        for name, value in attributes:
            if name == "style" or name.startswith(("on", "hx-on")):
                self.found.append(f"<{tag} {name}>")
            if name in ("src", "href", "action", "hx-get", "hx-post") and value:
                address = urlsplit(value)
                if address.scheme or address.netloc:
                    self.found.append(f"<{tag} {name}={value}>")

    def handle_data(self, data: str) -> None:
        if self._script and data.strip():
            self.found.append(f"an inline script: {data[:100]}")
        self._script = False


def check_markup(text: str) -> None:
    markup = Markup()
    markup.feed(text)
    markup.close()
    assert markup.found == []


# --- the table itself -------------------------------------------------------------------------------------------------


def test_every_module_of_pages_is_in_the_table() -> None:
    assert {file.stem for file in FOLDER.glob("*.py")} - NO_PAGES == set(PAGES)


def test_only_these_pages_are_public() -> None:
    public = {route.name for route in all_routes()[-len(_own()) :] if route.access is Access.PUBLIC}
    provider = {"GET /login/oidc", "GET /login/oidc/callback"}
    assert public == {"GET /login", "POST /pages/login", "GET /static/{name}", *provider}


def _own() -> list[Route]:
    """The routes of the modules of pages."""
    return [route for route in all_routes() if route.handler.__module__.startswith("penstock.http.pages.")]


def test_every_form_is_sent_by_an_unsafe_method_and_every_unsafe_page_takes_a_form() -> None:
    assert {route.name for route in _own() if route.form is not None} == {
        route.name for route in _own() if route.is_unsafe
    }


def test_every_route_that_changes_something_needs_more_than_a_viewer() -> None:
    assert [r.name for r in _own() if r.is_unsafe and r.changes and r.access in (Access.VIEWER, Access.PUBLIC)] == []


def test_every_entry_of_the_navigation_that_has_a_module_is_a_page() -> None:
    paths = {route.path for route in SHOWN}
    assert [path for name, path, _ in SECTIONS if name in PAGES and path not in paths] == []


# --- callers without a session, with a wrong token, or with a role below ----------------------------------------------


@pytest.mark.parametrize("route", CLOSED, ids=route_id)
@pytest.mark.usefixtures("unchanged")
def test_without_a_session_the_login_page_follows(pages: TestClient, subjects: dict[str, str], route: Route) -> None:
    for headers in ({}, cookie_of("A" * 43), cookie_of(""), cookie_of("'; DROP TABLE event; --")):
        response = send(pages, route, subjects, headers={**ORIGIN, **headers})
        assert (response.status_code, response.content) == (303, b"")
        target = urlsplit(response.headers["location"])
        assert (target.scheme, target.netloc, target.path) == ("", "", "/login")
        wanted = parse_qs(target.query).get("next", ["/"])
        assert wanted == ["/" if route.is_unsafe else address_of(route, subjects)]
        assert response.headers["cache-control"] == "no-store"
        assert own_path(wanted[0]) == wanted[0]


@pytest.mark.parametrize("route", CLOSED, ids=route_id)
@pytest.mark.usefixtures("unchanged")
def test_a_poll_without_a_session_leads_the_page_to_the_login(
    pages: TestClient, subjects: dict[str, str], route: Route
) -> None:
    headers = {**ORIGIN, "HX-Request": "true", "HX-Current-URL": f"{ADDRESS}/runs?cursor=a%26b"}
    response = send(pages, route, subjects, headers=headers)
    assert (response.status_code, response.content) == (401, b"")
    assert response.headers["hx-redirect"] == "/login?next=%2Fruns%3Fcursor%3Da%2526b"
    for shown in ("https://evil.example//evil.example", "javascript:alert(1)", "http://[", "\\\\evil.example"):
        response = send(pages, route, subjects, headers={**headers, "HX-Current-URL": shown})
        assert response.status_code == 401
        wanted = parse_qs(urlsplit(response.headers["hx-redirect"]).query).get("next", ["/"])[0]
        assert own_path(wanted) == "/"


@pytest.mark.parametrize("route", CLOSED, ids=route_id)
@pytest.mark.usefixtures("unchanged")
def test_a_wrong_token_in_the_header_is_refused(
    pages: TestClient, tokens: dict[TokenRole, str], subjects: dict[str, str], route: Route
) -> None:
    for text in ("nonsense", tokens[TokenRole.ADMIN][:-1] + "!", ""):
        response = send(pages, route, subjects, headers=bearer(text))
        assert "the token is not valid" in error_page(response, 401)
        assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("route", ABOVE, ids=route_id)
@pytest.mark.usefixtures("unchanged")
def test_a_role_below_is_refused(
    pages: TestClient, tokens: dict[TokenRole, str], subjects: dict[str, str], route: Route
) -> None:
    for role in TokenRole:
        if route.access.allows(role):
            continue
        cookie, csrf = log_in(pages, tokens[role])
        options = {"data": {"csrf_token": csrf}} if route.is_unsafe else {}
        response = send(pages, route, subjects, headers={**ORIGIN, **cookie_of(cookie)}, **options)
        assert f"needs the role {route.access}" in error_page(response, 403)
        response = send(pages, route, subjects, headers=bearer(tokens[role]))
        assert f"needs the role {route.access}" in error_page(response, 403)


@pytest.mark.parametrize("act", [act for act in ActionKind if ACTION_ROLES[act] is TokenRole.ADMIN])
@pytest.mark.usefixtures("unchanged")
def test_an_action_needs_its_role_on_pages_as_in_the_api(
    pages: TestClient, tokens: dict[TokenRole, str], act: ActionKind
) -> None:
    response = pages.post("/actions/preview", data={"act": act.value}, headers=bearer(tokens[TokenRole.OPERATOR]))
    assert f"{act} needs the role admin" in error_page(response, 403)


# --- requests of other sites ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", UNSAFE, ids=route_id)
@pytest.mark.usefixtures("unchanged")
def test_forms_of_other_sites_are_refused(
    pages: TestClient, tokens: dict[TokenRole, str], subjects: dict[str, str], route: Route
) -> None:
    cookie, csrf = log_in(pages, tokens[TokenRole.ADMIN])
    _, other_csrf = log_in(pages, tokens[TokenRole.ADMIN])
    assert csrf != other_csrf
    mine, good = {**ORIGIN, **cookie_of(cookie)}, {"csrf_token": csrf}
    for headers, fields in (
        (mine, {}),
        (mine, {"csrf_token": ""}),
        (mine, {"csrf_token": csrf[:-1]}),
        (mine, {"csrf_token": other_csrf}),
        (mine, {"csrf_token": ["wrong", csrf]}),
        (mine, {"CSRF_TOKEN": csrf}),
        ({**mine, "X-CSRF-Token": "wrong"}, good),
        ({**mine, "X-CSRF-Token": ""}, good),
        (cookie_of(cookie), good),
        ({**mine, "Origin": "http://evil.example"}, good),
        ({**mine, "Origin": "null"}, good),
        ({**mine, "Origin": "http://127.0.0.1:8322"}, good),
        ({**mine, "Origin": "http://["}, good),
        ({**mine, "Sec-Fetch-Site": "cross-site"}, good),
        ({**mine, "Sec-Fetch-Site": "same-site"}, good),
    ):
        error_page(send(pages, route, subjects, headers=headers, data=fields), 403)
    body = f"csrf_token={csrf}"  # forms of other kinds, which a browser sends without asking first
    for kind in ("text/plain", "multipart/form-data; boundary=x", "application/json", ""):
        response = send(pages, route, subjects, headers={**mine, "Content-Type": kind}, content=body)
        error_page(response, 403)
    assert pages.get("/", headers=cookie_of(cookie)).status_code == 200, "the session goes on"


def test_a_login_from_another_site_is_refused(pages: TestClient, tokens: dict[TokenRole, str]) -> None:
    for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        response = pages.post("/pages/login", data={"token": tokens[TokenRole.VIEWER]}, headers=headers)
        error_page(response, 403)
        assert "set-cookie" not in response.headers


def test_a_login_makes_a_new_session_and_ends_the_one_before(pages: TestClient, tokens: dict[TokenRole, str]) -> None:
    """Session fixation: a cookie that an attacker has planted never becomes a session."""
    planted = "A" * 43
    before = planted
    for _ in range(2):
        response = pages.post(
            "/pages/login", data={"token": tokens[TokenRole.VIEWER]}, headers={**ORIGIN, **cookie_of(before)}
        )
        mine = response.cookies[SESSION_COOKIE]
        pages.cookies.clear()
        assert mine != before
        assert pages.get("/", headers=cookie_of(before)).status_code == 303
        assert pages.get("/", headers=cookie_of(mine)).status_code == 200
        before = mine
    attributes = {part.strip().lower() for part in response.headers["set-cookie"].split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= attributes


ELSEWHERE = [
    "//evil.example", "///evil.example", "/\\evil.example", "\\\\evil.example", "https://evil.example", "evil.example",
    "javascript:alert(1)", "data:text/html,x", "/\t/evil.example", "/\n/evil.example", "\t//evil.example",
    "@evil.example", "/a\r\nSet-Cookie: x=y", "/\x7f", " //evil.example", "/\u2028/evil.example", "/\u202e", "",
    ".evil.example", "?next=//evil.example",
]  # fmt: skip


@pytest.mark.parametrize("wanted", ELSEWHERE, ids=[ascii(text) for text in ELSEWHERE])
def test_a_login_leads_to_no_other_site(pages: TestClient, tokens: dict[TokenRole, str], wanted: str) -> None:
    shown = pages.get("/login", params={"next": wanted})
    assert shown.status_code == 200
    assert '<input type="hidden" name="next" value="/">' in shown.text
    fields = {"token": tokens[TokenRole.VIEWER], "next": wanted}
    response = pages.post("/pages/login", data=fields, headers=ORIGIN)
    assert (response.status_code, response.headers["location"]) == (303, "/")
    assert [name for name, _ in response.headers.multi_items()].count("set-cookie") == 1
    refused = pages.post("/pages/login", data={**fields, "token": "wrong"}, headers=ORIGIN)
    assert '<input type="hidden" name="next" value="/">' in refused.text


OWN = [
    "/",
    "/runs?cursor=a",
    "/partitions/demo/1/q/2024-06-01#x",
    "/é?q=ü",
    "/a//b",
    "/actions/new?act=retry&customer=1",
]


@pytest.mark.parametrize("wanted", OWN, ids=ascii)
def test_a_login_leads_back_to_a_page_of_this_server(
    pages: TestClient, tokens: dict[TokenRole, str], wanted: str
) -> None:
    fields = {"token": tokens[TokenRole.VIEWER], "next": wanted}
    response = pages.post("/pages/login", data=fields, headers=ORIGIN)
    assert response.status_code == 303
    assert response.headers["location"] in (wanted, quote(wanted, safe="/?#=&%"))


# --- what pages contain -----------------------------------------------------------------------------------------------


def test_every_response_has_the_security_headers(
    pages: TestClient, tokens: dict[TokenRole, str], subjects: dict[str, str]
) -> None:
    admin = bearer(tokens[TokenRole.ADMIN])
    answers = [send(pages, route, subjects, headers=admin) for route in PAGE_ROUTES]
    answers += [send(pages, route, subjects, headers=ORIGIN) for route in PAGE_ROUTES]
    answers += [pages.get(path, headers={"Accept": "text/html"}) for path in ("/nothing", "/actions/x", "/static/x")]
    answers += [pages.get("/static/console.js"), pages.put("/login"), pages.get("/pages/login")]
    for response in answers:
        assert {name: response.headers.get(name) for name in HEADERS} == HEADERS
    assert HEADERS["X-Content-Type-Options"] == "nosniff"
    assert HEADERS["X-Frame-Options"] == "DENY"
    assert HEADERS["Referrer-Policy"] in ("same-origin", "no-referrer")
    assert HEADERS["Cross-Origin-Opener-Policy"] == "same-origin"
    policy = HEADERS["Content-Security-Policy"]
    for rule in ("default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'"):
        assert rule in policy
    for rule in ("unsafe", "data:", "*", "http"):
        assert rule not in policy


@pytest.mark.parametrize("route", SHOWN, ids=route_id)
def test_a_page_has_no_inline_script_or_style_and_loads_nothing_from_elsewhere(
    pages: TestClient, tokens: dict[TokenRole, str], subjects: dict[str, str], route: Route
) -> None:
    for role in TokenRole:
        response = send(pages, route, subjects, headers=bearer(tokens[role]))
        assert response.status_code == (200 if shows(route, role) else 403), response.text
        assert response.headers["content-type"] == "text/html; charset=utf-8"
        assert response.text.startswith("<!doctype html>")
        check_markup(response.text)


TEMPLATES = sorted(path.name for path in (FOLDER / "templates").iterdir())


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_has_no_inline_script_or_style_and_turns_escaping_nowhere_off(name: str) -> None:
    source = (FOLDER / "templates" / name).read_text()
    assert re.findall(r"\|\s*safe\b|autoescape|Markup", source) == []
    text = re.sub(r"\{[{%#].*?[}%#]\}", "", source, flags=re.DOTALL)  # without the code of the template
    assert re.findall(r"<style|\sstyle\s*=|\son[a-z]+\s*=|hx-on|<script(?![^>]*\ssrc=)|javascript:", text) == []
    assert re.findall(r"<script[^>]*>\s*[^<\s]", text) == []
    assert environment().autoescape is True


SCRIPTS = sorted(path.name for path in (FOLDER / "static").glob("*.js") if ".min." not in path.name)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_writes_no_markup_and_evaluates_no_text(name: str) -> None:
    text = (FOLDER / "static" / name).read_text()
    refused = (
        r"innerHTML|outerHTML\s*=|insertAdjacentHTML|document\.write|\beval\(|new Function|https?://(?!www\.w3\.org)"
    )
    assert re.findall(refused, text) == []


def test_markup_that_the_policy_refuses_is_noticed() -> None:
    for text in (
        "<script>1</script>",
        "<p style='color: red'>",
        "<p onclick='x()'>",
        "<style></style>",
        "<script src='https://evil.example/x.js'></script>",
        "<a href='javascript:x'>",
    ):
        with pytest.raises(AssertionError):
            check_markup(text)


def test_hostile_texts_are_escaped_wherever_they_are_shown(
    pages: TestClient, house: ConsoleHouse, tokens: dict[TokenRole, str], subjects: dict[str, str]
) -> None:
    """A reason in the preview, the result and the log; a parameter in an error; a token's name in the frame."""
    live = house.live
    cookie, csrf = log_in(pages, tokens[TokenRole.OPERATOR])
    mine = {**ORIGIN, **cookie_of(cookie)}
    key = str(house.unused())
    fields = {"csrf_token": csrf, "act": "pause", "key": key, "reason": HOSTILE}
    preview = pages.post("/actions/preview", data=fields, headers=mine)
    assert preview.status_code == 200
    [token] = set(re.findall(r"/actions/([0-9A-Z]{26})/apply", preview.text))
    applied = pages.post(f"/actions/{token}/apply", data={"csrf_token": csrf}, headers=mine)
    assert (applied.status_code, applied.headers["location"]) == (303, f"/actions/{token}")
    live.operations.mark_terminal([house.key(2, 1)], actor=HOSTILE[:60], reason=HOSTILE)
    live.backfills.create(live.backfills.plan(Selection(keys=(house.unused(),)), actor=HOSTILE[:60]), Selection())
    shown = [preview, pages.get(f"/actions/{token}", headers=mine)]
    shown += [send(pages, route, subjects, headers=mine) for route in SHOWN]
    shown += [
        pages.get("/login", params={"next": f"/{HOSTILE}"}),
        pages.get("/actions/new", params={"act": "retry", "reason": HOSTILE, "key": HOSTILE}, headers=mine),
        pages.get("/actions/new", params={"act": HOSTILE}, headers=mine),
        pages.get("/actions/new", params={HOSTILE: "x"}, headers=mine),
        pages.get(f"/{quote(HOSTILE)}", headers={**mine, "Accept": "text/html"}),
        pages.post("/actions/preview", data={**fields, "key": HOSTILE}, headers=mine),
        pages.post("/actions/preview", data={**fields, HOSTILE: "x"}, headers=mine),
        pages.post("/pages/login", data={"token": HOSTILE, "next": f"/{HOSTILE}"}, headers=ORIGIN),
        pages.post("/pages/logout", data={"csrf_token": csrf}, headers={**mine, "Origin": f"http://{HOSTILE[:-1]}"}),
    ]
    for response in shown:
        assert response.status_code < 500, response.text
        check_markup(response.text)
        assert "<script>alert" not in response.text
        assert "<img src=x" not in response.text
        assert "8641969" not in response.text
    assert "&lt;script&gt;alert(1)" in preview.text
    overview = pages.get("/", headers=mine).text
    assert "&lt;/code&gt;&lt;script&gt;" in overview, "the actor of the log is on the overview"


# --- input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", FORMS, ids=route_id)
@pytest.mark.usefixtures("unchanged")
def test_a_form_that_is_none_of_ours_is_refused(
    pages: TestClient, tokens: dict[TokenRole, str], subjects: dict[str, str], route: Route
) -> None:
    headers = {**bearer(tokens[TokenRole.ADMIN]), **ORIGIN}
    urlencoded = {**headers, **FORM}
    name = next(iter(route.form.model_fields), "x") if route.form else "x"
    for content, message in (
        (b"colour=red", "colour"),
        (f"{name}=a%00b".encode(), "NUL"),
        (b"%00=b", "form is not valid"),
        (f"{name}=%ff%fe".encode(), "no UTF-8"),
        (b"\xff\xfe=1", "no UTF-8"),
        (b"&".join(b"x=1" for _ in range(20_001)), "too many fields"),
    ):
        response = send(pages, route, subjects, headers=urlencoded, content=content)
        assert message in error_page(response, 400), content[:100]
    once = (
        [n for n, field in route.form.model_fields.items() if "list" not in str(field.annotation)] if route.form else []
    )
    for field in once[:2]:
        response = send(pages, route, subjects, headers=urlencoded, content=f"{field}=a&{field}=b".encode())
        assert f"the field {field} is given twice" in error_page(response, 400)
    for kind in ("application/json", "multipart/form-data; boundary=x", "text/plain", ""):
        response = send(pages, route, subjects, headers={**headers, "Content-Type": kind}, content=b"{}")
        assert "application/x-www-form-urlencoded" in error_page(response, 415)


@pytest.mark.parametrize("route", FORMS, ids=route_id)
@pytest.mark.usefixtures("unchanged")
def test_an_oversized_form_is_refused(
    pages: TestClient, tokens: dict[TokenRole, str], subjects: dict[str, str], route: Route
) -> None:
    headers = {**bearer(tokens[TokenRole.ADMIN]), **ORIGIN, "Accept": "text/html"}
    large = b"x=" + b"a" * 1024 * 1024
    urlencoded = {**headers, **FORM}
    error_page(send(pages, route, subjects, headers=urlencoded, content=large), 413)


@pytest.mark.parametrize(
    "fields",
    [
        {"act": "retry", "reason": "r" * 1001},
        {"act": "retry", "key": "k" * 5000},
        {"act": "nothing"},
        {},
        {"act": "retry", "since": "yesterday"},
        {"act": "retry", "since": "2024-06-02", "until": "2024-06-01"},
        {"act": "retry", "status": "FAILED' OR 1=1"},
        {"act": "backfill", "chunk_size": "0"},
        {"act": "backfill", "chunk_size": "9" * 5000},
        {"act": "retry", "reprocess": "maybe"},
        {"act": "retry", "customer": "1' OR '1'='1"},
        {"act": "retry", "source": "../../etc/passwd"},
        {"act": "demote", "key": "demo/1/2", "reason": "x"},
        {"act": "rollback", "key": "demo/1000000001/campaign_daily/2024-06-01", "run_id": "'; --"},
        {"act": "compact", "table": "nothing; DROP TABLE event"},
        {"act": "retry", "reason": "   "},
    ],
    ids=lambda fields: " ".join(f"{name}={value[:20]}" for name, value in fields.items()) or "nothing",
)
@pytest.mark.usefixtures("unchanged")
def test_values_that_no_action_takes_are_refused_with_a_page(
    pages: TestClient, tokens: dict[TokenRole, str], fields: dict[str, str]
) -> None:
    headers = {**bearer(tokens[TokenRole.ADMIN]), **FORM}
    response = pages.post("/actions/preview", content=urlencode(fields), headers=headers)
    assert response.status_code in (400, 409), response.text
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert 'role="alert"' in response.text
    check_markup(response.text)


@pytest.mark.parametrize("route", IN_PATH, ids=route_id)
@pytest.mark.usefixtures("unchanged")
def test_a_part_of_a_path_that_names_nothing_shows_an_error_page(
    pages: TestClient, tokens: dict[TokenRole, str], subjects: dict[str, str], route: Route
) -> None:
    admin = {**bearer(tokens[TokenRole.ADMIN]), "Accept": "text/html"}
    for parameter in route.parameters:
        if parameter.place != "path":
            continue
        assert parameter.pattern is not None, f"{route.name}: {parameter.name} has no pattern"
        for text, statuses in (
            ("<script>alert(1)</script>", (400, 404)),
            ("a%00", (400, 404)),
            ("A%0A", (400, 404)),
            ("..%2f..%2fetc%2fpasswd", (400, 404)),
            ("%27%20OR%201=1", (400, 404)),
            ("%ff", (400, 404)),
            ("a" * 5000, (400, 404)),
            (new_ulid(), (400, 404)),
        ):
            values = {**subjects, parameter.name: text}
            response = send(pages, route, values, headers=admin)
            assert response.status_code in statuses, (text[:100], response.status_code)
            assert "<script>alert" not in error_page(response, response.status_code)


@pytest.mark.parametrize("route", [route for route in SHOWN if route.parameters], ids=route_id)
@pytest.mark.usefixtures("unchanged")
def test_hostile_parameters_are_refused_or_escaped(
    pages: TestClient, tokens: dict[TokenRole, str], subjects: dict[str, str], route: Route
) -> None:
    admin = bearer(tokens[TokenRole.ADMIN])
    base = address_of(route, subjects)
    joined = "&" if "?" in base else "?"
    for parameter in route.parameters:
        if parameter.place != "query" or f"{parameter.name}=" in base:
            continue
        for text in (
            "<script>alert(1)</script>",
            "' OR '1'='1",
            "a\x00b",
            "../../etc/passwd",
            "x" * 3000,
            "\ufffe",
            "-1",
        ):
            response = pages.get(f"{base}{joined}{parameter.name}={quote(text)}", headers=admin)
            assert response.status_code < 500, (parameter.name, text[:50], response.text)
            assert response.headers["content-type"] == "text/html; charset=utf-8"
            assert "<script>alert" not in response.text
            check_markup(response.text)


# --- servers without tokens, and servers that only read ---------------------------------------------------------------


@pytest.mark.parametrize("route", UNSAFE, ids=route_id)
@pytest.mark.usefixtures("unchanged")
def test_a_server_that_only_reads_changes_nothing(
    workspace: Workspace, tokens: dict[TokenRole, str], subjects: dict[str, str], route: Route
) -> None:
    with served(workspace, read_only=True) as reading:
        reading.follow_redirects = False
        response = send(reading, route, subjects, headers=bearer(tokens[TokenRole.ADMIN]))
        if route.changes:
            assert "--read-only" in error_page(response, 403)
        else:
            assert response.status_code < 500


def test_without_tokens_pages_are_for_the_local_user_only(tmp_path: Path) -> None:
    made = ConsoleHouse(tmp_path)
    made.fill()
    subjects = subjects_of(made)
    with served(made.live) as pages:
        pages.follow_redirects = False
        for route in CLOSED:
            error_page(send(pages, route, subjects, headers={"Host": "evil.example"}), 403)
            if route.is_unsafe:
                for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
                    error_page(send(pages, route, subjects, headers={**FORM, **headers}), 403)
            else:
                assert send(pages, route, subjects).status_code == 200
    with served(made.live, is_local=False) as remote:
        remote.follow_redirects = False
        for route in CLOSED:
            assert send(remote, route, subjects).status_code == 303
    made.live.close()
    made.workspace.close()


def test_no_page_and_no_log_holds_a_secret(
    house: ConsoleHouse,
    workspace: Workspace,
    tokens: dict[TokenRole, str],
    subjects: dict[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    secrets = [*tokens.values(), *(token.secret_hash for token in workspace.tokens.all()), *SECRETS.values()]
    with caplog.at_level("DEBUG"), secretive(house.folder) as opened, served(opened) as site:
        site.follow_redirects = False
        cookie, _ = log_in(site, tokens[TokenRole.ADMIN])
        shown = {route.name: send(site, route, subjects, headers=cookie_of(cookie)) for route in SHOWN}
        assert {response.status_code for response in shown.values()} == {200}
        assert set(re.findall(r"\w+", shown["GET /sources"].text)) >= NAMES  # the page shows the source
        texts = [response.text for response in shown.values()]
        for path in ("/login/oidc", "/login/oidc/callback?code=x&state=y"):
            texts.append(site.get(path).text)  # the provider does not respond
        for field in ("token", "next"):
            fields = {"token": "wrong", field: f"{tokens[TokenRole.VIEWER]}x"}
            texts.append(site.post("/pages/login", data=fields, headers=ORIGIN).text)
    everywhere = "\n".join([*texts, caplog.text, *facts_of(caplog.records)])
    assert [secret for secret in [*secrets, cookie] if secret in everywhere] == []
