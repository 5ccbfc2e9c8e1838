"""Runs: pages, one run with its tasks, an order for a new run, and cancellation."""

from __future__ import annotations

from penstock.http.api.orders import stored_order
from penstock.http.calls import Call, Reply
from penstock.http.parameters import CURSOR, in_path, limit
from penstock.http.routes import PREFIX, Access, Route
from penstock.http.schemas.runs import OrderDocument, RunBody, RunCancelled, RunDocument, RunPage
from penstock.partition import run_id
from penstock.state.orders import OrderKind
from penstock.views.document import Document, page, paginate

RUN = in_path("run_id", "A run: a ULID of 26 characters.", "^[0-7][0-9A-HJKMNP-TV-Z]{25}$")


def list_runs(call: Call) -> Document:
    """List runs, newest first, with the number of tasks by state."""
    older = run_id(call.after) if call.after else None
    found, total = call.workspace.status.current().runs_before(older, call.limit + 1)
    rows, following = paginate(found, call.limit, lambda row: row["run_id"])
    return call.page(page(rows, total, following))


def show_run(call: Call) -> Document:
    """Show one run: its tasks by stage and state, the failed tasks, and the edges that block others."""
    from penstock.views.runs import run_tasks_document

    return run_tasks_document(call.workspace.status.run_page(run_id(call.path["run_id"])))


def order_run(call: Call) -> Reply:
    """Order a run: the control loop fetches what is due for the selection; with `reprocess` also success partitions.

    More than 10,000 success partitions need `force`.
    """
    body: RunBody = call.body
    options = {"reprocess": body.reprocess}
    return stored_order(call, OrderKind.RUN, body.selection, options, body.reason, force=body.force)


def cancel_run(call: Call) -> Document:
    """Cancel a run: it issues no more attempts and publishes accepted partitions. It stops within seconds."""
    from penstock.views.runs import cancel_document

    named = run_id(call.path["run_id"])
    requested = call.workspace.runs.cancel(named, actor=call.identity.name)
    return cancel_document(named, is_running=requested, dry_run=False, open_keys=())


ROUTES = (
    Route("GET", f"{PREFIX}/runs", list_runs, Access.VIEWER, RunPage, "List runs", (limit(20), CURSOR)),
    Route("GET", f"{PREFIX}/runs/{{run_id}}", show_run, Access.VIEWER, RunDocument, "Show one run", (RUN,)),
    Route(
        "POST",
        f"{PREFIX}/runs",
        order_run,
        Access.OPERATOR,
        OrderDocument,
        "Order a run",
        body=RunBody,
        status=202,
    ),
    Route(
        "POST",
        f"{PREFIX}/runs/{{run_id}}/cancel",
        cancel_run,
        Access.OPERATOR,
        RunCancelled,
        "Cancel a run",
        (RUN,),
    ),
)
