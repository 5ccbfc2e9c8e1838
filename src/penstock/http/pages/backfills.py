"""Backfills: their progress, expected end, failed partitions and actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.http.api.backfills import BACKFILL, list_backfills, show_backfill
from penstock.http.calls import Call, Reply
from penstock.http.pages.rendering import Page, render
from penstock.http.pages.runs import duration
from penstock.http.parameters import CURSOR, limit
from penstock.http.routes import PAGE, Access, Route

_SHOWN_KEYS = 100
_ACTIONS = {
    "active": (("backfill-pause", "Pause"), ("backfill-cancel", "Cancel")),
    "paused": (("backfill-resume", "Resume"), ("backfill-cancel", "Cancel")),
}


def show_backfills(call: Call) -> Reply:
    """The backfills with their progress, highest priority first."""
    found = list_backfills(call)
    return render(
        call,
        "backfills.html",
        Page("Backfills", "backfills", "penstock backfill list"),
        backfills=[_with_progress(item) for item in found["items"]],
        total=found["total"],
        next=found["next"],
        limit=call.limit,
        loop_warning=_loop_warning(call, found["items"]),
    )


def show_one_backfill(call: Call) -> Reply:
    """One backfill: its progress, its chunks, its failed partitions."""
    found = show_backfill(call)
    actions = list(_ACTIONS.get(found["status"], ()))
    if found["failed"]:
        actions.append(("backfill-retry-failed", "Retry failed"))
    named = found["backfill_id"]
    return render(
        call,
        "backfill.html",
        Page(f"Backfill {named}", "backfills", f"penstock backfill show {named}"),
        backfill=_with_progress(found),
        failed=found["failed"][:_SHOWN_KEYS],
        failed_total=found["failed_total"],
        actions=actions,
        duration=duration(found["created_at"], found["finished_at"]),
        loop_warning=_loop_warning(call, [found]),
    )


def _with_progress(item: Mapping[str, Any]) -> dict[str, Any]:
    """The backfill with its share of finished partitions in percent."""
    total = item["total"]
    return {**item, "percent": int(100 * item["done"] / total) if total else 100}


def _loop_warning(call: Call, items: list[Any]) -> str | None:
    """Why active backfills make no progress: no control loop is alive."""
    is_active = any(item["status"] == "active" for item in items)
    return call.workspace.orders.loop_warning() if is_active else None


ROUTES = (
    Route("GET", "/backfills", show_backfills, Access.VIEWER, PAGE, "The backfills", (limit(20), CURSOR)),
    Route("GET", "/backfills/{backfill_id}", show_one_backfill, Access.VIEWER, PAGE, "One backfill", (BACKFILL,)),
)
