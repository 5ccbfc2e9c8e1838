"""The OpenAPI document. It describes the API and holds nothing of the workspace, so it is public."""

from __future__ import annotations

from penstock.http.calls import Call, Reply
from penstock.http.routes import PREFIX, Access, Route


def show_openapi(call: Call) -> Reply:
    """Return this document."""
    from penstock.http.openapi import openapi_content

    return Reply(content=openapi_content())


ROUTES = (
    Route("GET", f"{PREFIX}/openapi.json", show_openapi, Access.PUBLIC, "application/json", "The OpenAPI document"),
)
