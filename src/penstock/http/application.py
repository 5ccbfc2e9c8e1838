"""The ASGI application: routes of the table, limits of requests, security headers, request ids, the access log."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response as HttpResponse
from starlette.routing import Route as HttpRoute

from penstock.http.dispatch import Dispatcher
from penstock.http.messages import Request, Response
from penstock.http.pages.rendering import render_error
from penstock.http.problems import MEDIA_TYPE, RequestRefused, problem_of
from penstock.http.routes import PAGE, Route, Thread, all_routes
from penstock.http.security import HEADERS, Arrival, Guard
from penstock.views.document import encode

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from penstock.app import Workspace

access_log = logging.getLogger("penstock.http.access")

_SHARED = ("tokens", "logins", "oidc", "grids", "actions", "metrics")  # services that hold values of several requests
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one server process."""

    threads: int = 8  # requests that are executed at the same time
    body_bytes: int = 1024 * 1024
    body_seconds: float = 10.0  # to receive a body


def make_application(
    workspace: Workspace,
    worker_token: str,
    *,
    is_local: bool = True,
    read_only: bool = False,
    limits: Limits = Limits(),
) -> ASGIApp:
    """The application over a workspace. `worker_token` is the worker row of this process; `is_local` if the server
    listens on a loopback address only."""
    for service in _SHARED:  # constructed before several threads ask for them
        getattr(workspace, service)
    dispatcher = Dispatcher(workspace, Guard(workspace, is_local, read_only), worker_token)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[dict[str, Any]]:
        with (
            ThreadPoolExecutor(limits.threads, thread_name_prefix="request") as shared,
            ThreadPoolExecutor(1, thread_name_prefix="health") as health,
        ):
            yield {"pools": {Thread.SHARED: shared, Thread.HEALTH: health}}

    def endpoint(route: Route) -> Callable[[HttpRequest], Awaitable[HttpResponse]]:
        async def respond(request: HttpRequest) -> HttpResponse:
            body = await _read_body(request, limits)
            arrived = Request(
                route,
                _arrival(request),
                dict(request.path_params),
                list(request.query_params.multi_items()),
                body,
                request.scope["state"]["request_id"],
            )
            if route.thread is Thread.NONE:
                made = dispatcher.dispatch(arrived)
            else:
                pool = request.scope["state"]["pools"][route.thread]
                made = await asyncio.get_running_loop().run_in_executor(pool, dispatcher.dispatch, arrived)
            request.scope["state"]["actor"] = made.actor
            return _http_response(made)

        return respond

    routes = [HttpRoute(route.path, endpoint(route), methods=[route.method]) for route in all_routes()]
    refused: dict[Any, Any] = {HTTPException: _refused, RequestRefused: _refused}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=refused)
    app.router.redirect_slashes = False
    return _Frame(app)


async def _read_body(request: HttpRequest, limits: Limits) -> bytes:
    """The body of a request. Raises RequestRefused if it is too large or comes too slowly."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limits.body_bytes:
        raise _too_large(limits)
    content = bytearray()

    async def read() -> None:
        async for chunk in request.stream():
            content.extend(chunk)
            if len(content) > limits.body_bytes:
                raise _too_large(limits)

    try:
        await asyncio.wait_for(read(), limits.body_seconds)
    except TimeoutError:
        raise RequestRefused("the body did not arrive in time", HTTPStatus.REQUEST_TIMEOUT) from None
    except ClientDisconnect:
        raise RequestRefused("the client closed the connection", HTTPStatus.BAD_REQUEST) from None
    return bytes(content)


def _too_large(limits: Limits) -> RequestRefused:
    message = f"the body is larger than {limits.body_bytes:,} bytes: select partitions by filters instead of keys"
    return RequestRefused(message, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


def _arrival(request: HttpRequest) -> Arrival:
    return Arrival(
        {name.lower(): value for name, value in request.headers.items()},
        request.cookies,
        request.client.host if request.client else "unknown",
        request.scope["scheme"] == "https",  # `request.url` fails for a malformed Host
    )


def _http_response(made: Response) -> HttpResponse:
    return HttpResponse(made.content, made.status, made.headers)


async def _refused(request: HttpRequest, error: Exception) -> HttpResponse:
    """The problem of a request that reached no route, or was refused before it was executed."""
    if isinstance(error, HTTPException):
        texts = {
            404: f"there is nothing at {request.scope['path'][:200]}",
            405: f"{request.method} is not allowed here",
        }
        refusal = RequestRefused(texts.get(error.status_code, error.detail), error.status_code)
        headers = dict(error.headers or {})
    else:
        assert isinstance(error, RequestRefused)
        refusal, headers = error, {"Connection": "close"}  # the rest of the body is not read
    request_id, kept = request.scope["state"]["request_id"], {**headers, "Cache-Control": "no-store"}
    if "text/html" in request.headers.get("accept", ""):  # a person sees it
        page = render_error(None, refusal.status, refusal.status.phrase, str(refusal), request_id)
        return HttpResponse(page, refusal.status, kept, PAGE)
    return HttpResponse(encode(problem_of(refusal, refusal.status, request_id)), refusal.status, kept, MEDIA_TYPE)


class _Frame:
    """Gives every request an id, every response the security headers, and writes the access log. It holds neither
    headers nor query strings, which may contain secrets."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id
        status = 0

        async def send_framed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = {**HEADERS, "X-Request-ID": request_id}
                added = [(name.lower().encode(), value.encode()) for name, value in extra.items()]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        try:
            await self._app(scope, receive, send_framed)
        finally:
            milliseconds = round((time.monotonic() - began) * 1000, 1)
            facts = {"request_id": request_id, "method": scope["method"], "path": scope["path"], "status": status}
            facts |= {"milliseconds": milliseconds, "actor": scope["state"].get("actor")}
            facts |= {"client": (scope.get("client") or ("unknown",))[0]}
            access_log.info("request", extra={"facts": facts})
