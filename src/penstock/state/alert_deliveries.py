"""The queue of notifications: each is sent by one worker at a time, at least once, in order per channel and subject."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from penstock.db import schema
from penstock.db.engine import Database
from penstock.db.lease import worker_lives
from penstock.state.alert_records import Delivery, DeliveryState, NoticeKind

_DELIVERY = schema.alert_delivery
_WAITING = _DELIVERY.c.state == DeliveryState.WAITING.value
_ERROR_LENGTH = 500


class AlertDeliveryStore:
    """Claims notifications for a worker and records what became of them. Every change is a compare-and-set."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claim(self, worker_token: str, now: datetime) -> Delivery | None:
        """Take the oldest notification that is due, unless a live worker holds it, or an earlier one about the same
        subject to the same channel waits; None if there is none."""
        earlier = schema.alert_delivery.alias("earlier")
        precedes = sa.exists().where(
            earlier.c.state == DeliveryState.WAITING.value,
            *(earlier.c[name] == _DELIVERY.c[name] for name in ("channel", "rule", "subject")),
            earlier.c.position < _DELIVERY.c.position,
        )
        held = sa.literal_column(worker_lives(self._database.dialect, "alert_delivery.worker_token"), sa.Boolean)
        free = sa.or_(_DELIVERY.c.worker_token.is_(None), _DELIVERY.c.worker_token == worker_token, sa.not_(held))
        statement = (
            sa.select(_DELIVERY)
            .where(_WAITING, _DELIVERY.c.not_before <= now, free, sa.not_(precedes))
            .order_by(_DELIVERY.c.position)
            .limit(1)
            .with_for_update(skip_locked=True)
        )

        def work(connection: Connection) -> Delivery | None:
            row = connection.execute(statement).one_or_none()
            if row is None:
                return None
            this = _DELIVERY.c.position == row.position
            connection.execute(sa.update(_DELIVERY).where(this).values(worker_token=worker_token))
            return _delivery(connection.execute(sa.select(_DELIVERY).where(this)).one())

        return self._database.transact(work)

    def delivered(self, delivery: Delivery, now: datetime) -> bool:
        """Record that the channel accepted a claimed notification; False if the claim is lost."""
        values = {"state": DeliveryState.DELIVERED.value, "finished_at": now, "error_message": None}
        return self._close(delivery, values)

    def dropped(self, delivery: Delivery, error: str, now: datetime) -> bool:
        """Record that a claimed notification is never sent; False if the claim is lost."""
        values = {"state": DeliveryState.DROPPED.value, "finished_at": now, "error_message": error[:_ERROR_LENGTH]}
        return self._close(delivery, values)

    def failed(self, delivery: Delivery, error: str, next_try: datetime, *, whole_channel: bool) -> bool:
        """Return a claimed notification to the queue until `next_try`. With `whole_channel`, everything else that waits
        for the channel waits as long: a channel that is down gets one request at a time. False if the claim is lost."""
        values = {"worker_token": None, "not_before": next_try, "error_message": error[:_ERROR_LENGTH]}
        others = sa.update(_DELIVERY).where(
            _WAITING,
            _DELIVERY.c.channel == delivery.channel,
            _DELIVERY.c.worker_token.is_(None),
            _DELIVERY.c.not_before < next_try,
        )

        def work(connection: Connection) -> bool:
            mine = sa.update(_DELIVERY).where(*_mine(delivery)).values(**values, attempts=_DELIVERY.c.attempts + 1)
            if not connection.execute(mine).rowcount:
                return False
            if whole_channel:
                connection.execute(others.values(not_before=next_try))
            return True

        return self._database.transact(work)

    def postponed(self, delivery: Delivery, until: datetime) -> bool:
        """Return a claimed notification to the queue without an attempt; False if the claim is lost."""
        statement = sa.update(_DELIVERY).where(*_mine(delivery)).values(worker_token=None, not_before=until)
        return self._database.transact(lambda connection: connection.execute(statement).rowcount == 1)

    def about(self, alert_ids: Collection[str]) -> list[Delivery]:
        """The notifications about these alerts, in the order in which they were queued."""
        statement = sa.select(_DELIVERY).where(_DELIVERY.c.alert_id.in_(alert_ids)).order_by(_DELIVERY.c.position)
        with self._database.snapshot() as connection:
            return [_delivery(row) for row in connection.execute(statement)] if alert_ids else []

    def waiting(self) -> int:
        """The number of notifications that wait."""
        with self._database.snapshot() as connection:
            return connection.scalar(sa.select(sa.func.count()).select_from(_DELIVERY).where(_WAITING)) or 0

    def _close(self, delivery: Delivery, values: dict[str, Any]) -> bool:
        counted = {**values, "worker_token": None, "attempts": _DELIVERY.c.attempts + 1}
        statement = sa.update(_DELIVERY).where(*_mine(delivery)).values(**counted)
        return self._database.transact(lambda connection: connection.execute(statement).rowcount == 1)


def _mine(delivery: Delivery) -> list[sa.ColumnElement[bool]]:
    return [
        _DELIVERY.c.position == delivery.position,
        _DELIVERY.c.worker_token == delivery.worker_token,
        _WAITING,
    ]


def _delivery(row: Row[Any]) -> Delivery:
    values = dict(row._mapping)
    return Delivery(**{**values, "kind": NoticeKind(values["kind"]), "state": DeliveryState(values["state"])})
