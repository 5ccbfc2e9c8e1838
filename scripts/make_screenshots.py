"""Takes the screenshots of the console in docs/images, from a copy of the workspace of `make demo`.

`make screenshots` runs it. In the copy an operator pauses a customer, withdraws a run and creates a backfill, so that the
pages have something to show.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, ViewportSize

from penstock.app import load_workspace
from penstock.client import Client
from support.api_process import api_server
from support.browser import Visitor, chromium

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
DEMO = ROOT / "demo" / "workspace"
Size = Literal["usual", "narrow", "wide"]
SIZES: dict[Size, ViewportSize] = {
    "usual": {"width": 1280, "height": 700},
    "narrow": {"width": 390, "height": 844},
    "wide": {"width": 2560, "height": 1440},
}
LARGEST: dict[Size, int] = {"usual": 150_000, "narrow": 150_000, "wide": 250_000}  # bytes of a picture


@dataclass(frozen=True, slots=True)
class Shot:
    """A picture of a page."""

    name: str
    address: str
    scheme: Literal["light", "dark"] = "light"
    size: Size = "usual"
    button: str | None = None  # is pressed before


def act(client: Client) -> None:
    """What an operator does in the copy."""
    trusted = [item["key"] for item in client.partitions(status="success", query="network_daily", limit=10)][3]
    for name, selection, options in (
        ("pause", {"customers": ["1000000012"]}, {"reason": "The account moves to another manager"}),
        ("demote", {"keys": [trusted]}, {"reason": "The currency is wrong"}),
        ("backfill", {"customers": ["1000000020", "1000000021"]}, {"reprocess": True, "reason": "Corrected costs"}),
    ):
        client.apply(client.preview(name, selection, **options)["token"])


def shots(client: Client) -> Iterator[Shot]:
    """The pictures, of resources that the demo has."""
    of_customer = client.partitions(customer="1000000004", query="campaign_daily")
    held_back = next(i["key"] for i in of_customer if i["display_status"] == "materialized_but_last_attempt_failed")
    run = max(client.runs(), key=lambda one: one["tasks_total"] or 0)["run_id"]
    yield Shot("overview", "/")
    yield Shot("overview-dark", "/", "dark")
    yield Shot("overview-narrow", "/", size="narrow")
    yield Shot("overview-wide", "/", size="wide")
    yield Shot("grid", "/grid?query=demo.campaign_daily")
    yield Shot("grid-wide", "/grid?query=demo.campaign_daily", size="wide")
    yield Shot("partition", f"/partitions/{held_back}")
    yield Shot("run", f"/runs/{run}")
    form = "/actions/new?act=pause&customer=1000000030&reason=The+account+is+closed"
    yield Shot("preview", form, button="Preview")


def take(browser: Browser, url: str, shot: Shot) -> Path:
    """Take a picture. Fails for whatever the browser complains about, and for a large file."""
    visitor = Visitor(browser, url, viewport=SIZES[shot.size], color_scheme=shot.scheme)
    try:
        assert visitor.open(shot.address) == 200, f"{shot.address} was refused"
        if shot.button:
            visitor.press(shot.button)
        visitor.page.wait_for_load_state("networkidle")
        target = IMAGES / f"console-{shot.name}.png"
        visitor.page.screenshot(path=target)
    finally:
        visitor.context.close()
    assert visitor.problems == [], visitor.problems
    assert target.stat().st_size <= LARGEST[shot.size], f"{target} has {target.stat().st_size:,} bytes"
    return target


def main() -> int:
    """Take all pictures."""
    if not (DEMO / "state.db").exists():
        print("there is no demo/workspace: run `make demo`", file=sys.stderr)
        return 1
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="screenshots-") as folder:
        copy = Path(shutil.copytree(DEMO, Path(folder) / "workspace"))
        workspace = load_workspace(copy)
        workspace.maintenance.migrate()
        workspace.close()
        with api_server(copy) as server, chromium() as browser, Client(server.url) as client:
            act(client)
            for shot in shots(client):
                print(take(browser, server.url, shot).relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
