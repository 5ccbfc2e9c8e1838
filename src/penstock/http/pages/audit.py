"""The audit log: who changed what by hand, when, and with which outcome."""

from __future__ import annotations

from penstock.http.api.audit import list_audit
from penstock.http.calls import Call, Reply
from penstock.http.pages.rendering import Page, render
from penstock.http.parameters import CURSOR, limit
from penstock.http.routes import PAGE, Access, Route


def show_audit(call: Call) -> Reply:
    """One page of the audit log, newest first."""
    return render(
        call,
        "audit.html",
        Page("Audit", "audit", "penstock audit list"),
        document=list_audit(call),
        limit=call.limit,
        is_first=not call.query["cursor"],
    )


ROUTES = (Route("GET", "/audit", show_audit, Access.VIEWER, PAGE, "The audit log", (limit(100), CURSOR)),)
