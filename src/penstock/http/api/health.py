"""Health of the server, for process managers and load balancers."""

from __future__ import annotations

from penstock.http.calls import Call
from penstock.http.routes import Access, Route, Thread
from penstock.http.schemas.access import Health
from penstock.views.document import Document
from penstock.views.health import health_document


def live(call: Call) -> Document:
    """The process responds."""
    return health_document()


def ready(call: Call) -> Document:
    """The state database responds and has the schema of this version."""
    call.workspace.context.require_schema()
    return health_document()


ROUTES = (
    Route("GET", "/health/live", live, Access.PUBLIC, Health, "Whether the process responds", thread=Thread.NONE),
    Route(
        "GET",
        "/health/ready",
        ready,
        Access.PUBLIC,
        Health,
        "Whether requests can be served",
        thread=Thread.HEALTH,
    ),
)
