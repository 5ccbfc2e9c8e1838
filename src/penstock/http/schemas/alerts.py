"""Models of alerts."""

from __future__ import annotations

from datetime import datetime

from penstock.http.schemas.base import Model


class AlertItem(Model):
    """The state of a rule for one subject."""

    alert_id: str
    subject: str
    state: str
    since: datetime
    fired_at: datetime | None
    recovered_at: datetime | None
    count: int
    message: str
    example: str | None
    link: str | None
    notices: int
    last_delivered_at: datetime | None
    waiting: int
    next_try_at: datetime | None
    last_error: str | None


class AlertRuleItem(Model):
    """A rule and its alerts. `condition` is null for a rule that is no longer in the workspace file."""

    rule: str
    condition: str | None
    channels: list[str]
    threshold: str | None
    after: str | None
    group_by: str | None
    alerts: list[AlertItem]


class Alerts(Model):
    """Every rule, and when the rules were evaluated last."""

    items: list[AlertRuleItem]
    total: int
    firing: int
    evaluated_at: datetime | None
