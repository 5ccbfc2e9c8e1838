"""Login through an identity provider, against a local one with real keys and signatures."""

from __future__ import annotations

import base64
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import yaml
from joserfc.jwk import OctKey, RSAKey
from starlette.testclient import TestClient

from penstock.app import Workspace, oidc, oidc_documents, open_workspace
from penstock.config.console import OidcSettings
from penstock.errors import ConfigError
from penstock.http.application import Limits
from penstock.http.security import SESSION_COOKIE
from penstock.http.server import ServerOptions, refuse_open_address
from penstock.state.logins import MAX_FAILURES
from penstock.state.tokens import TokenRole
from support import builders
from support.api import ADDRESS, ORIGIN, served
from support.harness import Harness
from support.oidc_issuer import CLIENT_ID, CLIENT_SECRET, Issuer, running_issuer
from support.workspaces import key

ROLES = {"admin": ["platform"], "operator": ["oncall"]}


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with running_issuer() as made:
        yield made


@pytest.fixture
def workspace(issuer: Issuer) -> Iterator[Workspace]:
    with builders.quick_folder() as folder:
        made = Harness(Path(folder))
        made.deliver({key(1): 1})
        made.workspace.close()
        configure(Path(folder), {"issuer": issuer.address, "roles": ROLES})
        opened = open_workspace(folder)
        yield opened
        opened.close()


def configure(folder: Path, settings: dict[str, Any]) -> None:
    file = folder / "penstock.yaml"
    body = yaml.safe_load(file.read_text())
    body["console"] = {"oidc": {"client_id": CLIENT_ID, "client_secret": CLIENT_SECRET, **settings}}
    file.write_text(yaml.safe_dump(body))


@pytest.fixture
def site(workspace: Workspace) -> Iterator[TestClient]:
    with served(workspace) as client:
        client.follow_redirects = False
        yield client


def go_to_provider(site: TestClient, wanted: str = "/") -> str:
    """Begin a login; returns the path with which the provider sends the browser back."""
    sent = site.get("/login/oidc", params={"next": wanted})
    assert sent.status_code == 303, sent.text
    cookie = sent.headers["set-cookie"]
    assert "HttpOnly; SameSite=Lax; Path=/login/oidc" in cookie
    site.cookies.set("penstock_login", cookie.partition("=")[2].partition(";")[0], path="/login/oidc")
    back = httpx.get(sent.headers["location"], follow_redirects=False).headers["location"]
    assert back.startswith(f"{ADDRESS}/login/oidc/callback?")
    return back.removeprefix(ADDRESS)


def log_in(site: TestClient, wanted: str = "/") -> Any:
    return site.get(go_to_provider(site, wanted))


def has_session(site: TestClient) -> bool:
    return SESSION_COOKIE in site.cookies


def test_a_person_logs_in_and_acts_under_the_name_of_the_provider(site: TestClient, workspace: Workspace) -> None:
    assert site.get("/").headers["location"] == "/login"
    assert 'href="/login/oidc?next=%2Fruns"' in site.get("/login?next=/runs").text
    page = log_in(site, "/actions/new?act=pause")
    assert page.status_code == 200
    assert 'content="0;url=/actions/new?act=pause"' in page.text
    assert "SameSite=Strict" in page.headers["set-cookie"]
    shown = site.get("/api/v1/session").json()
    assert (shown["name"], shown["role"]) == ("oidc:kim@example.com", "operator")
    form = {"act": "pause", "reason": "quiet", "csrf_token": shown["csrf_token"]}
    preview = site.post("/actions/preview", data=form, headers=ORIGIN)
    assert preview.status_code == 200, preview.text
    token = preview.text.partition('action="/actions/')[2].partition("/")[0]
    applied = site.post(f"/actions/{token}/apply", data={"csrf_token": shown["csrf_token"]}, headers=ORIGIN)
    assert applied.status_code == 303, applied.text
    assert workspace.context.state.audit(1)[0]["actor"] == "oidc:kim@example.com"
    out = site.post("/pages/logout", data={"csrf_token": shown["csrf_token"]}, headers=ORIGIN)
    assert out.headers["location"] == "/login"
    assert site.get("/", headers={"Cookie": f"{SESSION_COOKIE}=old"}).status_code == 303


@pytest.mark.parametrize(
    ("groups", "role"),
    [(["platform", "oncall"], "admin"), ("oncall", "operator"), (["oncall", "x"], "operator")],
)
def test_the_claim_gives_the_highest_role(site: TestClient, issuer: Issuer, groups: Any, role: str) -> None:
    issuer.claims = {"groups": groups}
    assert log_in(site).status_code == 200
    assert site.get("/api/v1/session").json()["role"] == role


@pytest.mark.parametrize("groups", [[], ["others"], None, 7, {"oncall": True}])
def test_a_person_without_a_role_gets_no_session(site: TestClient, issuer: Issuer, groups: Any) -> None:
    issuer.claims = {"groups": groups}
    page = log_in(site)
    assert page.status_code == 403
    assert "has no role here" in page.text
    assert not has_session(site)


def test_a_star_gives_a_role_to_everyone_who_can_log_in() -> None:
    roles: Any = {"viewer": ("*",), "admin": ("platform",)}
    settings = OidcSettings(issuer="https://x.example", client_id="p", roles=roles)
    assert (settings.role_of([]), settings.role_of(["platform"])) == ("viewer", "admin")


WRONG: dict[str, dict[str, Any]] = {
    "another issuer": {"claims": {"iss": "https://evil.example"}},
    "another audience": {"claims": {"aud": "other"}},
    "several audiences, another client": {"claims": {"aud": [CLIENT_ID, "other"], "azp": "other"}},
    "an old identity": {"claims": {"exp": int(time.time()) - 3600}},
    "another nonce": {"claims": {"nonce": "x"}},
    "no nonce": {"without": ("nonce",)},
    "no end": {"without": ("exp",)},
    "no subject": {"without": ("sub",)},
    "no name": {"without": ("email",)},
    "an empty name": {"claims": {"email": " "}},
    "a name with a line end": {"claims": {"email": "kim\nroot"}},
    "a name that is no text": {"claims": {"email": ["kim"]}},
    "an address that is not verified": {"claims": {"email_verified": False}},
    "an address that is perhaps not verified": {"without": ("email_verified",)},
    "no signature": {"algorithm": "none"},
    "the signature of another key": {"signs_with": RSAKey.generate_key(2048)},
    "a signature with the secret of the client": {
        "signs_with": OctKey.import_key(CLIENT_SECRET),
        "algorithm": "HS256",
    },
}


@pytest.mark.parametrize("name", WRONG)
def test_an_identity_that_is_not_valid_opens_no_session(site: TestClient, issuer: Issuer, name: str) -> None:
    for field, value in WRONG[name].items():
        setattr(issuer, field, value)
    page = log_in(site)
    assert page.status_code == 401, page.text
    assert not has_session(site)
    assert site.get("/").status_code == 303


def test_a_code_is_used_only_by_the_browser_that_began_the_login(site: TestClient) -> None:
    back = go_to_provider(site)
    site.cookies.clear()
    assert site.get(back).status_code == 401  # another browser
    go_to_provider(site)
    earlier = site.get(back)
    assert earlier.status_code == 401
    assert "was not begun in this browser" in earlier.text
    assert not has_session(site)
    again = go_to_provider(site)
    assert site.get(again).status_code == 200
    site.cookies.delete(SESSION_COOKIE)
    repeated = site.get(again)
    assert repeated.status_code == 401
    assert "invalid_grant" in repeated.text


def test_another_site_cannot_lock_its_visitor_out(site: TestClient, workspace: Workspace, issuer: Issuer) -> None:
    """A page of another site loads the way back as an image, or opens it in a window."""
    _, token = workspace.tokens.create("ada", TokenRole.VIEWER, actor="ada")
    for _ in range(MAX_FAILURES + 1):
        assert site.get("/login/oidc/callback?state=x&code=y").status_code == 401
    go_to_provider(site)
    for _ in range(MAX_FAILURES + 1):
        assert site.get("/login/oidc/callback?state=x&code=y").status_code == 401
    assert site.post("/login", json={"token": token}, headers=ORIGIN).status_code == 200
    issuer.claims = {"aud": "other"}
    refused = [log_in(site).status_code for _ in range(MAX_FAILURES)]  # counted: the provider sent these back
    assert refused == [401] * MAX_FAILURES
    assert site.post("/login", json={"token": token}, headers=ORIGIN).status_code == 429


@pytest.mark.parametrize(
    "cookie",
    [
        base64.urlsafe_b64encode(b"[" * 20_000).decode(),
        base64.urlsafe_b64encode(b'{"a":' * 4_000).decode(),
        base64.urlsafe_b64encode(b'{"s": "\\ud800", "n": "n", "v": "v", "p": "/"}').decode().rstrip("="),
        "s.n.v..",
        "s.n.v..A",
        "s.n.v.._w",
        "s.n..." + "x" * 20_000,
        "..." * 5_000,
    ],
    ids=["lists", "objects", "surrogate", "no path", "no base64", "no text", "long", "dots"],
)
def test_a_made_up_login_in_progress_is_refused(site: TestClient, cookie: str) -> None:
    refused = site.get("/login/oidc/callback?state=s&code=x", headers={"Cookie": f"penstock_login={cookie}"})
    assert refused.status_code == 401, refused.text
    assert "was begun in another browser" in refused.text


def test_a_login_ends_the_earlier_session_of_the_browser(site: TestClient) -> None:
    assert log_in(site).status_code == 200
    earlier = site.cookies[SESSION_COOKIE]
    back = go_to_provider(site)
    site.cookies.delete(SESSION_COOKIE)  # a browser does not send it while it follows redirects of the provider
    assert site.get(back).status_code == 200
    assert site.get("/api/v1/session").status_code == 200
    assert site.cookies[SESSION_COOKIE] != earlier
    site.cookies.clear()
    old = {"Cookie": f"{SESSION_COOKIE}={earlier}"}
    assert site.get("/api/v1/session", headers=old).status_code == 401


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [
        ("/grid?query=" + "x" * 1900, "/grid?query=" + "x" * 1900),
        ("/grid?query=" + "x" * 9000, "/grid"),
        ("/grid?query=" + "\u20ac" * 900, "/grid"),
        ("/" + "x" * 9000, "/"),
    ],
    ids=["long", "too long", "too many bytes", "path"],
)
def test_the_cookie_of_a_login_has_room_for_the_page_that_was_wanted(site: TestClient, wanted: str, shown: str) -> None:
    sent = site.get("/login/oidc", params={"next": wanted})
    assert len(sent.headers["set-cookie"].partition(";")[0]) < 4000  # browsers drop a cookie of more than 4,096 bytes
    assert f'content="0;url={shown}"' in log_in(site, wanted).text


def test_a_provider_that_refuses_or_fails_is_named(site: TestClient, issuer: Issuer) -> None:
    refused = site.get("/login/oidc/callback?error=access_denied&error_description=<b>no</b>")
    assert refused.status_code == 401
    assert "access_denied" in refused.text
    assert "<b>" not in refused.text
    issuer.is_broken = True
    broken = site.get("/login/oidc")
    assert broken.status_code == 503
    assert "Retry-After" in broken.headers


def test_a_provider_that_fails_in_the_middle_of_a_login_is_unavailable(site: TestClient, issuer: Issuer) -> None:
    back = go_to_provider(site)
    issuer.is_broken = True
    found = site.get(back)
    assert (found.status_code, "Retry-After" in found.headers) == (503, True)


def test_while_the_provider_hangs_one_request_waits_and_the_others_are_told_at_once(
    workspace: Workspace, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer.continues = threading.Event()
    monkeypatch.setattr(oidc, "_TIMEOUT", 5.0)
    monkeypatch.setattr(oidc_documents, "FAILURE_KEPT", 2.0)
    with served(workspace, limits=Limits(threads=2)) as site, ThreadPoolExecutor(4) as callers:
        try:
            first = callers.submit(site.get, "/login/oidc")
            until(lambda: issuer.requests == 1)
            began = time.monotonic()
            others = [callers.submit(site.get, "/login/oidc") for _ in range(3)]
            assert [other.result(60).status_code for other in others] == [503] * 3
            assert site.get("/login").status_code == 200
            assert time.monotonic() - began < 4
            assert not first.done()
            assert first.result(60).status_code == 503
            assert site.get("/login/oidc").status_code == 503  # the failure is known
            assert issuer.requests == 1
        finally:
            issuer.continues.set()
        assert until(lambda: site.get("/login/oidc", follow_redirects=False).status_code == 303)


def test_codes_that_wait_for_the_provider_leave_threads_to_others(
    workspace: Workspace, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client can make up a login in progress: the server asks the provider before it knows."""
    cookie = {"Cookie": f"penstock_login=s.n.v..{base64.urlsafe_b64encode(b'/').decode().rstrip('=')}"}
    with served(workspace, limits=Limits(threads=8)) as site, ThreadPoolExecutor(12) as callers:
        assert site.get("/login/oidc", follow_redirects=False).status_code == 303
        issuer.continues = threading.Event()
        monkeypatch.setattr(oidc, "_TIMEOUT", 20.0)
        try:
            sent = [callers.submit(site.get, "/login/oidc/callback?state=s&code=x", headers=cookie) for _ in range(12)]
            assert until(lambda: sum(one.done() for one in sent) == 9)
            assert {one.result().status_code for one in sent if one.done()} == {503}
            assert site.get("/login").status_code == 200
        finally:
            issuer.continues.set()
        assert sorted(one.result(60).status_code for one in sent) == [401] * 3 + [503] * 9


def until(holds: Callable[[], bool]) -> bool:
    """Wait until it holds."""
    deadline = time.monotonic() + 15
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_a_document_is_used_while_another_thread_fetches_a_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    began, may_end, fetched = threading.Event(), threading.Event(), itertools.count()

    def fetch() -> int:
        if number := next(fetched):
            began.set()
            assert may_end.wait(30)
        return number

    monkeypatch.setattr(oidc_documents, "KEPT", 0.0)
    document = oidc_documents.ProviderDocument(fetch)
    assert document.current() == 0
    with ThreadPoolExecutor(3) as callers:
        try:
            newer = callers.submit(document.current)
            assert began.wait(30)
            waiting = [callers.submit(document.current, waits=True), callers.submit(document.newer_than, 0)]
            assert document.current() == 0
        finally:
            may_end.set()
        assert [one.result(30) for one in (newer, *waiting)] == [1, 1, 1]


def test_a_new_key_of_the_provider_is_fetched(site: TestClient, issuer: Issuer) -> None:
    assert log_in(site).status_code == 200
    issuer.key = RSAKey.generate_key(2048, {"kid": "new"})
    assert log_in(site).status_code == 200
    assert issuer.key_requests == 2


@pytest.mark.parametrize("wanted", ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)"])
def test_the_login_never_leads_to_another_site(site: TestClient, wanted: str) -> None:
    page = log_in(site, wanted)
    assert 'content="0;url=/"' in page.text
    assert "evil" not in page.text


def test_a_server_with_a_provider_asks_local_users_too_and_may_listen_everywhere(
    site: TestClient, workspace: Workspace
) -> None:
    assert not workspace.tokens.exist()
    assert site.get("/api/v1/status").status_code == 401
    refuse_open_address(workspace, ServerOptions(host="0.0.0.0"))


def test_the_request_to_the_provider_has_pkce_state_and_nonce(site: TestClient) -> None:
    asked = parse_qs(urlsplit(site.get("/login/oidc").headers["location"]).query)
    assert asked["code_challenge_method"] == ["S256"]
    assert asked["redirect_uri"] == [f"{ADDRESS}/login/oidc/callback"]
    assert {"state", "nonce", "code_challenge"} <= set(asked)
    assert asked["scope"] == ["openid profile email"]


def test_without_a_provider_its_pages_do_not_exist(tmp_path: Path) -> None:
    made = Harness(tmp_path)
    with served(made.workspace) as site:
        for path in ("/login/oidc", "/login/oidc/callback?code=x&state=y"):
            refused = site.get(path)
            assert refused.status_code == 404
            assert "the workspace file has no console.oidc" in refused.text
        assert "/login/oidc" not in site.get("/login").text
    made.workspace.close()


def test_wrong_settings_name_the_mistake(tmp_path: Path) -> None:
    made = Harness(tmp_path)
    made.workspace.close()
    for settings, text in (
        ({"issuer": "http://login.example.com", "roles": ROLES}, "https address"),
        ({"issuer": "https://login.example.com", "roles": {"owner": ["x"]}}, "owner"),
        ({"issuer": "https://login.example.com", "roles": ROLES, "scopes": ["email"]}, "openid"),
    ):
        configure(tmp_path, settings)
        with pytest.raises(ConfigError, match=text) as refused:
            open_workspace(tmp_path)
        assert CLIENT_SECRET not in str(refused.value)
