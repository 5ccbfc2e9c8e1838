"""Classifies responses of a web service: by the rules of the workspace file, then by their status."""

from __future__ import annotations

from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

import orjson

from penstock.errors import AuthFailed, ConfigError, DataError, PenstockError, QuotaExceeded, SourceUnavailable
from penstock.source.http_options import ErrorRule
from penstock.source.response import inside, trail

_UNAVAILABLE = (408, 425)
_SHOWN = 300  # characters of the text of a refusal


class Response(NamedTuple):
    """The facts of a response that decide how it is treated. `url` is shown in messages, `text` without secrets."""

    url: str
    status: int
    body: bytes
    text: str
    retry_after: float | None


def needs_body(rules: Sequence[ErrorRule], status: int) -> bool:
    """Whether a rule may apply to a response with this status, which is a success by itself."""
    return any(not rule.status or status in rule.status for rule in rules)


def matching_rule(rules: Sequence[ErrorRule], status: int, body: bytes) -> ErrorRule | None:
    """The first rule whose conditions all hold."""
    document: Any = _Unread
    for rule in rules:
        if rule.status and status not in rule.status:
            continue
        if rule.contains is not None and rule.contains.encode() not in body:
            continue
        if rule.path is not None:
            document = _parsed(body) if document is _Unread else document
            found = inside(document, trail(rule.path))
            if found is None or (rule.values and _text(found) not in rule.values):
                continue
        return rule
    return None


def error_of_rule(rule: ErrorRule, response: Response) -> PenstockError | None:
    """The error that a rule states; None if the response means that there is nothing."""
    message = f"{response.url} responded with {response.status}: {response.text[:_SHOWN]}"
    match rule.error_class:
        case "quota":
            return QuotaExceeded(message, response.retry_after or rule.retry_after)
        case "auth":
            return AuthFailed(message)
        case "data":
            return DataError(message)
        case "transient":
            return SourceUnavailable(message)
        case "config":
            return ConfigError(message)
        case "empty":
            return None


def error_of_status(response: Response) -> PenstockError:
    """The error of a response that is no success, by its status."""
    url, status, after = response.url, response.status, response.retry_after
    if status in (401, 403):
        return AuthFailed(f"{url} refuses our credentials ({status}): check the headers of the source")
    if status == 429:
        return QuotaExceeded(f"{url} asks for a pause (429)", after)
    if status >= 500 or status in _UNAVAILABLE:
        pause = "" if after is None else f"; it asks to wait {after:g} s"
        return SourceUnavailable(f"{url} cannot answer now ({status}){pause}")
    return ConfigError(f"{url} refuses the request ({status}): {response.text[:_SHOWN]}")


def seconds_to_wait(after: str | None, now: str | None) -> float | None:
    """The header Retry-After in seconds, from a number or from a date by the clock of the service; None if neither."""
    if after is None or after.strip().isdecimal():
        return None if after is None else float(after)
    try:
        return max(0.0, (parsedate_to_datetime(after) - parsedate_to_datetime(now or "")).total_seconds())
    except (ValueError, TypeError):
        return None


class _Unread:
    """The document was not parsed yet."""


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
