"""The documentation site: it builds without warnings, contains every page, and loads nothing from other hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_LOADED = re.compile(
    r"<(?:script|img|iframe|source|video|embed|object)\b[^>]*?(?:src|data)=[\"']?((?:https?:)?//[^\s\"'>]+)"
)
_LINKED = re.compile(r"<link\b[^>]*?href=[\"']?((?:https?:)?//[^\s\"'>]+)")
_IN_CSS = re.compile(r"(?:url\(|@import\s*)[\"']?((?:https?:)?//[^\s\"')]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_in_the_navigation(site: Path) -> None:
    start = (site / "index.html").read_text()
    linked = {link.split("#")[0] for link in re.findall(r"href=\"([^\"]+\.html[^\"]*)\"", start)}
    pages = {page.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert sorted(pages - linked) == []


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    pages = {path: path.read_text() for path in site.rglob("*.html")}
    sheets = {path: path.read_text() for path in site.rglob("*.css")}
    assert pages
    assert sheets
    found = [
        (path.name, url) for path, text in pages.items() for url in (*_LOADED.findall(text), *_LINKED.findall(text))
    ]
    found += [(path.name, url) for path, text in {**pages, **sheets}.items() for url in _IN_CSS.findall(text)]
    assert found == []
    # the script of the theme loads mermaid from another host for such blocks, and asks GitHub about a repository
    assert [path.name for path, text in pages.items() if 'class="mermaid"' in text] == []
    assert [path.name for path, text in pages.items() if 'data-md-component="source"' in text] == []
