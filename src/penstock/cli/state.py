"""`penstock state ...`: rows of the state store, and the sub-commands that change them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from penstock.cli import authority, marks, pauses, retry
from penstock.cli import options as opt
from penstock.cli.render import draw_more, show
from penstock.cli.text_tables import shown, table
from penstock.lifecycle import PartitionStatus
from penstock.views.document import page, paginate

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.state.records import Attempt, PartitionView

state = typer.Typer(no_args_is_help=True, help="Inspect and change the state of partitions.")


def register(app: typer.Typer) -> None:
    for module in (retry, marks, authority, pauses):
        module.register(state)
    app.add_typer(state, name="state")


@state.command()
@opt.option_groups
def inspect(
    filters: opt.Filters,
    limit: opt.Limit = 100,
    after: opt.After = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """List rows of PartitionState.

    A partition without a row is implicitly pending. With keys or --status the list includes such partitions.
    """
    from penstock.app import open_workspace
    from penstock.views.state import state_item

    ws = open_workspace(workspace)
    chosen = filters.selection()
    ranges = ws.context.ranges(chosen)
    implicit = bool(chosen.keys) or chosen.status is not None
    found = ws.context.state.views(
        ranges, status=chosen.status, explicit=not implicit, after=opt.after_key(after), limit=limit + 1
    )
    views, following = paginate(found, limit, lambda view: view.key)
    total = ws.context.state.count(ranges, status=chosen.status, explicit=not implicit)
    standings = ws.status.standings([view.key for view in views])
    items = [
        state_item(
            view,
            standings[view.key].display,
            next_run_at=ws.partitions.next_run_at(view),
            terminal=ws.partitions.terminal_reason(view),
            maturity=ws.partitions.maturity(view),
        )
        for view in views
    ]
    show(page(items, total, following), as_json, lambda console: _draw_states(console, views, total, following))


@state.command()
def history(
    key: opt.OneKey,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """List every attempt of one partition: run, stage, outcome, complaints, counts and times."""
    from penstock.app import open_workspace
    from penstock.views.state import attempts_document

    ws = open_workspace(workspace)
    chosen = opt.select_key(key)
    [view] = ws.context.state.views(ws.context.ranges(chosen))
    attempts = ws.context.state.attempts(chosen.keys[0])
    has_authority = view.state.status is PartitionStatus.SUCCESS  # a demoted run has no authority
    authoritative = view.state.current_run_id if has_authority else None
    next_run_at = ws.partitions.next_run_at(view)

    def draw(console: Console) -> None:
        _draw_attempts(console, key, attempts, authoritative)
        if next_run_at:
            console.print(f"next retry: {next_run_at:%Y-%m-%d %H:%M} UTC ({view.control.strategy})")

    document = attempts_document(attempts, authoritative, next_run_at, ws.partitions.trace_ids(attempts))
    show(document, as_json, draw)


def _draw_states(console: Console, views: Sequence[PartitionView], total: int, following: str | None) -> None:
    rows = [
        (
            v.key,
            v.state.status if v.explicit else f"{v.state.status} (implicit)",
            v.state.current_run_id,
            v.state.schema_version,
            v.state.record_count,
            v.state.attempt_count,
            v.state.updated_at,
            v.state.error_message,
        )
        for v in views
    ]
    columns = ("partition", "status", "current run", "schema", "rows", "attempts", "updated (UTC)", "error")
    console.print(table(None, columns, rows))
    draw_more(console, len(views), total, following)


def _reason(attempt: Attempt) -> str | None:
    demoted = f"demoted at {shown(attempt.demoted_at)} UTC" if attempt.demoted_at else None
    return "; ".join(filter(None, (attempt.error_message, demoted))) or None


def _draw_attempts(console: Console, key: str, attempts: list[Attempt], authoritative: str | None) -> None:
    if not attempts:
        console.print(f"{key} was never attempted")
        return
    rows = [
        (
            f"{a.attempt_no}{' *' if a.run_id == authoritative else ''}",
            a.run_id,
            a.outcome or "open",
            a.stage,
            a.error_class,
            a.record_count,
            a.issued_at,
            a.finished_at,
            _reason(a),
        )
        for a in attempts
    ]
    columns = ("no", "run", "outcome", "stage", "class", "rows", "started (UTC)", "finished (UTC)", "why")
    console.print(table(f"{key}   (* = the run that consumers read)", columns, rows))
    for attempt in attempts:
        for warning in attempt.warnings:
            console.print(f"  attempt {attempt.attempt_no}, warning: {warning['message']}")
    for complaint in attempts[0].complaints or []:
        if complaint.get("example"):
            console.print(f"  {complaint['check']}: line {complaint['line']}: {complaint['example']}")
