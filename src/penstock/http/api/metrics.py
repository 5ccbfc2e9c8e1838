"""Metrics for Prometheus."""

from __future__ import annotations

from penstock.http.calls import Call, Reply
from penstock.http.routes import Access, Route

_TEXT = "text/plain; version=0.0.4; charset=utf-8"


def scrape_metrics(call: Call) -> Reply:
    """All metrics of the workspace and of the server process: as text, or as OpenMetrics if the Accept header prefers
    it."""
    content, media_type = call.workspace.metrics.exposition(call.accept)
    return Reply(content=content, media_type=media_type, headers={"Cache-Control": "no-store"})


ROUTES = (Route("GET", "/metrics", scrape_metrics, Access.VIEWER, _TEXT, "Metrics for Prometheus"),)
