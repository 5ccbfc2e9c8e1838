"""Requests of the client: parameters, errors, pages, and responses that are sent again only if they changed."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from penstock import errors
from penstock.errors import ConfigError, PenstockError, TransientError

if TYPE_CHECKING:
    import ssl

    import httpx

Document = dict[str, Any]  # one JSON document, as `--json` prints it
Selection = Mapping[str, Any]  # keys, source, customers, queries, since, until, status

API = "/api/v1"
_TYPE_PREFIX = "urn:penstock:error:"
_REMEMBERED = 64  # responses that are sent again only if they changed


class ServerUnavailable(TransientError):
    """The server of the HTTP API cannot be reached, or did not respond in time."""

    remedy = "Start the server with `penstock serve`, or wait until it responds."


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list. `next` continues it; None at its end."""

    items: list[Document]
    total: int
    next: str | None


class Transport:
    """Sends requests to one server. It can be used in several threads."""

    def __init__(self, url: str, token: str | None, timeout: float, verify: ssl.SSLContext | bool) -> None:
        try:
            import httpx
        except ModuleNotFoundError as error:
            raise ConfigError("the client needs the package httpx: install `penstock[client]`") from error
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout, verify=verify)
        self.url = str(self._http.base_url).rstrip("/")
        self._failures = (httpx.TransportError,)
        self._known: OrderedDict[str, tuple[str, bytes]] = OrderedDict()  # the ETag and the content

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def page(self, path: str, asked: Mapping[str, Any]) -> Page:
        """One page of a list."""
        found = self.get(path, asked)
        return Page(found["items"], found["total"], found["next"])

    def all(self, path: str, asked: Mapping[str, Any]) -> Iterator[Document]:
        """All items of a list, page by page."""
        cursor: str | None = None
        while True:
            page = self.page(path, {**asked, "cursor": cursor})
            yield from page.items
            cursor = page.next
            if cursor is None:
                return

    def get(self, path: str, asked: Mapping[str, Any] | None = None) -> Document:
        """A document. If the client has received it before, the server sends it again only if it changed. Each call
        returns its own objects, which the caller may change."""
        import httpx

        params = parameters(asked or {})
        name = str(httpx.URL(f"{API}{path}", params=params))
        known = self._known.get(name)
        found = self.send("GET", f"{API}{path}", params=params, headers={"If-None-Match": known[0]} if known else {})
        if found.status_code == 304 and known:
            return _parsed(known[1])
        if tag := found.headers.get("ETag"):
            self._known[name] = (tag, found.content)
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return _parsed(found.content)

    def post(self, path: str, body: Document | None = None, idempotency_key: str | None = None) -> Document:
        """Send a body and return the document of the response."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        document: Document = self.send("POST", f"{API}{path}", json=body, headers=headers).json()
        return document

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """A response. Raises the error that the server reports, or ServerUnavailable."""
        try:
            found = self._http.request(method, path, **options)
        except self._failures as error:
            raise ServerUnavailable(f"{self._http.base_url} does not respond: {error}") from error
        if found.status_code >= 400:
            raise _error_of(found)
        return found


def _parsed(content: bytes) -> Document:
    document: Document = json.loads(content)
    return document


def _error_of(found: httpx.Response) -> PenstockError:
    """The error of a problem document, in the class that the server raised."""
    try:
        problem = found.json()
        kind = getattr(errors, str(problem["type"]).removeprefix(_TYPE_PREFIX), PenstockError)
        detail = str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        return ServerUnavailable(f"{found.request.method} {found.request.url.path}: status {found.status_code}")
    if isinstance(kind, type) and issubclass(kind, PenstockError):
        return kind(detail)
    return PenstockError(detail)


def selection_body(given: Selection | None) -> Document:
    """A selection as JSON values."""
    return {name: _plain(value) for name, value in (given or {}).items()}


def parameters(asked: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Query parameters; a list is a repeated parameter, None is left out."""
    found = []
    for name, value in asked.items():
        values = value if isinstance(value, list | tuple) else [value]
        found += [(name, str(_plain(one))) for one in values if one is not None]
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, date) else value


def quoted(text: str) -> str:
    """A part of a path; the slashes of a partition key stay."""
    return quote(text, safe="/") if text.count("/") == 3 else quote(text, safe="")
