"""Translates errors of Google Ads to ours, by their cause: account, login, quota, query or network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from penstock.errors import (
    AuthFailed,
    ConfigError,
    DataError,
    PenstockError,
    QuotaExceeded,
    SourceUnavailable,
    VersionRefused,
)
from penstock.source.google_ads.version import part

_FAILURE = "errors.googleadsfailure-bin"
_REQUEST_ID = "request-id"


class Fault(NamedTuple):
    """One error of a response: the family and name of its code, its message, and the pause that it asks for."""

    family: str
    name: str
    message: str
    retry_delay: float | None = None

    @property
    def code(self) -> str:
        return f"{self.family}.{self.name}"


# Errors of one account: the others continue. A person must give access to it, or give it an end date.
_OF_THE_CUSTOMER = {
    "authentication_error": {"CUSTOMER_NOT_FOUND", "CLIENT_CUSTOMER_ID_INVALID"},
    "authorization_error": {
        "USER_PERMISSION_DENIED",
        "CUSTOMER_NOT_ENABLED",
        "INCOMPLETE_SIGNUP",
        "ACTION_NOT_PERMITTED_FOR_SUSPENDED_ACCOUNT",
        "ACCESS_DENIED_FOR_ACCOUNT_TYPE",
        "INVALID_LOGIN_CUSTOMER_ID_SERVING_CUSTOMER_ID_COMBINATION",
    },
    "request_error": {"INVALID_CUSTOMER_ID"},
}
# Errors of the login: every request would be refused.
_OF_THE_LOGIN = {
    "quota_error": {"ACCESS_PROHIBITED"},
    "request_error": {
        "DEVELOPER_TOKEN_PARAMETER_MISSING",
        "LOGIN_CUSTOMER_ID_PARAMETER_MISSING",
        "CLOUD_PROJECT_NOT_FOUND",
    },
    "header_error": {"INVALID_LOGIN_CUSTOMER_ID"},
}
_TRANSIENT = {
    "internal_error": None,
    "database_error": {"CONCURRENT_MODIFICATION"},
    "request_error": {"RPC_DEADLINE_TOO_SHORT"},
}
_OF_THE_QUERY = {"authorization_error": {"METRIC_ACCESS_DENIED"}}
_BAD_CREDENTIALS = ("invalid_grant", "invalid_client", "unauthorized_client", "RefreshError")


def translated(error: Exception, customer_id: str, version: str, hide: Callable[[str], str]) -> PenstockError:
    """Our error for one of the client library; `hide` removes secrets from messages of the server."""
    call = _call(error)
    if call is None:
        return SourceUnavailable(f"Google Ads did not respond for {customer_id}: {hide(str(error))}")
    metadata = call.trailing_metadata() or ()
    where = _where(customer_id, metadata)
    if faults := [fault._replace(message=hide(fault.message)) for fault in _faults(metadata, version)]:
        return _by_fault(faults, where)
    return _by_status(call.code().name, hide(call.details() or ""), where, version)


def refused_credentials(reason: str, *, is_transient: bool) -> PenstockError:
    """Our error for a failed sign-in: of the network if `is_transient`, otherwise of the credentials."""
    if is_transient:
        return SourceUnavailable(f"Google's sign-in did not respond: {reason}")
    return AuthFailed(f"Google refuses these credentials: {reason}; renew what GOOGLE_ADS_* hold, then run again")


def _call(error: Exception) -> Any:
    """The gRPC call that failed; errors of the client library have it in one of three attributes."""
    candidates = [getattr(error, "error", None), *(getattr(error, "errors", None) or ()), error]
    return next((found for found in candidates if hasattr(found, "trailing_metadata")), None)


def _where(customer_id: str, metadata: Iterable[tuple[str, Any]]) -> str:
    request = next((value for name, value in metadata if name == _REQUEST_ID), None)
    return f"customer {customer_id}" + (f", request {request}" if request else "")


def _faults(metadata: Iterable[tuple[str, Any]], version: str) -> list[Fault]:
    from google.protobuf.message import DecodeError

    packed = next((value for name, value in metadata if name.endswith(_FAILURE)), None)
    if packed is None:
        return []
    failure = part(version, "errors.types.errors").GoogleAdsFailure.pb()()
    try:
        failure.ParseFromString(packed)
    except DecodeError:
        return []
    return [_fault(error) for error in failure.errors]


def _fault(error: Any) -> Fault:
    [family, *_] = [field for field, _ in error.error_code.ListFields()] or [None]
    if family is None:
        return Fault("unknown", "UNKNOWN", error.message)
    number = getattr(error.error_code, family.name)
    value = family.enum_type.values_by_number.get(number)
    details = error.details.quota_error_details
    delay = details.retry_delay.ToTimedelta().total_seconds() if details.HasField("retry_delay") else None
    return Fault(family.name, value.name if value else str(number), error.message, delay)


def _by_fault(faults: Sequence[Fault], where: str) -> PenstockError:
    """The error for a response with several faults: those that concern every request come first."""
    reason = "; ".join(f"{fault.message.rstrip('.')} ({fault.code})" for fault in faults)
    for fault in faults:
        if fault.code == "request_error.UNSUPPORTED_VERSION":
            return _sunset(reason, where)
    if any(_of_the_login(fault) for fault in faults):
        return AuthFailed(f"Google Ads refuses this login: {reason} ({where}); correct it, then run again")
    quota = [fault for fault in faults if fault.family == "quota_error"]
    if quota:
        delays = [fault.retry_delay for fault in quota if fault.retry_delay is not None]
        return QuotaExceeded(f"Google Ads asks for a pause: {reason} ({where})", max(delays) if delays else None)
    if any(_listed(fault, _TRANSIENT) for fault in faults):
        return SourceUnavailable(f"Google Ads failed: {reason} ({where})")
    if any(_listed(fault, _OF_THE_CUSTOMER) for fault in faults):
        return ConfigError(
            f"Google Ads does not serve this account: {reason} ({where}); give the login access to it, or end it with"
            " active_to"
        )
    return ConfigError(f"Google Ads does not accept the query: {reason} ({where})")


def _of_the_login(fault: Fault) -> bool:
    if _listed(fault, _OF_THE_LOGIN):
        return True
    families = ("authentication_error", "authorization_error")
    return fault.family in families and not _listed(fault, _OF_THE_CUSTOMER) and not _listed(fault, _OF_THE_QUERY)


def _listed(fault: Fault, table: dict[str, Any]) -> bool:
    if fault.family not in table:
        return False
    names = table[fault.family]
    return names is None or fault.name in names


def _by_status(status: str, details: str, where: str, version: str) -> PenstockError:
    """The error for a gRPC status without faults of Google Ads."""
    reason = f"{details or 'no details'} ({status}, {where})"
    if status in ("UNAUTHENTICATED", "PERMISSION_DENIED") or any(word in details for word in _BAD_CREDENTIALS):
        return AuthFailed(f"Google Ads refuses this login: {reason}; correct it, then run again")
    if status == "UNIMPLEMENTED":
        return _sunset(f"Google Ads does not respond in version {version}: {reason}", where)
    if status == "RESOURCE_EXHAUSTED" and "larger than max" in details:
        return DataError(f"a response of Google Ads is too large for one message: {reason}")
    if status == "RESOURCE_EXHAUSTED":
        return QuotaExceeded(f"Google Ads asks for a pause: {reason}")
    if status in ("INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "OUT_OF_RANGE"):
        return ConfigError(f"Google Ads does not accept the request: {reason}")
    return SourceUnavailable(f"Google Ads did not respond, or broke off: {reason}")


def _sunset(reason: str, where: str) -> VersionRefused:
    return VersionRefused(
        f"Google Ads has switched this API version off: {reason} ({where}); set api_version to a newer one, or take it"
        " out and upgrade google-ads"
    )
