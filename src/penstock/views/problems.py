"""Document of an error of the HTTP API, by RFC 9457."""

from __future__ import annotations

from http import HTTPStatus

from penstock.views.document import Document


def problem_document(kind: str, status: HTTPStatus, detail: str, request_id: str) -> Document:
    """An error: its type, the meaning of the status, the message of the command line, and the id of the request."""
    return Document(
        {"type": kind, "title": status.phrase, "status": status.value, "detail": detail, "request_id": request_id}
    )
