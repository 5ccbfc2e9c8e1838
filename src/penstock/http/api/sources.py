"""Sources: breakers, request limits and requests in flight."""

from __future__ import annotations

from penstock.http.calls import Call
from penstock.http.routes import PREFIX, Access, Route
from penstock.http.schemas.tables import Sources
from penstock.views.document import Document


def list_sources(call: Call) -> Document:
    """List sources with their breakers, request limits and what is left of them."""
    from penstock.source.concurrency import requests_in_flight
    from penstock.views.quota import quota_document
    from penstock.views.sources import sources_document

    ws = call.workspace
    sources = list(ws.settings.sources.values())
    shares = {source.name: ws.quotas.shares(source.name) for source in sources if source.pace is not None}
    guard = ws.context.guard(by_hand=False)
    errors = {source.name: guard.source_error(source.name) for source in sources}
    return sources_document(
        sources,
        {breaker.source: breaker for breaker in ws.context.breakers.all()},
        quota_document(sources, ws.quotas.sources(), shares, ws.settings.control.quota_reserve),
        {source.name: requests_in_flight(source) for source in sources},
        {name: message for name, message in errors.items() if message},
    )


ROUTES = (Route("GET", f"{PREFIX}/sources", list_sources, Access.VIEWER, Sources, "List sources"),)
