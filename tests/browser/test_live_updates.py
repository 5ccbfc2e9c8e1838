"""An open page shows what others change: it polls, keeps the focus, and says when the server does not respond."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

from support.browser import SECONDS, Visitor
from support.console_site import Site, console_site

expect.set_options(SECONDS * 1000)


@pytest.fixture
def own_site() -> Iterator[Site]:
    """A server that a test stops."""
    with console_site() as served:
        yield served


def test_an_open_page_shows_what_others_change_and_keeps_the_focus(site: Site, operator: Visitor) -> None:
    operator.open("/")
    page = operator.page
    stopped = page.get_by_role("alert").filter(has_text="Source demo is stopped")
    expect(stopped).to_have_count(0)
    link = page.get_by_role("link", name="demo.campaign_daily", exact=True)
    link.focus()
    site.house.open_breaker()
    expect(stopped).to_be_visible()
    expect(link).to_be_focused()
    site.workspace.operations.close_breaker("demo", actor="ada")
    expect(stopped).to_have_count(0)
    expect(link).to_be_focused()


def test_a_page_says_when_the_server_does_not_respond(own_site: Site, visit: Callable[..., Visitor]) -> None:
    visitor = visit(own_site, "viewer")
    visitor.open("/")
    lost = visitor.page.get_by_text("The server does not respond")
    expect(lost).to_be_hidden()
    own_site.server.stop(signal.SIGKILL)
    expect(lost).to_be_visible()
    visitor.context.close()
    assert [text for text in visitor.problems if "ERR_CONNECTION_REFUSED" not in text and "htmx:" not in text] == []
    visitor.problems.clear()
