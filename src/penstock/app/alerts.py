"""Alerts: evaluation of the rules, delivery of notifications, and their state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

from penstock.app.context import Context
from penstock.config.alerts import AlertRule, AlertSettings
from penstock.errors import LeaseLost
from penstock.state.alert_records import (
    Alert,
    AlertChanges,
    Delivery,
    DeliveryState,
    EvaluationCursor,
    NewDelivery,
    NoticeKind,
)

if TYPE_CHECKING:
    from penstock.app.alert_sender import AlertSender, DeliveryCounts
    from penstock.app.lateness import LatenessService
    from penstock.app.status import StatusService

log = logging.getLogger(__name__)

_RUN_ENDS = ("RunFinished",)


@dataclass(frozen=True, slots=True)
class AlertStatus:
    """An alert, its last delivered notification, and the next one that waits."""

    alert: Alert
    last_delivered_at: datetime | None
    next_try_at: datetime | None
    last_error: str | None
    waiting: int


@dataclass(frozen=True, slots=True)
class RuleStatus:
    """A rule and its alerts. `rule` is None for a rule that is no longer in the workspace file."""

    label: str
    rule: AlertRule | None
    channels: tuple[str, ...]
    alerts: tuple[AlertStatus, ...]


class AlertService:
    """Evaluates rules and delivers notifications: each episode of a condition is reported once, and recovers once."""

    def __init__(self, context: Context, status: StatusService, lateness: LatenessService) -> None:
        self._context = context
        self._status = status
        self._lateness = lateness

    @property
    def settings(self) -> AlertSettings | None:
        """The channels and rules of the workspace file; None without any.

        >>> ws.alerts.settings
        """
        return self._context.settings.alerts

    def check(self) -> None:
        """Raise ConfigError if a channel cannot be used: a package is missing, or an address is not valid.

        >>> ws.alerts.check()
        """
        self._sender.check()

    def evaluate(self, worker_token: str) -> AlertChanges | None:
        """Evaluate every rule once, and queue the notifications. Returns what changed; None without rules, and if
        another live worker evaluates. A rule that cannot be evaluated keeps its alerts.

        >>> ws.alerts.evaluate(worker_token)
        """
        from penstock.app.alert_conditions import ConditionCollector
        from penstock.control.alerting.notices import changes_of
        from penstock.control.alerting.policy import observe

        settings, store = self.settings, self._context.alert_states
        before = None if settings is None else store.lead(worker_token)
        if settings is None or before is None:
            return None
        now, ledger = self._context.now(), self._context.ledger
        ended, position = ([], ledger.newest()) if before.ledger is None else ledger.of_types(before.ledger, _RUN_ENDS)
        collector = ConditionCollector(self._context, self._status, self._lateness, now, before, ended)
        collected = collector.collect(settings.rules, store.alerts())
        for label, error in collected.unknown.items():
            log.warning("alert.not_evaluated", extra={"facts": {"rule": label, "error": error}})
        after = EvaluationCursor(position, before.started_at or now, now, collected.broken_runs)
        rules = {rule.label: rule for rule in settings.rules}

        def decide(alerts: Sequence[Alert], unsent: Collection[str]) -> AlertChanges:
            transitions = observe(collected.conditions, alerts, now, rules, collected.unknown, unsent)
            return changes_of(transitions, rules, self._sender.targets_of, now)

        try:
            changes = store.evaluate(worker_token, before, after, decide)
        except LeaseLost:
            return None
        _log(changes)
        return changes

    def deliver(self, worker_token: str, stopping: Callable[[], bool] = lambda: False) -> DeliveryCounts:
        """Send the notifications that are due, each by one worker at a time, in order per subject. A channel that does
        not accept one is tried again later, with growing pauses.

        >>> ws.alerts.deliver(worker_token).delivered
        """
        return self._sender.deliver(worker_token, stopping)

    def list(self) -> tuple[RuleStatus, ...]:
        """Every rule with its alerts, and the rules of alerts that are no longer in the workspace file.

        >>> [rule.label for rule in ws.alerts.list() if rule.alerts]
        """
        stored = self._context.alert_states.alerts()
        sent: dict[str, list[Delivery]] = {}
        for delivery in self._context.alert_deliveries.about([alert.alert_id for alert in stored]):
            sent.setdefault(delivery.alert_id, []).append(delivery)
        settings = self.settings or AlertSettings()
        rules = {rule.label: rule for rule in settings.rules}
        found: dict[str, list[AlertStatus]] = {label: [] for label in rules}
        for alert in stored:
            found.setdefault(alert.rule, []).append(_status(alert, sent.get(alert.alert_id, [])))
        channels = {label: settings.channels_of(rule) for label, rule in rules.items()}
        return tuple(
            RuleStatus(label, rules.get(label), channels.get(label, ()), tuple(alerts))
            for label, alerts in found.items()
        )

    def evaluated_at(self) -> datetime | None:
        """When a control loop evaluated the rules last; None if never.

        >>> ws.alerts.evaluated_at()
        """
        return self._context.alert_states.evaluated_at()

    def test(self, channel: str) -> tuple[str, ...]:
        """Send one message to each address of a channel, without the queue. Returns the names of the addresses. Raises
        UsageError for an unknown channel, ConfigError for a missing package, DeliveryFailed if it is not accepted.

        >>> ws.alerts.test("ops")
        """
        return self._sender.test(channel)

    @cached_property
    def _sender(self) -> AlertSender:
        from penstock.app.alert_sender import AlertSender

        return AlertSender(self._context)


def _status(alert: Alert, deliveries: Sequence[Delivery]) -> AlertStatus:
    waiting = [one for one in deliveries if one.state is DeliveryState.WAITING]
    delivered = [one.finished_at for one in deliveries if one.state is DeliveryState.DELIVERED and one.finished_at]
    errors = [one.error_message for one in deliveries if one.error_message is not None]
    next_try = min((one.not_before for one in waiting), default=None)
    return AlertStatus(alert, max(delivered, default=None), next_try, errors[-1] if errors else None, len(waiting))


def _log(changes: AlertChanges) -> None:
    """Log each change once, however many channels are notified."""
    notices: dict[tuple[str, NoticeKind], list[NewDelivery]] = {}
    for delivery in changes.deliveries:
        notices.setdefault((delivery.alert_id, delivery.kind), []).append(delivery)
    for (alert_id, kind), deliveries in notices.items():
        first = deliveries[0]
        facts: dict[str, object] = {"rule": first.rule, "subject": first.subject, "alert_id": alert_id}
        facts |= {"channels": [one.channel for one in deliveries], "message": str(first.body["message"])}
        match kind:
            case NoticeKind.FIRED:
                log.info("alert.fired", extra={"facts": facts})
            case NoticeKind.REPEATED:
                log.info("alert.repeated", extra={"facts": facts})
            case NoticeKind.RECOVERED:
                log.info("alert.recovered", extra={"facts": facts})
