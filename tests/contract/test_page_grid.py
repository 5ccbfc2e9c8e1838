"""The page of the grid: its filters, its legend, its command, and the data that its script needs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from penstock.app import load_workspace
from penstock.http.pages.grid import ACTS, CELLS, EMPTY_CELL
from penstock.projections.status_codes import code_legend
from support.api import bearer, served
from support.builders import quick_folder
from support.cli import in_process
from support.harness import Harness
from support.workspaces import open_at, write_workspace

HOSTILE = '"><script>alert(1)</script>'


@pytest.fixture(scope="module")
def house() -> Iterator[Harness]:
    with quick_folder() as folder:
        made = Harness(Path(folder), queries=("campaign_daily", "account_daily"))
        yield made
        made.workspace.close()


@pytest.fixture(scope="module")
def pages(house: Harness) -> Iterator[TestClient]:
    opened = load_workspace(house.folder)
    with served(opened) as client:
        yield client
    opened.close()


def shown(pages: TestClient, path: str, status: int = 200) -> str:
    response = pages.get(path)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    return response.text


def value(page: str, name: str) -> str:
    [found] = re.findall(rf'<input id="{name}"[^>]* value="([^"]*)"', page)
    return unescape(found)


def chosen(page: str, name: str) -> list[str]:
    [found] = re.findall(rf'<select id="{name}".*?</select>', page, re.S)
    return [unescape(one) for one in re.findall(r"<option[^>]* selected>([^<]*)<", found)]


def attribute(page: str, name: str) -> str:
    [found] = re.findall(rf'<div id="grid" [^>]*data-{name}="([^"]*)"', page)
    return unescape(found)


def test_the_url_fills_in_the_filters(pages: TestClient) -> None:
    page = shown(
        pages, "/grid?query=demo.account_daily&since=2024-06-09&until=2024-06-10&customer=1000000001&status=stale"
    )
    assert chosen(page, "query") == ["demo.account_daily"]
    assert [value(page, name) for name in ("since", "until", "customer")] == ["2024-06-09", "2024-06-10", "1000000001"]
    assert chosen(page, "status") == ["◆ stale"]
    assert [attribute(page, name) for name in ("source", "query", "since", "until")] == [
        "demo",
        "account_daily",
        "2024-06-09",
        "2024-06-10",
    ]


@pytest.mark.parametrize(
    ("asked", "table"),
    [("", "campaign_daily"), ("?query=", "campaign_daily"), ("?query=account_daily", "account_daily")],
)
def test_a_table_is_found_by_the_name_of_its_query_and_the_first_one_by_default(
    pages: TestClient, asked: str, table: str
) -> None:
    page = shown(pages, f"/grid{asked}")
    assert attribute(page, "query") == table
    assert chosen(page, "query") == [f"demo.{table}"]


@pytest.mark.parametrize("name", ["nothing", "other.campaign_daily", HOSTILE])
def test_an_unknown_table_shows_the_error_of_the_api_and_the_filters(pages: TestClient, name: str) -> None:
    response = pages.get("/grid", params={"query": name})
    assert response.status_code == 400
    detail = pages.get("/api/v1/grid", params={"query": name}).json()["detail"]
    assert "unknown query" in detail
    assert detail in unescape(response.text)
    assert 'id="query"' in response.text
    assert "<canvas" not in response.text
    assert "<script>" not in response.text


def test_a_hostile_filter_is_text(pages: TestClient) -> None:
    page = pages.get("/grid", params={"customer": HOSTILE}).text
    assert HOSTILE not in page
    assert value(page, "customer") == HOSTILE


def test_an_unknown_status_is_refused(pages: TestClient) -> None:
    assert "use materialized" in shown(pages, "/grid?status=late", 400)


def test_the_legend_has_each_code_with_text_symbol_and_the_state_that_actions_select(pages: TestClient) -> None:
    expected = {code["code"]: code["display_status"] for code in code_legend()}
    cells = {cell.number: cell for cell in (*CELLS, EMPTY_CELL)}
    assert set(cells) == set(expected)
    assert len({cell.symbol for cell in cells.values()}) == len({cell.text for cell in cells.values()}) == len(cells)
    assert {cell.name for cell in CELLS} == {str(name) for name in expected.values() if name} | {"failed"}
    page = shown(pages, "/grid")
    found = re.findall(
        r'class="grid-entry" data-name="(\w*)" data-number="(\d)" data-text="([^"]+)" data-symbol="(.)"'
        r' data-state="(\w*)" data-display="(\w*)"',
        page,
    )
    assert found == [(c.name, str(c.number), c.text, c.symbol, c.state, c.display) for c in (*CELLS, EMPTY_CELL)]
    assert re.findall(r'data-count="(\d)"', page) == [str(cell.number) for cell in (*CELLS, EMPTY_CELL)]


@pytest.mark.parametrize(
    "asked", ["", "?query=demo.account_daily&since=2024-06-09&until=2024-06-09&customer=1000000002"]
)
def test_the_command_counts_the_same_partitions(pages: TestClient, house: Harness, asked: str) -> None:
    [text] = re.findall(r'<code id="command">(.*?)</code>', shown(pages, f"/grid{asked}"))
    words = shlex.split(unescape(text))
    assert words[0] == "penstock"
    done = in_process(*words[1:], "--json", workspace=house.folder)
    assert done.code == 0, done.stderr
    queries = {"account_daily"} if asked else {"campaign_daily"}
    assert set(words) >= {"--query", *queries}
    if asked:
        assert [(one["customer"], one["date"]) for one in done.document["items"]] == [("1000000002", "2024-06-09")]


def test_only_a_person_who_may_act_sees_actions(tmp_path: Path) -> None:
    opened = open_at(write_workspace(tmp_path))
    tokens = {role: opened.tokens.create(role, role, actor="ada")[1] for role in ("viewer", "operator")}
    with served(opened) as client:
        seen = {role: client.get("/grid", headers=bearer(text)).text for role, text in tokens.items()}
        assert client.get("/grid?customer=a b", follow_redirects=False).headers["location"] == (
            "/login?next=%2Fgrid%3Fcustomer%3Da%2Bb"
        )
    opened.close()
    assert "data-act" not in seen["viewer"]
    assert "/actions/preview" not in seen["viewer"]
    assert re.findall(r'data-act="(\w+)"', seen["operator"]) == [act.value for act in ACTS]
    assert re.findall(r'<button name="act" value="(\w+)"', seen["operator"]) == [act.value for act in ACTS]


def test_the_page_works_under_the_content_security_policy_and_has_a_text_without_scripts(pages: TestClient) -> None:
    page = shown(pages, "/grid")
    assert " style=" not in page
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    for name in ("grid_cells.js", "grid_paint.js", "grid_select.js", "grid.js"):
        [address] = re.findall(rf'<script src="(/static/{re.escape(name)}\?v=\w+)" defer>', page)
        script = pages.get(address)
        assert script.status_code == 200
        assert "innerHTML" not in script.text
        assert "insertAdjacentHTML" not in script.text
    [text] = re.findall(r"<noscript>(.*?)</noscript>", page)
    assert 'href="/partitions?query=campaign_daily"' in text
