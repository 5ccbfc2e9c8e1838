"""Errors as `application/problem+json`: the text of the command line, without details of unexpected errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from penstock.errors import (
    AccessDenied,
    ActRefused,
    ConfigError,
    DatabaseUnavailable,
    NotAuthenticated,
    PenstockError,
    StateConflict,
    TooManyLogins,
    TransientError,
    UsageError,
)
from penstock.views.document import Document
from penstock.views.problems import problem_document

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:penstock:error:"

# The first class that matches decides.
_STATUSES: tuple[tuple[type[PenstockError], HTTPStatus], ...] = (
    (NotAuthenticated, HTTPStatus.UNAUTHORIZED),
    (AccessDenied, HTTPStatus.FORBIDDEN),
    (TooManyLogins, HTTPStatus.TOO_MANY_REQUESTS),
    (UsageError, HTTPStatus.BAD_REQUEST),
    (ActRefused, HTTPStatus.CONFLICT),
    (StateConflict, HTTPStatus.CONFLICT),
    (TransientError, HTTPStatus.SERVICE_UNAVAILABLE),
    (ConfigError, HTTPStatus.INTERNAL_SERVER_ERROR),
)


class RequestRefused(UsageError):
    """A request that HTTP itself refuses: an unknown path, a body that is too large, a reused Idempotency-Key."""

    remedy = "Correct the request: the message names what is wrong."

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, status)

    @property
    def status(self) -> HTTPStatus:
        return HTTPStatus(self.args[1])

    def __str__(self) -> str:
        return str(self.args[0])


class RequestInProgress(StateConflict):
    """A request with the same Idempotency-Key is being executed."""

    remedy = "Repeat the request with its key: it gets the response of the first one."


@contextmanager
def bad_request() -> Iterator[None]:
    """A usage error inside is an error of the request, although its path names a resource."""
    try:
        yield
    except RequestRefused:
        raise
    except UsageError as error:
        raise RequestRefused(str(error), HTTPStatus.BAD_REQUEST) from error


def status_of(error: PenstockError, *, names_resource: bool = False) -> HTTPStatus:
    """The status for an error. If the path of the request names a resource, a usage error means that it does not
    exist."""
    if isinstance(error, RequestRefused):
        return error.status
    if names_resource and isinstance(error, UsageError):
        return HTTPStatus.NOT_FOUND
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR)


def problem_of(error: PenstockError, status: HTTPStatus, request_id: str) -> Document:
    """The document of an error, with the text of the command line."""
    return problem_document(f"{TYPE_PREFIX}{_kind(error)}", status, str(error), request_id)


def anonymous_problem(error: PenstockError, status: HTTPStatus, request_id: str) -> Document:
    """The document of an error of the server for a caller without a name: its class, without details."""
    is_unavailable = isinstance(error, DatabaseUnavailable)
    failure = "the state database does not respond" if is_unavailable else "the server cannot be used"
    detail = f"{failure}: the log of the server has the details under the request id {request_id}"
    return problem_document(f"{TYPE_PREFIX}{_kind(error)}", status, detail, request_id)


def unexpected_problem(request_id: str) -> Document:
    """The document of an error that Penstock did not raise on purpose. Its details are only in the log."""
    detail = f"the server failed: its log has the details under the request id {request_id}"
    return problem_document(f"{TYPE_PREFIX}PenstockError", HTTPStatus.INTERNAL_SERVER_ERROR, detail, request_id)


def _kind(error: PenstockError) -> str:
    """The name of the nearest class in penstock.errors, by which the client raises the same error."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "penstock.errors")
