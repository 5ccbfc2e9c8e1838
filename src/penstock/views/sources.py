"""Document of the sources: breaker, request limits and requests in flight of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from penstock.views.document import Document, listing

if TYPE_CHECKING:
    from penstock.config.settings import SourceSettings
    from penstock.state.records import Breaker


def sources_document(
    sources: Sequence[SourceSettings],
    breakers: Mapping[str, Breaker],
    quota: Document,
    in_flight: Mapping[str, int | None],
    errors: Mapping[str, str],
) -> Document:
    """Each source. `quota` is the document of `control quota`; `errors` says why attempts of a source are held back."""
    items = []
    for source in sources:
        breaker = breakers.get(source.name)
        items.append(
            {
                "source": source.name,
                "kind": source.kind,
                "requests_in_flight": in_flight.get(source.name),
                "breaker": None if breaker is None else {**asdict(breaker), "open": breaker.opened_at is not None},
                "quota": [item for item in quota["items"] if item["source"] == source.name],
                "error": errors.get(source.name),
            }
        )
    return listing(items, len(items))
