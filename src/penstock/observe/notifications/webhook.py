"""The channel `webhook`: a CloudEvent in structured mode, with a signature over its time and body."""

from __future__ import annotations

import hashlib
import hmac
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

import orjson

from penstock import __version__
from penstock.config.alerts import ChannelSettings
from penstock.errors import ConfigError
from penstock.observe.notifications.message import DeliveryFailed, Notification
from penstock.state.alert_records import NoticeKind

if TYPE_CHECKING:
    import httpx

SIGNATURE = "Penstock-Signature"
CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"
_GONE = 410
_BUSY = (408, 425, 429)
_LONGEST_PAUSE = timedelta(hours=1)


class Webhook:
    """Posts notifications to one address. Any response of 2xx is a delivery; redirects are not followed."""

    def __init__(self, settings: ChannelSettings) -> None:
        try:
            import httpx  # noqa: F401 - a missing package is reported when the channel is opened
        except ModuleNotFoundError as error:
            raise ConfigError('a webhook needs the package httpx: pip install "penstock[alerts]"') from error
        self._url = settings.webhook or ""
        self._secret = settings.secret
        self._timeout = settings.timeout.total_seconds()

    def send(self, notification: Notification, now: datetime) -> None:
        """Post the notification; see `Channel.send`."""
        import httpx

        body = orjson.dumps(cloud_event(notification))
        headers = {"Content-Type": CONTENT_TYPE, "User-Agent": f"penstock/{__version__}"}
        if self._secret is not None:
            headers[SIGNATURE] = signature(self._secret, int(now.timestamp()), body)
        try:
            with self._client.stream("POST", self._url, content=body, headers=headers) as response:
                pass  # the status decides; a body that never ends would hold up all other notifications
        except (httpx.HTTPError, httpx.InvalidURL) as error:  # the text may hold the address, which may hold a key
            raise DeliveryFailed(f"the webhook does not respond: {type(error).__name__}") from None
        if not response.is_success:
            raise _refusal(response)

    @cached_property
    def _client(self) -> httpx.Client:
        """One client: it reads the certificates of the system once. Each request has a connection of its own, because
        minutes pass between two of them."""
        import httpx

        limits = httpx.Limits(max_keepalive_connections=0)
        return httpx.Client(timeout=self._timeout, follow_redirects=False, limits=limits)


def cloud_event(notification: Notification) -> dict[str, Any]:
    """The notification as a CloudEvent 1.0. Its id is that of the delivery: receivers recognise repetitions by it."""
    body = notification.body
    kind = "recovered" if notification.kind is NoticeKind.RECOVERED else "fired"
    return {
        "specversion": "1.0",
        "id": notification.delivery_id,
        "source": f"/penstock/{notification.origin}",
        "type": f"dev.penstock.alert.{kind}",
        "subject": f"{body['rule']}/{body['subject']}",
        "time": body["at"],
        "datacontenttype": "application/json",
        "data": dict(body),
    }


def signature(secret: str, timestamp: int, body: bytes) -> str:
    """The value of the header: the time in seconds, and the HMAC-SHA256 of time, dot and body in hexadecimal."""
    digest = hmac.new(secret.encode(), b"%d." % timestamp + body, hashlib.sha256).hexdigest()
    return f"t={timestamp},v1={digest}"


def _refusal(response: httpx.Response) -> DeliveryFailed:
    status = response.status_code
    message = f"the webhook responded with {status} {response.reason_phrase}".rstrip()
    if status == _GONE:
        return DeliveryFailed(f"{message}: it takes no more notifications", is_final=True, is_down=False)
    is_down = status >= 500 or status in _BUSY
    return DeliveryFailed(message, is_down=is_down, retry_after=_retry_after(response))


def _retry_after(response: httpx.Response) -> timedelta | None:
    text = response.headers.get("retry-after", "")
    return min(timedelta(seconds=int(text)), _LONGEST_PAUSE) if text.isdigit() and len(text) < 10 else None
