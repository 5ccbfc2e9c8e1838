"""Orders: work that needs Spark, which the control loop executes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from penstock.app.orders import pause_message
from penstock.control.ranges import count_partitions
from penstock.control.select import FORCE_ABOVE
from penstock.errors import AccessDenied
from penstock.http.calls import Call, Reply
from penstock.http.parameters import CURSOR, in_path, limit
from penstock.http.problems import RequestRefused
from penstock.http.routes import PREFIX, Access, Route
from penstock.http.schemas.runs import OrderBody, OrderCancelled, OrderDocument, OrderPage, SelectionBody
from penstock.lifecycle import AttemptReason
from penstock.plural import counted
from penstock.state.orders import Order, OrderKind, refuse_other_fields
from penstock.state.tokens import TokenRole
from penstock.views.document import Document, paginate
from penstock.views.orders import order_cancel_document, order_document, order_item, orders_document

ORDER = in_path("order_id", "An order: a ULID of 26 characters.", "^[0-7][0-9A-HJKMNP-TV-Z]{25}$")

# The role that may order each kind of work. A re-check may demote partitions; the others maintain tables.
ORDER_ROLES: Mapping[OrderKind, TokenRole] = {
    OrderKind.RUN: TokenRole.OPERATOR,
    OrderKind.RESUME: TokenRole.OPERATOR,
    OrderKind.VALIDATE: TokenRole.ADMIN,
    OrderKind.RECONCILE: TokenRole.ADMIN,
    OrderKind.COMPACT: TokenRole.ADMIN,
}


def stored_order(
    call: Call,
    kind: OrderKind,
    selection: SelectionBody,
    options: Mapping[str, Any],
    reason: str | None,
    *,
    force: bool,
) -> Reply:
    """Store an order for the caller and return its document. Raises AccessDenied if the role may not order the work,
    and RequestRefused if it would fetch or check more than 10,000 partitions again without `force`."""
    if not call.identity.role.includes(ORDER_ROLES[kind]):
        raise AccessDenied(f"{kind} needs the role {ORDER_ROLES[kind]}: {call.identity.name} has {call.identity.role}")
    ws, chosen = call.workspace, selection_of_body(selection)
    given = {name: value for name, value in options.items() if value}
    refuse_other_fields(kind, chosen.as_dict(), given)
    if not force and kind is OrderKind.RUN and options.get("reprocess"):
        again = ws.plans.preview(chosen, reprocess=True, limit=1).reasons.get(AttemptReason.REPROCESS, 0)
        refuse_many(f"reprocessing {counted(again)}", again)
    elif not force and kind is OrderKind.VALIDATE:
        trusted = count_partitions(ws.rechecks.candidate_ranges(chosen))
        refuse_many(f"re-checking {counted(trusted)}", trusted)
    made = ws.orders.create(
        kind,
        chosen,
        given,
        reason=reason,
        actor=call.identity.name,
        order_id=call.reserved_id,
    )
    return Reply(order_document(made, ws.orders.warning(made)), status=202)


def refuse_many(change: str, count: int) -> None:
    """Raise RequestRefused if a change without `force` affects more than 10,000 partitions."""
    if count > FORCE_ABOVE:
        message = f"{change} is more than {FORCE_ABOVE:,}: narrow the filters or set force"
        raise RequestRefused(message, HTTPStatus.BAD_REQUEST)


def selection_of_body(body: SelectionBody) -> Any:
    """The selection that a body names. Raises UsageError for contradictory filters."""
    from penstock.http.parameters import selection_of

    return selection_of(
        {
            "key": tuple(body.keys),
            "source": body.source,
            "customer": tuple(body.customers),
            "query": tuple(body.queries),
            "since": body.since,
            "until": body.until,
            "status": body.status,
        }
    )


def create_order(call: Call) -> Reply:
    """Order work that needs Spark: run, resume, validate, reconcile or compact.

    A run takes `selection` and `reprocess`, a re-check `selection`, resume `run_id`, compact `tables`. Fields of other
    kinds are refused.
    A re-check, or a run with `reprocess`, of more than 10,000 success partitions needs `force`.
    """
    body: OrderBody = call.body
    options = {"reprocess": body.reprocess, "run_id": body.run_id, "tables": body.tables}
    return stored_order(call, body.kind, body.selection, options, body.reason, force=body.force)


def list_orders(call: Call) -> Document:
    """List orders, newest first."""
    ws = call.workspace
    found, total = ws.orders.page(call.limit + 1, call.after)
    shown, following = paginate(found, call.limit, lambda order: order.order_id)
    is_any_open = any(order.finished_at is None for order in shown)
    items = _items(shown, ws.orders.loop_warning() if is_any_open else None)
    return call.page(orders_document(items, total, following))


def unfinished_orders(call: Call, limit: int) -> list[dict[str, Any]]:
    """The newest orders that are not finished, with the reason why they make no progress."""
    found = call.workspace.orders.unfinished(limit)
    return _items(found, call.workspace.orders.loop_warning() if found else None)


def _items(orders: Sequence[Order], loop_warning: str | None) -> list[dict[str, Any]]:
    """Orders with the reason why unfinished ones make no progress; that no control loop is alive concerns them all."""
    return [
        order_item(order, (loop_warning or pause_message(order)) if order.finished_at is None else None)
        for order in orders
    ]


def show_order(call: Call) -> Document:
    """Show one order: its state, its run, its result or error."""
    ws = call.workspace
    found = ws.orders.get(call.path["order_id"])
    return order_document(found, ws.orders.warning(found))


def cancel_order(call: Call) -> Document:
    """Cancel an order: at once before its work begins, afterwards with its run."""
    order_id = call.path["order_id"]
    requested = call.workspace.orders.cancel(order_id, actor=call.identity.name)
    return order_cancel_document(order_id, requested=requested)


ROUTES = (
    Route("GET", f"{PREFIX}/orders", list_orders, Access.VIEWER, OrderPage, "List orders", (limit(20), CURSOR)),
    Route(
        "POST",
        f"{PREFIX}/orders",
        create_order,
        Access.OPERATOR,
        OrderDocument,
        "Create an order",
        body=OrderBody,
        status=202,
    ),
    Route("GET", f"{PREFIX}/orders/{{order_id}}", show_order, Access.VIEWER, OrderDocument, "Show one order", (ORDER,)),
    Route(
        "POST",
        f"{PREFIX}/orders/{{order_id}}/cancel",
        cancel_order,
        Access.OPERATOR,
        OrderCancelled,
        "Cancel an order",
        (ORDER,),
    ),
)
