"""Chromium for tests of pages, and visitors that fail a test for whatever a browser complains about."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, Response, sync_playwright

from support.apt import installed

SECONDS = 60.0  # for a condition; no test is about time
_FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-lcd-text",  # pictures have the same colours on every machine
)
# Messages about the status of a response: the responses themselves are compared with what the test expects.
_STATUS = re.compile(r"Failed to load resource: the server responded with a status of|Response Status Error Code")


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium with an empty profile."""
    program = installed("chromium", _program)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(_FLAGS), headless=True)
        try:
            yield browser
        finally:
            browser.close()


def _program() -> str | None:
    return next((found for name in ("chromium", "chromium-browser") if (found := shutil.which(name))), None)


class Visitor:
    """One person in a browser of their own. Collects errors of the console, violations of the content security policy,
    failed requests, requests to other hosts, and responses with a status that the test does not expect."""

    def __init__(self, browser: Browser, address: str, **options: Any) -> None:
        self.address = address
        self.expected: set[int] = set()  # the statuses from 400 on that the test expects
        self.problems: list[str] = []
        self.context: BrowserContext = browser.new_context(base_url=address, **options)
        self.context.set_default_timeout(SECONDS * 1000)
        self.context.on("request", self._requested)
        self.context.on("requestfailed", self._failed)
        self.context.on("response", self._responded)
        self.context.on("console", self._said)
        self.context.on("weberror", lambda error: self.problems.append(f"script: {error.error}"))
        self.page: Page = self.context.new_page()

    @property
    def path(self) -> str:
        """The path and the query of the page that is shown."""
        parts = urlsplit(self.page.url)
        return parts.path + (f"?{parts.query}" if parts.query else "")

    def open(self, path: str) -> int:
        """Open a page. Returns the status of the response."""
        response = self.page.goto(path)
        assert response is not None
        return response.status

    def log_in(self, token: str) -> None:
        """Log in on the login page, and wait for the page that follows."""
        if not self.path.startswith("/login"):
            self.open("/login")
        self.page.get_by_label("Token").fill(token)
        with self.page.expect_navigation(url=lambda url: urlsplit(url).path != "/login"):
            self.page.get_by_role("button", name="Log in").click()

    def press(self, name: str) -> None:
        """Press a button that sends a form, and wait for the page that follows."""
        with self.page.expect_navigation():
            self.page.get_by_role("button", name=name, exact=True).click()

    def audit(self) -> list[str]:
        """Serious and critical findings of axe on the page: the rule and the elements."""
        self.page.evaluate(_axe())
        kinds = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
        options = {"resultTypes": ["violations"], "runOnly": {"type": "tag", "values": kinds}}
        found = self.page.evaluate("options => axe.run(document, options)", options)
        return [
            f"{one['id']} ({one['impact']}): {'; '.join(node['html'][:200] for node in one['nodes'][:5])}"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]

    def _requested(self, request: Request) -> None:
        if not request.url.startswith((f"{self.address}/", "data:", "blob:")):
            self.problems.append(f"another host: {request.url}")

    def _failed(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # a poll of a page that was left
            self.problems.append(f"failed: {request.url}: {request.failure}")

    def _responded(self, response: Response) -> None:
        if response.status >= 400 and response.status not in self.expected:
            self.problems.append(f"status {response.status}: {response.request.method} {response.url}")

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not _STATUS.search(message.text):
            self.problems.append(f"console: {message.text}")


@cache
def _axe() -> str:
    """The script of axe-core in the package axe-playwright-python. It is evaluated, because the policy of the pages
    admits no other script."""
    spec = find_spec("axe_playwright_python")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).with_name("axe.min.js").read_text(encoding="utf-8")
