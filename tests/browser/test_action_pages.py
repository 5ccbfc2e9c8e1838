"""Every action in a real browser: the form, its preview, the result, and the line of the audit log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never
from urllib.parse import urlencode

import pytest
from playwright.sync_api import expect

from penstock.control.action_kinds import ORDERED, ActionKind
from penstock.control.select import Selection
from penstock.http.api.plans import ACTION_ROLES
from penstock.http.pages.actions import TEXTS
from penstock.http.pages.command_lines import COMMANDS as COMMAND_LINES
from support.browser import Visitor
from support.console_site import ConsoleHouse, Site
from support.page_routes import SHOWN

# The command in the audit log, if it is not that of the action.
COMMANDS = dict.fromkeys(ORDERED, "orders create")


def failed(house: ConsoleHouse) -> str:
    """A partition whose only attempt failed."""
    key = house.unused()
    house.reject(key)
    return str(key)


def trusted(house: ConsoleHouse) -> tuple[str, str]:
    """A partition with a trusted run, and this run."""
    key = house.unused()
    return str(key), str(house.deliver({key: 3}))


def subject(kind: ActionKind, house: ConsoleHouse) -> dict[str, Any]:
    """A new subject for an action: the fields that a link to its form fills in."""
    operations, backfills = house.live.operations, house.live.backfills
    match kind:
        case ActionKind.RETRY | ActionKind.MARK_TERMINAL:
            return {"key": failed(house)}
        case ActionKind.CLEAR_TERMINAL:
            key = failed(house)
            operations.mark_terminal([house.parse(key)], actor="ada")
            return {"key": key}
        case ActionKind.PAUSE | ActionKind.RUN | ActionKind.BACKFILL:
            return {"key": str(house.unused())}
        case ActionKind.RESUME:
            key = str(house.unused())
            operations.pause(Selection(keys=(house.parse(key),)), actor="ada")
            return {"key": key}
        case ActionKind.DEMOTE | ActionKind.VALIDATE:
            return {"key": trusted(house)[0]}
        case ActionKind.ROLLBACK:
            key, older = trusted(house)
            house.deliver({house.parse(key): 4})
            return {"key": key, "run_id": older}
        case ActionKind.APPROVE:
            held = house.unused()
            return {"key": str(held), "run_id": str(house.hold_back(held))}
        case ActionKind.BACKFILL_PAUSE | ActionKind.BACKFILL_CANCEL:
            return {"backfill_id": house.backfill()[0]}
        case ActionKind.BACKFILL_RESUME:
            named, _ = house.backfill()
            backfills.pause(named, actor="ada")
            return {"backfill_id": named}
        case ActionKind.BACKFILL_RETRY_FAILED:
            named, one = house.backfill()
            house.reject(one, backfill_id=named)
            return {"backfill_id": named}
        case ActionKind.CLOSE_BREAKER:
            house.open_breaker()
            return {"source": "demo"}
        case ActionKind.CANCEL_RUN | ActionKind.RESUME_RUN:
            return {"run_id": str(house.open_run())}
        case ActionKind.RECONCILE:
            trusted(house)  # it is accepted, and not in its table
            return {}
        case ActionKind.COMPACT:
            return {}
        case other:
            assert_never(other)


def form_of(kind: ActionKind, values: dict[str, Any]) -> str:
    return "/actions/new?" + urlencode({"act": kind.value, **values}, doseq=True)


def preview(visitor: Visitor, kind: ActionKind, values: dict[str, Any], reason: str = "because") -> None:
    visitor.open(form_of(kind, values))
    visitor.page.get_by_label("Reason").fill(reason)
    visitor.press("Preview")


@pytest.mark.parametrize("kind", ActionKind)
def test_an_action_is_previewed_applied_and_recorded(
    site: Site, visit: Callable[..., Visitor], kind: ActionKind
) -> None:
    role = ACTION_ROLES[kind].value
    visitor = visit(site, role)
    page = visitor.page
    values = subject(kind, site.house)
    before = len(site.audit())
    preview(visitor, kind, values, f"{kind} in the browser")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Preview: {TEXTS[kind].title}")
    expect(page.get_by_role("button", name="Apply")).to_be_enabled()
    expect(page.get_by_text(f"Reason: {kind} in the browser")).to_be_visible()
    for key in [values["key"]] if "key" in values else []:
        expect(page.locator("main").get_by_text(key).first).to_be_visible()
    assert len(site.audit()) == before, "a preview changes nothing"
    visitor.press("Apply")
    expect(page.locator("#done")).to_contain_text("Applied: ")
    expect(page.locator("#done")).not_to_contain_text("Applied: 0")
    [line, *_] = site.audit()
    command = COMMANDS.get(kind, COMMAND_LINES[kind][0])
    assert (line["actor"], line["command"], line["outcome"]) == (role, command, "done")
    page.reload()
    expect(page.locator("#done")).to_contain_text("Applied: ")
    assert site.audit()[0] == line, "the page of a result can be loaded again"
    visitor.open("/")
    expect(page.locator("section", has=page.locator("#recent")).get_by_role("listitem").first).to_contain_text(
        f"{role} {command}"
    )
    if any(route.name == "GET /audit" for route in SHOWN):
        visitor.open("/audit")
        expect(page.locator("main")).to_contain_text(f"{kind} in the browser")


def test_a_form_with_a_mistake_keeps_what_was_entered(operator: Visitor) -> None:
    operator.expected = {400}
    operator.open("/actions/new?act=retry&status=failed")
    page = operator.page
    page.get_by_label("Customers").fill("77")
    page.get_by_label("Reason").fill("<b>mine</b>")
    operator.press("Preview")
    expect(page.get_by_role("alert")).to_contain_text("unknown customer 77")
    expect(page.get_by_label("Customers")).to_have_value("77")
    expect(page.get_by_label("Reason")).to_have_value("<b>mine</b>")
    expect(page.get_by_label("State")).to_have_value("failed")


def test_a_preview_can_be_changed(site: Site, operator: Visitor) -> None:
    key = failed(site.house)
    preview(operator, ActionKind.RETRY, {"key": key}, "first")
    operator.page.get_by_role("link", name="Change").click()
    expect(operator.page.get_by_label("Or keys, one for each line")).to_have_value(key)
    expect(operator.page.get_by_label("Reason")).to_have_value("first")


def test_partitions_that_changed_since_the_preview_are_shown_and_left_as_they_are(
    site: Site, operator: Visitor
) -> None:
    one, other = failed(site.house), failed(site.house)
    preview(operator, ActionKind.RETRY, {"key": [one, other]})
    expect(operator.page.get_by_role("heading", name="2 changes")).to_be_visible()
    site.workspace.operations.retry(Selection(keys=(site.house.parse(other),)), actor="lee")
    operator.press("Apply")
    expect(operator.page.locator("#done")).to_have_text("Applied: 1 changed")
    left = operator.page.locator(".notice", has_text="left as they are")
    expect(left).to_contain_text("1 left as they are")
    expect(left.get_by_role("listitem")).to_have_text([other])


def test_a_plan_that_would_reach_more_than_its_preview_is_refused(site: Site, operator: Visitor) -> None:
    operator.expected = {409}
    one, other = str(site.house.unused()), str(site.house.unused())
    operations, second = site.workspace.operations, Selection(keys=(site.house.parse(other),))
    operations.pause(second, actor="lee")
    preview(operator, ActionKind.PAUSE, {"key": [one, other]})
    operations.resume(second, actor="lee")
    before = site.audit()
    operator.press("Apply")
    expect(operator.page.get_by_role("alert")).to_contain_text("preview the action again")
    assert site.audit() == before
    operator.page.get_by_role("link", name="Preview again").click()
    operator.press("Preview")
    operator.press("Apply")
    expect(operator.page.locator("#done")).to_have_text("Applied: 2 changed")


def test_of_two_operators_with_the_same_preview_the_second_sees_the_conflict(
    site: Site, visit: Callable[..., Visitor]
) -> None:
    key = failed(site.house)
    first, second = visit(site, "operator"), visit(site, "admin")
    for visitor in (first, second):
        preview(visitor, ActionKind.RETRY, {"key": key})
    first.press("Apply")
    expect(first.page.locator("#done")).to_have_text("Applied: 1 changed")
    second.press("Apply")
    expect(second.page.locator("#done")).to_have_text("Applied: 0 changed")
    expect(second.page.locator(".notice", has_text="left as they are").get_by_role("listitem")).to_have_text([key])
    lines = [line for line in site.audit() if line["command"] == "state retry" and key in str(line)]
    assert [line["actor"] for line in lines] == ["operator"]


def test_of_two_admins_who_demote_a_partition_the_second_is_refused(site: Site, visit: Callable[..., Visitor]) -> None:
    key, _ = trusted(site.house)
    first, second = visit(site, "admin"), visit(site, "admin")
    second.expected = {409}
    for visitor in (first, second):
        preview(visitor, ActionKind.DEMOTE, {"key": key}, "the currency is wrong")
    first.press("Apply")
    second.press("Apply")
    expect(second.page.get_by_role("alert")).to_be_visible()
    assert len([line for line in site.audit() if line["command"] == "state demote" and key in str(line)]) == 1


def test_a_double_click_applies_a_plan_once(site: Site, operator: Visitor) -> None:
    key = failed(site.house)
    preview(operator, ActionKind.RETRY, {"key": key})
    operator.expected = {409}  # while the first click is executed
    with operator.page.expect_navigation():
        operator.page.get_by_role("button", name="Apply").dblclick()
    operator.page.wait_for_load_state("networkidle")
    assert len([line for line in site.audit() if line["command"] == "state retry" and key in str(line)]) == 1
