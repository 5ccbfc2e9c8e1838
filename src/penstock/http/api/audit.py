"""The audit log of manual actions."""

from __future__ import annotations

from penstock.http.calls import Call
from penstock.http.parameters import CURSOR, limit
from penstock.http.routes import PREFIX, Access, Route
from penstock.http.schemas.tables import AuditPage
from penstock.views.document import Document, page, paginate


def list_audit(call: Call) -> Document:
    """List manual actions, newest first: actor, time, command, filters, flags, count and outcome."""
    reader = call.workspace.context.state
    found = reader.audit(call.limit + 1, after=call.after_position)
    entries, following = paginate(found, call.limit, lambda e: e["audit_id"])
    return call.page(page(entries, reader.audit_count(), following))


ROUTES = (
    Route("GET", f"{PREFIX}/audit", list_audit, Access.VIEWER, AuditPage, "List manual actions", (limit(100), CURSOR)),
)
