"""Access to the HTTP API, tried for every route of the table: a new route is tried without a change here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from penstock.app import Workspace, load_workspace
from penstock.app.context import os_user
from penstock.control.action_kinds import OPTIONS, ActionKind
from penstock.db import schema
from penstock.errors import UsageError
from penstock.http.api.orders import ORDER_ROLES
from penstock.http.api.plans import ACTION_ROLES
from penstock.http.application import make_application
from penstock.http.routes import PREFIX, RESOURCES, Access, Route, api_routes
from penstock.http.security import HEADERS, SESSION_COOKIE
from penstock.http.server import ServerOptions, refuse_open_address
from penstock.partition import new_ulid
from penstock.state.logins import MAX_FAILURES
from penstock.state.orders import OrderKind
from penstock.state.tokens import TokenRole
from support import builders
from support.api import ADDRESS, ORIGIN, bearer, problem, served
from support.builders import everything
from support.harness import Harness
from support.made_secrets import CHANNEL, NAMES, SECRETS, facts_of, secretive
from support.workspaces import key

ROUTES = api_routes()
CLOSED = [route for route in ROUTES if route.access is not Access.PUBLIC]
UNSAFE = [route for route in CLOSED if route.is_unsafe]
ORDER = ["viewer", "operator", "admin"]
# A valid body for each route that takes one.
BODIES: dict[str, dict[str, Any]] = {
    f"POST {PREFIX}/runs": {"reason": "go"},
    f"POST {PREFIX}/orders": {"kind": "run"},
    f"POST {PREFIX}/plans": {"act": "pause"},
    f"POST {PREFIX}/plans/{{token}}/apply": {},
    f"POST {PREFIX}/tokens": {"name": "new", "role": "viewer"},
    "POST /login": {"token": "nothing"},
}


@pytest.fixture(scope="module")
def house() -> Iterator[Harness]:
    with builders.quick_folder() as folder:
        made = Harness(Path(folder))
        made.deliver({key(1): 1})
        yield made
        made.workspace.close()


@pytest.fixture(scope="module")
def workspace(house: Harness) -> Workspace:
    return house.workspace


@pytest.fixture(scope="module")
def tokens(workspace: Workspace) -> dict[TokenRole, str]:
    return {role: workspace.tokens.create(f"{role}-token", role, actor="ada")[1] for role in TokenRole}


@pytest.fixture(scope="module")
def api(workspace: Workspace, tokens: dict[TokenRole, str]) -> Iterator[TestClient]:
    with served(workspace) as client:
        yield client


@pytest.fixture
def unchanged(workspace: Workspace) -> Iterator[None]:
    """The test changes no row, except what a request itself records: the use of tokens, and counts of failures."""
    recorded = {"api_token", "login_failure", "login_session"}
    before = everything(workspace.context.database)
    yield
    after = everything(workspace.context.database)
    assert {name for name in before if before[name] != after[name]} <= recorded


def path_of(route: Route) -> str:
    """A path of the route, with plausible values."""
    values = {**key(1)._asdict(), "name": "demo.campaign_daily"}
    return re.sub(r"\{(\w+)\}", lambda found: str(values.get(found[1], new_ulid())), route.path)


def send(api: TestClient, route: Route, **options: Any) -> Any:
    options.setdefault("json", BODIES.get(route.name))
    if options["json"] is None:
        del options["json"]
    path = path_of(route) + ("?query=campaign_daily" if "/grid" in route.path else "")
    return api.request(route.method, path, **options)


def cookie_of(value: str) -> dict[str, str]:
    return {"Cookie": f"{SESSION_COOKIE}={value}"}


def named(value: Route | TokenRole) -> str:
    return value.name if isinstance(value, Route) else value.value


# --- the table itself -------------------------------------------------------------------------------------------------


def test_a_route_cannot_be_declared_without_a_role() -> None:
    assert "access" in [field.name for field in fields(Route)][:6]
    with pytest.raises(TypeError, match="access"):
        Route("GET", "/x", lambda call: call, response="text/plain", summary="x")  # type: ignore


def test_every_module_of_routes_is_in_the_table() -> None:
    import penstock.http.api

    files = {file.stem for file in Path(str(penstock.http.api.__file__)).parent.glob("*.py")} - {"__init__"}
    assert files == set(RESOURCES)


def test_only_these_routes_are_public() -> None:
    assert {route.name for route in ROUTES if route.access is Access.PUBLIC} == {
        "GET /health/live",
        "GET /health/ready",
        f"GET {PREFIX}/openapi.json",
        "POST /login",
    }


def test_every_unsafe_route_needs_more_than_a_viewer() -> None:
    assert {route.name for route in UNSAFE if route.access is Access.VIEWER} == {"POST /logout"}
    assert {route.name for route in ROUTES if "tokens" in route.path and route.access is not Access.ADMIN} == set()


def test_every_route_with_a_body_is_tried() -> None:
    assert {route.name for route in ROUTES if route.body is not None} == set(BODIES)


def test_every_action_and_every_order_has_a_role() -> None:
    assert set(ACTION_ROLES) == set(ActionKind)
    assert set(ORDER_ROLES) == set(OrderKind)
    admins = {"demote", "rollback", "approve", "validate", "reconcile", "compact"}
    assert {str(act) for act, role in ACTION_ROLES.items() if role is TokenRole.ADMIN} == admins
    assert TokenRole.VIEWER not in {*ACTION_ROLES.values(), *ORDER_ROLES.values()}


# --- tokens and roles -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", CLOSED, ids=named)
@pytest.mark.usefixtures("unchanged")
def test_without_a_token_nothing_is_shown_and_nothing_changes(api: TestClient, route: Route) -> None:
    response = send(api, route)
    problem(response, 401)
    assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("route", CLOSED, ids=named)
@pytest.mark.usefixtures("unchanged")
def test_wrong_tokens_are_refused(api: TestClient, tokens: dict[TokenRole, str], route: Route) -> None:
    good = tokens[TokenRole.ADMIN]
    for wrong in ("", good[:-1], good[:-1] + "!", good.replace("penstock_", "p_"), f"{good} {good}", "' OR 1=1 --"):
        problem(send(api, route, headers=bearer(wrong)), 401)
    problem(send(api, route, headers={"Authorization": good}), 401)
    problem(send(api, route, headers={"Authorization": f"Basic {good}"}), 401)
    problem(send(api, route, headers=cookie_of(good)), 401)


@pytest.mark.parametrize(
    ("route", "role"),
    [(route, role) for route in CLOSED for role in TokenRole if ORDER.index(role) < ORDER.index(route.access)],
    ids=named,
)
@pytest.mark.usefixtures("unchanged")
def test_a_role_below_that_of_the_route_is_refused(
    api: TestClient, tokens: dict[TokenRole, str], route: Route, role: TokenRole
) -> None:
    detail = problem(send(api, route, headers=bearer(tokens[role])), 403)
    assert f"needs the role {route.access}" in detail
    assert f"{role}-token" in detail


@pytest.mark.parametrize("route", CLOSED, ids=named)
def test_the_role_of_the_route_is_enough(api: TestClient, tokens: dict[TokenRole, str], route: Route) -> None:
    response = send(api, route, headers=bearer(tokens[TokenRole(route.access.value)]))
    assert response.status_code not in (401, 403, 500), response.text


def body_of(act: ActionKind) -> dict[str, Any]:
    ids = {"run_id": new_ulid(), "backfill_id": new_ulid(), "source": "demo", "tables": ["demo.campaign_daily"]}
    chosen = {name: ids[name] for name in OPTIONS.get(act, ()) if name in ids}
    return {"act": act, "selection": {"keys": [str(key(1))]}, "reason": "x", **chosen}


@pytest.mark.parametrize("act", ActionKind)
def test_an_action_needs_its_role_to_be_previewed_and_to_be_applied(
    api: TestClient, workspace: Workspace, tokens: dict[TokenRole, str], act: ActionKind
) -> None:
    needed = ACTION_ROLES[act]
    operator = bearer(tokens[TokenRole.OPERATOR])
    response = api.post(f"{PREFIX}/plans", json=body_of(act), headers=operator)
    if needed is TokenRole.ADMIN:
        assert f"{act} needs the role admin" in problem(response, 403)
        plan, _ = workspace.actions.preview("pause", actor="operator-token")
        table = schema.action_plan
        workspace.context.database.transact(
            lambda c: c.execute(table.update().where(table.c.token == plan.token).values(act=act.value))
        )
        applied = api.post(f"{PREFIX}/plans/{plan.token}/apply", json={}, headers=operator)
        assert f"{act} needs the role admin" in problem(applied, 403)
    else:
        assert response.status_code not in (401, 403, 500), response.text
    viewer = api.post(f"{PREFIX}/plans", json=body_of(act), headers=bearer(tokens[TokenRole.VIEWER]))
    problem(viewer, 403)


@pytest.mark.parametrize("kind", OrderKind)
def test_an_order_needs_its_role(api: TestClient, tokens: dict[TokenRole, str], kind: OrderKind) -> None:
    response = api.post(f"{PREFIX}/orders", json={"kind": kind}, headers=bearer(tokens[TokenRole.OPERATOR]))
    if ORDER_ROLES[kind] is TokenRole.ADMIN:
        assert "needs the role admin" in problem(response, 403)
    else:
        assert response.status_code in (202, 400)


def test_the_actor_is_the_name_of_the_token_and_no_parameter(api: TestClient, tokens: dict[TokenRole, str]) -> None:
    operator = bearer(tokens[TokenRole.OPERATOR])
    assert "actor: Extra inputs" in problem(api.post(f"{PREFIX}/runs", json={"actor": "boss"}, headers=operator), 400)
    order = api.post(f"{PREFIX}/runs", json={}, headers={**operator, "X-Actor": "boss"}).json()
    assert order["actor"] == "operator-token"
    newest = api.get(f"{PREFIX}/audit?limit=1", headers=operator).json()["items"][0]
    assert (newest["actor"], newest["command"]) == ("operator-token", "orders create")


def test_a_plan_of_another_token_is_not_applied(api: TestClient, tokens: dict[TokenRole, str]) -> None:
    made = api.post(f"{PREFIX}/plans", json={"act": "pause"}, headers=bearer(tokens[TokenRole.OPERATOR])).json()
    path = f"{PREFIX}/plans/{made['token']}/apply"
    assert "was made by operator-token" in problem(
        api.post(path, json={}, headers=bearer(tokens[TokenRole.ADMIN])), 403
    )


def test_a_revoked_token_and_its_sessions_are_refused_at_once(api: TestClient, tokens: dict[TokenRole, str]) -> None:
    admin = bearer(tokens[TokenRole.ADMIN])
    made = api.post(f"{PREFIX}/tokens", json={"name": "brief", "role": "viewer"}, headers=admin)
    assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
    text = made.json()["token"]
    assert api.get(f"{PREFIX}/session", headers=bearer(text)).json()["name"] == "brief"
    cookie = cookie_of(api.post("/login", json={"token": text}).cookies[SESSION_COOKIE])
    api.cookies.clear()
    assert api.get(f"{PREFIX}/session", headers=cookie).json()["name"] == "brief"
    assert api.delete(f"{PREFIX}/tokens/brief", headers=admin).json() == {"name": "brief", "changed": 1}
    problem(api.get(f"{PREFIX}/session", headers=bearer(text)), 401)
    assert "the session is over" in problem(api.get(f"{PREFIX}/session", headers=cookie), 401)
    assert text not in api.get(f"{PREFIX}/tokens", headers=admin).text


def test_a_response_with_a_secret_is_never_stored(
    api: TestClient, workspace: Workspace, tokens: dict[TokenRole, str]
) -> None:
    headers = {**bearer(tokens[TokenRole.ADMIN]), "Idempotency-Key": "k"}
    response = api.post(f"{PREFIX}/tokens", json={"name": "kept", "role": "viewer"}, headers=headers)
    assert "takes no Idempotency-Key" in problem(response, 400)
    assert "kept" not in {token.name for token in workspace.tokens.all()}


# --- sessions ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def session(api: TestClient, tokens: dict[TokenRole, str]) -> Iterator[dict[str, Any]]:
    """A session of an operator: its cookie is in the client."""
    response = api.post("/login", json={"token": tokens[TokenRole.OPERATOR]}, headers=ORIGIN)
    assert response.status_code == 200
    yield {**response.json(), "header": response.headers["set-cookie"]}
    api.cookies.clear()


def test_the_cookie_of_a_session_is_out_of_reach_of_scripts_and_other_sites(session: dict[str, Any]) -> None:
    attributes = {part.strip().lower() for part in session["header"].split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= attributes
    assert any(part.startswith("max-age=") for part in attributes)
    assert "secure" not in attributes  # the test speaks plain HTTP; acceptance tests try TLS


def test_a_session_reads_and_acts_with_its_csrf_token(api: TestClient, session: dict[str, Any]) -> None:
    shown = api.get(f"{PREFIX}/session").json()
    assert (shown["name"], shown["role"], shown["csrf_token"]) == ("operator-token", "operator", session["csrf_token"])
    headers = {**ORIGIN, "X-CSRF-Token": session["csrf_token"]}
    assert api.post(f"{PREFIX}/runs", json={}, headers=headers).json()["actor"] == "operator-token"


@pytest.mark.parametrize("route", UNSAFE, ids=named)
@pytest.mark.usefixtures("unchanged")
def test_unsafe_requests_of_other_sites_are_refused(api: TestClient, session: dict[str, Any], route: Route) -> None:
    good = {**ORIGIN, "X-CSRF-Token": session["csrf_token"]}
    for headers in (
        {},
        ORIGIN,
        {"X-CSRF-Token": session["csrf_token"]},
        {**good, "Origin": "http://evil.example"},
        {**good, "Origin": "null"},
        {**good, "Origin": "http://["},
        {**good, "Origin": "http://[::1"},
        {**good, "Origin": "http://127.0.0.1:8322"},
        {**good, "Origin": "ftp://127.0.0.1:8321"},
        {**good, "Origin": "//127.0.0.1:8321"},
        {**good, "Origin": "http://127.0.0.1.evil.example:8321"},
        {**good, "X-CSRF-Token": session["csrf_token"][:-1]},
        {**good, "X-CSRF-Token": ""},
        {**good, "Sec-Fetch-Site": "cross-site"},
        {**good, "Sec-Fetch-Site": "same-site"},
    ):
        problem(send(api, route, headers=headers), 403)


def test_a_token_in_the_header_needs_no_csrf_token(api: TestClient, tokens: dict[TokenRole, str]) -> None:
    headers = {**bearer(tokens[TokenRole.OPERATOR]), "Origin": "https://tools.example"}
    assert api.post(f"{PREFIX}/runs", json={}, headers=headers).status_code == 202


def test_a_login_from_another_site_is_refused(api: TestClient, tokens: dict[TokenRole, str]) -> None:
    for origin in ("http://evil.example", "http://["):
        headers = {"Origin": origin}
        problem(api.post("/login", json={"token": tokens[TokenRole.VIEWER]}, headers=headers), 403)


def test_an_origin_has_the_scheme_of_the_server(tmp_path: Path) -> None:
    """`http://penstock.example.com` is another site than `https://penstock.example.com`. A proxy may add TLS, and then
    `console.url` says so."""
    made = Harness(tmp_path)
    settings = tmp_path / "penstock.yaml"
    settings.write_text(settings.read_text() + "\nconsole: {url: https://penstock.example.com}\n")
    made.workspace.close()
    workspace = load_workspace(tmp_path)
    token = workspace.tokens.create("kim", "viewer")[1]
    app = make_application(workspace, workspace.context.workers.register())

    def status(connection: str, host: str, origin: str) -> int:
        with TestClient(app, base_url=f"{connection}://{host}") as client:
            return client.post("/login", json={"token": token}, headers={"Origin": origin}).status_code

    assert status("https", "a.example", "https://a.example") == 200
    assert status("https", "a.example", "http://a.example") == 403
    assert status("http", "penstock.example.com", "https://penstock.example.com") == 200
    assert status("http", "penstock.example.com", "http://penstock.example.com") == 403
    assert status("http", "127.0.0.1:8321", "http://127.0.0.1:8321") == 200  # beside the proxy
    assert status("http", "b.example", "https://b.example") == 200  # behind another proxy
    workspace.close()


def test_a_login_makes_a_new_session_and_ends_the_one_before(api: TestClient, tokens: dict[TokenRole, str]) -> None:
    """Session fixation: a cookie that an attacker has planted never becomes a session."""
    planted = "A" * 43
    api.cookies.set(SESSION_COOKIE, planted)
    first = api.post("/login", json={"token": tokens[TokenRole.VIEWER]}, headers=ORIGIN).cookies[SESSION_COOKIE]
    assert first != planted
    api.cookies.clear()
    problem(api.get(f"{PREFIX}/session", headers=cookie_of(planted)), 401)
    api.cookies.set(SESSION_COOKIE, first)
    second = api.post("/login", json={"token": tokens[TokenRole.VIEWER]}, headers=ORIGIN).cookies[SESSION_COOKIE]
    assert second != first
    api.cookies.clear()
    problem(api.get(f"{PREFIX}/session", headers=cookie_of(first)), 401)
    assert api.get(f"{PREFIX}/session", headers=cookie_of(second)).status_code == 200


def test_logout_ends_the_session_in_the_server(api: TestClient, session: dict[str, Any]) -> None:
    cookie = api.cookies[SESSION_COOKIE]
    headers = {**ORIGIN, "X-CSRF-Token": session["csrf_token"]}
    response = api.post("/logout", headers=headers)
    assert response.json() == {"ended": True}
    assert "Max-Age=0" in response.headers["set-cookie"]
    api.cookies.clear()
    problem(api.get(f"{PREFIX}/session", headers=cookie_of(cookie)), 401)


def test_failed_logins_are_limited(house: Harness, tmp_path: Path) -> None:
    made = Harness(tmp_path)
    _, text = made.workspace.tokens.create("kim", "viewer")
    with served(made.workspace) as api, served(made.workspace) as other_instance:
        for number in range(MAX_FAILURES):
            problem((api, other_instance)[number % 2].post("/login", json={"token": "wrong"}), 401)
        response = api.post("/login", json={"token": text})
        assert "too many failed logins" in problem(response, 429)
        assert int(response.headers["retry-after"]) > 0
        assert other_instance.post("/login", json={"token": text}).status_code == 429
        assert api.get(f"{PREFIX}/session", headers=bearer(text)).status_code == 200
    made.workspace.close()


# --- servers without tokens, and servers that only read ---------------------------------------------------------------


def test_without_tokens_only_a_local_user_is_served(tmp_path: Path) -> None:
    made = Harness(tmp_path)
    with served(made.workspace) as api:
        assert api.get(f"{PREFIX}/session").json()["name"] == os_user()
        assert api.post(f"{PREFIX}/runs", json={}).json()["actor"] == os_user()
        for host in ("evil.example", "127.0.0.1.evil.example:8321", "10.0.0.1:8321", "", "[", "[::1", "]:80", "a b"):
            problem(api.get(f"{PREFIX}/status", headers={"Host": host}), 403)
        problem(api.get("/nothing", headers={"Host": "["}), 404)
        for host in ("localhost:9000", "[::1]:8321", "127.0.0.1"):
            assert api.get(f"{PREFIX}/status", headers={"Host": host}).status_code == 200
        for headers in (
            {"Origin": "http://evil.example"},
            {"Origin": "http://["},
            {"Sec-Fetch-Site": "cross-site"},
            {"Origin": "null"},
        ):
            problem(api.post(f"{PREFIX}/runs", json={}, headers=headers), 403)
        problem(api.post(f"{PREFIX}/runs", content="{}", headers={"Content-Type": "text/plain"}), 415)
    with served(made.workspace, is_local=False) as remote:
        problem(remote.get(f"{PREFIX}/status"), 401)
    made.workspace.close()


def test_the_first_token_closes_a_server_and_revoking_the_last_does_not_open_it(tmp_path: Path) -> None:
    made = Harness(tmp_path)
    with served(made.workspace) as api:
        assert api.get(f"{PREFIX}/status").status_code == 200
        made.workspace.tokens.create("kim", "admin")
        problem(api.get(f"{PREFIX}/status"), 401)
        made.workspace.tokens.revoke("kim")
        problem(api.get(f"{PREFIX}/status"), 401)
    made.workspace.close()


def test_a_server_without_tokens_listens_on_loopback_only(tmp_path: Path) -> None:
    made = Harness(tmp_path)
    for host in ("127.0.0.1", "localhost", "::1", "127.0.0.2"):
        refuse_open_address(made.workspace, ServerOptions(host))
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.com"):
        with pytest.raises(UsageError, match="tokens create"):
            refuse_open_address(made.workspace, ServerOptions(host))
    made.workspace.tokens.create("kim", "admin")
    refuse_open_address(made.workspace, ServerOptions("0.0.0.0"))
    with pytest.raises(UsageError, match="belong together"):
        refuse_open_address(made.workspace, ServerOptions(certfile=tmp_path / "c.pem"))
    with pytest.raises(UsageError, match="there is no file"):
        refuse_open_address(made.workspace, ServerOptions(certfile=tmp_path / "c", keyfile=tmp_path / "k"))
    made.workspace.close()


@pytest.mark.parametrize("route", UNSAFE, ids=named)
@pytest.mark.usefixtures("unchanged")
def test_a_server_that_only_reads_changes_nothing(
    workspace: Workspace, tokens: dict[TokenRole, str], route: Route
) -> None:
    with served(workspace, read_only=True) as api:
        response = send(api, route, headers=bearer(tokens[TokenRole.ADMIN]))
        if route.changes:
            assert "--read-only" in problem(response, 403)
        else:
            assert response.status_code == 200
        assert api.get(f"{PREFIX}/status", headers=bearer(tokens[TokenRole.VIEWER])).status_code == 200


# --- responses and input ----------------------------------------------------------------------------------------------


def test_every_response_has_the_security_headers(api: TestClient, tokens: dict[TokenRole, str]) -> None:
    admin = bearer(tokens[TokenRole.ADMIN])
    answers = [send(api, route, headers=admin) for route in ROUTES if route.method == "GET"]
    answers += [api.get("/nothing"), api.post("/login", json={}), api.get(f"{PREFIX}/status"), api.put("/login")]
    for response in answers:
        assert {name: response.headers.get(name) for name in HEADERS} == HEADERS
    policy = HEADERS["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


HOSTILE = (
    "../../etc/passwd", "..%2f..%2fetc%2fpasswd", "' OR '1'='1", "1; DROP TABLE event; --", "%00", "%27%20OR%201=1",
    "<script>alert(1)</script>", "${jndi:ldap://x}", "{{7*7}}", "\\..\\..", "a" * 5000, "%ff%fe", "‮",
)  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.usefixtures("unchanged")
def test_metacharacters_in_paths_and_parameters_are_refused(
    api: TestClient, tokens: dict[TokenRole, str], text: str
) -> None:
    admin = bearer(tokens[TokenRole.ADMIN])
    one = f"{key(1)}".split("/")
    paths = [f"{PREFIX}/partitions/" + "/".join([*one[:at], text, *one[at + 1 :]]) for at in range(4)]
    paths += [f"{PREFIX}/{name}/{text}" for name in ("runs", "orders", "backfills", "plans")]
    paths += [f"{PREFIX}/tables/{text}/rows"]
    for path in paths:
        assert api.get(path, headers=admin).status_code in (400, 404), path
    for name in ("source", "customer", "query", "since", "status", "key", "cursor", "limit"):
        response = api.get(f"{PREFIX}/partitions", params={name: text}, headers=admin)
        assert response.status_code == 400, (name, response.text[:200])
        assert response.headers["content-type"] == "application/problem+json"
    assert api.get(f"{PREFIX}/grid", params={"query": text}, headers=admin).status_code == 400
    assert api.delete(f"{PREFIX}/tokens/{text}", headers=admin).status_code in (400, 404, 405)
    for body in ({"selection": {"customers": [text]}}, {"selection": {"keys": [text]}}):
        problem(api.post(f"{PREFIX}/runs", json=body, headers=admin), 400)


NUL_BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/runs", {"reason": "a\x00b"}),
    ("/runs", {"selection": {"customers": ["1", "\x00"]}}),
    ("/runs", {"selection": {"source": "demo\x00"}}),
    ("/orders", {"kind": "compact", "tables": ["\x00"]}),
    ("/orders", {"kind": "resume", "run_id": "\x00"}),
    ("/plans", {"act": "pause", "reason": "\x00"}),
    ("/plans", {"act": "backfill-pause", "backfill_id": "\x00"}),
    ("/tokens", {"name": "a\x00", "role": "viewer"}),
]


@pytest.mark.parametrize(("path", "body"), NUL_BODIES, ids=str)
@pytest.mark.usefixtures("unchanged")
def test_a_nul_character_in_a_body_is_refused(
    api: TestClient, tokens: dict[TokenRole, str], path: str, body: dict[str, Any]
) -> None:
    response = api.post(PREFIX + path, json=body, headers=bearer(tokens[TokenRole.ADMIN]))
    assert problem(response, 400) == "the body is not valid: a text has a NUL character"


IN_PATH = [route for route in CLOSED if any(parameter.place == "path" for parameter in route.parameters)]


@pytest.mark.parametrize("route", IN_PATH, ids=named)
@pytest.mark.usefixtures("unchanged")
def test_a_part_of_a_path_has_its_pattern_and_no_nul_character(
    api: TestClient, tokens: dict[TokenRole, str], route: Route
) -> None:
    admin = bearer(tokens[TokenRole.ADMIN])
    for parameter in route.parameters:
        if parameter.place == "query":
            continue
        assert parameter.pattern is not None
        for text, status, message in (("a%00", 400, "has a NUL character"), ("A%0A", 404, "is not valid")):
            path = path_of(replace(route, path=route.path.replace(f"{{{parameter.name}}}", text)))
            response = api.request(route.method, path, json=BODIES.get(route.name), headers=admin)
            detail = problem(response, status)
            assert detail.startswith(parameter.name)
            assert message in detail


def test_no_response_and_no_log_holds_a_secret(
    house: Harness, workspace: Workspace, tokens: dict[TokenRole, str], caplog: pytest.LogCaptureFixture
) -> None:
    secrets = [*tokens.values(), *(token.secret_hash for token in workspace.tokens.all()), *SECRETS.values()]
    with caplog.at_level("DEBUG"), secretive(house.folder) as opened, served(opened) as api:
        shown = {
            route.name: send(api, route, headers=bearer(tokens[TokenRole.ADMIN]))
            for route in ROUTES
            if route.method == "GET"
        }
        assert {one["source"] for one in shown[f"GET {PREFIX}/sources"].json()["items"]} >= NAMES
        assert CHANNEL in shown[f"GET {PREFIX}/alerts"].text
        texts = [response.text for response in shown.values()]
        texts.append(api.post("/login", json={"token": tokens[TokenRole.VIEWER] + "x"}).text)
        texts.append(api.post("/login", content=f'{{"token": "{tokens[TokenRole.VIEWER]}"', headers={"Content-Type": "application/json"}).text)  # fmt: skip # noqa: E501
    everywhere = "\n".join([*texts, caplog.text, *facts_of(caplog.records)])
    assert [secret for secret in secrets if secret in everywhere] == []


def test_the_address_of_the_tests_is_local() -> None:
    assert ServerOptions().is_local
    assert f"http://{ServerOptions().host}:{ServerOptions().port}" == ADDRESS
