"""The pages of tables and sources."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.testclient import TestClient

from penstock.app import Workspace
from penstock.control.select import Selection
from penstock.partition import new_ulid
from penstock.state.records import Breaker
from penstock.state.tokens import TokenRole
from support import builders
from support.api import ORIGIN, bearer, served
from support.builders import BACKENDS
from support.page_text import action_names, shown, text_of
from support.workspaces import NOW, open_at, write_workspace

HOSTILE = "<script>alert(1)</script>"
NAME = "shop.notes"
ROWS = 25


@pytest.fixture(scope="module")
def workspace() -> Iterator[Workspace]:
    """A table of files whose rows hold markup, published for two days, and a table without rows."""
    with builders.quick_folder() as folder:
        root = write_workspace(Path(folder), driver_partitions=100)
        (root / "inbox").mkdir()
        lines = [json.dumps({"id": n, "text": f"{HOSTILE}{'long' * 300}" if n else None}) for n in range(ROWS)]
        for day in ("2024-06-09", "2024-06-10"):
            (root / "inbox" / f"{day}-x").write_text("\n".join(lines))
        body = yaml.safe_load((root / "penstock.yaml").read_text())
        shop = {"kind": "files", "folder": "inbox", "path": "{date}-x", "format": "jsonl", "rate": ["100/m", "5000/d"]}
        fields = [{"name": "id", "type": "long"}, {"name": "text", "type": "string"}]
        body["sources"]["shop"] = {**shop, "parallelism": 3}
        body["queries"]["notes"] = {"source": "shop", "start_date": "2024-06-09", "fields": fields}
        (root / "penstock.yaml").write_text(yaml.safe_dump(body))
        opened = open_at(root)
        assert opened.runs.start(Selection(queries=("notes",)), actor="ada").counts()["loaded"] == 2
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def pages(workspace: Workspace) -> Iterator[TestClient]:
    with served(workspace) as client:
        yield client


# --- tables -----------------------------------------------------------------------------------------------------------


def test_the_tables_are_listed_with_kind_version_and_settled_day(pages: TestClient) -> None:
    page = shown(pages, "/tables")
    assert re.findall(r'href="/tables/([a-z_.]+)"', page) == ["demo.campaign_daily", NAME]
    assert f"{NAME} fetched v1 v1 2 2024-06-10 grid · SQL" in text_of(page)
    assert "demo.campaign_daily fetched v1 none yet" in text_of(page)
    assert f"/sql?statement=SELECT+%2A+FROM+{NAME}+LIMIT+100" in page


def test_a_table_shows_fields_versions_pointers_and_the_first_rows(pages: TestClient) -> None:
    page = shown(pages, f"/tables/{NAME}")
    text = text_of(page)
    assert "Field Type id long text string" in text
    assert re.search(rf"v1 current {NAME}.v1 \d", text)
    assert f"partitions that readers see 2 rows {2 * ROWS}" in text
    [sample] = re.findall(r'aria-labelledby="sample" tabindex="0">(.*?)</table>', page, re.DOTALL)
    assert sample.count("<tr>") == 21
    assert html.escape(HOSTILE) in sample
    assert "…" in sample
    assert '<span class="quiet">NULL</span>' in sample
    assert f"penstock read {NAME} --limit 20" in page
    assert f'href="/grid?query={NAME}"' in page
    assert "/lineage" in page
    assert action_names(page) == {"compact"}


def test_the_loads_of_a_table_continue_on_the_next_page(pages: TestClient) -> None:
    first = shown(pages, f"/tables/{NAME}?limit=1")
    assert "2 loads" in text_of(first)
    [following] = re.findall(r'rel="next" href="([^"]*)"', first)
    second = shown(pages, f"/tables/{NAME}" + html.unescape(following))
    days = [set(re.findall(r"shop/\d+/notes/(2024-06-\d\d)", page)) for page in (first, second)]
    assert days == [{"2024-06-09"}, {"2024-06-10"}]
    assert 'rel="next"' not in second
    shown(pages, f"/tables/demo.campaign_daily{html.unescape(following)}", 400)


def test_a_table_without_rows_names_the_command_that_fills_it(pages: TestClient) -> None:
    page = shown(pages, "/tables/demo.campaign_daily")
    assert "The table has no rows of trusted runs yet." in page
    assert "penstock run --query campaign_daily" in page
    assert "Nothing is published yet." in page
    assert "No run was loaded yet." in page


def test_a_table_whose_rows_cannot_be_read_is_shown_with_the_reason(tmp_path: Path) -> None:
    workspace = open_at(write_workspace(tmp_path, driver_partitions=100, query={"checks": []}))
    assert workspace.runs.start(Selection(), actor="ada").counts()["loaded"] == 2
    for file in (tmp_path / "lake" / "warehouse").rglob("*.parquet"):
        file.unlink()
    with served(workspace) as pages:
        page = shown(pages, "/tables/demo.campaign_daily")
        assert 'role="alert"' in page.partition('id="sample"')[2]
        assert "2 loads" in text_of(page)
    workspace.close()


def test_an_unknown_table_is_not_found(pages: TestClient) -> None:
    assert "unknown table" in text_of(shown(pages, "/tables/demo.nothing", 404))
    assert "is not valid" in text_of(shown(pages, "/tables/Demo.x'--", 404))


def open_breaker(workspace: Workspace, source: str) -> None:
    """The breaker opens with a hostile message."""
    probe_at = NOW + timedelta(minutes=5)
    opened = Breaker(source, 3, NOW, probe_at, 1, None, "quota", f"503 {HOSTILE}")
    workspace.context.breakers.change(source, lambda _: opened)


# --- sources ----------------------------------------------------------------------------------------------------------


def test_a_source_shows_its_breaker_its_quota_and_its_customers(pages: TestClient, workspace: Workspace) -> None:
    page = shown(pages, "/sources")
    assert re.findall(r'<section class="card" id="(\w+)"', page) == ["demo", "shop"]
    assert text_of(page).count("breaker ✓ closed") == 2
    shop = text_of(page.partition('id="shop"')[2])
    assert "requests in flight of a run at most 3" in shop
    assert "customers 1 queries notes" in shop
    assert "minute 100" in shop
    assert re.search(r"day 5,000 2 used.*? 4,998 1,000 20..-..-.. 00:00:00", shop)
    assert action_names(page) == set()
    open_breaker(workspace, "shop")
    page = shown(pages, "/sources")
    assert "breaker ✕ open since" in text_of(page)
    assert html.escape(HOSTILE) in page
    assert "next probe" in text_of(page)
    assert action_names(page) == {"close-breaker"}
    assert "source=shop" in html.unescape(page)


def test_a_viewer_sees_no_actions(tmp_path: Path) -> None:
    workspace = open_at(write_workspace(tmp_path))
    open_breaker(workspace, "demo")
    viewer = bearer(workspace.tokens.create("eve", TokenRole.VIEWER, actor="ada")[1])
    operator = bearer(workspace.tokens.create("kim", TokenRole.OPERATOR, actor="ada")[1])
    with served(workspace) as pages:
        for path in ("/tables", "/tables/demo.campaign_daily", "/sources"):
            assert action_names(shown(pages, path, headers=viewer)) == set()
            assert pages.get(path, follow_redirects=False).headers["location"].startswith("/login")
        assert action_names(shown(pages, "/sources", headers=operator)) == {"close-breaker"}
    workspace.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_pages_are_the_same_on_every_database(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    state: dict[str, Any] = {}
    if backend == "postgresql":
        state = {"state": request.getfixturevalue("postgres_url"), "schema": f"t_{new_ulid().lower()}"}
    fault = {"fault": "wrong_type", "date": "2024-06-09"}
    folder = write_workspace(tmp_path, driver_partitions=100, query={"checks": []}, faults=[fault], **state)
    workspace = open_at(folder)
    done = workspace.runs.start(Selection(), actor="ada")
    assert (done.counts()["loaded"], done.counts()["rejected"]) == (1, 1)
    with served(workspace) as pages:
        for path in ("/runs", "/runs/orders", "/backfills", "/tables", "/sources", "/sql"):
            shown(pages, path)
        assert "data : campaign_id" in text_of(shown(pages, f"/runs/{done.run_id}"))
        assert "partitions that readers see 1 rows 5" in text_of(shown(pages, "/tables/demo.campaign_daily"))
        statement = {"statement": "SELECT 40 + count(*) AS n FROM demo.campaign_daily"}
        assert '<td class="num">45</td>' in pages.post("/sql", data=statement, headers=ORIGIN).text
    workspace.close()
