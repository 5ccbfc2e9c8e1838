"""A connection to Google Ads: credentials from the environment, one channel, and no retries of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from penstock.errors import AuthFailed, ConfigError
from penstock.source.google_ads.failures import refused_credentials, translated
from penstock.source.google_ads.options import Options
from penstock.source.google_ads.version import known_version, part

_TOKEN = "GOOGLE_ADS_DEVELOPER_TOKEN"
_KEY_FILE = "GOOGLE_ADS_JSON_KEY_FILE_PATH"
_SUBJECT = "GOOGLE_ADS_IMPERSONATED_EMAIL"
_INSTALLED = ("GOOGLE_ADS_CLIENT_ID", "GOOGLE_ADS_CLIENT_SECRET", "GOOGLE_ADS_REFRESH_TOKEN")
_LARGEST_ANSWER = 64 * 1024 * 1024
_CHANNEL = (
    ("grpc.max_metadata_size", 16 * 1024 * 1024),
    ("grpc.max_receive_message_length", _LARGEST_ANSWER),
    ("grpc.enable_retries", 0),  # each request is in our budget, so whoever repeats one must be us
)


@dataclass(frozen=True, slots=True)
class Login:
    """Who asks. Never shown, logged or kept."""

    developer_token: str = field(repr=False)
    variables: tuple[tuple[str, str], ...] = field(repr=False)

    def hidden(self, text: str) -> str:
        """The text without any of the secrets."""
        for secret in (self.developer_token, *(value for _, value in self.variables)):
            if len(secret) > 3:
                text = text.replace(secret, "***")
        return text


def login_from(environ: Mapping[str, str], options: Options) -> Login:
    """The login in the environment, by the names that Google's own client uses. A test server needs none."""
    given = {name: environ[name] for name in (_TOKEN, *_INSTALLED, _KEY_FILE, _SUBJECT) if environ.get(name)}
    token = given.pop(_TOKEN, "")
    if options.insecure:
        return Login(token or "none", ())
    missing = [] if token else [_TOKEN]
    if _KEY_FILE not in given:
        missing += [name for name in _INSTALLED if name not in given]
    if missing:
        raise ConfigError(
            f"the environment lacks {', '.join(missing)}: Google Ads is asked with {_TOKEN} and either"
            f" {', '.join(_INSTALLED)} or {_KEY_FILE}"
        )
    return Login(token, tuple(given.items()))


class Connection:
    """Asks Google Ads in one API version; opened at the first request."""

    def __init__(self, options: Options, login: Login) -> None:
        self._options = options
        self._login = login
        self.version = known_version(options.api_version)

    @property
    def row_type(self) -> Any:
        """The message that every row is."""
        return part(self.version, "services.types.google_ads_service").GoogleAdsRow.pb()

    def stream(self, customer_id: str, query: str) -> Iterator[Any]:
        """The rows of a query, in parts of some thousands each. Whoever stops reading ends the request."""
        from google.ads.googleads.errors import GoogleAdsException
        from google.api_core.exceptions import GoogleAPICallError

        call: Any = None
        try:
            call = _service(self._options, self._login, self.version).search_stream(
                customer_id=customer_id, query=query, retry=None, timeout=self._options.timeout.total_seconds()
            )
            for answer in call:
                yield answer.results
        except (GoogleAdsException, GoogleAPICallError) as error:
            ours = translated(error, customer_id, self.version, self._login.hidden)
            if isinstance(ours, AuthFailed):
                _service.cache_clear()  # a key file may be renewed where it lies: whoever asks next signs in anew
            raise ours from None
        finally:
            if call is not None:
                call.cancel()


@lru_cache(maxsize=8)
def _service(options: Options, login: Login, version: str) -> Any:
    """One signed-in channel for each login of a process, however many tasks and threads ask through it."""
    import grpc
    from google.ads.googleads.interceptors import ExceptionInterceptor, MetadataInterceptor

    client = part(version, "services.services.google_ads_service").GoogleAdsServiceClient
    transport = client.get_transport_class("grpc")
    address = options.endpoint or client.DEFAULT_ENDPOINT
    if options.insecure:
        channel = grpc.insecure_channel(address, options=_CHANNEL)
    else:
        channel = transport.create_channel(host=address, credentials=_credentials(login), options=_CHANNEL)
    # without the client's logging: requests hold customers' names, and whoever debugs has ours
    asking = MetadataInterceptor(login.developer_token, options.login_customer_id, None)
    failing = ExceptionInterceptor(version, use_proto_plus=False)
    return client(transport=transport(channel=grpc.intercept_channel(channel, asking, failing)))


def _credentials(login: Login) -> Any:
    """Signs in, so that bad credentials are known before the first request and not taken for a broken network."""
    from google.ads.googleads import oauth2
    from google.auth.exceptions import GoogleAuthError, TransportError

    given = dict(login.variables)
    try:
        if _KEY_FILE in given:
            return oauth2.get_service_account_credentials(given[_KEY_FILE], given.get(_SUBJECT))
        return oauth2.get_installed_app_credentials(*(given[name] for name in _INSTALLED))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{_KEY_FILE} does not name a key file that can be read: {type(error).__name__}") from None
    except GoogleAuthError as error:
        words = login.hidden(str(error.args[0] if error.args else error))
        raise refused_credentials(words, passing=isinstance(error, TransportError) or error.retryable) from None
