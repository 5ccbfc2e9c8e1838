"""Events of the ledger."""

from __future__ import annotations

from penstock.http.calls import Call
from penstock.http.parameters import CURSOR, Parameter, limit
from penstock.http.routes import PREFIX, Access, Route
from penstock.http.schemas.tables import EventPage
from penstock.partition import run_id
from penstock.views.document import Document, page, paginate

_RUN = Parameter("run", "Only events of this run.")
_TYPE = Parameter("type", "Only events of this type.")
_AFTER = Parameter("after", "Only events after this position.", "number")


def list_events(call: Call) -> Document:
    """List the newest events, or the events after a position or cursor, in the order of the ledger."""
    ledger, named = call.workspace.context.ledger, call.query["run"]
    run, kind = run_id(named) if named else None, call.query["type"]
    after = call.query["after"] if call.after_position is None else call.after_position
    asked = call.limit if after is None else call.limit + 1  # no event follows the newest ones
    found, following = paginate(
        ledger.tail(asked, after=after, run_id=run, kind=kind), call.limit, lambda event: event["position"]
    )
    return call.page(page(found, ledger.count(run_id=run, kind=kind), following))


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
