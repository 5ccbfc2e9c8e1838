"""A browser and a server for each file of tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from support import browser
from support.browser import Visitor
from support.console_site import Site, console_site


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser.chromium() as started:
        yield started


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """A server over a workspace with partitions in every state."""
    with console_site() as served:
        yield served


@pytest.fixture(scope="module")
def sessions() -> dict[tuple[str, str], Any]:
    """The cookies of the sessions that the tests of a file share, by address and role."""
    return {}


@pytest.fixture
def visit(chromium: Browser, sessions: dict[tuple[str, str], Any]) -> Iterator[Callable[..., Visitor]]:
    """Opens a browser of its own for a person: `visit(site, "operator")` is logged in. Options are those of a browser
    context. Whatever the browser complains about fails the test. A test that ends a session logs in itself."""
    visitors: list[Visitor] = []

    def begin(site: Site, role: str | None = None, **options: Any) -> Visitor:
        known = sessions.get((site.url, role)) if role else None
        visitor = Visitor(chromium, site.url, storage_state=known, **options)
        visitors.append(visitor)
        if role is not None and known is None:
            visitor.log_in(site.tokens[role])
            sessions[site.url, role] = visitor.context.storage_state()
        return visitor

    yield begin
    for visitor in visitors:
        visitor.context.close()
    assert [problem for visitor in visitors for problem in visitor.problems] == []


@pytest.fixture
def operator(site: Site, visit: Callable[..., Visitor]) -> Visitor:
    """An operator who is logged in."""
    return visit(site, "operator")
