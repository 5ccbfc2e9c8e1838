"""Executes one request in a thread: access, parameters, body, handler, and the encoding of its reply."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from penstock.errors import NotAuthenticated, PenstockError, TooManyLogins, TransientError, UsageError
from penstock.http.calls import Call, Identity, Reply
from penstock.http.etags import content_tag, header_of, matches
from penstock.http.forms import form_of, to_login, with_form_token
from penstock.http.idempotency import RepeatedRequests
from penstock.http.messages import Request, Response
from penstock.http.parameters import check_path, parse_query
from penstock.http.problems import (
    MEDIA_TYPE,
    RequestInProgress,
    RequestRefused,
    anonymous_problem,
    bad_request,
    problem_of,
    status_of,
    unexpected_problem,
)
from penstock.http.routes import PAGE, Route
from penstock.http.security import SESSION_COOKIE, Guard
from penstock.state.tokens import TokenRole
from penstock.views.document import Document, encode

if TYPE_CHECKING:
    from penstock.app import Workspace

log = logging.getLogger(__name__)

_SMALLEST_GZIP = 1400  # bytes; less fits into one packet
_RETRY_SECONDS = "5"
_RETRY_AFTER = ((TooManyLogins, "900"), (RequestInProgress, "1"))


class Dispatcher:
    """Executes requests on the services of a workspace. Every error becomes a problem document."""

    def __init__(self, workspace: Workspace, guard: Guard, worker_token: str) -> None:
        self._workspace = workspace
        self._guard = guard
        self._worker_token = worker_token
        self._repeated = RepeatedRequests(worker_token)

    def dispatch(self, request: Request) -> Response:
        """Execute a request. Never raises."""
        try:
            identity = self._identity(request)
        except NotAuthenticated as error:
            is_browser = request.route.is_page and "authorization" not in request.arrival.headers
            return to_login(request) if is_browser else _problem(error, request, None)
        except PenstockError as error:
            return _problem(error, request, None)
        except Exception:  # noqa: BLE001 - the details are for the log only
            return _unexpected(request)
        try:
            response = self._respond(request, identity)
            if request.route.access != "public":
                self._repeated.release_orphans(self._workspace.context.idempotency)
        except PenstockError as error:
            response = _problem(error, request, identity)
        except Exception:  # noqa: BLE001 - the details are for the log only
            response = _unexpected(request)
        response.actor = identity.name or None
        return response

    def _identity(self, request: Request) -> Identity:
        route, arrival = request.route, with_form_token(request)
        if route.access != "public":
            identity = self._guard.identify(route, arrival)
            self._guard.authorize(route, identity)
            return identity
        if route.is_unsafe:
            self._guard.refuse_other_origin(arrival)
        cookie = arrival.cookies.get(SESSION_COOKIE) if route.is_unsafe else None
        session = self._workspace.logins.find(cookie) if cookie else None
        return Identity("", TokenRole.VIEWER, session)

    def _respond(self, request: Request, identity: Identity) -> Response:
        route, headers = request.route, request.arrival.headers
        check_path(route.parameters, request.path)
        with bad_request():
            # An HTML form sends its empty fields.
            given = [(name, text) for name, text in request.query if text or not route.is_page]
            if route.takes_others:
                given = [(name, text) for name, text in given if name in {one.name for one in route.parameters}]
            query = parse_query(route.parameters, given)
            body = form_of(request) if route.form else _body(route, request)

        def execute(reserved_id: str) -> Reply:
            call = Call(
                self._workspace,
                identity,
                route.name,
                request.path,
                query,
                body,
                request.arrival.client,
                request.arrival.is_secure or (self._workspace.settings.console.url or "").startswith("https:"),
                self._worker_token,
                request.arrival.cookies,
                headers.get("host", ""),
                self._guard.read_only,
                reserved_id,
                headers.get("accept", ""),
            )
            found = route.handler(call)
            return found if isinstance(found, Reply) else Reply(found, status=route.status)

        if not route.is_unsafe:
            return _encoded(execute(""), headers)
        key = None if route.is_page else headers.get("idempotency-key")
        if key is None:
            from penstock.partition import new_ulid

            return _encoded(execute(new_ulid()), headers, may_cache=False)

        def answer(reserved_id: str) -> tuple[int, bytes, str]:
            try:
                reply = execute(reserved_id)
            except PenstockError as error:
                made = _problem(error, request, identity)
                if made.status >= HTTPStatus.INTERNAL_SERVER_ERROR or isinstance(error, TransientError):
                    raise  # not kept: the request can be repeated
                return made.status, made.content, MEDIA_TYPE
            return reply.status, _content(reply), reply.media_type

        store = self._workspace.context.idempotency
        named = repr((sorted(request.path.items()), sorted(request.query))).encode() + b"\n" + request.body
        (status, content, media_type), repeated = self._repeated.execute_once(
            store, route, identity.name, key, named, answer
        )
        marks = {"Idempotent-Replay": "true"} if repeated else {}
        return _encoded(Reply(content=content, media_type=media_type, status=status, headers=marks), headers, False)


def _body(route: Route, request: Request) -> Any:
    """The body of a request as its model. Raises UsageError for other content."""
    if route.body is None:
        if request.body:
            raise UsageError(f"{route.name} takes no body")
        return None
    from pydantic import ValidationError

    kind = request.arrival.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestRefused("send the body as application/json", HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
    try:
        found = route.body.model_validate_json(request.body)
    except ValidationError as error:
        mistakes = [
            f"{'.'.join(map(str, one['loc'])) or 'the body'}: {one['msg']}"
            for one in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        raise UsageError("the body is not valid: " + "; ".join(mistakes[:10])) from None
    if _has_nul(found.model_dump()):
        raise UsageError("the body is not valid: a text has a NUL character")
    return found


def _has_nul(value: Any) -> bool:
    """Whether a text in a value has a NUL character, which PostgreSQL does not store."""
    match value:
        case str():
            return "\x00" in value
        case dict():
            return any(_has_nul(inner) for inner in value.values())
        case list():
            return any(_has_nul(inner) for inner in value)
        case _:
            return False


def _content(reply: Reply) -> bytes:
    return reply.content if reply.document is None else encode(reply.document)


def _encoded(reply: Reply, headers: Mapping[str, str], may_cache: bool = True) -> Response:
    """The response of a reply: its ETag, 304 if the caller has it, compressed if the caller accepts it. Only a document
    or page with the status 200 has an ETag: a mistake must not become a 304."""
    content = _content(reply)
    made = Response(reply.status, content, {"Content-Type": reply.media_type, **reply.headers})
    if not may_cache:
        made.headers["Cache-Control"] = "no-store"
        return made
    made.headers["Vary"] = "Accept-Encoding, Authorization, Cookie"
    tag = (reply.etag or content_tag(content)) if reply.status == HTTPStatus.OK else None
    if tag is None:
        made.headers.setdefault("Cache-Control", "no-store")
    else:
        made.headers["ETag"] = header_of(tag)
        made.headers.setdefault("Cache-Control", "private, no-cache")
    if tag is not None and matches(headers.get("if-none-match"), tag):
        del made.headers["Content-Type"]
        made.status, made.content = HTTPStatus.NOT_MODIFIED, b""
    elif len(content) >= _SMALLEST_GZIP and _accepts_gzip(headers.get("accept-encoding", "")):
        made.headers["Content-Encoding"] = "gzip"
        made.content = reply.gzipped if reply.gzipped is not None else gzip.compress(content, 5, mtime=0)
    return made


def _accepts_gzip(accepted: str) -> bool:
    for part in accepted.lower().split(","):
        name, _, quality = part.strip().partition(";")
        if name.strip() in ("gzip", "*"):
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _problem(error: PenstockError, request: Request, identity: Identity | None) -> Response:
    """The response of an error. An error of the server may name hosts, users and databases: a caller without a name
    gets a general sentence, and the log has the details."""
    status = status_of(error, names_resource=bool(request.path))
    headers = {"Content-Type": MEDIA_TYPE, "Cache-Control": "no-store"}
    if isinstance(error, NotAuthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, TransientError):
        headers["Retry-After"] = next((text for kind, text in _RETRY_AFTER if isinstance(error, kind)), _RETRY_SECONDS)
    document = problem_of(error, status, request.request_id)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        facts = {"request_id": request.request_id, "error": str(error)}
        log.warning("request.failed", extra={"facts": facts})
        if identity is None or not identity.name:
            document = anonymous_problem(error, status, request.request_id)
    return _problem_response(request, identity, status, document, headers)


def _unexpected(request: Request) -> Response:
    log.exception("request.broken", extra={"facts": {"request_id": request.request_id}})
    headers = {"Content-Type": MEDIA_TYPE, "Cache-Control": "no-store"}
    document = unexpected_problem(request.request_id)
    return _problem_response(request, None, HTTPStatus.INTERNAL_SERVER_ERROR, document, headers)


def _problem_response(
    request: Request, identity: Identity | None, status: HTTPStatus, document: Document, headers: dict[str, str]
) -> Response:
    """The problem as a document, or as a page where people see it."""
    if not request.route.is_page:
        return Response(status, encode(document), headers)
    from penstock.http.pages.rendering import render_error

    content = render_error(identity, status, document["title"], document["detail"], request.request_id)
    return Response(status, content, {**headers, "Content-Type": PAGE})
