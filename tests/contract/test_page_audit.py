"""The page of the audit log: newest first, in pages, with hostile reasons and names as text."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from penstock.state.control import ControlStore
from support import builders
from support.api import served
from support.builders import audit_entry
from support.harness import Harness
from support.page_text import links_of, shown, text_of
from support.workspaces import key, open_at, write_workspace

HOSTILE = "<script>alert('x')</script>\"<img src=x>"


@pytest.fixture(scope="module")
def house() -> Iterator[Harness]:
    """Twelve lines. The last one has hostile texts."""
    with builders.quick_folder() as folder:
        made = Harness(Path(folder))
        store: ControlStore = made.control
        for number in range(11):
            store.note(audit_entry(actor=f"actor-{number}", filters={"source": "demo"}), number, "done")
        filters = {"keys": [str(key(1))], "customers": [HOSTILE], "run_id": "R1", "since": None, "queries": []}
        flags = {"reason": HOSTILE, "reprocess": True, "nested": {"a": HOSTILE}}
        store.note(audit_entry(actor=HOSTILE, filters=filters, flags=flags), 1234, f"refused: {HOSTILE}")
        yield made
        made.workspace.close()


@pytest.fixture(scope="module")
def pages(house: Harness) -> Iterator[TestClient]:
    with served(house.workspace) as client:
        yield client


def actors(page: str) -> list[str]:
    return [html.unescape(name) for name in re.findall(r'<th scope="row">(.*?)</th>', page)]


def test_lines_are_listed_newest_first_with_all_their_fields(pages: TestClient) -> None:
    page = shown(pages, "/audit")
    assert actors(page) == [HOSTILE, *(f"actor-{number}" for number in reversed(range(11)))]
    row = text_of(re.findall(r"<tr>(.*?)</tr>", page, re.S)[1])
    for text in ("state retry", f"keys {key(1)}", f"customers {HOSTILE}", f"reason {HOSTILE}", "1,234", "refused"):
        assert text in row
    assert "since" not in row
    assert f"/partitions/{key(1)}" in links_of(page)
    assert "penstock audit list" in page


def test_pages_follow_each_other_by_cursor(pages: TestClient) -> None:
    path, found = "/audit?limit=5", list[str]()
    while path:
        page = shown(pages, path)
        found += actors(page)
        following = re.findall(r'rel="next" href="([^"]+)"', page)
        path = f"/audit{html.unescape(following[0])}" if following else ""
    assert found == [HOSTILE, *(f"actor-{number}" for number in reversed(range(11)))]
    shown(pages, "/audit?cursor=nonsense", 400)


def test_an_empty_log_says_so(tmp_path: Path) -> None:
    workspace = open_at(write_workspace(tmp_path))
    with served(workspace) as pages:
        page = shown(pages, "/audit")
    assert "Nobody has changed anything by hand" in page
    assert "penstock state retry" in page
    workspace.close()
