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
    ("grpc.enable_retries", 0),  # each request counts in our budget, so gRPC must not repeat any
)


@dataclass(frozen=True, slots=True)
class Login:
    """The credentials. Never shown, logged or stored."""

    developer_token: str = field(repr=False)
    variables: tuple[tuple[str, str], ...] = field(repr=False)

    def hidden(self, text: str) -> str:
        """The text without secrets."""
        for secret in (self.developer_token, *(value for _, value in self.variables)):
            if len(secret) > 3:
                text = text.replace(secret, "***")
        return text


def login_from(environ: Mapping[str, str], options: Options) -> Login:
    """The credentials in the environment, by the variables of Google's own client. A test server needs none. Raises
    ConfigError if variables are missing."""
    given = {name: environ[name] for name in (_TOKEN, *_INSTALLED, _KEY_FILE, _SUBJECT) if environ.get(name)}
    token = given.pop(_TOKEN, "")
    if options.insecure:
        return Login(token or "none", ())
    missing = [] if token else [_TOKEN]
    if _KEY_FILE not in given:
        missing += [name for name in _INSTALLED if name not in given]
    if missing:
        raise ConfigError(
            f"the environment lacks {', '.join(missing)}: Google Ads needs {_TOKEN} and either"
            f" {', '.join(_INSTALLED)} or {_KEY_FILE}"
        )
    return Login(token, tuple(given.items()))


class Connection:
    """Sends requests to Google Ads in one API version. The channel is opened by the first request."""

    def __init__(self, options: Options, login: Login) -> None:
        self._options = options
        self._login = login
        self.version = known_version(options.api_version)

    @property
    def row_type(self) -> Any:
        """The protobuf message of a row."""
        return part(self.version, "services.types.google_ads_service").GoogleAdsRow.pb()

    def stream(self, customer_id: str, query: str) -> Iterator[Any]:
        """The rows of a query, in parts of some thousands. The request is cancelled when the iterator is closed."""
        from google.ads.googleads.errors import GoogleAdsException
        from google.api_core.exceptions import GoogleAPICallError

        call: Any = None
        try:
            call = _service(self._options, self._login, self.version).search_stream(
                customer_id=customer_id, query=query, retry=None, timeout=self._options.timeout.total_seconds()
            )
            for response in call:
                yield response.results
        except (GoogleAdsException, GoogleAPICallError) as error:
            ours = translated(error, customer_id, self.version, self._login.hidden)
            if isinstance(ours, AuthFailed):
                _service.cache_clear()  # a key file may be replaced in place: the next request signs in again
            raise ours from None
        finally:
            if call is not None:
                call.cancel()


@lru_cache(maxsize=8)
def _service(options: Options, login: Login, version: str) -> Any:
    """One authenticated channel for each login of a process, shared by all tasks and threads."""
    import grpc
    from google.ads.googleads.interceptors import ExceptionInterceptor, MetadataInterceptor

    client = part(version, "services.services.google_ads_service").GoogleAdsServiceClient
    transport = client.get_transport_class("grpc")
    address = options.endpoint or client.DEFAULT_ENDPOINT
    if options.insecure:
        channel = grpc.insecure_channel(address, options=_CHANNEL)
    else:
        channel = transport.create_channel(host=address, credentials=_credentials(login), options=_CHANNEL)
    # without the logging of the client: requests contain names of customers
    asking = MetadataInterceptor(login.developer_token, options.login_customer_id, None)
    failing = ExceptionInterceptor(version, use_proto_plus=False)
    return client(transport=transport(channel=grpc.intercept_channel(channel, asking, failing)))


def _credentials(login: Login) -> Any:
    """Sign in before the first request, so that invalid credentials are not mistaken for a network error."""
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
        reason = login.hidden(str(error.args[0] if error.args else error))
        raise refused_credentials(reason, is_transient=isinstance(error, TransportError) or error.retryable) from None
