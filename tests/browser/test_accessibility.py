"""Every page for everybody: axe finds nothing serious in both themes, narrow windows, the keyboard alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import pytest
from playwright.sync_api import Route as Intercepted

from penstock.control.action_kinds import ActionKind
from penstock.http.routes import Route
from support.browser import Visitor
from support.console_site import Site, console_site
from support.page_routes import SHOWN, address_of, route_id

NARROW, WIDE = {"width": 360, "height": 740}, {"width": 3840, "height": 2160}
# The controls that a keyboard must reach: visible, enabled, and of a group of radio buttons the one that is chosen.
CONTROLS = """() => {
  const every = document.querySelectorAll(
    'a[href], button, input, select, textarea, summary, [tabindex="0"], [contenteditable="true"]');
  window.controls = [...every].filter((one) => !one.disabled && one.checkVisibility({visibilityProperty: true})
    && one.type !== 'hidden' && one.tabIndex >= 0 && !(one.type === 'radio' && !one.checked));
  return window.controls.length;
}"""


@pytest.fixture(scope="module")
def empty_site() -> Iterator[Site]:
    """A server over a workspace in which nothing was done."""
    with console_site(is_empty=True) as served:
        yield served


def findings(visitor: Visitor) -> list[str]:
    """What axe finds in the theme of the system, which is light unless a test chooses another, and after a switch."""
    visitor.page.wait_for_load_state("networkidle")
    found = visitor.audit()
    visitor.page.get_by_role("button", name="Switch between light and dark").click()
    return found + visitor.audit()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("route", SHOWN, ids=route_id)
def test_axe_finds_nothing_serious_on_a_page(
    site: Site, visit: Callable[..., Visitor], route: Route, scheme: str
) -> None:
    visitor = visit(site, "admin", color_scheme=scheme)
    assert visitor.open(address_of(route, site.subjects)) == 200
    assert findings(visitor) == []


@pytest.mark.parametrize("act", ActionKind)
def test_axe_finds_nothing_serious_in_the_form_of_an_action(
    site: Site, visit: Callable[..., Visitor], act: ActionKind
) -> None:
    visitor = visit(site, "admin")
    assert visitor.open(f"/actions/new?act={act}") == 200
    assert findings(visitor) == []


def test_axe_finds_nothing_serious_in_previews_results_and_errors(site: Site, visit: Callable[..., Visitor]) -> None:
    visitor = visit(site, "operator")
    visitor.expected = {400, 404}
    visitor.open("/actions/new?act=pause")
    visitor.page.get_by_label("Or keys, one for each line").fill("nonsense")
    visitor.press("Preview")
    assert visitor.page.get_by_role("alert").count() == 1
    assert findings(visitor) == []
    visitor.page.get_by_label("Or keys, one for each line").fill(str(site.house.unused()))
    visitor.press("Preview")
    assert visitor.page.get_by_role("heading", name="Preview: Pause").count() == 1
    assert findings(visitor) == []
    visitor.press("Apply")
    assert findings(visitor) == []
    assert visitor.open("/nothing") == 404
    assert findings(visitor) == []


WITHOUT_SUBJECT = [route for route in SHOWN if "{" not in route.path]


@pytest.mark.parametrize("route", WITHOUT_SUBJECT, ids=route_id)
def test_a_page_without_data_loads_and_axe_finds_nothing_serious(
    empty_site: Site, visit: Callable[..., Visitor], route: Route
) -> None:
    visitor = visit(empty_site, "operator")
    assert visitor.open(address_of(route, empty_site.subjects)) == 200
    assert findings(visitor) == []


@pytest.mark.parametrize("window", [NARROW, WIDE], ids=["narrow", "wide"])
@pytest.mark.parametrize("route", SHOWN, ids=route_id)
def test_a_page_does_not_scroll_sideways_in_a_narrow_or_wide_window(
    site: Site, visit: Callable[..., Visitor], route: Route, window: dict[str, int]
) -> None:
    visitor = visit(site, "admin", viewport=window)
    visitor.open(address_of(route, site.subjects))
    visitor.page.wait_for_load_state("networkidle")
    wide = """() => [...document.querySelectorAll('body *')]
      .filter((one) => one.getBoundingClientRect().right > document.documentElement.clientWidth + 1
        && !one.closest('.scroll, [tabindex="0"]'))
      .map((one) => one.outerHTML.slice(0, 120))"""
    root = "document.documentElement"
    width = visitor.page.evaluate(f"{root}.scrollWidth")
    assert width <= window["width"], visitor.page.evaluate(wide)


@pytest.mark.parametrize("route", SHOWN, ids=route_id)
def test_the_keyboard_reaches_every_control_and_shows_where_it_is(
    site: Site, visit: Callable[..., Visitor], route: Route
) -> None:
    visitor = visit(site, "operator")
    page = visitor.page

    def without_updates(intercepted: Intercepted) -> None:
        """A poll without changes, so that the page stays the same while keys are pressed."""
        if intercepted.request.headers.get("hx-request"):
            intercepted.fulfill(status=204)
        else:
            intercepted.fallback()

    page.route("**/*", without_updates)
    visitor.open(address_of(route, site.subjects))
    page.wait_for_load_state("networkidle")
    total = page.evaluate(CONTROLS)
    page.evaluate("document.activeElement.blur()")
    shown: dict[int, bool] = {}  # the controls that were reached, and whether they show it
    for _ in range(5 * total + 10):  # a field for a day has several stops
        if len(shown) == total and all(shown.values()):
            break
        page.keyboard.press("Tab")
        at, is_marked = page.evaluate("""() => {
          const style = getComputedStyle(document.activeElement);
          const marked = style.outlineStyle !== 'none' || style.boxShadow !== 'none';
          return [window.controls.indexOf(document.activeElement), marked];
        }""")
        if at >= 0:
            shown[at] = shown.get(at, False) or is_marked
    unmarked = [at for at in range(total) if not shown.get(at)]
    assert [page.evaluate("at => window.controls[at].outerHTML.slice(0, 200)", at) for at in unmarked] == []


def test_the_first_key_offers_to_skip_the_navigation(operator: Visitor) -> None:
    operator.open("/")
    operator.page.keyboard.press("Tab")
    skip = operator.page.get_by_role("link", name="Skip to the content")
    assert skip.evaluate("one => one === document.activeElement")
    box = skip.bounding_box()
    assert box is not None
    assert box["y"] >= 0
    operator.page.keyboard.press("Enter")
    assert operator.page.evaluate("document.activeElement.id") == "main"


@pytest.mark.parametrize(("scheme", "other"), [("light", "dark"), ("dark", "light")])
def test_the_chosen_theme_is_kept(
    site: Site, visit: Callable[..., Visitor], scheme: str, other: Literal["light", "dark"]
) -> None:
    visitor = visit(site, "viewer", color_scheme=scheme)
    page = visitor.page
    colour = "getComputedStyle(document.body).backgroundColor"
    visitor.open("/")
    before = page.evaluate(colour)
    page.get_by_role("button", name="Switch between light and dark").click()
    after = page.evaluate(colour)
    assert after != before
    assert page.evaluate("document.documentElement.dataset.theme") == other
    page.reload()
    assert page.evaluate(colour) == after
    visitor.open("/actions/new?act=retry")
    assert page.evaluate(colour) == after
    page.emulate_media(color_scheme=other)
    assert page.evaluate(colour) == after
    page.get_by_role("button", name="Switch between light and dark").click()
    assert page.evaluate(colour) == before
