"""HTML forms: their fields as a model, their CSRF token, and the way to the login page.

A form works without scripts, so its CSRF token is a field instead of a header.
"""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from typing import Any, get_origin
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from penstock.errors import UsageError
from penstock.http.messages import Request, Response
from penstock.http.problems import RequestRefused
from penstock.http.security import CSRF_HEADER, Arrival

CSRF_FIELD = "csrf_token"
_MOST_FIELDS = 20_000
_ONLY_POSTED = ("/actions/preview", "/pages/login")  # pages that no GET shows
_FORM = "application/x-www-form-urlencoded"


def with_form_token(request: Request) -> Arrival:
    """The facts of a request for the access check. The CSRF token of a form counts as the header."""
    arrival = request.arrival
    if request.route.form is None or CSRF_HEADER in arrival.headers or not _is_form(request):
        return arrival
    token = next((text for name, text in _fields(request) if name == CSRF_FIELD), "")
    return replace(arrival, headers={**arrival.headers, CSRF_HEADER: token})


def form_of(request: Request) -> Any:
    """The fields of a form as the model of its route; empty fields are left out. Raises UsageError for others."""
    from pydantic import ValidationError

    model = request.route.form
    assert model is not None
    if not _is_form(request):
        raise RequestRefused(f"send the form as {_FORM}", HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
    found: dict[str, Any] = {}
    for name, text in _fields(request):
        if name == CSRF_FIELD or text == "":
            continue
        if "\x00" in text:
            raise UsageError(f"the field {name} has a NUL character")
        known = model.model_fields.get(name)
        if known is not None and get_origin(known.annotation) is list:
            found.setdefault(name, []).append(text)
        elif name in found:
            raise UsageError(f"the field {name[:100]} is given twice: give it once")
        else:
            found[name] = text
    try:
        return model.model_validate(found)
    except ValidationError as error:
        mistakes = [
            f"{'.'.join(map(str, one['loc']))}: {one['msg']}"
            for one in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        raise UsageError("the form is not valid: " + "; ".join(mistakes[:10])) from None


def to_login(request: Request) -> Response:
    """Sends the browser to the login page, and from there back to this page."""
    headers = request.arrival.headers
    is_part = headers.get("hx-request") == "true"  # a script asks for a part of the page that it shows
    if is_part:
        wanted = _shown_path(headers.get("hx-current-url", ""))
    elif request.route.is_unsafe:
        wanted = _shown_path(headers.get("referer", ""))
        if wanted in _ONLY_POSTED:
            wanted = "/"
    else:
        path = request.route.path.format_map({name: quote(text) for name, text in request.path.items()})
        wanted = path + (f"?{urlencode(request.query)}" if request.query else "")
    address = "/login" + (f"?{urlencode({'next': wanted})}" if wanted not in ("", "/") else "")
    kept = {"Cache-Control": "no-store"}
    if is_part:
        return Response(HTTPStatus.UNAUTHORIZED, headers={**kept, "HX-Redirect": address})
    return Response(HTTPStatus.SEE_OTHER, headers={**kept, "Location": address})


def _shown_path(address: str) -> str:
    """The path and the query of the page that a script runs on; nothing if the browser sends no address."""
    try:
        shown = urlsplit(address)
    except ValueError:
        return ""
    return shown.path + (f"?{shown.query}" if shown.query else "")


def _is_form(request: Request) -> bool:
    return request.arrival.headers.get("content-type", "").partition(";")[0].strip().lower() == _FORM


def _fields(request: Request) -> list[tuple[str, str]]:
    try:
        return parse_qsl(request.body.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
    except ValueError:
        message = "the form is not valid: it is no UTF-8, or has too many fields"
        raise RequestRefused(message, HTTPStatus.BAD_REQUEST) from None
