"""The OpenAPI document of the HTTP API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.views.document import Document

_ABOUT = """The state of every partition, and previewed actions. Documents are those of `--json`. Lists have opaque \
cursors: pass `next` as `cursor`. Responses of GET carry an ETag. Errors are problem documents (RFC 9457) with the \
text of the command line."""


def openapi_document(version: str, paths: Mapping[str, Any], schemas: Mapping[str, Any]) -> Document:
    """The document of these paths and schemas."""
    return Document(
        {
            "openapi": "3.1.0",
            "info": {"title": "Penstock", "version": version, "description": _ABOUT},
            "paths": dict(paths),
            "components": {
                "schemas": dict(schemas),
                "securitySchemes": {
                    "token": {"type": "http", "scheme": "bearer"},
                    "session": {"type": "apiKey", "in": "cookie", "name": "penstock_session"},
                },
            },
        }
    )
