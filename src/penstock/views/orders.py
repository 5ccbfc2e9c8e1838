"""Documents of orders for the control loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.views.document import Document, page

if TYPE_CHECKING:
    from penstock.state.orders import Order


def order_item(order: Order, warning: str | None) -> dict[str, Any]:
    """One order with its state and result. `warning` states that no control loop is alive to execute it."""
    return {
        "order_id": order.order_id,
        "kind": order.kind,
        "state": order.state,
        "selection": dict(order.selection),
        "options": dict(order.options),
        "reason": order.reason,
        "actor": order.actor,
        "run_id": order.run_id,
        "error": order.error_message,
        "result": None if order.result is None else dict(order.result),
        "warning": warning,
        "created_at": order.created_at,
        "claimed_at": order.claimed_at,
        "finished_at": order.finished_at,
    }


def order_document(order: Order, warning: str | None) -> Document:
    """One order."""
    return Document(order_item(order, warning))


def orders_document(items: Sequence[dict[str, Any]], total: int, following: str | None) -> Document:
    """One page of orders, newest first."""
    return page(items, total, following)


def order_cancel_document(order_id: str, *, requested: bool) -> Document:
    """The request to cancel an order."""
    return Document({"order_id": order_id, "requested": requested})
