"""Events of the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.http.calls import Call
from penstock.http.cursors import position_of
from penstock.http.parameters import CURSOR, Parameter, limit
from penstock.http.routes import PREFIX, Access, Route
from penstock.http.schemas.tables import EventPage
from penstock.partition import run_id
from penstock.projections.fact import Cursor
from penstock.views.document import Document, page, paginate

_RUN = Parameter("run", "Only events of this run.")
_TYPE = Parameter("type", "Only events of this type.")
_AFTER = Parameter("after", "Only events after this position.", "number")


def list_events(call: Call) -> Document:
    """List the newest events, or the events after a position or cursor, in the order of the ledger."""
    ledger, named = call.workspace.context.ledger, call.query["run"]
    run, kind = run_id(named) if named else None, call.query["type"]
    after = call.query["after"] if call.after is None else _cursor_of(call.after)
    asked = call.limit if after is None else call.limit + 1  # no event follows the newest ones
    found, following = paginate(ledger.settled(asked, after=after, run_id=run, kind=kind), call.limit, _place_of)
    return call.page(page(found, ledger.count(run_id=run, kind=kind), following))


def _place_of(event: Mapping[str, Any]) -> str:
    """The place of an event in the order of the ledger: its transaction and its position. SQLite has one writer at a
    time, and no transaction ids."""
    return f"{event['transaction_id'] or 0}:{event['position']}"


def _cursor_of(place: str) -> Cursor | int:
    """The cursor at a place; a place of an earlier version is a position. Raises UsageError for a place of another
    kind."""
    transaction, separator, position = place.partition(":")
    return Cursor(position_of(transaction), position_of(position)) if separator else position_of(place)


ROUTES = (
    Route(
        "GET",
        f"{PREFIX}/events",
        list_events,
        Access.VIEWER,
        EventPage,
        "List events",
        (_RUN, _TYPE, _AFTER, limit(20), CURSOR),
    ),
)
