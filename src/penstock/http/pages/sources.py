"""Sources: breakers, request limits, requests in flight and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.http.api.sources import list_sources
from penstock.http.calls import Call, Reply
from penstock.http.pages.rendering import Page, render
from penstock.http.routes import PAGE, Access, Route

if TYPE_CHECKING:
    from penstock.config.settings import Settings


def show_sources(call: Call) -> Reply:
    """The sources, each with its breaker, its quota and its customers."""
    settings = call.workspace.settings
    return render(
        call,
        "sources.html",
        Page("Sources", "sources", "penstock control quota"),
        sources=[
            {
                **source,
                **_uses(settings, source["source"]),
                "state": "open" if source["breaker"] and source["breaker"]["open"] else "closed",
                "can_close": call.workspace.operations.close_breaker(source["source"], dry_run=True),
            }
            for source in list_sources(call)["items"]
        ],
    )


def _uses(settings: Settings, source: str) -> dict[str, Any]:
    """The queries of a source, and the number of customers that they are fetched for."""
    queries = [query for query in settings.queries.values() if query.source == source]
    everyone = any(query.customers is None for query in queries)
    named = {customer for query in queries for customer in query.customers or ()}
    return {
        "queries": sorted(query.name for query in queries),
        "customers": len(settings.customers) if everyone else len(named),
    }


ROUTES = (Route("GET", "/sources", show_sources, Access.VIEWER, PAGE, "The sources"),)
