"""Login through an OpenID Connect provider: authorization code flow with PKCE.

A login in progress is held by the browser alone, in a cookie: state, nonce and code verifier. The provider sends the
browser back with a code, which the server exchanges for a signed identity.
"""

from __future__ import annotations

import hmac
import secrets
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.app.context import Context
from penstock.app.oidc_documents import ProviderDocument
from penstock.errors import AccessDenied, ConfigError, LoginUnavailable, NotAuthenticated
from penstock.source.oauth import http_library
from penstock.state.tokens import TokenRole

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

    from penstock.config.console import OidcSettings

PREFIX = "oidc:"  # of the names of persons: no token can have such a name

_TIMEOUT = 5.0  # seconds of one request to the provider
_MOST_LOGINS = 3  # that wait for the provider at the same time: other requests need threads, too
_LEEWAY = 60  # seconds by which clocks may differ
_LONGEST_NAME = 200
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")


@dataclass(frozen=True, slots=True)
class PendingLogin:
    """A login in progress: the values that only this browser has."""

    state: str
    nonce: str
    verifier: str

    def has_state(self, state: str) -> bool:
        """Whether the provider sent this login back, and not another one."""
        return hmac.compare_digest(self.state.encode(), state.encode())


class OidcService:
    """Sends browsers to the provider, and verifies whom it sends back."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._addresses = ProviderDocument(self._fetch_addresses)
        self._keys = ProviderDocument(self._fetch_keys)
        self._logins = threading.BoundedSemaphore(_MOST_LOGINS)

    @property
    def is_configured(self) -> bool:
        """Whether the workspace file names a provider."""
        return self._context.settings.console.oidc is not None

    def begin(self, callback: str) -> tuple[str, PendingLogin]:
        """The address of the provider to which the browser goes, and the values that it brings back.

        >>> ws.oidc.begin("https://penstock.example.com/login/oidc/callback")[0]
        """
        pending = PendingLogin(secrets.token_urlsafe(24), secrets.token_urlsafe(24), secrets.token_urlsafe(48))
        address = self._addresses.current()["authorization_endpoint"]
        with self._client(callback) as client:
            url, _ = client.create_authorization_url(
                address, state=pending.state, nonce=pending.nonce, code_verifier=pending.verifier
            )
        return str(url), pending

    def finish(self, pending: PendingLogin, state: str, code: str, callback: str) -> tuple[str, TokenRole]:
        """The name and the role of the person whom the provider sent back. Raises NotAuthenticated if the login was not
        begun by this browser or its proof is not valid, AccessDenied if the person has no role, and LoginUnavailable if
        the provider does not respond or other logins wait for it.

        >>> ws.oidc.finish(pending, "state", "code", "https://penstock.example.com/login/oidc/callback")
        """
        if not pending.has_state(state):
            raise NotAuthenticated("the login was not begun in this browser: log in again")
        if not self._logins.acquire(blocking=False):
            raise LoginUnavailable("other logins wait for the identity provider: try again in some seconds")
        try:
            claims = self._verified(self._exchanged(pending, code, callback), pending.nonce)
        finally:
            self._logins.release()
        settings = self._settings()
        name = claims.get(settings.name_claim)
        if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
            raise NotAuthenticated(
                f"the provider sent no {settings.name_claim}: set console.oidc.name_claim or its scopes"
            )
        if "email" in (settings.name_claim, settings.role_claim) and claims.get("email_verified") is not True:
            raise NotAuthenticated(
                f"the provider does not say that it verified the address {name}: use another claim than email in"
                " console.oidc, for example preferred_username"
            )
        given = claims.get(settings.role_claim)
        values = [given] if isinstance(given, str) else given if isinstance(given, list) else []
        role = settings.role_of(str(value) for value in values)
        if role is None:
            raise AccessDenied(f"{name} has no role here: console.oidc.roles names the groups that have one")
        return f"{PREFIX}{name}", TokenRole(role)

    def _exchanged(self, pending: PendingLogin, code: str, callback: str) -> str:
        """The signed identity for a code."""
        from authlib.integrations.base_client.errors import OAuthError

        try:
            with self._client(callback) as client:
                address = self._addresses.current(waits=True)["token_endpoint"]
                token = client.fetch_token(address, code=code, code_verifier=pending.verifier)
        except OAuthError as error:
            raise NotAuthenticated(f"the provider refused the login: {error.error}") from None
        except _http_errors() as error:
            raise _unavailable(error) from None
        found = token.get("id_token")
        if not isinstance(found, str):
            raise NotAuthenticated("the provider sent no identity: the scopes need openid")
        return found

    def _verified(self, identity: str, nonce: str) -> dict[str, Any]:
        """The claims of an identity, after its signature, issuer, audience, time and nonce are checked."""
        from joserfc import jwt
        from joserfc.errors import JoseError

        settings = self._settings()
        expected = jwt.JWTClaimsRegistry(
            leeway=_LEEWAY,
            iss={"essential": True, "value": settings.issuer},
            aud={"essential": True, "value": settings.client_id},
            exp={"essential": True},
            sub={"essential": True},
            nonce={"essential": True, "value": nonce},
        )
        keys = self._keys.current(waits=True)
        for attempt in (1, 2):
            try:
                token = jwt.decode(identity, keys, algorithms=list(_ALGORITHMS))
                claims = {name: value.rstrip("/") if name == "iss" else value for name, value in token.claims.items()}
                expected.validate(claims)
                if (
                    isinstance(claims["aud"], list)
                    and len(claims["aud"]) > 1
                    and claims.get("azp") != settings.client_id
                ):
                    raise ValueError("azp is another client")
            except (JoseError, ValueError, AttributeError) as error:
                if attempt > 1:
                    raise NotAuthenticated(f"the identity of the provider is not valid: {error}") from None
                keys = self._keys.newer_than(keys)  # the provider may have changed them
            else:
                return claims
        raise AssertionError

    def _fetch_addresses(self) -> dict[str, str]:
        """The addresses of the provider, from its discovery document."""
        issuer = self._settings().issuer
        document = _fetched(f"{issuer}/.well-known/openid-configuration")
        if str(document.get("issuer", "")).rstrip("/") != issuer:
            raise ConfigError(
                f"the provider at {issuer} calls itself {document.get('issuer')!r}: correct console.oidc.issuer"
            )
        if missing := [name for name in _ENDPOINTS if not isinstance(document.get(name), str)]:
            raise ConfigError(f"the discovery document of {issuer} has no {', '.join(missing)}")
        return {name: document[name] for name in _ENDPOINTS}

    def _fetch_keys(self) -> KeySet:
        """The keys with which the provider signs."""
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        document: Any = _fetched(self._addresses.current(waits=True)["jwks_uri"])
        try:
            return KeySet.import_key_set(document)
        except (KeyError, TypeError, ValueError, JoseError) as error:
            raise _unavailable(error) from None

    def _client(self, callback: str) -> Any:
        try:
            from authlib.integrations.httpx_client import OAuth2Client
        except ModuleNotFoundError as error:
            raise ConfigError(f"login by OIDC needs the package {error.name}: install `penstock[oidc]`") from error
        settings = self._settings()
        return OAuth2Client(
            settings.client_id,
            settings.client_secret,
            token_endpoint_auth_method="client_secret_basic" if settings.client_secret else "none",
            scope=" ".join(settings.scopes),
            redirect_uri=callback,
            code_challenge_method="S256",
            timeout=_TIMEOUT,
        )

    def _settings(self) -> OidcSettings:
        found = self._context.settings.console.oidc
        if found is None:
            raise ConfigError("the workspace file has no console.oidc: log in with a token")
        return found


def _fetched(url: str) -> dict[str, Any]:
    import httpx

    try:
        response = httpx.get(url, timeout=_TIMEOUT, follow_redirects=False)
        response.raise_for_status()
        found = response.json()
    except (httpx.HTTPError, ValueError) as error:
        raise _unavailable(error) from None
    if not isinstance(found, dict):
        raise _unavailable(ValueError(f"{url} is no JSON object"))
    return found


def _http_errors() -> tuple[type[Exception], ...]:
    """The errors of the client of Authlib, which has a library of its own if that is installed."""
    from authlib.integrations.httpx_client import OAuth2Client

    return http_library(OAuth2Client).HTTPError, ValueError


def _unavailable(error: Exception) -> LoginUnavailable:
    return LoginUnavailable(f"the identity provider does not respond as expected: {type(error).__name__}: {error}")
