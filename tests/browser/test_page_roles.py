"""What a role or a server that only reads does not allow is not offered, and is refused if it is sent anyway."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

from penstock.http.routes import Route
from penstock.state.tokens import TokenRole
from support.browser import Visitor
from support.console_site import Site, console_site
from support.page_routes import PAGE_ROUTES, SHOWN, address_of, route_id, shows

# The paths of the forms that can be sent.
FORMS = """() => [...document.querySelectorAll('form')]
  .filter((form) => form.method === 'post' && form.querySelector('button:not([type=button]):not([disabled])'))
  .map((form) => new URL(form.action).pathname)"""
# Sends a form without a page that offers it, with the CSRF token of the session.
SEND = """async ([path, fields]) => {
  const csrf = document.querySelector('[name=csrf_token]').value;
  const body = new URLSearchParams({...fields, csrf_token: csrf});
  const response = await fetch(path, {method: 'POST', body, redirect: 'manual'});
  return [response.status, await response.text()];
}"""


@pytest.fixture(scope="module")
def reading_site() -> Iterator[Site]:
    """A server that only reads."""
    with console_site("--read-only") as served:
        yield served


def form_routes(visitor: Visitor) -> list[Route]:
    """The routes of the forms that the page offers."""
    paths = visitor.page.evaluate(FORMS)
    return [
        next(r for r in PAGE_ROUTES if r.is_unsafe and re.fullmatch(re.sub(r"\{[^}]+\}", "[^/]+", r.path), path))
        for path in paths
    ]


@pytest.mark.parametrize("route", SHOWN, ids=route_id)
def test_a_viewer_is_offered_no_action(site: Site, visit: Callable[..., Visitor], route: Route) -> None:
    visitor = visit(site, "viewer")
    visitor.expected = set() if shows(route, "viewer") else {403}
    visitor.open(address_of(route, site.subjects))
    visitor.page.wait_for_load_state("networkidle")
    links = visitor.page.locator("main a[href^='/actions/new']").evaluate_all("all => all.map(one => one.innerText)")
    assert links == []
    assert [r.name for r in form_routes(visitor) if not r.access.allows(TokenRole.VIEWER)] == []


@pytest.mark.parametrize("route", SHOWN, ids=route_id)
def test_a_server_that_only_reads_offers_no_action(
    reading_site: Site, visit: Callable[..., Visitor], route: Route
) -> None:
    visitor = visit(reading_site, "admin")
    status = 200 if shows(route, "viewer") else 403  # such a page would be recorded
    visitor.expected = {status}
    assert visitor.open(address_of(route, reading_site.subjects)) == status
    visitor.page.wait_for_load_state("networkidle")
    links = visitor.page.locator("main a[href^='/actions/new']").evaluate_all("all => all.map(one => one.innerText)")
    assert links == []
    assert [r.name for r in form_routes(visitor) if r.changes] == []


def test_a_viewer_who_sends_a_form_anyway_is_refused(site: Site, visit: Callable[..., Visitor]) -> None:
    visitor = visit(site, "viewer")
    visitor.expected = {403}
    visitor.open("/actions/new?act=pause")
    expect(visitor.page.get_by_role("button", name="Preview")).to_be_disabled()
    expect(visitor.page.get_by_text("This action needs the role operator")).to_be_visible()
    before = len(site.audit())
    status, text = visitor.page.evaluate(SEND, ["/actions/preview", {"act": "pause"}])
    assert status == 403
    assert "needs the role operator" in text
    plan, _ = site.workspace.actions.preview("pause", actor="viewer")
    assert visitor.page.evaluate(SEND, [f"/actions/{plan.token}/apply", {}])[0] == 403
    assert len(site.audit()) == before


def test_an_operator_cannot_demote(site: Site, visit: Callable[..., Visitor]) -> None:
    visitor = visit(site, "operator")
    visitor.expected = {403}
    visitor.open("/actions/new?act=demote")
    expect(visitor.page.get_by_role("button", name="Preview")).to_be_disabled()
    fields = {"act": "demote", "key": str(site.house.key(1, 1)), "reason": "mine"}
    assert visitor.page.evaluate(SEND, ["/actions/preview", fields])[0] == 403


def test_an_operator_cannot_apply_the_plan_of_another(site: Site, visit: Callable[..., Visitor]) -> None:
    plan, _ = site.workspace.actions.preview("pause", actor="admin")
    visitor = visit(site, "operator")
    visitor.expected = {403}
    visitor.open("/actions/new?act=pause")
    status, text = visitor.page.evaluate(SEND, [f"/actions/{plan.token}/apply", {}])
    assert status == 403
    assert "was made by admin" in text


def test_a_server_that_only_reads_refuses_forms(reading_site: Site, visit: Callable[..., Visitor]) -> None:
    visitor = visit(reading_site, "admin")
    visitor.expected = {403}
    visitor.open("/actions/new?act=pause")
    expect(visitor.page.get_by_role("button", name="Preview")).to_be_disabled()
    status, text = visitor.page.evaluate(SEND, ["/actions/preview", {"act": "pause"}])
    assert status == 403
    assert "--read-only" in text
    visitor.press("Log out")
    assert visitor.path == "/login"


def test_without_tokens_the_local_user_needs_no_login(visit: Callable[..., Visitor]) -> None:
    with console_site(is_empty=True, has_tokens=False) as open_site:
        visitor = visit(open_site)
        assert visitor.open("/") == 200
        assert visitor.path == "/"
        visitor.open("/actions/new?act=pause")
        visitor.press("Preview")
        visitor.press("Apply")
        expect(visitor.page.locator("#done")).to_contain_text("Applied: ")
