"""Sends a request to a web service. Errors are classified and contain no secrets."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from functools import lru_cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar
from urllib.parse import urljoin, urlsplit

from penstock import __version__
from penstock.errors import ConfigError, DataError, PenstockError, SourceUnavailable
from penstock.source.budget import Budget
from penstock.source.http_errors import (
    Response,
    error_of_rule,
    error_of_status,
    matching_rule,
    needs_body,
    seconds_to_wait,
)
from penstock.source.http_options import ErrorRule

if TYPE_CHECKING:
    import httpx

    from penstock.source.oauth import AccessTokens

T = TypeVar("T")

LARGEST_ANSWER = 64 * 1024 * 1024
LARGEST_FILE = 4 * 1024**3
_LARGEST_REFUSAL = 64 * 1024
_MOST_REDIRECTS = 5
_KEEPS_METHOD = (307, 308)
_IDLE_SECONDS = 2.0  # shorter than the limit of servers, so that no connection is reused that the server has closed
_NOTHING = 204
_UNAUTHORIZED = 401
_SECRET_LENGTH = 4  # shorter words are not hidden


@dataclass(frozen=True, slots=True)
class WebRequest:
    """One request. `is_foreign`: its address came from a response, so it gets none of our headers."""

    url: str
    params: Mapping[str, str] = field(default_factory=dict)
    method: str = "GET"
    body: Any = None  # a JSON document
    form: Mapping[str, str] | None = None
    rules: Sequence[ErrorRule] = ()
    is_foreign: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)  # instead of those of the source with the same names


@dataclass(frozen=True, slots=True)
class Reply:
    """The body of a response (None if it has no records), and the address of the next page from its header."""

    body: bytes | None
    link: str | None


class Caller:
    """Sends requests with the headers of one source. No error message contains a text of `secrets`: headers,
    parameters, a login. `warn` gets what the service announces about its end."""

    def __init__(
        self,
        headers: Mapping[str, str],
        timeout: float,
        budget: Budget,
        secrets: Iterable[str],
        tokens: AccessTokens | None = None,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._headers = headers
        self._timeout = timeout
        self._budget = budget
        self._tokens = tokens
        self._warn = warn
        words = {word for text in secrets for word in text.split() if len(word) >= _SECRET_LENGTH}
        self._secrets = sorted(words, key=len, reverse=True)

    def ask(self, request: WebRequest, number: int) -> Reply:
        """Fetch one page. Follows redirects only on the same host: others must not get the headers."""
        return self._exchange(request, lambda response: self._reply(response, request, number))

    def download(self, request: WebRequest, file: BinaryIO) -> bool:
        """Write the body of the response to a file; False if it has no records."""
        return self._exchange(request, lambda response: self._saved(response, request, file))

    def _exchange(self, request: WebRequest, receive: Callable[[httpx.Response], T]) -> T:
        target, redirects, renewed = request, 0, False
        while True:
            self._budget.spend()
            token = None if self._tokens is None or request.is_foreign else self._tokens.current(self._timeout)
            with self._translated_errors(target.url), self._sent(target, token) as response:
                self._report_end(response)
                if response.status_code == _UNAUTHORIZED and token is not None and self._tokens and not renewed:
                    self._tokens.refuse(token)  # it may have been revoked before its end
                    renewed = True
                    continue
                if not response.has_redirect_location:
                    return receive(response)
                target, redirects = self._redirected(request, target, response), redirects + 1
            if redirects > _MOST_REDIRECTS:
                raise ConfigError(f"{shown(request.url)} redirects more than {_MOST_REDIRECTS} times")

    def _redirected(self, request: WebRequest, present: WebRequest, response: httpx.Response) -> WebRequest:
        address = urljoin(str(response.url), response.headers["location"])
        if _origin(address) != _origin(request.url):
            raise ConfigError(f"{shown(request.url)} redirects to {_origin(address)}: if you trust it, write it as url")
        if request.method != "GET" and response.status_code not in _KEEPS_METHOD:
            raise ConfigError(f"{shown(request.url)} redirects a POST ({response.status_code}): correct the url")
        return replace(present, url=address, params={})

    @contextmanager
    def _sent(self, request: WebRequest, token: str | None) -> Iterator[httpx.Response]:
        import httpx

        headers = {"User-Agent": f"penstock/{__version__}", "Accept": "application/json"}
        if not request.is_foreign:
            headers |= {**self._headers, **request.headers}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        client = _client(os.getpid())
        whole = httpx.URL(request.url).copy_merge_params(request.params)  # parameters in the address stay
        content: dict[str, Any] = {} if request.body is None else {"json": request.body}
        content |= {} if request.form is None else {"data": dict(request.form)}
        with client.stream(request.method, whole, headers=headers, timeout=self._timeout, **content) as response:
            yield response

    def _reply(self, response: httpx.Response, request: WebRequest, number: int) -> Reply:
        if response.status_code == _NOTHING:
            return Reply(None, None)
        if not response.is_success:
            return self._refused(response, request)
        body = _read(response, LARGEST_ANSWER)
        if body is None:
            raise DataError(
                f"page {number} is larger than {LARGEST_ANSWER // 2**20} MB, the most that is read at once:"
                " ask for smaller pages"
            )
        if needs_body(request.rules, response.status_code):
            rule = matching_rule(request.rules, response.status_code, body)
            if rule is not None:
                return self._ruled(rule, response, body)
        return Reply(body, _next_link(response))

    def _saved(self, response: httpx.Response, request: WebRequest, file: BinaryIO) -> bool:
        if response.status_code == _NOTHING:
            return False
        if not response.is_success:
            return self._refused(response, request).body is not None
        size = 0
        for block in response.iter_bytes():
            size += file.write(block)
            if size > LARGEST_FILE:
                raise DataError(f"{shown(request.url)} is larger than {LARGEST_FILE // 2**30} GB")
        file.seek(0)
        if size <= _LARGEST_REFUSAL and needs_body(request.rules, response.status_code):
            body = file.read()  # an error may come with a status of success: it must not pass as an empty file
            file.seek(0)
            rule = matching_rule(request.rules, response.status_code, body)
            if rule is not None:
                return self._ruled(rule, response, body).body is not None
        return True

    def _refused(self, response: httpx.Response, request: WebRequest) -> Reply:
        """Raise the error of a response that is no success. Returns if a rule states that it means no records."""
        body = _read(response, _LARGEST_REFUSAL, cut=True) or b""
        rule = matching_rule(request.rules, response.status_code, body)
        if rule is not None:
            return self._ruled(rule, response, body)
        raise error_of_status(self._facts(response, body))

    def _ruled(self, rule: ErrorRule, response: httpx.Response, body: bytes) -> Reply:
        error = error_of_rule(rule, self._facts(response, body))
        if error is not None:
            raise error
        return Reply(None, None)

    def _facts(self, response: httpx.Response, body: bytes) -> Response:
        headers = response.headers
        return Response(
            shown(str(response.url)),
            response.status_code,
            body,
            self._hidden(" ".join(body.decode("utf-8", "replace").split())),
            seconds_to_wait(headers.get("retry-after"), headers.get("date")),
        )

    def _report_end(self, response: httpx.Response) -> None:
        """Report the headers Sunset (RFC 8594) and Deprecation (RFC 9745)."""
        where = shown(str(response.url))
        if sunset := response.headers.get("sunset"):
            self._warn(f"{where} announces its end: {_day(sunset)} (Sunset)")
        elif "deprecation" in response.headers:
            self._warn(f"{where} is deprecated (Deprecation)")

    @contextmanager
    def _translated_errors(self, url: str) -> Iterator[None]:
        """Translate errors of the client to ours, without headers and parameters."""
        import httpx

        where = shown(url)
        try:
            yield
        except PenstockError:
            raise
        except httpx.TimeoutException as error:
            raise SourceUnavailable(f"{where} did not respond within {self._timeout:g} s") from error
        except (
            httpx.UnsupportedProtocol,
            httpx.InvalidURL,
            httpx.LocalProtocolError,
        ):  # may quote headers
            raise ConfigError(f"{where}: the request is not valid: check url, params and headers") from None
        except httpx.DecodingError as error:
            raise SourceUnavailable(f"{where}: the response is incomplete, or its compression is not valid") from error
        except httpx.TransportError as error:
            raise SourceUnavailable(f"{where}: {self._hidden(str(error)) or type(error).__name__}") from error

    def _hidden(self, text: str) -> str:
        """The text without secrets."""
        for word in self._secrets:
            text = text.replace(word, "***")
        return text


def _read(response: httpx.Response, most: int, *, cut: bool = False) -> bytes | None:
    """The body; None, or with `cut` its beginning, if it is larger than `most`."""
    body = bytearray()
    for block in response.iter_bytes():
        body += block
        if len(body) > most:
            return bytes(body[:most]) if cut else None
    return bytes(body)


def _day(header: str) -> str:
    try:
        return parsedate_to_datetime(header).date().isoformat()
    except (ValueError, TypeError):
        return "at an unreadable date"


@lru_cache(maxsize=1)
def _client(process: int) -> httpx.Client:
    """One client for each process, because creating one reads all certificates. It keeps no cookies."""
    import httpx

    client = httpx.Client(
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        limits=httpx.Limits(max_connections=None, keepalive_expiry=_IDLE_SECONDS),
    )
    atexit.register(client.close)
    return client


def _next_link(response: httpx.Response) -> str | None:
    """The address of the next page from the header. Raises DataError if it is on another host."""
    link = response.links.get("next", {}).get("url")
    if link is None:
        return None
    target = urljoin(str(response.url), link)
    if _origin(target) != _origin(str(response.url)):
        raise DataError(f"{shown(str(response.url))} names {_origin(target)} for its next page, which is another host")
    return target


def is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port  # reading it is what checks it
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def host_of(url: str) -> tuple[str, str, int]:
    """The scheme, the host and the port of an address."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}[parts.scheme]


def _origin(url: str) -> str:
    """The scheme, host and port of an address as text; `nowhere` if it is not an address."""
    if not is_address(url):
        return "nowhere"
    scheme, host, port = host_of(url)
    return f"{scheme}://{host}:{port}"


def same_host(url: str, base: str) -> bool:
    """Whether an address, which may be relative, is on the host of another one."""
    return _origin(urljoin(base, url)) == _origin(base)


def shown(url: str) -> str:
    """The address without login and parameters, which may be secret."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"
