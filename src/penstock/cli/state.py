"""`penstock state ...`: what the state store says, and how an operator asks for another try."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import acts
from penstock.cli import options as opt
from penstock.cli.render import cut, draw_keys, draw_more, key_fields, listing, page, show
from penstock.cli.tables import table
from penstock.errors import ExitCode
from penstock.plural import counted

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.app import Workspace
    from penstock.partition import PartitionKey
    from penstock.state.records import Attempt, PartitionView

state = typer.Typer(no_args_is_help=True, help="Inspect and steer the state of partitions.")


def register(app: typer.Typer) -> None:
    acts.register(state)
    app.add_typer(state, name="state")


@state.command()
def inspect(
    keys: opt.Keys = None,
    source: opt.SourceName = None,
    customer: opt.Customers = None,
    query: opt.Queries = None,
    date: opt.OnDate = None,
    since: opt.Since = None,
    until: opt.Until = None,
    status: opt.Status = None,
    limit: opt.Limit = 100,
    after: opt.After = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Rows of PartitionState; partitions without a row are shown as implicit pending when named or asked for."""
    from penstock.app import open_workspace

    ws = open_workspace(workspace)
    chosen = opt.selection(keys, source, customer, query, date, since, until, status)
    ranges = ws.ranges(chosen)
    implicit = bool(chosen.keys) or chosen.status is not None
    found = ws.reader.views(
        ranges, status=chosen.status, explicit=not implicit, after=opt.after_key(after), limit=limit + 1
    )
    views, following = cut(found, limit, lambda view: view.key)
    total = ws.reader.count(ranges, status=chosen.status, explicit=not implicit)
    show(
        page([_state_item(ws, view) for view in views], total, following),
        as_json,
        lambda console: _draw_states(console, views, total, following),
    )


@state.command()
def history(
    key: opt.OneKey,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Every attempt of one partition: run, stage, outcome, complaints, counts and times."""
    from penstock.app import open_workspace

    ws = open_workspace(workspace)
    chosen = opt.selection([key])
    [view] = ws.reader.views(ws.ranges(chosen))
    attempts = ws.reader.attempts(chosen.keys[0])
    authority, coming = view.state.current_run_id, view.control.next_run_at
    items = [_attempt_item(a, authority, coming if a is attempts[0] else None) for a in attempts]

    def draw(console: Console) -> None:
        _draw_attempts(console, key, attempts, authority)
        if coming:
            console.print(f"next retry: {coming:%Y-%m-%d %H:%M} UTC ({view.control.strategy})")

    show(listing(items, len(attempts)), as_json, draw)


@state.command()
def retry(
    keys: opt.Keys = None,
    source: opt.SourceName = None,
    customer: opt.Customers = None,
    query: opt.Queries = None,
    date: opt.OnDate = None,
    since: opt.Since = None,
    until: opt.Until = None,
    status: opt.Status = None,
    without_raw: Annotated[
        bool, typer.Option("--without-raw", help="Also partitions whose attempts left nothing in the raw sink.")
    ] = False,
    dry_run: opt.DryRun = False,
    yes: opt.Yes = False,
    force: opt.Force = False,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Move failed partitions back to pending, so that the next run attempts them. Repeating it changes nothing."""
    from penstock.app import open_workspace, os_user
    from penstock.cli.confirm import confirm
    from penstock.state.control import AuditEntry

    ws = open_workspace(workspace)
    chosen = opt.selection(keys, source, customer, query, date, since, until, status)
    failed, turned_down = ws.retry_candidates(chosen, without_raw=without_raw)
    moved = 0
    if not dry_run and failed:
        confirm("retrying", len(failed), yes=yes, force=force)
        flags = {"without_raw": without_raw, "yes": yes, "force": force}
        moved = ws.retry(failed, AuditEntry(actor or os_user(), "state retry", chosen.as_dict(), flags))
    document = {
        **listing([key_fields(key) for key in failed], len(failed)),
        "requeued": moved,
        "dry_run": dry_run,
        "refused": [str(key) for key in turned_down.get("no_raw", ())],
        "terminal": [str(key) for key in turned_down.get("terminal", ())],
        "frozen": [str(key) for key in turned_down.get("frozen", ())],
    }
    show(document, as_json, lambda console: _draw_retry(console, failed, moved, turned_down, dry_run))
    if any(turned_down.values()) and not failed:
        raise typer.Exit(ExitCode.FAILED)


def _draw_retry(
    console: Console,
    failed: list[PartitionKey],
    moved: int,
    turned_down: dict[str, list[PartitionKey]],
    dry_run: bool,
) -> None:
    if dry_run:
        console.print(f"{counted(len(failed), 'failed partition')} would become pending")
        draw_keys(console, failed)
    elif failed:
        pending = counted(moved, "partition is", "partitions are")
        console.print(f"{pending} pending again: attempted by the next `penstock run`")
    else:
        console.print("nothing to retry: no failed partition matches")
    if marked := turned_down.get("terminal"):
        console.print(
            f"[yellow]refused {counted(len(marked))} given up for good[/], as {marked[0]};"
            " take that back with `penstock state clear-terminal`"
        )
    if frozen := turned_down.get("frozen"):
        console.print(
            f"[yellow]refused {counted(len(frozen), 'frozen partition')}[/], as {frozen[0]}: the source no longer has"
            " the day"
        )
    if refused := turned_down.get("no_raw"):
        console.print(
            f"[yellow]refused {counted(len(refused))} whose attempts left nothing in the raw sink[/], as {refused[0]};"
            " look with `penstock state history`, or add --without-raw"
        )


def _state_item(ws: Workspace, view: PartitionView) -> dict[str, Any]:
    s = view.state
    terminal, maturity = ws.is_terminal(view), ws.maturity(view)
    return {
        **key_fields(s.key),
        "status": s.status,
        "current_run_id": s.current_run_id,
        "schema_version": s.schema_version,
        "record_count": s.record_count,
        "updated_at": s.updated_at,
        "error_message": s.error_message,
        "attempt_count": s.attempt_count,
        "authority_version": s.authority_version,
        "implicit": not view.explicit,
        "display_status": view.display,
        "next_run_at": view.control.next_run_at,
        "strategy": view.control.strategy,
        "terminal": terminal is not None,
        "terminal_why": terminal,
        "paused": view.control.paused_at is not None,
        "held": view.control.held_at is not None,
        "maturity": maturity,
        "open_attempt": view.open_run_id,
    }


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


def _attempt_item(attempt: Attempt, authority: str | None, next_run_at: datetime | None) -> dict[str, Any]:
    return {
        "run_id": attempt.run_id,
        "attempt_no": attempt.attempt_no,
        "authoritative": attempt.run_id == authority,
        "reason": attempt.reason,
        "outcome": attempt.outcome,
        "stage": attempt.stage,
        "error_class": attempt.error_class,
        "error_message": attempt.error_message,
        "complaints": attempt.complaints or [],
        "record_count": attempt.record_count,
        "measures": attempt.measures,
        "schema_version": attempt.schema_version,
        "contract_fingerprint": attempt.contract_fingerprint,
        "payload_digest": attempt.payload_digest,
        "content_digest": attempt.content_digest,
        "started_at": attempt.issued_at,
        "finished_at": attempt.finished_at,
        "approved_at": attempt.approved_at,
        "demoted_at": attempt.demoted_at,
        "next_run_at": next_run_at,
    }


def _draw_attempts(console: Console, key: str, attempts: list[Attempt], authority: str | None) -> None:
    if not attempts:
        console.print(f"{key} was never attempted")
        return
    rows = [
        (
            f"{a.attempt_no}{' *' if a.run_id == authority else ''}",
            a.run_id,
            a.outcome or "open",
            a.stage,
            a.error_class,
            a.record_count,
            a.issued_at,
            a.finished_at,
            a.error_message,
        )
        for a in attempts
    ]
    columns = ("no", "run", "outcome", "stage", "class", "rows", "started (UTC)", "finished (UTC)", "why")
    console.print(table(f"{key}   (* = the run that consumers read)", columns, rows))
    for attempt in attempts:
        for warning in attempt.warnings:
            console.print(f"  attempt {attempt.attempt_no}, warning: {warning['message']}", markup=False)
    for complaint in attempts[0].complaints or []:
        if complaint.get("example"):
            console.print(f"  {complaint['check']}: line {complaint['line']}: {complaint['example']}", markup=False)
