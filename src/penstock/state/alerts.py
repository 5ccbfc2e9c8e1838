"""The store of alerts: their states, the cursor of the evaluation, and the queue of notifications.

One transaction writes the states, the cursor and the notifications of an evaluation, so that a crash loses and repeats
nothing. One worker evaluates at a time: it holds the row of the cursor while its heartbeat is fresh.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from penstock.clock import iso
from penstock.db import schema
from penstock.db.engine import Database
from penstock.db.lease import worker_lives
from penstock.errors import LeaseLost
from penstock.failpoint import reach
from penstock.projections.fact import Cursor
from penstock.state.alert_records import (
    Alert,
    AlertChanges,
    AlertState,
    BrokenRuns,
    DeliveryState,
    EvaluationCursor,
    NewDelivery,
)

_ALERT, _DELIVERY, _CURSOR = schema.alert, schema.alert_delivery, schema.alert_cursor
KEPT = timedelta(days=30)  # how long recovered alerts and finished deliveries are kept

Decide = Callable[[Sequence[Alert], Collection[str]], AlertChanges]  # also of the alerts with unsent notifications


class AlertStore:
    """Stores the states of alerts. `evaluate` is the only writer."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def lead(self, worker_token: str) -> EvaluationCursor | None:
        """Take or keep the lease of the evaluation. Returns the cursor; None if another live worker holds the lease."""
        holder = sa.literal_column(worker_lives(self._database.dialect, "alert_cursor.worker_token"), sa.Boolean)
        free = sa.or_(_CURSOR.c.worker_token.is_(None), _CURSOR.c.worker_token == worker_token, sa.not_(holder))
        take = sa.update(_CURSOR).where(_CURSOR.c.one == 1, free).values(worker_token=worker_token)

        def work(connection: Connection) -> EvaluationCursor | None:
            connection.execute(sa.text("INSERT INTO alert_cursor (one) VALUES (1) ON CONFLICT DO NOTHING"))
            if not connection.execute(take).rowcount:
                return None
            return _cursor(connection.execute(sa.select(_CURSOR)).one())

        return self._database.transact(work)

    def evaluate(
        self, worker_token: str, before: EvaluationCursor, after: EvaluationCursor, decide: Decide
    ) -> AlertChanges:
        """Apply what `decide` makes of the stored alerts, queue its notifications and advance the cursor, in one
        transaction. Raises LeaseLost, without a change, if the worker lost the lease or the cursor was advanced."""

        def work(connection: Connection) -> AlertChanges:
            held = connection.execute(sa.select(_CURSOR).with_for_update()).one_or_none()
            if held is None or held.worker_token != worker_token or _cursor(held) != before:
                raise LeaseLost("another control loop evaluates the alerts")
            changes = decide(_alerts(connection), _unsent(connection))
            reach("alerts.decided")
            _write(connection, changes)
            reach("alerts.written")
            connection.execute(sa.update(_CURSOR).values(**_cursor_row(after)))
            if changes.deliveries:
                _forget(connection, changes.deliveries[0].created_at - KEPT)
            reach("alerts.advanced")
            return changes

        changes = self._database.transact(work)
        reach("alerts.committed")
        return changes

    def alerts(self) -> list[Alert]:
        """Every stored alert, by rule and subject."""
        with self._database.snapshot() as connection:
            return _alerts(connection)

    def evaluated_at(self) -> datetime | None:
        """When alerts were evaluated last; None if never."""
        with self._database.snapshot() as connection:
            found: datetime | None = connection.scalar(sa.select(_CURSOR.c.evaluated_at))
            return found


def _alerts(connection: Connection) -> list[Alert]:
    rows = connection.execute(sa.select(_ALERT).order_by(_ALERT.c.rule, _ALERT.c.subject))
    return [_alert(row) for row in rows]


def _unsent(connection: Connection) -> set[str]:
    waiting = sa.select(_DELIVERY.c.alert_id).where(_DELIVERY.c.state == DeliveryState.WAITING.value).distinct()
    return set(connection.scalars(waiting))


def _alert(row: Row[Any]) -> Alert:
    values = dict(row._mapping)
    return Alert(**{**values, "state": AlertState(values["state"]), "channels": tuple(values["channels"])})


def _write(connection: Connection, changes: AlertChanges) -> None:
    rows = [asdict(alert) | {"state": alert.state.value, "channels": list(alert.channels)} for alert in changes.alerts]
    keys = [(alert.rule, alert.subject) for alert in changes.alerts]
    if keys:
        replaced = sa.delete(_ALERT).where(_ALERT.c.rule == sa.bindparam("r"), _ALERT.c.subject == sa.bindparam("s"))
        connection.execute(replaced, [{"r": rule, "s": subject} for rule, subject in keys])
        connection.execute(sa.insert(_ALERT), rows)
    if changes.deliveries:
        connection.execute(sa.insert(_DELIVERY), [_delivery_row(delivery) for delivery in changes.deliveries])


def _delivery_row(delivery: NewDelivery) -> dict[str, Any]:
    row = asdict(delivery)
    return row | {
        "kind": delivery.kind.value,
        "body": dict(delivery.body),
        "state": DeliveryState.WAITING.value,
        "attempts": 0,
    }


def _forget(connection: Connection, before: datetime) -> None:
    """Delete finished deliveries, and recovered alerts without others, from before a moment."""
    connection.execute(sa.delete(_DELIVERY).where(_DELIVERY.c.finished_at < before))
    pending = sa.exists().where(_DELIVERY.c.alert_id == _ALERT.c.alert_id)
    connection.execute(sa.delete(_ALERT).where(_ALERT.c.recovered_at < before, sa.not_(pending)))


def _cursor(row: Row[Any]) -> EvaluationCursor:
    broken = row.broken_runs
    return EvaluationCursor(
        None if row.ledger_position is None else Cursor(row.ledger_transaction, row.ledger_position),
        row.started_at,
        row.evaluated_at,
        broken and BrokenRuns(datetime.fromisoformat(broken["since"]), broken["runs"], broken["last_run_id"]),
    )


def _cursor_row(cursor: EvaluationCursor) -> dict[str, Any]:
    broken = cursor.broken_runs
    return {
        "ledger_transaction": None if cursor.ledger is None else cursor.ledger.transaction,
        "ledger_position": None if cursor.ledger is None else cursor.ledger.position,
        "started_at": cursor.started_at,
        "evaluated_at": cursor.evaluated_at,
        "broken_runs": None if broken is None else asdict(broken) | {"since": iso(broken.since)},
    }
