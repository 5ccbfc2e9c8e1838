"""Reads pages of the console in tests: their text, and whether a value of the workspace became markup."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Any


def shown(pages: Any, path: str, status: int = 200, headers: Mapping[str, str] | None = None) -> str:
    """The page at a path. It must have this status, and no markup but that of its template."""
    response = pages.get(path, headers={"Accept": "text/html", **(headers or {})})
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    refuse_injected(response.text)
    return str(response.text)


def refuse_injected(page: str) -> None:
    """No hostile value is markup, and the page has neither inline scripts nor inline styles."""
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert "<b>" not in page
    assert not re.search(r"<script(?![^>]* src=)|<style| style=|javascript:| on\w+=\"", page)


def text_of(page: str) -> str:
    """The text of a page without its elements, with single spaces."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", page))).strip()


def links_of(page: str) -> set[str]:
    return {html.unescape(link) for link in re.findall(r'href="([^"]+)"', page)}


def action_names(page: str) -> set[str]:
    """The actions that a page links to."""
    return set(re.findall(r'href="/actions/new\?[^"]*act=([a-z-]+)', html.unescape(page)))
