"""`penstock state ...`: what the state store says, and how an operator asks for another try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer

from penstock.cli import acts, pauses
from penstock.cli import options as opt
from penstock.cli.progress import RunProgress
from penstock.cli.render import cut, draw_keys, draw_more, key_fields, listing, page, show
from penstock.cli.text_tables import shown, table
from penstock.errors import ExitCode
from penstock.lifecycle import PartitionStatus
from penstock.plural import counted

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.app import Workspace
    from penstock.control.requeue import NotRetried, RetryPreview
    from penstock.lifecycle import DisplayStatus
    from penstock.partition import PartitionKey
    from penstock.state.records import Attempt, PartitionView

state = typer.Typer(no_args_is_help=True, help="Inspect and steer the state of partitions.")


def register(app: typer.Typer) -> None:
    acts.register(state)
    pauses.register(state)
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
    """Rows of PartitionState; partitions without a row are shown as implicit pending when named or asked for."""
    from penstock.app import open_workspace

    ws = open_workspace(workspace)
    chosen = filters.selection()
    ranges = ws.ranges(chosen)
    implicit = bool(chosen.keys) or chosen.status is not None
    found = ws.reader.views(
        ranges, status=chosen.status, explicit=not implicit, after=opt.after_key(after), limit=limit + 1
    )
    views, following = cut(found, limit, lambda view: view.key)
    total = ws.reader.count(ranges, status=chosen.status, explicit=not implicit)
    standings = ws.standings([view.key for view in views])
    show(
        page([_state_item(ws, view, standings[view.key].display) for view in views], total, following),
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
    chosen = opt.select_key(key)
    [view] = ws.reader.views(ws.ranges(chosen))
    attempts = ws.reader.attempts(chosen.keys[0])
    trusted = view.state.status is PartitionStatus.SUCCESS  # a demoted run holds no authority
    authority, coming = view.state.current_run_id if trusted else None, ws.next_run_at(view)
    items = [_attempt_item(a, authority, coming if a is attempts[0] else None) for a in attempts]

    def draw(console: Console) -> None:
        _draw_attempts(console, key, attempts, authority)
        if coming:
            console.print(f"next retry: {coming:%Y-%m-%d %H:%M} UTC ({view.control.strategy})")

    show(listing(items, len(attempts)), as_json, draw)


@state.command()
@opt.option_groups
def retry(
    filters: opt.Filters,
    without_raw: opt.WithoutRaw = False,
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
    from penstock.control.requeue import NotRetried
    from penstock.state.audited import AuditedAct
    from penstock.state.control import AuditEntry

    ws = open_workspace(workspace)
    chosen = filters.selection()
    found = ws.retry_candidates(chosen, without_raw=without_raw)
    moved = 0
    if not dry_run and found.total:
        confirm("retrying", found.total, yes=yes, force=force)
        flags = {"without_raw": without_raw, "yes": yes, "force": force}
        entry = AuditEntry(actor or os_user(), AuditedAct.STATE_RETRY, chosen.as_dict(), flags)
        with RunProgress() as progress:
            report = progress.stage("retry", found.total)
            moved = ws.retry_selected(
                chosen, entry, without_raw=without_raw, total=found.total, until=found.moment, report=report
            )
    document = {
        **listing([key_fields(key) for key in found.keys], found.total),
        "requeued": moved,
        "dry_run": dry_run,
        "refused": [str(key) for key in found.refused[NotRetried.NO_RAW]],
        "terminal": [str(key) for key in found.refused[NotRetried.TERMINAL]],
        "frozen": [str(key) for key in found.refused[NotRetried.FROZEN]],
        "refusals": {str(why): count for why, count in found.refusals.items()},
    }
    show(document, as_json, lambda console: _draw_retry(console, found, moved, dry_run))
    if any(found.refusals.values()) and not found.total:
        raise typer.Exit(ExitCode.FAILED)


def _draw_retry(console: Console, found: RetryPreview, moved: int, dry_run: bool) -> None:
    if dry_run:
        console.print(f"{counted(found.total, 'failed partition')} would become pending")
        draw_keys(console, found.keys, found.total)
    elif found.total:
        pending = counted(moved, "partition is", "partitions are")
        console.print(f"{pending} pending again: attempted by the next `penstock run`")
    else:
        console.print("nothing to retry: no failed partition matches")
    draw_refused(console, found.refused, found.refusals)


def draw_refused(
    console: Console, first: Mapping[NotRetried, Sequence[PartitionKey]], counts: Mapping[NotRetried, int]
) -> None:
    """Say how many failed partitions are not retried, which is the first of each kind, and what to do about it."""
    from rich.text import Text

    from penstock.control.requeue import NotRetried

    no_raw, marked, frozen = (first[why] for why in NotRetried)
    if marked:
        console.print(
            Text.assemble(
                (f"refused {counted(counts[NotRetried.TERMINAL])} given up for good", "yellow"),
                f", as {marked[0]}; take that back with `penstock state clear-terminal`",
            )
        )
    if frozen:
        console.print(
            Text.assemble(
                (f"refused {counted(counts[NotRetried.FROZEN], 'frozen partition')}", "yellow"),
                f", as {frozen[0]}: the source no longer has the day",
            )
        )
    if no_raw:
        console.print(
            Text.assemble(
                (f"refused {counted(counts[NotRetried.NO_RAW])} whose attempts left nothing in the raw sink", "yellow"),
                f", as {no_raw[0]}; look with `penstock state history`, or add --without-raw",
            )
        )


def _state_item(ws: Workspace, view: PartitionView, display: DisplayStatus) -> dict[str, Any]:
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
        "display_status": display,
        "next_run_at": ws.next_run_at(view),
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


def _why(attempt: Attempt) -> str | None:
    demoted = f"demoted at {shown(attempt.demoted_at)} UTC" if attempt.demoted_at else None
    return "; ".join(filter(None, (attempt.error_message, demoted))) or None


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
            _why(a),
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
