"""Documents of the ledger: rebuilt projections and exported events. A list of events is a plain page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.views.document import Document


def rebuild_document(events: int, engine: str) -> Document:
    """The number of events that were folded, and the engine that folded them."""
    return Document({"events": events, "engine": engine})


def export_document(facts: Mapping[str, Any], *, dry_run: bool) -> Document:
    """The events that are moved to the lake."""
    return Document({**facts, "dry_run": dry_run})
