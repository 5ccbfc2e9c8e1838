"""Sends the queued notifications of alerts to their channels."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from penstock.app.context import Context
from penstock.clock import iso
from penstock.config.alerts import AlertRule, AlertSettings, QuietHours
from penstock.config.values import unknown_name
from penstock.control.alerting.quiet import after_quiet_hours
from penstock.errors import UsageError
from penstock.failpoint import reach
from penstock.observe.notifications.message import Channel, DeliveryFailed, Notification
from penstock.observe.notifications.registry import open_targets, target_names
from penstock.partition import new_ulid
from penstock.state.alert_records import Delivery, NoticeKind

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=15), timedelta(minutes=15)
GIVE_UP = timedelta(days=7)  # a notification that no attempt delivered in this time is dropped


@dataclass(slots=True)
class DeliveryCounts:
    """What became of the notifications of one call."""

    delivered: int = 0
    failed: int = 0  # they wait for the next attempt
    dropped: int = 0


def pause_after(attempts: int) -> timedelta:
    """The pause after so many failed attempts: it doubles up to a limit."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * (1 << min(attempts - 1, 10)))


class AlertSender:
    """Sends notifications, and records what became of each."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.settings.alerts or AlertSettings()

    def check(self) -> None:
        """Raise ConfigError if a channel cannot be used."""
        _ = self._targets

    def targets_of(self, rule: AlertRule) -> tuple[str, ...]:
        """The names of the receivers of a rule."""
        channels = self._settings.channels
        names = self._settings.channels_of(rule)
        return tuple(target for name in names for target in target_names(name, channels[name]))

    def deliver(self, worker_token: str, stopping: Callable[[], bool]) -> DeliveryCounts:
        """Send what is due, one after the other, until nothing is due."""
        counts = DeliveryCounts()
        while not stopping():
            delivery = self._context.alert_deliveries.claim(worker_token, self._context.now())
            if delivery is None:
                break
            reach("delivery.claimed")
            self._send(delivery, counts)
        return counts

    def test(self, channel: str) -> tuple[str, ...]:
        """Send one message to each receiver of a channel, without the queue."""
        if channel not in self._settings.channels:
            raise UsageError(unknown_name("channel", channel, self._settings.channels))
        targets = open_targets({channel: self._settings.channels[channel]})
        now = self._context.now()
        body = {
            "alert_id": new_ulid(),
            "rule": "test",
            "condition": None,
            "subject": channel,
            "state": "firing",
            "notice": 1,
            "count": 0,
            "message": "a test message: this channel works",
            "example": None,
            "link": self._context.settings.console.url,
            "since": iso(now),
            "fired_at": iso(now),
            "recovered_at": None,
            "at": iso(now),
        }
        for target in targets.values():
            _send_to(target, self._notification(new_ulid(), NoticeKind.FIRED, body), now)
        return tuple(targets)

    def _send(self, delivery: Delivery, counts: DeliveryCounts) -> None:
        store, now = self._context.alert_deliveries, self._context.now()
        allowed = after_quiet_hours(self._quiet_hours(delivery.rule), now)
        if allowed > now:  # it was due before the quiet hours, and could not be sent then
            store.postponed(delivery, allowed)
            return
        target = self._targets.get(delivery.channel)
        if target is None:
            gone = DeliveryFailed(f"the workspace file has no channel {delivery.channel}", is_final=True)
            self._failed(delivery, gone, counts)
            return
        try:
            _send_to(target, self._notification(delivery.delivery_id, delivery.kind, delivery.body), now)
        except DeliveryFailed as error:
            self._failed(delivery, error, counts)
            return
        reach("delivery.sent")
        store.delivered(delivery, self._context.now())
        reach("delivery.recorded")
        counts.delivered += 1
        log.info("notification.delivered", extra={"facts": _facts(delivery)})

    def _failed(self, delivery: Delivery, error: DeliveryFailed, counts: DeliveryCounts) -> None:
        store, now = self._context.alert_deliveries, self._context.now()
        facts = {**_facts(delivery), "error": str(error)}
        if error.is_final or now - delivery.created_at >= GIVE_UP:
            counts.dropped += 1
            store.dropped(delivery, str(error), now)
            log.error("notification.dropped", extra={"facts": facts})
            return
        counts.failed += 1
        next_try = now + max(pause_after(delivery.attempts + 1), error.retry_after or timedelta())
        store.failed(delivery, str(error), next_try, whole_channel=error.is_down)
        log.warning("notification.failed", extra={"facts": {**facts, "next_try": iso(next_try)}})

    def _notification(self, delivery_id: str, kind: NoticeKind, body: Mapping[str, Any]) -> Notification:
        settings = self._context.settings
        return Notification(delivery_id, kind, f"{settings.tenant}/{settings.workspace}", body)

    def _quiet_hours(self, label: str) -> QuietHours | None:
        return next((rule.quiet_hours for rule in self._settings.rules if rule.label == label), None)

    @cached_property
    def _targets(self) -> dict[str, Channel]:
        return open_targets(self._settings.channels)


def _send_to(target: Channel, notification: Notification, now: datetime) -> None:
    """Send a notification. Raises DeliveryFailed for every error: one that a library did not expect (a proxy without
    its package, a missing file of certificates) must not hold up other channels."""
    try:
        target.send(notification, now)
    except DeliveryFailed:
        raise
    except Exception as error:
        # Without the text, which may hold the address of the channel.
        raise DeliveryFailed(f"the channel cannot be used: {type(error).__name__}") from error


def _facts(delivery: Delivery) -> dict[str, str]:
    return {
        "delivery_id": delivery.delivery_id,
        "alert_id": delivery.alert_id,
        "kind": delivery.kind.value,
        "channel": delivery.channel,
    }
