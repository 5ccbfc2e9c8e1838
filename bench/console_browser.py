"""Measures the grid page in headless Chromium: the time until the canvas is painted, and the frames while it is panned.

A frame counts if the grid was painted in it. The wheel pans down and up; a script pans by a fixed distance each frame.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.workload import ASSET, Workload

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_VIEWPORT = {"width": 1280, "height": 900}
_LOADS = 5
_PAN_SECONDS = 3.0
_PAINTED = "#grid[data-painted]"
_ROOM = "(({ scrollHeight, clientHeight }) => scrollHeight - clientHeight)(document.getElementById('grid-scroll'))"

# Records the time of each paint of the cells.
_COUNT_PAINTS = """
window.paints = [];
const put = CanvasRenderingContext2D.prototype.putImageData;
CanvasRenderingContext2D.prototype.putImageData = function (...values) {
  window.paints.push(performance.now());
  return put.apply(this, values);
};
"""
# Pans by so many pixels in each frame, and turns around at the ends.
_PAN_BY_SCRIPT = """
([seconds, step]) => new Promise((resolve) => {
  const scroll = document.getElementById("grid-scroll");
  const end = performance.now() + seconds * 1000;
  let by = step;
  const frame = () => {
    const before = scroll.scrollTop;
    scroll.scrollTop += by;
    if (scroll.scrollTop === before) by = -by;
    if (performance.now() < end) requestAnimationFrame(frame);
    else resolve();
  };
  requestAnimationFrame(frame);
})
"""


@dataclass(frozen=True, slots=True)
class WideWorkload(Workload):
    """As many days as customers."""

    @property
    def days(self) -> int:
        found: int = round(self.partitions**0.5)
        return found


def measure_page(host: str) -> Iterator[dict[str, object]]:
    """What a browser measures on the grid page of a server that was started just now."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(_ARGUMENTS))
        try:
            yield from _measured(browser, f"http://{host}/grid?query={ASSET}")
        finally:
            browser.close()


def _measured(browser: Browser, address: str) -> Iterator[dict[str, object]]:
    first = _first_paint(browser, address)
    yield {"page": "first paint, cold server", "loads": 1, "median_ms": round(first), "worst_ms": round(first)}
    times = [_first_paint(browser, address) for _ in range(_LOADS)]
    yield {"page": "first paint", "loads": _LOADS, "median_ms": round(median(times)), "worst_ms": round(max(times))}
    page = _opened(browser, address)
    for name, keys in (("at first", ()), ("merged cells", ("0", "+", "+")), ("days with patterns", ("1",))):
        page.focus("#grid-canvas")
        for key in keys:
            page.keyboard.press(key)
        page.evaluate(_PAN_BY_SCRIPT, [0.3, 5])  # warm up
        yield {
            "page": f"pan by script, {name}",
            **_frames(page, lambda: page.evaluate(_PAN_BY_SCRIPT, [_PAN_SECONDS, 23])),
        }
        yield {"page": f"pan by wheel, {name}", **_frames(page, lambda: _pan_by_wheel(page))}
    page.context.close()


def _opened(browser: Browser, address: str) -> Page:
    context = browser.new_context(viewport=_VIEWPORT)  # type: ignore[arg-type]
    page = context.new_page()
    page.add_init_script(_COUNT_PAINTS)
    page.goto(address, wait_until="commit")
    page.wait_for_selector(_PAINTED, timeout=120_000)
    return page


def _first_paint(browser: Browser, address: str) -> float:
    """The milliseconds from the start of the navigation to the painted canvas, with an empty cache."""
    page = _opened(browser, address)
    found: float = page.evaluate("performance.getEntriesByName('penstock:grid-painted')[0].startTime")
    page.context.close()
    return found


def _pan_by_wheel(page: Page) -> None:
    """Turn the wheel down and up. The browser makes the events itself: a client would wait for each of them."""
    box = page.locator("#grid-canvas").bounding_box()
    assert box is not None
    room: int = page.evaluate(_ROOM)
    page.evaluate("document.getElementById('grid-scroll').scrollTop = 0")
    distance = min(1200, room)
    gesture = {
        "x": box["x"] + box["width"] / 2,
        "y": box["y"] + box["height"] / 2,
        "speed": max(1, round(2 * distance / _PAN_SECONDS)),
        "gestureSourceType": "mouse",
    }
    session = page.context.new_cdp_session(page)
    for direction in (-1, 1):
        session.send("Input.synthesizeScrollGesture", {**gesture, "yDistance": direction * distance})
    session.detach()


def _frames(page: Page, pan: Any) -> dict[str, object]:
    """The frames in which the grid was painted while it was panned."""
    page.evaluate("window.paints.length = 0")
    began = page.evaluate("performance.now()")
    pan()
    ended = page.evaluate("performance.now()")
    paints: list[float] = page.evaluate("window.paints")
    gaps = sorted(after - before for before, after in pairwise(paints))
    if not gaps:
        return {"frames_per_second": 0}
    return {
        "frames_per_second": round(len(paints) / (ended - began) * 1000, 1),
        "median_gap_ms": round(median(gaps), 1),
        "worst_gap_ms": round(gaps[-1], 1),
    }
