"""One call of a route: who calls, with which values; and the reply of its handler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.http.cursors import position_of, read_cursor, write_cursor
from penstock.http.parameters import selection_of
from penstock.views.document import with_next

if TYPE_CHECKING:
    from penstock.app import Workspace
    from penstock.app.logins import PageSession
    from penstock.control.select import Selection
    from penstock.state.tokens import TokenRole
    from penstock.views.document import Document


@dataclass(frozen=True, slots=True)
class Identity:
    """The caller: the name for the audit log, the role, and the page session if the call came with a cookie."""

    name: str
    role: TokenRole
    session: PageSession | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a route. Its parameters and its body are parsed and valid."""

    workspace: Workspace
    identity: Identity
    route: str  # method and path of the route, which cursors name
    path: Mapping[str, str]
    query: Mapping[str, Any]
    body: Any
    client: str  # the address of the caller
    is_secure: bool  # whether the connection of the browser is encrypted, here or by a proxy
    worker_token: str  # of the server process
    cookies: Mapping[str, str]
    host: str  # the name of the server as the caller wrote it
    read_only: bool  # whether the server was started with --read-only
    reserved_id: str  # the id of what this call creates; the same if the call is repeated with its Idempotency-Key
    accept: str = ""  # the media types that the caller prefers

    @property
    def selection(self) -> Selection:
        """The partitions that the filters of the call select."""
        return selection_of(self.query)

    @property
    def limit(self) -> int:
        """The number of items of a page."""
        found: int = self.query["limit"]
        return found

    @property
    def after(self) -> str | None:
        """The place in a list at which the page begins. Raises UsageError for a cursor of another list."""
        return read_cursor(self.query["cursor"], self._list()) if self.query.get("cursor") else None

    @property
    def after_position(self) -> int | None:
        """The position after which the page of a numbered list begins. Raises UsageError as `after` does."""
        return None if self.after is None else position_of(self.after)

    def page(self, document: Document) -> Document:
        """The document of a page with an opaque cursor instead of the place at which the list continues."""
        following = document["next"]
        return with_next(document, None if following is None else write_cursor(str(following), self._list()))

    def _list(self) -> str:
        """The list that a cursor belongs to: the route, the resource that it names, and its filters."""
        filters = {name: value for name, value in self.query.items() if name not in ("cursor", "limit") and value}
        named = {**self.path, **filters}
        return f"{self.route} {sorted((name, str(value)) for name, value in named.items())}"


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of a handler that is more than a document with status 200."""

    document: Document | None = None
    content: bytes = b""  # instead of a document
    media_type: str = "application/json"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    etag: str | None = None  # by default the digest of the content
    gzipped: bytes | None = None  # the content, compressed before
