"""A request as it arrived, and the response to send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.http.security import Arrival

if TYPE_CHECKING:
    from penstock.http.routes import Route


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it arrived."""

    route: Route
    arrival: Arrival
    path: Mapping[str, str]
    query: Sequence[tuple[str, str]]
    body: bytes
    request_id: str


@dataclass(slots=True)
class Response:
    """A response to send, and the caller for the access log."""

    status: int
    content: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    actor: str | None = None
