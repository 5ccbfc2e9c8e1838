"""Document of the pauses by filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.views.document import Document, page


def pauses_document(
    entries: Sequence[Mapping[str, Any]], total: int, following: str | None, *, paused: int
) -> Document:
    """One page of pauses, and the number of partitions that are paused now."""
    return Document({**page(entries, total, following), "paused": paused})
