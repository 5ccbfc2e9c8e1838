"""Notifications of transitions, one for each channel. Their ids are derived, so that a repetition has the same ids."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from penstock.clock import iso
from penstock.config.alerts import AlertRule
from penstock.control.alerting.policy import Transition, derived_ulid
from penstock.control.alerting.quiet import after_quiet_hours
from penstock.state.alert_records import Alert, AlertChanges, NewDelivery, NoticeKind


def changes_of(
    transitions: Iterable[Transition],
    rules: Mapping[str, AlertRule],
    targets_of: Callable[[AlertRule], Sequence[str]],
    now: datetime,
) -> AlertChanges:
    """The alerts and the notifications of an evaluation. `targets_of` names the channels of a rule. A recovery goes to
    the channels that got the firing, also if the rule names others by now or is gone."""
    alerts, deliveries = dict[tuple[str, str], Alert](), list[NewDelivery]()
    for transition in transitions:
        alert, rule = transition.alert, rules.get(transition.alert.rule)
        if NoticeKind.FIRED in transition.notices and rule is not None:
            alert = replace(alert, channels=tuple(targets_of(rule)))
        alerts[alert.key] = alert  # the last of several transitions is stored
        not_before = after_quiet_hours(rule.quiet_hours if rule else None, now)
        deliveries += [
            _delivery(alert, rule, kind, channel, now, not_before)
            for kind in transition.notices
            for channel in alert.channels
        ]
    return AlertChanges(tuple(alerts.values()), tuple(deliveries))


def _delivery(
    alert: Alert, rule: AlertRule | None, kind: NoticeKind, channel: str, now: datetime, not_before: datetime
) -> NewDelivery:
    number = alert.notices if kind is NoticeKind.REPEATED else 1
    digest = hashlib.sha256("\0".join((alert.alert_id, kind, str(number), channel)).encode()).digest()
    return NewDelivery(
        derived_ulid(alert.since, digest),
        alert.alert_id,
        alert.rule,
        alert.subject,
        kind,
        channel,
        _body(alert, rule, kind, now),
        now,
        not_before,
    )


def _body(alert: Alert, rule: AlertRule | None, kind: NoticeKind, now: datetime) -> dict[str, Any]:
    """The facts of a notification, as its receiver gets them."""
    recovered = kind is NoticeKind.RECOVERED
    return {
        "alert_id": alert.alert_id,
        "rule": alert.rule,
        "condition": rule.rule if rule else None,
        "subject": alert.subject,
        "state": "recovered" if recovered else "firing",
        "notice": alert.notices if kind is NoticeKind.REPEATED else 1,
        "count": alert.matches,
        "message": alert.message,
        "example": alert.example,
        "link": alert.link,
        "since": iso(alert.since),
        "fired_at": iso(alert.fired_at or now),
        "recovered_at": iso(alert.recovered_at or now) if recovered else None,
        "at": iso(now),
    }
