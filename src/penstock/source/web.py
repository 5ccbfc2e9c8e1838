"""Sends a request to a web service. Errors are classified and contain no secrets."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import lru_cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from penstock import __version__
from penstock.errors import AuthFailed, ConfigError, DataError, PenstockError, QuotaExceeded, SourceUnavailable
from penstock.source.budget import Budget

if TYPE_CHECKING:
    import httpx

LARGEST_ANSWER = 64 * 1024 * 1024
_MOST_REDIRECTS = 5
_SHOWN = 300  # characters of a refusal's text
_IDLE_SECONDS = 2.0  # shorter than the limit of servers, so that no connection is reused that the server has closed
_UNAVAILABLE = (408, 425)
_NOTHING = 204
_SECRET_LENGTH = 4  # shorter words are not hidden


@dataclass(frozen=True, slots=True)
class Reply:
    """The body of a response (None for 204 No Content), and the address of the next page from its header."""

    body: bytes | None
    link: str | None


class Caller:
    """Sends requests with the headers of one source. No error message contains a text of `secrets`: headers,
    parameters, a login."""

    def __init__(self, headers: Mapping[str, str], timeout: float, budget: Budget, secrets: Iterable[str]) -> None:
        self._headers = headers
        self._timeout = timeout
        self._budget = budget
        words = {word for text in secrets for word in text.split() if len(word) >= _SECRET_LENGTH}
        self._secrets = sorted(words, key=len, reverse=True)

    def ask(self, url: str, params: Mapping[str, str], number: int) -> Reply:
        """Fetch one page. Follows redirects only on the same host: others must not get the headers."""
        start = url
        for _ in range(_MOST_REDIRECTS + 1):
            self._budget.spend()
            with self._translated_errors(url), self._sent(url, params) as response:
                if not response.has_redirect_location:
                    return self._reply(response, number)
                target = urljoin(str(response.url), response.headers["location"])
            if _origin(target) != _origin(start):
                raise ConfigError(f"{shown(start)} redirects to {_origin(target)}: if you trust it, write it as url")
            url, params = target, {}
        raise ConfigError(f"{shown(start)} redirects more than {_MOST_REDIRECTS} times")

    @contextmanager
    def _sent(self, url: str, params: Mapping[str, str]) -> Iterator[httpx.Response]:
        import httpx

        headers = {"User-Agent": f"penstock/{__version__}", "Accept": "application/json", **self._headers}
        client = _client(os.getpid())
        whole = httpx.URL(url).copy_merge_params(params)  # parameters in the address stay
        with client.stream("GET", whole, headers=headers, timeout=self._timeout) as response:
            yield response

    def _reply(self, response: httpx.Response, number: int) -> Reply:
        if response.status_code == _NOTHING:
            return Reply(None, None)
        if not response.is_success:
            raise self._refusal(response)
        body = bytearray()
        for block in response.iter_bytes():
            body += block
            if len(body) > LARGEST_ANSWER:
                raise DataError(
                    f"page {number} is larger than {LARGEST_ANSWER // 2**20} MB, the most that is read at once:"
                    " ask for smaller pages"
                )
        return Reply(bytes(body), _next_link(response))

    def _refusal(self, response: httpx.Response) -> PenstockError:
        """The error for a status, with the beginning of the response body."""
        url, status = shown(str(response.url)), response.status_code
        if status in (401, 403):
            return AuthFailed(f"{url} refuses our credentials ({status}): check the headers of the source")
        after = _seconds(response.headers.get("retry-after"), response.headers.get("date"))
        if status == 429:
            return QuotaExceeded(f"{url} asks for a pause (429)", after)
        if status >= 500 or status in _UNAVAILABLE:
            pause = "" if after is None else f"; it asks to wait {after:g} s"
            return SourceUnavailable(f"{url} cannot answer now ({status}){pause}")
        text = next(response.iter_bytes(_SHOWN), b"").decode("utf-8", "replace")
        return ConfigError(f"{url} refuses the request ({status}): {self._hidden(' '.join(text.split()))}")

    @contextmanager
    def _translated_errors(self, url: str) -> Iterator[None]:
        """Translate errors of the client to ours, without headers and parameters."""
        import httpx

        where = shown(url)
        try:
            yield
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


def _seconds(after: str | None, now: str | None) -> float | None:
    """The header Retry-After in seconds, from a number or from a date by the clock of the service; None if neither."""
    if after is None or after.strip().isdecimal():
        return None if after is None else float(after)
    try:
        return max(0.0, (parsedate_to_datetime(after) - parsedate_to_datetime(now or "")).total_seconds())
    except (ValueError, TypeError):
        return None


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


def shown(url: str) -> str:
    """The address without login and parameters, which may be secret."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"
