"""Documents of the server itself: health, and the end of a session."""

from __future__ import annotations

from penstock.views.document import Document


def health_document() -> Document:
    """The server works."""
    return Document({"status": "ok"})


def logout_document(*, ended: bool) -> Document:
    """The end of a session; False if there was none."""
    return Document({"ended": ended})
