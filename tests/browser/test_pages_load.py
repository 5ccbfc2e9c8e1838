"""Every page of the route table in a real browser, for every role: no error, and nothing from another host."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from penstock.http.routes import Route
from support.browser import SECONDS, Visitor
from support.console_site import ROLES, Site
from support.page_routes import SHOWN, address_of, route_id, shows


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("route", SHOWN, ids=route_id)
def test_every_page_loads_without_an_error(site: Site, visit: Callable[..., Visitor], route: Route, role: str) -> None:
    visitor = visit(site, role)
    status = 200 if shows(route, role) else 403
    visitor.expected = {status}
    assert visitor.open(address_of(route, site.subjects)) == status
    visitor.page.wait_for_load_state("networkidle")
    assert visitor.page.locator("h1").count() == 1


def test_the_tests_notice_what_a_browser_complains_about(site: Site, visit: Callable[..., Visitor]) -> None:
    visitor = visit(site, "viewer")
    visitor.open("/login")
    for script, complaint in {
        "console.error('mine')": "console: mine",
        "fetch('/nothing').then(() => null)": f"status 404: GET {site.url}/nothing",
        "fetch('http://192.0.2.1/').catch(() => null)": "Content Security Policy",
        "document.body.setAttribute('style', 'color: red')": "Content Security Policy",
        "document.body.append(Object.assign(document.createElement('script'), {textContent: '1'}))": "Content Security",
        "void setTimeout(() => { throw new Error('broken'); }, 0)": "broken",
    }.items():
        visitor.page.evaluate(script)
        deadline = time.monotonic() + SECONDS
        while not any(complaint in problem for problem in visitor.problems):
            assert time.monotonic() < deadline, (script, visitor.problems)
            visitor.page.wait_for_timeout(20)
        visitor.problems.clear()
