"""Login through an identity provider, against a local one with real keys and signatures."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import yaml
from joserfc.jwk import OctKey, RSAKey
from starlette.testclient import TestClient

from penstock.app import Workspace, open_workspace
from penstock.config.console import OidcSettings
from penstock.errors import ConfigError
from penstock.http.security import SESSION_COOKIE
from penstock.http.server import ServerOptions, refuse_open_address
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


def configure(folder: Path, oidc: dict[str, Any]) -> None:
    file = folder / "penstock.yaml"
    body = yaml.safe_load(file.read_text())
    body["console"] = {"oidc": {"client_id": CLIENT_ID, "client_secret": CLIENT_SECRET, **oidc}}
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


def test_a_provider_that_refuses_or_fails_is_named(site: TestClient, issuer: Issuer) -> None:
    refused = site.get("/login/oidc/callback?error=access_denied&error_description=<b>no</b>")
    assert refused.status_code == 401
    assert "access_denied" in refused.text
    assert "<b>" not in refused.text
    issuer.is_broken = True
    broken = site.get("/login/oidc")
    assert broken.status_code == 503
    assert "Retry-After" in broken.headers


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
    for oidc, text in (
        ({"issuer": "http://login.example.com", "roles": ROLES}, "https address"),
        ({"issuer": "https://login.example.com", "roles": {"owner": ["x"]}}, "owner"),
        ({"issuer": "https://login.example.com", "roles": ROLES, "scopes": ["email"]}, "openid"),
    ):
        configure(tmp_path, oidc)
        with pytest.raises(ConfigError, match=text) as refused:
            open_workspace(tmp_path)
        assert CLIENT_SECRET not in str(refused.value)
