"""Orders: work that the control loop executes, its progress, and its cancellation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from penstock.control.action_kinds import ActionKind
from penstock.errors import ActRefused, UsageError
from penstock.http.api.orders import ORDER, cancel_order, list_orders, show_order
from penstock.http.api.runs import show_run
from penstock.http.calls import Call, Reply
from penstock.http.pages.actions import form_fields
from penstock.http.pages.command_lines import command_line
from penstock.http.pages.login import EmptyForm
from penstock.http.pages.rendering import Page, render
from penstock.http.pages.runs import duration, run_figures
from penstock.http.parameters import CURSOR, limit
from penstock.http.routes import PAGE, Access, Route
from penstock.state.orders import OrderKind


def show_orders(call: Call) -> Reply:
    """The orders, newest first."""
    found = list_orders(call)
    return render(
        call,
        "orders.html",
        Page("Orders", "runs", "penstock control serve"),
        orders=found["items"],
        total=found["total"],
        next=found["next"],
        limit=call.limit,
        warning=next((order["warning"] for order in found["items"] if order["warning"]), None),
    )


def show_one_order(call: Call) -> Reply:
    """One order with the progress of its run."""
    return _order(call)


def cancel(call: Call) -> Reply:
    """Cancel an order and show it. An order whose work cannot be cancelled is shown with the reason."""
    try:
        cancel_order(call)
    except ActRefused as error:
        return _order(call, str(error), HTTPStatus.CONFLICT)
    order_id = call.path["order_id"]
    return Reply(media_type=PAGE, status=HTTPStatus.SEE_OTHER, headers={"Location": f"/runs/orders/{order_id}"})


def _order(call: Call, message: str = "", status: int = HTTPStatus.OK) -> Reply:
    order = show_order(call)
    return render(
        call,
        "order.html",
        Page(f"Order {order['order_id']}", "runs", _command(order)),
        status=status,
        order=order,
        run=_run(call, order["run_id"]),
        duration=duration(order["claimed_at"], order["finished_at"]),
        message=message,
    )


def _command(order: Mapping[str, Any]) -> str:
    """The command that does the work of an order at once."""
    kind = OrderKind(order["kind"])
    act = ActionKind.RESUME_RUN if kind is OrderKind.RESUME else ActionKind(kind.value)
    return command_line(act, {**form_fields(order["selection"]), **form_fields(order["options"])})


def _run(call: Call, run_id: str | None) -> dict[str, Any] | None:
    """The run of an order with its tasks by state; None if it has none, or if the run is unknown."""
    if run_id is None:
        return None
    try:
        found = show_run(replace(call, path={"run_id": run_id}))
    except UsageError:
        return None
    return {"run_id": run_id, "state": found.get("state"), **run_figures(found)}


ROUTES = (
    Route("GET", "/runs/orders", show_orders, Access.VIEWER, PAGE, "The orders", (limit(20), CURSOR)),
    Route("GET", "/runs/orders/{order_id}", show_one_order, Access.VIEWER, PAGE, "One order", (ORDER,)),
    Route(
        "POST",
        "/runs/orders/{order_id}/cancel",
        cancel,
        Access.OPERATOR,
        PAGE,
        "Cancel an order",
        (ORDER,),
        form=EmptyForm,
    ),
)
