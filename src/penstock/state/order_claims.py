"""The claim of a worker on an order: a run starts for an order only while the claim holds."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db import schema
from penstock.errors import LeaseLost
from penstock.partition import RunId

IN_PROGRESS = ("claimed", "running")


@dataclass(frozen=True, slots=True)
class OrderClaim:
    """An order that a worker executes."""

    order_id: str
    worker_token: str


def name_run(connection: Connection, claim: OrderClaim, run_id: RunId) -> None:
    """Record the run of an order, in the transaction that starts the run: the order names every run that exists for it.
    Raises LeaseLost if another worker took the order over, or it was cancelled."""
    order = schema.run_order
    named = connection.execute(
        sa.update(order)
        .where(
            order.c.order_id == claim.order_id,
            order.c.worker_token == claim.worker_token,
            order.c.state.in_(IN_PROGRESS),
        )
        .values(run_id=run_id, state="running")
    )
    if named.rowcount != 1:
        raise LeaseLost(f"order {claim.order_id} was cancelled, or taken over by another control loop")
