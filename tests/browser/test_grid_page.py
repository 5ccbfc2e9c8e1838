"""The grid page in Chromium: what it paints, how pointer and keys work, and what a selection hands to actions."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import uvicorn
import yaml
from playwright.sync_api import Browser, Dialog, Page, Route, expect

from penstock.app import Workspace
from penstock.control.action_kinds import ActionKind
from penstock.http.application import make_application
from penstock.lifecycle import AttemptReason
from penstock.partition import PartitionKey, new_run_id
from penstock.state.records import Planned
from support import builders
from support.harness import FIELDS, Harness
from support.workspaces import CAMPAIGNS, NOW, customer_id, key, open_at, write_workspace

CUSTOMERS = 160  # more than the URL of an action takes
FIRST, LAST, DAYS = "2024-06-01", "2024-06-10", 10
HOSTILE = "<img src=x onerror=alert(1)> & <b>Co</b>"


@contextmanager
def listening(workspace: Workspace) -> Iterator[str]:
    """The address of a server over this workspace, in a thread."""
    app = make_application(workspace, workspace.context.workers.register())
    with socket.create_server(("127.0.0.1", 0)) as opened:
        server = uvicorn.Server(uvicorn.Config(app, lifespan="on", log_config=None, ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{opened.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def house() -> Iterator[Harness]:
    """Ten days of customers with names, partitions in several states."""
    with builders.quick_folder() as name:
        folder = Path(name)
        query = {**CAMPAIGNS, "start_date": FIRST, "fields": FIELDS, "checks": []}
        write_workspace(folder, customers=CUSTOMERS, queries={"campaign_daily": query})
        settings = yaml.safe_load((folder / "penstock.yaml").read_text())
        for number, customer in enumerate(settings["customers"], 1):
            customer["name"] = HOSTILE if number == 2 else f"Customer {number}"
        (folder / "penstock.yaml").write_text(yaml.safe_dump(settings))
        made = Harness(folder)
        made.deliver({key(1): 1, key(2): 1, key(2, "2024-06-08"): 1, key(3, "2024-06-05"): 1})
        made.publish()
        reject(made, key(2), key(4), key(4, "2024-06-08"))
        yield made
        made.workspace.close()


def reject(house: Harness, *keys: PartitionKey) -> None:
    """Attempt these partitions once; each attempt leaves a payload and fails."""
    contract = house.workspace.context.contracts["campaign_daily"]
    seen, token = house._last_attempts(), house.workers.register()
    planned = [
        Planned(one, seen.get(one, 0), AttemptReason.MISSING, contract.fingerprint, contract.schema_version)
        for one in keys
    ]
    issued, _ = house.control.issue(new_run_id(), token, 0, planned)
    house.validator.judge([builders.rejected(item.attempt, token, payload_digest="x") for item in issued])
    house.workers.stop(token)


@pytest.fixture(scope="module")
def address(house: Harness) -> Iterator[str]:
    with listening(house.workspace) as found:
        yield found


@dataclass
class GridPage:
    """A page of the grid, and everything that its scripts complained about."""

    page: Page
    address: str
    errors: list[str] = field(default_factory=list)

    def open(self, query: str = "") -> None:
        self.page.goto(f"{self.address}/grid{query}")
        self.page.wait_for_selector("#grid[data-painted]")

    def show_days(self) -> None:
        """Zoom in, and scroll to the first customer and day."""
        self.page.click("#grid-days")
        self.page.evaluate("document.getElementById('grid-scroll').scrollTo(0, 0)")

    def place(self, row: int, day: int) -> tuple[float, float]:
        """The centre of a cell on the page."""
        box = {"top": row, "bottom": row, "left": day, "right": day}
        found = self.page.evaluate("box => penstockGrid.placeOnPage(box)", box)
        frame = self.page.locator("#grid-canvas").bounding_box()
        assert frame is not None
        return frame["x"] + found["x"], frame["y"] + found["y"]

    def pixel(self, row: int, day: int, offset: int = -9) -> str:
        """The colour of a cell, beside its pattern."""
        box = {"top": row, "bottom": row, "left": day, "right": day}
        found: str = self.page.evaluate(
            """([box, offset]) => {
              const { x, y } = penstockGrid.placeOnPage(box);
              const ctx = document.getElementById("grid-canvas").getContext("2d");
              const [scale, part] = [devicePixelRatio, (value) => value.toString(16).padStart(2, "0")];
              const at = (value) => Math.round((value + offset) * scale);
              return "#" + [...ctx.getImageData(at(x), at(y), 1, 1).data].slice(0, 3).map(part).join("");
            }""",
            [box, offset],
        )
        return found

    def colours(self) -> list[str]:
        """The colour of each code in the theme of the page."""
        found: list[str] = self.page.evaluate("penstockGrid.readColours().cells")
        return found

    def keys(self, *names: str) -> None:
        self.page.focus("#grid-canvas")
        for name in names:
            self.page.keyboard.press(name)

    def drag(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        self.page.mouse.move(*self.place(*start))
        self.page.mouse.down()
        self.page.mouse.move(*self.place(*end), steps=4)
        self.page.mouse.up()

    def selector(self, act: str = "retry") -> dict[str, list[str]]:
        """The fields that an action of the selection gets."""
        link = self.page.locator(f'#grid-links a[data-act="{act}"]')
        parts = urlsplit(str(link.get_attribute("href")))
        assert parts.path == "/actions/new"
        found = parse_qs(parts.query)
        assert found.pop("act") == [act]
        assert "key" not in found
        return found

    @property
    def path(self) -> str:
        return self.page.url.removeprefix(self.address)


@pytest.fixture
def opened(chromium: Browser, address: str) -> Iterator[GridPage]:
    """A page at the days of the grid. Errors of scripts and refused content fail the test."""
    with visiting(chromium, address) as visited:
        visited.open()
        visited.show_days()
        yield visited


@contextmanager
def visiting(chromium: Browser, address: str, **options: Any) -> Iterator[GridPage]:
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, **options)
    visited = GridPage(context.new_page(), address)
    page, errors = visited.page, visited.errors
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if "Content Security" in said.text else None)

    def refuse(dialog: Dialog) -> None:
        errors.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("dialog", refuse)
    try:
        yield visited
    finally:
        context.close()
    assert errors == []


def codes(house: Harness) -> bytes:
    return house.workspace.grids.grid("campaign_daily").codes.content


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait for a condition of the page, which no selector expresses."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "the page did not change in time"
        time.sleep(0.05)


@pytest.mark.parametrize("options", [{}, {"color_scheme": "dark"}, {"device_scale_factor": 2}], ids=str)
def test_each_cell_has_the_colour_of_its_status(
    chromium: Browser, address: str, house: Harness, options: dict[str, Any]
) -> None:
    with visiting(chromium, address, **options) as visited:
        visited.open()
        visited.show_days()
        until(lambda: visited.pixel(0, 0) == visited.colours()[1])
        content, colours = codes(house), visited.colours()
        assert set(content) == {1, 2, 3, 6}
        assert len(set(colours)) == 7
        for row in range(6):
            for day in range(DAYS):
                assert visited.pixel(row, day) == colours[content[row * DAYS + day]], (row, day)
        assert visited.page.locator("#grid-canvas").evaluate("canvas => canvas.height") < 900 * 2


def test_large_cells_have_a_pattern_and_small_ones_none(opened: GridPage) -> None:
    failed = (3, 8)  # its pattern is a cross
    until(lambda: opened.pixel(*failed) == opened.colours()[6])
    assert opened.pixel(*failed, offset=0) != opened.colours()[6]
    while opened.page.evaluate("penstockGrid.placeOnPage({top: 0, bottom: 0, left: 0, right: 0}).height") > 6:
        opened.keys("-")
    until(lambda: opened.pixel(*failed, offset=0) == opened.colours()[6])


def test_the_worst_status_of_merged_cells_wins_and_a_highlighted_one_before_it(opened: GridPage) -> None:
    def merged(highlighted: int | None) -> dict[str, Any]:
        found: dict[str, Any] = opened.page.evaluate(
            """(highlighted) => {
              const codes = new Uint8Array([2, 2, 4, 1, 2,
                                            2, 6, 2, 2, 0,
                                            0, 0, 3, 2, 5]);
              const found = penstockGrid.mergeCells(codes, 3, 5, 2, 2, highlighted);
              return { ...found, codes: [...found.codes] };
            }""",
            highlighted,
        )
        return found

    assert merged(None) == {"codes": [6, 1, 2, 0, 3, 5], "rows": 2, "columns": 3}
    assert merged(2)["codes"] == [2, 2, 2, 0, 2, 5]


def test_everything_fits_when_zoomed_out_and_a_click_on_merged_cells_zooms_in(opened: GridPage) -> None:
    opened.keys("0", *"-" * 3)
    size = "penstockGrid.placeOnPage({top: 0, bottom: 0, left: 0, right: 0})"
    until(lambda: opened.page.evaluate(f"{size}.height") <= 1)
    opened.page.mouse.move(*opened.place(2, 2))
    expect(opened.page.locator("#grid-tip")).to_contain_text("never materialized: ")
    opened.page.mouse.click(*opened.place(2, 2))
    assert opened.path.startswith("/grid")
    until(lambda: opened.page.evaluate(f"{size}.height") > 1)


def test_hover_shows_the_partition(opened: GridPage) -> None:
    opened.page.mouse.move(*opened.place(3, 8))
    tip = opened.page.locator("#grid-tip")
    expect(tip).to_have_text(f"{customer_id(4)} Customer 42024-06-09✗ never materialized, last attempt failed")
    expect(opened.page.locator("#grid-live")).to_have_text(
        f"{customer_id(4)} Customer 4, 2024-06-09, ✗ never materialized, last attempt failed"
    )
    opened.page.mouse.move(5, 5)
    expect(tip).to_be_hidden()


def test_a_hostile_name_is_text(opened: GridPage) -> None:
    opened.page.mouse.move(*opened.place(1, 0))
    expect(opened.page.locator("#grid-tip")).to_contain_text(HOSTILE)
    expect(opened.page.locator("#grid-live")).to_contain_text(HOSTILE)
    opened.page.fill("#customer", "<img")
    expect(opened.page.locator("#grid-shape")).to_contain_text("1 of 160 customers")
    opened.page.click("#grid-all")
    expect(opened.page.locator("#grid-total")).to_contain_text(customer_id(2))
    assert opened.page.locator("main img, main b").count() == 0


def test_a_click_opens_the_partition(opened: GridPage) -> None:
    opened.page.mouse.click(*opened.place(2, 4))
    opened.page.wait_for_url("**/partitions/**")
    assert opened.path == f"/partitions/{key(3, '2024-06-05')}"


def test_keys_move_the_cursor_and_enter_opens_the_partition(opened: GridPage) -> None:
    opened.keys("Control+Home", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowLeft")
    live = opened.page.locator("#grid-live")
    expect(live).to_have_text(f"{customer_id(3)} Customer 3, 2024-06-02, ○ never materialized")
    inside, edge = opened.pixel(2, 1), opened.pixel(2, 1, offset=-11)
    assert inside == opened.colours()[1]
    assert edge != opened.pixel(2, 4, offset=-11)  # the cursor is drawn
    opened.keys("End")
    expect(live).to_contain_text(f"{customer_id(3)} Customer 3, {LAST}")
    opened.keys("Control+End")
    expect(live).to_contain_text(f"{customer_id(CUSTOMERS)} Customer {CUSTOMERS}, {LAST}")
    opened.keys("PageUp")
    expect(live).not_to_contain_text(customer_id(CUSTOMERS))
    opened.keys("Control+Home", "ArrowUp", "Enter")
    opened.page.wait_for_url("**/partitions/**")
    assert opened.path == f"/partitions/{key(1, FIRST)}"


def test_the_page_is_used_by_keyboard_alone(opened: GridPage) -> None:
    opened.page.focus("#grid-all")
    opened.page.keyboard.press("Tab")  # the button to clear is disabled
    assert opened.page.evaluate("document.activeElement.id") in ("grid-scroll", "grid-canvas")
    opened.keys("Control+Home")
    opened.page.keyboard.press("Tab")
    assert opened.page.evaluate("document.activeElement.id") != "grid-canvas"


def test_drag_selects_a_rectangle_and_its_actions_get_a_selector(opened: GridPage) -> None:
    opened.drag((3, 9), (0, 7))
    panel = opened.page.locator("#grid-selection")
    expect(panel.locator("#grid-total")).to_have_text(
        f"12 partitions: 4 customers ({customer_id(1)} to {customer_id(4)}), 3 days (2024-06-08 to {LAST})."
    )
    expect(panel.locator("#grid-counts li")).to_have_text(
        [
            "● materialized: 2",
            "◐ materialized, last attempt failed: 1",
            "○ never materialized: 7",
            "✗ never materialized, last attempt failed: 2",
        ]
    )
    expected = {
        "source": ["demo"],
        "query": ["campaign_daily"],
        "customer": [customer_id(number) for number in range(1, 5)],
        "since": ["2024-06-08"],
        "until": [LAST],
    }
    assert opened.selector("retry") == opened.selector("backfill") == expected
    listed = parse_qs(urlsplit(str(panel.get_by_role("link", name="List").get_attribute("href"))).query)
    assert listed == expected
    panel.get_by_role("link", name="Pause").click()
    expect(opened.page.locator("#customer")).to_have_value("\n".join(expected["customer"]))
    opened.page.get_by_role("button", name="Preview").click()
    expect(opened.page.locator("main")).to_contain_text("12 changes")


def test_the_list_of_a_highlighted_status_has_the_highlighted_partitions_only(opened: GridPage) -> None:
    opened.open("?status=materialized_but_last_attempt_failed")
    opened.page.click("#grid-all")
    panel = opened.page.locator("#grid-selection")
    expect(panel.locator("#grid-hint")).to_contain_text("The list has the highlighted ones only.")
    assert opened.selector("pause")["status"] == ["success"]
    panel.get_by_role("link", name="List").click()
    expect(opened.page.locator("#found")).to_have_text("1 partition")
    expect(opened.page.locator("main")).to_contain_text(str(key(2)))


def test_shift_and_arrow_keys_select_and_escape_clears(opened: GridPage) -> None:
    opened.keys("Control+Home", "ArrowDown", "Shift+ArrowDown", "Shift+ArrowRight", "Shift+ArrowRight")
    expect(opened.page.locator("#grid-total")).to_have_text(
        f"6 partitions: 2 customers ({customer_id(2)} to {customer_id(3)}), 3 days ({FIRST} to 2024-06-03)."
    )
    assert opened.selector("pause")["customer"] == [customer_id(2), customer_id(3)]
    opened.keys("Escape")
    expect(opened.page.locator("#grid-selection")).to_be_hidden()


def test_all_that_match_are_selected_not_only_those_in_view(opened: GridPage, house: Harness) -> None:
    opened.page.click("#grid-all")
    expect(opened.page.locator("#grid-total")).to_contain_text(f"{CUSTOMERS * DAYS:,} partitions: 160 customers")
    every = {"source": ["demo"], "query": ["campaign_daily"], "since": [FIRST], "until": [LAST]}
    assert opened.selector("run") == every
    opened.page.click('button.grid-entry[data-name="failed"]')
    expect(opened.page.locator("#grid-total")).to_contain_text("2 of 1,600 partitions")
    assert opened.selector() == {**every, "status": ["failed"]}
    expect(opened.page.locator("#grid-hint")).to_be_hidden()
    opened.page.fill("#customer", "customer 4")
    expect(opened.page.locator("#grid-shape")).to_contain_text("11 of 160 customers")
    named = [customer_id(number) for number in (4, *range(40, 50))]
    assert opened.selector() == {**every, "customer": named, "status": ["failed"]}
    assert parse_qs(urlsplit(opened.path).query) == {"customer": ["customer 4"], "status": ["failed"]}
    opened.page.reload()
    opened.page.wait_for_selector("#grid[data-painted]")
    expect(opened.page.locator("#grid-shape")).to_contain_text("11 of 160 customers")
    expect(opened.page.locator('button.grid-entry[data-name="failed"]')).to_have_attribute("aria-pressed", "true")


def test_a_status_that_no_selector_names_is_explained(opened: GridPage) -> None:
    opened.page.select_option("#status", "materialized_but_last_attempt_failed")
    opened.page.click("#grid-all")
    expect(opened.page.locator("#grid-total")).to_contain_text("1 of 1,600 partitions")
    assert opened.selector()["status"] == ["success"]
    expect(opened.page.locator("#grid-hint")).to_contain_text("partitions here have the state success, more than the 1")


def test_a_highlight_dims_the_other_cells(opened: GridPage) -> None:
    before = opened.pixel(0, 0)
    opened.page.select_option("#status", "failed")
    until(lambda: opened.pixel(0, 0) != before)
    assert opened.pixel(3, 8) == opened.colours()[6]


def test_a_selection_with_too_many_customers_for_a_link_is_previewed_by_a_form(opened: GridPage) -> None:
    opened.keys("Control+Home", "ArrowDown", "Shift+Control+End")
    expect(opened.page.locator("#grid-total")).to_contain_text("1,590 partitions: 159 customers")
    expect(opened.page.locator("#grid-links")).to_be_hidden()
    opened.page.locator("#grid-preview").get_by_role("button", name="Pause", exact=True).click()
    opened.page.wait_for_url("**/actions/preview")
    expect(opened.page.locator("h1")).to_have_text("Preview: Pause")
    expect(opened.page.locator("main")).to_contain_text("1,590")


def test_a_change_appears_without_a_reload(opened: GridPage, house: Harness) -> None:
    changed = key(6, "2024-06-04")
    until(lambda: opened.pixel(5, 3) == opened.colours()[1])
    count = opened.page.locator('[data-count="2"]')
    before = int(count.inner_text())
    house.deliver({changed: 1})
    house.publish()
    until(lambda: opened.pixel(5, 3) == opened.colours()[2])
    expect(count).to_have_text(str(before + 1))


def test_a_day_that_begins_appears_with_its_label(opened: GridPage, house: Harness) -> None:
    context = house.workspace.context
    clock = context.clock
    context.clock = lambda: NOW + timedelta(days=1)
    try:
        expect(opened.page.locator("#grid-shape")).to_have_text(
            "160 customers, 11 days: 2024-06-01 to 2024-06-11", timeout=30_000
        )
        opened.keys("Control+Home", "End")
        expect(opened.page.locator("#grid-live")).to_contain_text("2024-06-11, ○ never materialized")
    finally:
        context.clock = clock


def test_control_and_the_wheel_zoom_at_the_pointer(opened: GridPage) -> None:
    opened.page.mouse.move(*opened.place(2, 4))
    tip = opened.page.locator("#grid-tip")
    expect(tip).to_contain_text("2024-06-05")
    before = opened.place(2, 5)[0] - opened.place(2, 4)[0]
    opened.page.keyboard.down("Control")
    opened.page.mouse.wheel(0, 120)
    until(lambda: opened.place(2, 5)[0] - opened.place(2, 4)[0] < before)
    opened.page.mouse.wheel(0, -120)
    opened.page.keyboard.up("Control")
    until(lambda: opened.place(2, 5)[0] - opened.place(2, 4)[0] == before)
    assert opened.page.evaluate("visualViewport.scale") == 1


def test_a_drag_with_shift_pans(opened: GridPage) -> None:
    scrolled = "document.getElementById('grid-scroll').scrollTop"
    x, y = opened.place(12, 4)
    opened.page.mouse.move(x, y)
    opened.page.keyboard.down("Shift")
    opened.page.mouse.down()
    opened.page.mouse.move(x, y - 100, steps=4)
    opened.page.mouse.up()
    opened.page.keyboard.up("Shift")
    assert opened.page.evaluate(scrolled) == 100
    expect(opened.page.locator("#grid-selection")).to_be_hidden()


def test_a_poll_without_changes_costs_a_304(opened: GridPage) -> None:
    with opened.page.expect_response(lambda one: "/api/v1/grid?" in one.url) as found:
        pass
    assert found.value.status == 304


def test_a_server_that_does_not_respond_is_reported(opened: GridPage) -> None:
    def fail(route: Route) -> None:
        route.abort()

    opened.page.route("**/api/v1/grid**", fail)
    expect(opened.page.locator("#lost")).to_be_visible(timeout=30_000)
    opened.page.unroute("**/api/v1/grid**")
    expect(opened.page.locator("#lost")).to_be_hidden(timeout=30_000)


def test_days_without_partitions_show_the_text_of_the_api(chromium: Browser, address: str) -> None:
    with visiting(chromium, address) as visited:
        visited.page.goto(f"{address}/grid?since=2030-01-01")
        expect(visited.page.locator("#grid-empty")).to_have_text(
            "no partition of demo.campaign_daily is expected in these days"
        )
        expect(visited.page.locator("#grid")).to_be_hidden()


def test_a_filter_without_customers_has_no_cells(opened: GridPage) -> None:
    opened.page.fill("#customer", "nobody")
    expect(opened.page.locator("#grid-shape")).to_contain_text("0 of 160 customers")
    opened.keys("ArrowDown", "Enter", "Control+a")
    expect(opened.page.locator("#grid-selection")).to_be_hidden()
    opened.page.fill("#customer", "")
    expect(opened.page.locator("#grid-shape")).to_contain_text("160 customers")


def test_a_session_that_ends_sends_to_the_login_page_and_back(chromium: Browser, tmp_path: Path) -> None:
    workspace = open_at(write_workspace(tmp_path))
    token = workspace.tokens.create("ada", "viewer", actor="ada")[1]
    with listening(workspace) as address, visiting(chromium, address) as visited:
        visited.page.goto(f"{address}/grid?customer=1")
        visited.page.fill("#token", token)
        visited.page.keyboard.press("Enter")
        visited.page.wait_for_selector("#grid[data-painted]")
        assert visited.page.locator("[data-act]").count() == 0
        workspace.tokens.revoke("ada", actor="ada")
        visited.page.wait_for_url("**/login?**", timeout=30_000)
        assert parse_qs(urlsplit(visited.page.url).query) == {"next": ["/grid?customer=1"]}
    workspace.close()


def test_every_action_of_the_page_takes_a_selection() -> None:
    from penstock.control.action_kinds import takes_selection
    from penstock.http.pages.grid import ACTS

    assert [act for act in ACTS if not takes_selection(ActionKind(act))] == []
