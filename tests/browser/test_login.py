"""Sessions in a real browser: login, throttling, logout, and a session that ends while a page is shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa
from playwright.sync_api import expect

from penstock.db import schema
from penstock.http.security import SESSION_COOKIE
from penstock.state.logins import MAX_FAILURES
from support.browser import SECONDS, Visitor
from support.console_site import Site, console_site

expect.set_options(SECONDS * 1000)


def end_sessions(site: Site) -> None:
    """What time does to sessions."""
    statement = sa.delete(schema.login_session)
    site.workspace.context.database.transact(lambda connection: connection.execute(statement))


def fill(visitor: Visitor, token: str) -> None:
    visitor.page.get_by_label("Token").fill(token)
    visitor.press("Log in")


def test_the_login_page_follows_without_a_session_and_leads_back(site: Site, visit: Callable[..., Visitor]) -> None:
    visitor = visit(site)
    wanted = "/actions/new?act=retry&customer=1000000001&customer=1000000002"
    visitor.open(wanted)
    assert visitor.path.startswith("/login?next=")
    expect(visitor.page.get_by_label("Token")).to_be_focused()
    fill(visitor, site.tokens["operator"])
    assert visitor.path == wanted
    expect(visitor.page.get_by_label("Customers")).to_have_value("1000000001\n1000000002")


def test_a_wrong_token_shows_a_message_and_no_token(site: Site, visit: Callable[..., Visitor]) -> None:
    visitor = visit(site)
    visitor.expected = {401}
    visitor.open("/login?next=/actions/new?act=retry")
    fill(visitor, "penstock_wrong")
    expect(visitor.page.get_by_role("alert")).to_contain_text("the token is not valid")
    expect(visitor.page.get_by_label("Token")).to_have_value("")
    assert "penstock_wrong" not in visitor.page.content()
    assert visitor.context.cookies() == []
    fill(visitor, f"  {site.tokens['viewer']} ")  # as it is copied from a terminal
    assert visitor.path == "/actions/new?act=retry"


def test_an_empty_token_is_not_sent(site: Site, visit: Callable[..., Visitor]) -> None:
    visitor = visit(site)
    visitor.open("/login")
    visitor.page.get_by_role("button", name="Log in").click()
    assert visitor.page.evaluate("!document.querySelector('#token').checkValidity()")
    assert visitor.path == "/login"


@pytest.fixture
def other_site() -> Iterator[Site]:
    """A server of its own: failed logins are counted for the address of the browser."""
    with console_site(is_empty=True) as served:
        yield served


def test_too_many_failed_logins_say_how_long_to_wait(other_site: Site, visit: Callable[..., Visitor]) -> None:
    visitor = visit(other_site)
    visitor.expected = {401, 429}
    visitor.open("/login")
    for _ in range(MAX_FAILURES):
        fill(visitor, "wrong")
        expect(visitor.page.get_by_role("alert")).to_contain_text("the token is not valid")
    fill(visitor, other_site.tokens["admin"])
    expect(visitor.page.get_by_role("alert")).to_contain_text(
        re.compile(r"too many failed logins from 127\.0\.0\.1: try again after [-\d]+ [:\d]+ UTC")
    )
    assert visitor.context.cookies() == []
    assert visitor.page.get_by_role("navigation").count() == 0


def test_logout_ends_the_session(site: Site, visit: Callable[..., Visitor]) -> None:
    visitor = visit(site)
    visitor.log_in(site.tokens["viewer"])
    [cookie] = visitor.context.cookies()
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == (SESSION_COOKIE, True, "Strict")
    assert SESSION_COOKIE not in visitor.page.evaluate("document.cookie")
    visitor.press("Log out")
    assert visitor.path == "/login"
    assert visitor.context.cookies() == []
    visitor.page.go_back()
    expect(visitor.page.get_by_label("Token")).to_be_visible()  # the page before is not shown from a cache
    visitor.context.add_cookies([{"name": SESSION_COOKIE, "value": cookie["value"], "url": site.url}])
    visitor.open("/")
    assert visitor.path == "/login"


def test_the_next_click_after_the_end_of_a_session_leads_to_the_login_and_back(
    site: Site, visit: Callable[..., Visitor]
) -> None:
    visitor = visit(site)
    visitor.log_in(site.tokens["operator"])
    end_sessions(site)
    visitor.page.get_by_role("link", name="Retry what failed").click()
    expect(visitor.page).to_have_url(f"{site.url}/login?next=%2Factions%2Fnew%3Fact%3Dretry%26status%3Dfailed")
    fill(visitor, site.tokens["operator"])
    assert visitor.path == "/actions/new?act=retry&status=failed"


def test_a_form_that_is_sent_after_the_end_of_a_session_changes_nothing(
    site: Site, visit: Callable[..., Visitor]
) -> None:
    visitor = visit(site)
    visitor.log_in(site.tokens["operator"])
    visitor.open("/actions/new?act=pause")
    end_sessions(site)
    before = len(site.audit())
    visitor.press("Preview")
    assert visitor.path.startswith("/login")
    assert len(site.audit()) == before


def test_a_poll_after_the_end_of_a_session_leads_to_the_login_and_back(
    site: Site, visit: Callable[..., Visitor]
) -> None:
    visitor = visit(site)
    visitor.expected = {401}
    visitor.log_in(site.tokens["viewer"])
    assert visitor.page.locator("[data-live]").count() == 1
    end_sessions(site)
    expect(visitor.page.get_by_label("Token")).to_be_visible()
    assert visitor.path == "/login"
    fill(visitor, site.tokens["viewer"])
    assert visitor.path == "/"


def test_a_revoked_token_ends_its_sessions(site: Site, visit: Callable[..., Visitor]) -> None:
    _, text = site.workspace.tokens.create("leaves", "operator", actor="ada")
    visitor = visit(site)
    visitor.log_in(text)
    expect(visitor.page.get_by_text("leaves · operator")).to_be_visible()
    visitor.open("/actions/new?act=pause")
    site.workspace.tokens.revoke("leaves", actor="ada")
    visitor.page.get_by_role("link", name="Overview").click()
    expect(visitor.page.get_by_label("Token")).to_be_visible()


@pytest.mark.parametrize(
    "wanted", ["//evil.example/", "/\\evil.example", "https://evil.example/", "javascript:alert(1)"]
)
def test_a_login_leads_to_no_other_site(site: Site, visit: Callable[..., Visitor], wanted: str) -> None:
    visitor = visit(site)
    visitor.open(f"/login?next={wanted}")
    fill(visitor, site.tokens["viewer"])
    assert visitor.page.url == f"{site.url}/"


def test_two_people_in_one_browser_act_under_their_own_names(site: Site, visit: Callable[..., Visitor]) -> None:
    visitor = visit(site)
    visitor.log_in(site.tokens["viewer"])
    expect(visitor.page.get_by_text("viewer · viewer")).to_be_visible()
    visitor.open("/login")
    fill(visitor, site.tokens["admin"])
    expect(visitor.page.get_by_text("admin · admin")).to_be_visible()
