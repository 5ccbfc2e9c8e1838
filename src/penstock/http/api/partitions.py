"""Partitions: pages by filters, the explanation of one, and its attempts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.errors import UsageError
from penstock.http.calls import Call
from penstock.http.parameters import CURSOR, DISPLAY, FILTERS, in_path, limit
from penstock.http.routes import PREFIX, Access, Route
from penstock.http.schemas.partitions import Attempts, PartitionPage, WhyDocument
from penstock.lifecycle import DisplayStatus, PartitionStatus
from penstock.partition import PartitionKey
from penstock.views.document import Document, page, paginate

if TYPE_CHECKING:
    from penstock.state.records import PartitionView

KEY_PATH = "{source}/{customer_id}/{query_name}/{logical_date}"
KEY_PARTS = (
    in_path("source", "The source, or `models`.", "^[a-z][a-z0-9_]{0,62}$"),
    in_path("customer_id", "The customer, or `all`.", "^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"),
    in_path("query_name", "The query or model.", "^[a-z][a-z0-9_]{0,62}$"),
    in_path("logical_date", "The day: YYYY-MM-DD.", r"^\d{4}-\d{2}-\d{2}$"),
)


def key_of(call: Call) -> PartitionKey:
    """The partition that the path names. Raises UsageError if it is no key."""
    return PartitionKey.parse("/".join(call.path[part.name] for part in KEY_PARTS))


def list_partitions(call: Call) -> Document:
    """List partitions with their state, in key order.

    A partition without a row is implicitly pending. With keys, a status or a display status the list includes such
    partitions.
    """
    from penstock.views.state import state_item

    ws = call.workspace
    found, total = _found(call) if call.query.get("display") is None else _displayed(call)
    views, following = paginate(found, call.limit, lambda view: view.key)
    displays = ws.grids.displays([view.key for view in views])
    items = [
        state_item(
            view,
            displays[view.key],
            next_run_at=ws.partitions.next_run_at(view),
            terminal=ws.partitions.terminal_reason(view),
            maturity=ws.partitions.maturity(view),
        )
        for view in views
    ]
    return call.page(page(items, total, following))


def _found(call: Call) -> tuple[Sequence[PartitionView], int]:
    """The partitions of a page and one more, and the number of all."""
    state, chosen = call.workspace.context.state, call.selection
    ranges = call.workspace.context.ranges(chosen)
    explicit = not chosen.keys and chosen.status is None
    views = state.views(ranges, status=chosen.status, explicit=explicit, after=_after(call), limit=call.limit + 1)
    return views, state.count(ranges, status=chosen.status, explicit=explicit)


def _displayed(call: Call) -> tuple[Sequence[PartitionView], int]:
    """The partitions of a page with a display status and one more, and the number of all."""
    from penstock.control.select import Selection

    chosen = call.selection
    if chosen.keys or chosen.status is not None:
        raise UsageError("display cannot be combined with a key or a status: leave one of them out")
    display = DisplayStatus(call.query["display"])
    keys, total = call.workspace.grids.find(display, chosen, _after(call), call.limit + 1)
    return call.workspace.partitions.find(Selection(keys=keys)) if keys else [], total


def _after(call: Call) -> PartitionKey | None:
    return PartitionKey.parse(call.after) if call.after else None


def show_partition(call: Call) -> Document:
    """Explain one partition: authority, pointer, last attempts, what blocks it and what happens next."""
    from penstock.views.why import why_document

    return why_document(call.workspace.partitions.why(key_of(call)))


def list_attempts(call: Call) -> Document:
    """List every attempt of one partition, newest first."""
    from penstock.control.select import Selection
    from penstock.views.state import attempts_document

    ws, key = call.workspace, key_of(call)
    [view] = ws.partitions.find(Selection(keys=(key,)))
    has_authority = view.state.status is PartitionStatus.SUCCESS
    authoritative = view.state.current_run_id if has_authority else None
    attempts = ws.context.state.attempts(key)
    next_run_at, traces = ws.partitions.next_run_at(view), ws.partitions.trace_ids(attempts)
    return attempts_document(attempts, authoritative, next_run_at, traces)


ROUTES = (
    Route(
        "GET",
        f"{PREFIX}/partitions",
        list_partitions,
        Access.VIEWER,
        PartitionPage,
        "List partitions",
        (*FILTERS, DISPLAY, limit(100), CURSOR),
    ),
    Route(
        "GET",
        f"{PREFIX}/partitions/{KEY_PATH}",
        show_partition,
        Access.VIEWER,
        WhyDocument,
        "Explain one partition",
        KEY_PARTS,
    ),
    Route(
        "GET",
        f"{PREFIX}/partitions/{KEY_PATH}/attempts",
        list_attempts,
        Access.VIEWER,
        Attempts,
        "List the attempts of a partition",
        KEY_PARTS,
    ),
)
