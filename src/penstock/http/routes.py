"""The route table: every route with its role, parameters, body and response.

The router, the access check, the OpenAPI document and the security tests are made from this table. A route cannot be
declared without a role.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from penstock.http.calls import Call, Reply
from penstock.http.parameters import Parameter
from penstock.state.tokens import TokenRole
from penstock.views.document import Document

if TYPE_CHECKING:
    from pydantic import BaseModel

PREFIX = "/api/v1"
PAGE = "text/html; charset=utf-8"  # the media type of pages
Method = Literal["GET", "POST", "DELETE"]
Handler = Callable[[Call], Document | Reply]

# The modules of penstock.http.pages.
PAGES = (
    "overview",
    "grid",
    "login",
    "oidc",
    "actions",
    "static_files",
    "partitions",
    "partition",
    "raw",
    "lineage",
    "audit",
    "orders",  # before the runs: /runs/orders is no run
    "runs",
    "backfills",
    "tables",
    "sql",
    "sources",
    "late",
)

# The modules of penstock.http.api, in the order of the document.
RESOURCES = (
    "partitions",
    "status",
    "grid",
    "runs",
    "orders",
    "backfills",
    "tables",
    "sources",
    "ready",
    "late",
    "plans",
    "alerts",
    "audit",
    "events",
    "tokens",
    "sessions",
    "health",
    "metrics",
    "openapi",
)


class Access(StrEnum):
    """Who may call a route."""

    PUBLIC = "public"  # without a token
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def allows(self, role: TokenRole) -> bool:
        """Whether a caller with this role may call the route."""
        return self is Access.PUBLIC or role.includes(TokenRole(self.value))


class Thread(StrEnum):
    """The thread in which a route is executed."""

    SHARED = "shared"  # one of the pool, which slow requests can occupy
    HEALTH = "health"  # one that only the health of the server uses: a busy server is healthy
    NONE = "none"  # the event loop: the handler waits for nothing


@dataclass(frozen=True, slots=True)
class Route:
    """One route. `access` and `response` have no default: a route without them cannot be declared."""

    method: Method
    path: str
    handler: Handler
    access: Access
    response: type[BaseModel] | str  # the model of the document, or the media type of other content
    summary: str
    parameters: tuple[Parameter, ...] = ()
    body: type[BaseModel] | None = None
    status: int = 200
    keeps_response: bool = True  # False if the response holds a secret: it is never stored for a repeated request
    thread: Thread = Thread.SHARED  # where the handler is called
    changes: bool = True  # False for an unsafe method that changes no state of the workspace: login, logout
    takes_others: bool = False  # ignores unknown parameters: another server adds them
    form: type[BaseModel] | None = None  # the model of the fields of an HTML form, instead of a JSON body

    @property
    def is_unsafe(self) -> bool:
        """Whether the method may change something."""
        return self.method != "GET"

    @property
    def is_page(self) -> bool:
        """Whether people see the response: errors are pages, too, and a caller without a session is sent to log in."""
        return self.response == PAGE

    @property
    def name(self) -> str:
        """Method and path."""
        return f"{self.method} {self.path}"


@cache
def api_routes() -> tuple[Route, ...]:
    """Every route of the API, which the OpenAPI document describes."""
    return _routes("api", RESOURCES)


@cache
def all_routes() -> tuple[Route, ...]:
    """Every route of the server."""
    return api_routes() + _routes("pages", PAGES)


def _routes(package: str, modules: tuple[str, ...]) -> tuple[Route, ...]:
    imported = (import_module(f"penstock.http.{package}.{name}") for name in modules)
    return tuple(route for module in imported for route in module.ROUTES)
