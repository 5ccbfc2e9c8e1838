"""OAuth 2 access tokens of a web service: fetched once for a process, and renewed before they expire."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from penstock.errors import AuthFailed, ConfigError, SourceUnavailable
from penstock.source.http_options import OAuthOptions

_EARLY = 60.0  # seconds before its end at which a token is renewed
_DEFAULT_LIFE = 300.0  # seconds, if the service names none


class AccessTokens:
    """The present access token of one client. Thread-safe: requests in flight share one token."""

    def __init__(self, options: OAuthOptions, clock: Callable[[], float] = time.monotonic) -> None:
        if find_spec("authlib") is None:
            raise ConfigError("oauth needs the package authlib: pip install 'penstock[oauth]'")
        self._options = options
        self._clock = clock
        self._lock = Lock()
        self._token: str | None = None
        self._renew_at = 0.0
        self._refresh_token = options.refresh_token

    def current(self, timeout: float) -> str:
        """The access token, fetched if there is none or it ends soon. Raises AuthFailed if the service refuses the
        client, and SourceUnavailable if it does not respond."""
        with self._lock:
            if self._token is None or self._clock() >= self._renew_at:
                found = self._fetched(timeout)
                life = _seconds(found.get("expires_in"))
                self._token = str(found["access_token"])
                self._renew_at = self._clock() + max(life - _EARLY, life / 2)
                self._refresh_token = found.get("refresh_token") or self._refresh_token
            return self._token

    def refuse(self, token: str) -> None:
        """Forget a token that the service refused, unless another request has renewed it already."""
        with self._lock:
            if self._token == token:
                self._token = None

    def _fetched(self, timeout: float) -> Mapping[str, Any]:
        from authlib.integrations.base_client import OAuthError
        from authlib.integrations.httpx_client import OAuth2Client

        http = http_library(OAuth2Client)
        options = self._options
        where = urlsplit(options.token_url).hostname
        method = {"basic": "client_secret_basic", "body": "client_secret_post"}[options.client_auth]
        secret = options.client_secret
        try:
            with OAuth2Client(
                options.client_id,
                secret,
                token_endpoint_auth_method=method if secret is not None else "none",
                scope=options.scope,
                timeout=timeout,
            ) as client:
                if self._refresh_token is not None:
                    found = client.refresh_token(options.token_url, self._refresh_token, **options.params)
                else:
                    found = client.fetch_token(options.token_url, grant_type="client_credentials", **options.params)
        except OAuthError as error:  # its text names the error of RFC 6749, and no secret
            raise AuthFailed(f"{where} refuses an access token ({error.error}): check oauth of the source") from None
        except http.HTTPStatusError as error:
            raise SourceUnavailable(f"{where} issues no access token now ({error.response.status_code})") from None
        except http.HTTPError as error:
            raise SourceUnavailable(f"{where} did not respond to a token request: {type(error).__name__}") from None
        except ValueError:
            raise SourceUnavailable(f"{where} responded to a token request with something else than JSON") from None
        if not isinstance(found, Mapping) or not found.get("access_token"):
            raise AuthFailed(f"{where} responded without an access token: check oauth of the source")
        return found


def http_library(client: type) -> Any:
    """The library whose client a class of Authlib extends: httpx2 if it is installed, else httpx."""
    base = next(known for known in client.__mro__ if known.__name__ == "Client")
    return import_module(base.__module__.partition(".")[0])


def _seconds(value: object) -> float:
    try:
        found = float(str(value))
    except ValueError:
        return _DEFAULT_LIFE
    return found if found > 0 else _DEFAULT_LIFE


@lru_cache(maxsize=32)
def _shared(written: str) -> AccessTokens:
    return AccessTokens(OAuthOptions.model_validate_json(written))


def shared_tokens(options: OAuthOptions) -> AccessTokens:
    """The tokens of this client, shared by all sources of the process: each would fetch its own otherwise."""
    return _shared(options.model_dump_json())
