"""The channel `apprise`: Slack, mail, Teams, PagerDuty and other services, through the package Apprise."""

from __future__ import annotations

from datetime import datetime

from penstock.errors import ConfigError
from penstock.observe.notifications.message import DeliveryFailed, Notification
from penstock.state.alert_records import NoticeKind


class AppriseService:
    """Sends notifications to one service. Its address is never shown: it holds the key of the service."""

    def __init__(self, url: str) -> None:
        try:
            import apprise
        except ModuleNotFoundError as error:
            raise ConfigError('an apprise channel needs the package apprise: pip install "penstock[alerts]"') from error
        self._scheme = url.partition("://")[0]
        self._service = apprise.Apprise()
        if not self._service.add(url):
            raise ConfigError(
                f"the address {self._scheme}://*** is not known to Apprise: see https://appriseit.com/services"
            )

    def send(self, notification: Notification, now: datetime) -> None:
        """Send title and text; see `Channel.send`."""
        import apprise

        recovered = notification.kind is NoticeKind.RECOVERED
        kind = apprise.NotifyType.SUCCESS if recovered else apprise.NotifyType.FAILURE
        try:
            accepted = self._service.notify(title=notification.title, body=notification.text, notify_type=kind)
        except (TypeError, OSError) as error:
            raise DeliveryFailed(f"{self._scheme}: {type(error).__name__}") from None
        if not accepted:
            raise DeliveryFailed(f"{self._scheme} did not accept the notification; Apprise logs the reason")
