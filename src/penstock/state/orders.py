"""Orders: work that needs Spark, stored by the API and executed by a control loop.

One worker holds the claim of an order. If the worker dies, another one takes the order over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from penstock.clock import Clock
from penstock.db import schema
from penstock.db.engine import Database
from penstock.db.lease import LEASE_SECONDS, seconds_ago, worker_lives
from penstock.errors import ActRefused, UsageError
from penstock.partition import RunId
from penstock.partition_set import CompactRanges
from penstock.state.control import AuditEntry, record_audit
from penstock.state.order_claims import IN_PROGRESS, OrderClaim

_ORDER, _WORKER = schema.run_order, schema.worker
_LISTED = [column for column in _ORDER.columns if column.name != "partitions"]  # which may be long


class OrderKind(StrEnum):
    """The work of an order."""

    RUN = "run"  # fetch what is due; with `reprocess` also success partitions
    RESUME = "resume"  # continue a killed run
    VALIDATE = "validate"  # check trusted runs against the current contract
    RECONCILE = "reconcile"  # publish what differs from authority
    COMPACT = "compact"  # merge small files of tables


# What each kind of order takes. Anything else is refused: an order must not do more than it seems to ask for.
ORDER_FIELDS: Mapping[OrderKind, tuple[str, ...]] = {
    OrderKind.RUN: ("selection", "reprocess"),
    OrderKind.RESUME: ("run_id",),
    OrderKind.VALIDATE: ("selection",),
    OrderKind.RECONCILE: (),
    OrderKind.COMPACT: ("tables",),
}


def refuse_other_fields(kind: OrderKind, selection: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raise UsageError for a selection or an option that this kind of order does not take."""
    given = {**({"selection": selection} if selection else {}), **options}
    if unknown := sorted(set(given) - set(ORDER_FIELDS[kind])):
        takes = ", ".join(ORDER_FIELDS[kind]) or "nothing: it concerns all tables"
        raise UsageError(f"an order of kind {kind} takes no {', '.join(unknown)} (it takes {takes})")


class OrderState(StrEnum):
    """The state of an order."""

    QUEUED = "queued"  # no control loop has taken it
    CLAIMED = "claimed"  # a control loop has taken it
    RUNNING = "running"  # its work has begun
    SUCCEEDED = "succeeded"  # its work ended; partitions may have been rejected
    FAILED = "failed"  # its work ended with an error
    CANCELLED = "cancelled"  # an operator cancelled it


@dataclass(frozen=True, slots=True)
class Order:
    """One order."""

    order_id: str
    kind: OrderKind
    selection: Mapping[str, Any]
    options: Mapping[str, Any]
    reason: str | None
    actor: str
    state: OrderState
    created_at: datetime
    run_id: str | None = None
    worker_token: str | None = None
    claims: int = 0  # how often a loop took it from the queue or from another loop, since it was queued
    failures: int = 0  # how often its work failed with an error that may pass
    error_message: str | None = None
    result: Mapping[str, Any] | None = None
    claimed_at: datetime | None = None
    finished_at: datetime | None = None
    partitions: CompactRanges | None = None  # the work is limited to these; lists of orders leave them out
    retry_at: datetime | None = None  # no loop takes a queued order before

    @property
    def claim(self) -> OrderClaim:
        """The claim of the worker that holds the order."""
        return OrderClaim(self.order_id, self.worker_token or "")


class OrderStore:
    """Stores orders, and lets one worker at a time execute each. Every change is a compare-and-set."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def create(self, order: Order, entry: AuditEntry) -> Order:
        """Store an order and its audit entry. Returns the stored order: a repeated call with its id stores nothing."""
        row = {
            "order_id": order.order_id,
            "kind": order.kind.value,
            "selection": dict(order.selection),
            "options": dict(order.options),
            "reason": order.reason,
            "actor": order.actor,
            "state": order.state.value,
            "created_at": order.created_at,
            **({} if order.partitions is None else {"partitions": dict(order.partitions)}),
        }

        def work(connection: Connection) -> Order:
            if (known := self._find(connection, order.order_id)) is not None:
                return known
            connection.execute(sa.insert(_ORDER), row)
            record_audit(connection, entry, 1, "done", order.created_at)
            return order

        return self._database.transact(work)

    def get(self, order_id: str) -> Order:
        """One order. Raises UsageError for an unknown id."""
        with self._database.snapshot() as connection:
            found = self._find(connection, order_id)
        if found is None:
            raise UsageError(f"there is no order {order_id}")
        return found

    def page(self, limit: int, before: str | None = None) -> tuple[list[Order], int]:
        """The newest orders, or those older than one, newest first; and the total count."""
        select = sa.select(*_LISTED).order_by(_ORDER.c.order_id.desc()).limit(limit)
        if before is not None:
            select = select.where(_ORDER.c.order_id < before)
        with self._database.snapshot() as connection:
            total = connection.scalar(sa.select(sa.func.count()).select_from(_ORDER)) or 0
            return [_order(row) for row in connection.execute(select)], total

    def unfinished(self, limit: int) -> list[Order]:
        """The newest orders that are not finished, newest first."""
        select = sa.select(*_LISTED).where(_ORDER.c.finished_at.is_(None)).order_by(_ORDER.c.order_id.desc())
        select = select.limit(limit)
        with self._database.snapshot() as connection:
            return [_order(row) for row in connection.execute(select)]

    def claim(self, worker_token: str) -> Order | None:
        """Take the oldest order that no live worker holds: a queued one whose pause is over, one whose worker is dead,
        or one that this worker holds because the database did not respond; the last is not counted as another claim.
        None if there is none."""
        now = self._clock()
        statement = sa.select(_ORDER).where(*self._claimable(worker_token)).order_by(_ORDER.c.order_id).limit(1)

        def work(connection: Connection) -> Order | None:
            row = connection.execute(statement.with_for_update(skip_locked=True)).one_or_none()
            if row is None:
                return None
            values = {
                "state": OrderState.CLAIMED.value,
                "worker_token": worker_token,
                "claims": row.claims + (row.worker_token != worker_token),
                "claimed_at": now,
                "retry_at": None,
            }
            connection.execute(sa.update(_ORDER).where(_ORDER.c.order_id == row.order_id).values(**values))
            return self._find(connection, row.order_id)

        return self._database.transact(work)

    def is_waiting(self, worker_token: str) -> bool:
        """Whether `claim` would return an order."""
        with self._database.snapshot() as connection:
            found = connection.execute(sa.select(_ORDER.c.order_id).where(*self._claimable(worker_token)).limit(1))
            return found.first() is not None

    def begin(self, claim: OrderClaim, run_id: RunId | None = None) -> bool:
        """Record that the work of a claimed order begins, and the run that it resumes; False if the claim is lost."""
        return self._change(claim, state=OrderState.RUNNING.value, run_id=run_id)

    def finish(
        self, claim: OrderClaim, state: OrderState, *, result: Mapping[str, Any] | None = None, error: str | None = None
    ) -> bool:
        """Record the end of an order; False if the claim is lost."""
        values = {"state": state.value, "error_message": error, "finished_at": self._clock(), "worker_token": None}
        return self._change(claim, **values, **({} if result is None else {"result": dict(result)}))

    def release(self, claim: OrderClaim) -> bool:
        """Return an order to the queue, with the run that it has; False if the claim is lost."""
        return self._change(claim, state=OrderState.QUEUED.value, worker_token=None, claims=0)

    def put_back(self, claim: OrderClaim, pause: timedelta) -> bool:
        """Return an order whose work failed to the queue, with the run that it has, and count the failure. No loop
        takes it before the pause is over. False if the claim is lost."""
        values = {"state": OrderState.QUEUED.value, "worker_token": None, "claims": 0}
        return self._change(claim, **values, failures=_ORDER.c.failures + 1, retry_at=self._clock() + pause)

    def cancel(self, order_id: str, entry: AuditEntry) -> bool:
        """End an order that has no run in progress: no further run of it can start. False if the order is over. Raises
        ActRefused while its run is in progress and for other work that has begun, and UsageError for an unknown id."""
        now, run = self._clock(), schema.run

        def work(connection: Connection) -> bool:
            locked = sa.select(_ORDER).where(_ORDER.c.order_id == order_id).with_for_update()
            row = connection.execute(locked).one_or_none()
            if row is None:
                raise UsageError(f"there is no order {order_id}")
            if row.finished_at is not None:
                return False
            if row.run_id is None and row.state == OrderState.RUNNING:
                raise ActRefused(f"order {order_id} is being executed: its work cannot be cancelled")
            in_progress = sa.select(run.c.run_id).where(run.c.run_id == row.run_id, run.c.finished_at.is_(None))
            if connection.scalar(in_progress) is not None:
                raise ActRefused(f"order {order_id} is being executed: cancel its run {row.run_id}")
            values = {"state": OrderState.CANCELLED.value, "finished_at": now, "worker_token": None}
            connection.execute(sa.update(_ORDER).where(_ORDER.c.order_id == order_id).values(**values))
            record_audit(connection, entry, 1, "done", now)
            return True

        return self._database.transact(work)

    def last_loop(self) -> tuple[bool, datetime | None]:
        """Whether a control loop is alive, and when one was alive last; None if there was none."""
        lives = sa.and_(
            _WORKER.c.stopped_at.is_(None),
            _WORKER.c.heartbeat_at >= seconds_ago(self._database.dialect, LEASE_SECONDS),
        )
        last = sa.func.max(sa.func.coalesce(_WORKER.c.stopped_at, _WORKER.c.heartbeat_at))
        statement = sa.select(
            sa.func.count().filter(lives).label("alive"), sa.type_coerce(last, _WORKER.c.heartbeat_at.type).label("at")
        ).where(_WORKER.c.is_control_loop)
        with self._database.snapshot() as connection:
            row = connection.execute(statement).one()
        return row.alive > 0, row.at

    def _claimable(self, worker_token: str) -> list[sa.ColumnElement[bool]]:
        dialect = self._database.dialect
        held: sa.ColumnElement[bool] = sa.literal_column(worker_lives(dialect, "run_order.worker_token"), sa.Boolean)
        run_held: sa.ColumnElement[bool] = sa.literal_column(
            "EXISTS (SELECT 1 FROM run r WHERE r.run_id = run_order.run_id AND r.finished_at IS NULL"
            f" AND {worker_lives(dialect, 'r.worker_token')})",
            sa.Boolean,
        )
        free = sa.or_(_ORDER.c.worker_token.is_(None), _ORDER.c.worker_token == worker_token, sa.not_(held))
        is_due = sa.or_(_ORDER.c.retry_at.is_(None), _ORDER.c.retry_at <= self._clock())
        return [_ORDER.c.finished_at.is_(None), is_due, free, sa.not_(run_held)]

    def _change(self, claim: OrderClaim, **values: Any) -> bool:
        mine = (
            _ORDER.c.order_id == claim.order_id,
            _ORDER.c.worker_token == claim.worker_token,
            _ORDER.c.state.in_(IN_PROGRESS),
        )
        statement = sa.update(_ORDER).where(*mine).values(**values)
        return self._database.transact(lambda connection: connection.execute(statement).rowcount == 1)

    def _find(self, connection: Connection, order_id: str) -> Order | None:
        row = connection.execute(sa.select(_ORDER).where(_ORDER.c.order_id == order_id)).one_or_none()
        return None if row is None else _order(row)


def _order(row: Row[Any]) -> Order:
    values = dict(row._mapping)
    return Order(**{**values, "kind": OrderKind(values["kind"]), "state": OrderState(values["state"])})
