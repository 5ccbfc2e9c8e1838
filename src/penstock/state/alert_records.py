"""Records of alerts: the state of a rule for one subject, and the notifications about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from penstock.projections.fact import Cursor


class AlertState(StrEnum):
    """The state of a rule for one subject."""

    PENDING = "pending"  # the condition holds, but not yet as long as the rule demands; nobody was notified
    FIRING = "firing"  # the condition holds; the channels were notified once
    RECOVERED = "recovered"  # the condition is over; the channels of a firing alert were notified once


class NoticeKind(StrEnum):
    """What a notification is about."""

    FIRED = "fired"
    REPEATED = "repeated"  # the alert still fires; sent only with `repeat`
    RECOVERED = "recovered"


class DeliveryState(StrEnum):
    """The state of a notification to one channel."""

    WAITING = "waiting"  # to be sent, also after attempts that failed
    DELIVERED = "delivered"  # the channel accepted it
    DROPPED = "dropped"  # never sent again: the channel is gone, refuses for good, or failed for days


@dataclass(frozen=True, slots=True)
class Alert:
    """The present episode of a rule for one subject: from the moment at which the condition holds until it is over."""

    rule: str
    subject: str
    alert_id: str
    episode: int
    state: AlertState
    since: datetime
    matches: int
    message: str
    example: str | None = None
    link: str | None = None
    channels: tuple[str, ...] = ()  # those that were notified: the recovery goes to the same ones
    fired_at: datetime | None = None
    notified_at: datetime | None = None  # the last notification while it fires
    notices: int = 0
    recovered_at: datetime | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.rule, self.subject

    @property
    def is_active(self) -> bool:
        return self.state is not AlertState.RECOVERED


@dataclass(frozen=True, slots=True)
class NewDelivery:
    """A notification that is to be sent to one channel. Its id is the same for every attempt."""

    delivery_id: str
    alert_id: str
    rule: str
    subject: str
    kind: NoticeKind
    channel: str
    body: Mapping[str, Any]
    created_at: datetime
    not_before: datetime


@dataclass(frozen=True, slots=True)
class Delivery:
    """A notification to one channel, as stored."""

    position: int
    delivery_id: str
    alert_id: str
    rule: str
    subject: str
    kind: NoticeKind
    channel: str
    body: Mapping[str, Any]
    state: DeliveryState
    created_at: datetime
    not_before: datetime
    attempts: int = 0
    error_message: str | None = None
    worker_token: str | None = None
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class BrokenRuns:
    """The broken runs since the last run that ended normally."""

    since: datetime
    runs: int
    last_run_id: str


@dataclass(frozen=True, slots=True)
class EvaluationCursor:
    """How far the ledger was evaluated. `ledger` is None before the first evaluation."""

    ledger: Cursor | None = None
    started_at: datetime | None = None  # the first evaluation: earlier events raise no alerts
    evaluated_at: datetime | None = None
    broken_runs: BrokenRuns | None = None


@dataclass(frozen=True, slots=True)
class AlertChanges:
    """What one evaluation changes: alerts with their new state, and the notifications about them."""

    alerts: tuple[Alert, ...] = ()
    deliveries: tuple[NewDelivery, ...] = ()
