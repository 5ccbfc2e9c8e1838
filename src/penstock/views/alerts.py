"""Documents of alerts: the rules with their states, and a test message. No document holds an address or a secret."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock.config.values import format_duration
from penstock.views.document import Document, listing

if TYPE_CHECKING:
    from datetime import datetime

    from penstock.app.alerts import AlertStatus, RuleStatus


def alerts_document(rules: Sequence[RuleStatus], evaluated_at: datetime | None) -> Document:
    """Every rule with its alerts, and when the rules were evaluated last."""
    document = listing([_rule(rule) for rule in rules], len(rules))
    firing = sum(one.alert.state == "firing" for rule in rules for one in rule.alerts)
    return Document({**document, "firing": firing, "evaluated_at": evaluated_at})


def sent_test_document(channel: str, targets: Sequence[str]) -> Document:
    """A test message that was accepted."""
    return Document({"channel": channel, "accepted": len(targets), "targets": list(targets)})


def _rule(found: RuleStatus) -> dict[str, Any]:
    rule = found.rule
    return {
        "rule": found.label,
        "condition": None if rule is None else rule.rule,
        "channels": list(found.channels),
        "threshold": None if rule is None or rule.threshold is None else str(rule.threshold),
        "after": None if rule is None or rule.holds_for == timedelta() else format_duration(rule.holds_for),
        "group_by": None if rule is None else rule.grouping.value,
        "alerts": [_alert(one) for one in found.alerts],
    }


def _alert(found: AlertStatus) -> dict[str, Any]:
    alert = found.alert
    return {
        "alert_id": alert.alert_id,
        "subject": alert.subject,
        "state": alert.state.value,
        "since": alert.since,
        "fired_at": alert.fired_at,
        "recovered_at": alert.recovered_at,
        "count": alert.matches,
        "message": alert.message,
        "example": alert.example,
        "link": alert.link,
        "notices": alert.notices,
        "last_delivered_at": found.last_delivered_at,
        "waiting": found.waiting,
        "next_try_at": found.next_try_at,
        "last_error": found.last_error,
    }
