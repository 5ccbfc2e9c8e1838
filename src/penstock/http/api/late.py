"""Lateness: tables beside their deadlines."""

from __future__ import annotations

from penstock.http.calls import Call
from penstock.http.parameters import DATE, Parameter
from penstock.http.routes import PREFIX, Access, Route
from penstock.http.schemas.lateness import LateDays
from penstock.views.document import Document

TABLE = Parameter("table", "Only this table, source.query_name. Default: all tables with a deadline.", repeats=True)


def list_late(call: Call) -> Document:
    """List tables beside their deadlines: what is missing by cause, and the expected completion."""
    from penstock.views.lateness import late_document

    return late_document(call.workspace.lateness.report(call.query["table"], call.query["date"]))


ROUTES = (
    Route("GET", f"{PREFIX}/late", list_late, Access.VIEWER, LateDays, "List late tables and why", (TABLE, DATE)),
)
