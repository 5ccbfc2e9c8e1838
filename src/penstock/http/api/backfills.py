"""Backfills with their progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.control.action_kinds import LISTED
from penstock.http.calls import Call
from penstock.http.parameters import CURSOR, in_path, limit
from penstock.http.routes import PREFIX, Access, Route
from penstock.http.schemas.runs import BackfillDocument, BackfillPage
from penstock.views.document import Document, page, paginate

if TYPE_CHECKING:
    from penstock.app import Workspace
    from penstock.state.backfills import Backfill

BACKFILL = in_path("backfill_id", "A backfill: a ULID of 26 characters.", "^[0-7][0-9A-HJKMNP-TV-Z]{25}$")


def backfill_fields(ws: Workspace, found: Backfill, *, is_saved: bool = True) -> dict[str, Any]:
    """A backfill with its progress."""
    from penstock.views.backfills import backfill_item

    return backfill_item(found, ws.backfills.progress(found.backfill_id), ws.context.now(), is_saved=is_saved)


def list_backfills(call: Call) -> Document:
    """List backfills with their progress, highest priority first."""
    ws = call.workspace
    found, total = ws.context.backfills.page(call.limit + 1, call.after)
    shown, following = paginate(found, call.limit, lambda backfill: backfill.backfill_id)
    return call.page(page([backfill_fields(ws, backfill) for backfill in shown], total, following))


def show_backfill(call: Call) -> Document:
    """Show one backfill: its progress, the first 100 of its failed partitions, their number, and its expected end."""
    from penstock.views.backfills import backfill_document

    ws, backfill_id = call.workspace, call.path["backfill_id"]
    found, store = ws.backfills.get(backfill_id), ws.context.backfills
    failed = store.failed(backfill_id, limit=LISTED)
    total = len(failed) if len(failed) < LISTED else store.failed_count(backfill_id)
    return backfill_document(backfill_fields(ws, found), failed, total)


ROUTES = (
    Route(
        "GET",
        f"{PREFIX}/backfills",
        list_backfills,
        Access.VIEWER,
        BackfillPage,
        "List backfills",
        (limit(100), CURSOR),
    ),
    Route(
        "GET",
        f"{PREFIX}/backfills/{{backfill_id}}",
        show_backfill,
        Access.VIEWER,
        BackfillDocument,
        "Show one backfill",
        (BACKFILL,),
    ),
)
