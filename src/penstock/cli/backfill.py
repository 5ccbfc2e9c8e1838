"""`penstock backfill ...`: old data, in chunks, beside the fresh work and never instead of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import options as opt
from penstock.cli.progress import RunProgress
from penstock.cli.render import cut, draw_keys, draw_more, key_fields, listing, page, show
from penstock.cli.text_tables import table
from penstock.errors import ExitCode, UsageError
from penstock.plural import counted

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.app import Workspace
    from penstock.state.backfills import Backfill

backfill = typer.Typer(no_args_is_help=True, help="Backfills: selectors with chunks and progress.")

Id = Annotated[str, typer.Argument(metavar="ID", help="The backfill, as `backfill list` names it.")]


def register(app: typer.Typer) -> None:
    app.add_typer(backfill, name="backfill")


@backfill.command()
@opt.option_groups
def create(
    filters: opt.PartitionFilters,
    reprocess: Annotated[bool, typer.Option("--reprocess", help="Also fetch again what is success already.")] = False,
    schema_version: Annotated[
        str | None,
        typer.Option("--schema-version", metavar="OLD", help="Move what is trusted in this version to today's."),
    ] = None,
    chunk_size: Annotated[
        int, typer.Option("--chunk-size", min=1, max=100_000, help="Partitions issued together.")
    ] = 1000,
    priority: Annotated[int, typer.Option("--priority", min=-1000, max=1000, help="Higher ones come first.")] = 0,
    max_chunks: Annotated[
        int, typer.Option("--max-chunks", min=1, max=1000, help="Chunks worked on at once, by all.")
    ] = 2,
    dry_run: opt.DryRun = False,
    yes: opt.Yes = False,
    force: opt.Force = False,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Ask for old partitions to be fetched by the control loop, chunk by chunk, in the share of each round that is
    reserved for old data. One row, however many partitions; nothing is fetched before `control tick` or `serve`.

    After the fields of a query and its `schema_version` were changed, `--schema-version OLD` fetches history again
    under the new version; each slice moves from the old table to the new one when its new run is accepted.
    """
    from penstock.app import open_workspace, os_user
    from penstock.cli.confirm import confirm
    from penstock.state.audited import AuditedAct
    from penstock.state.control import AuditEntry

    ws = open_workspace(workspace)
    chosen = replace(filters.selection(), schema_version=schema_version)
    moved = ws.of_version(chosen) if schema_version else None
    reprocess = reprocess or moved is not None
    who = actor or os_user()
    new = ws.new_backfill(
        chosen, reprocess=reprocess, chunk_size=chunk_size, priority=priority, max_chunks=max_chunks, actor=who
    )
    if not new.total:
        raise UsageError(
            "no expected partition that its source can be asked for matches: see what the configuration expects with"
            " `penstock status`"
        )
    if not dry_run:
        confirm("backfilling", new.total if moved is None else moved, yes=yes, force=force)
        flags = {"reprocess": reprocess, "chunk_size": chunk_size, "priority": priority, "max_chunks": max_chunks}
        ws.backfills.create(new, AuditEntry(who, AuditedAct.BACKFILL_CREATE, chosen.as_dict(), flags))
    words = f"{counted(new.total)} would be backfilled" if dry_run else f"backfill {new.backfill_id}: {new.total:,}"
    if moved is not None:
        words += f", of which {moved:,} are of version {schema_version} and move"
    frozen = ws.frozen_in(chosen)
    if frozen:
        words += f"; leaves out {counted(frozen, 'frozen partition')}: the source no longer has the day"
    document = {**_item(ws, new, dry_run), "moved": moved, "frozen": frozen, "dry_run": dry_run}
    show(document, as_json, lambda console: console.print(words))


@backfill.command("list")
def list_all(
    limit: opt.Limit = 100,
    after: opt.AfterId = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Every backfill with its progress, the most urgent first."""
    from penstock.app import open_workspace

    ws = open_workspace(workspace)
    found, total = ws.backfills.page(limit + 1, after)
    shown, following = cut(found, limit, lambda backfill: backfill.backfill_id)
    items = [_item(ws, backfill) for backfill in shown]

    def draw(console: Console) -> None:
        _draw(console, items)
        draw_more(console, len(items), total, following)

    show(page(items, total, following), as_json, draw)


@backfill.command("show")
def show_one(
    backfill_id: Id, workspace: opt.WorkspaceDir = ".", as_json: opt.AsJson = False, debug: opt.Debug = False
) -> None:
    """One backfill: its progress, its failed partitions, and its expected end."""
    from penstock.app import open_workspace

    ws = open_workspace(workspace)
    failed = [str(key) for key in ws.backfills.failed(backfill_id)]
    item = {**_item(ws, ws.backfills.get(backfill_id)), "failed": failed}

    def draw(console: Console) -> None:
        _draw(console, [item])
        console.print(f"selector: {item['selector']}")
        for key in failed[:20]:
            console.print(f"  failed: {key}")

    show(item, as_json, draw)


@backfill.command()
def pause(
    backfill_id: Id,
    dry_run: opt.DryRun = False,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Issue no more chunks of it; open ones are finished."""
    _move(backfill_id, "paused", "pause", actor, workspace, as_json, dry_run)


@backfill.command()
def resume(
    backfill_id: Id,
    dry_run: opt.DryRun = False,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Continue a paused backfill from where it stopped."""
    _move(backfill_id, "active", "resume", actor, workspace, as_json, dry_run)


@backfill.command()
def cancel(
    backfill_id: Id,
    dry_run: opt.DryRun = False,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """End it for good. What it fetched stays; open chunks are finished."""
    _move(backfill_id, "cancelled", "cancel", actor, workspace, as_json, dry_run)


@backfill.command("retry-failed")
def retry_failed(
    backfill_id: Id,
    without_raw: opt.WithoutRaw = False,
    dry_run: opt.DryRun = False,
    yes: opt.Yes = False,
    force: opt.Force = False,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Create a backfill of the partitions that failed in this one and have not succeeded since.

    Like `state retry`, it refuses partitions that are marked terminal, are frozen, or left nothing in the raw sink.
    While such a backfill is active or paused, the command returns that one.
    """
    from penstock.app import open_workspace, os_user
    from penstock.cli.confirm import confirm
    from penstock.cli.state import draw_refused
    from penstock.control.requeue import NotRetried

    ws = open_workspace(workspace)
    found = ws.backfill_failures(backfill_id, without_raw=without_raw)
    document: dict[str, Any] = {
        **listing([key_fields(key) for key in found.keys], found.total),
        "dry_run": dry_run,
        "refused": [str(key) for key in found.refused[NotRetried.NO_RAW]],
        "terminal": [str(key) for key in found.refused[NotRetried.TERMINAL]],
        "frozen": [str(key) for key in found.refused[NotRetried.FROZEN]],
        "refusals": {str(why): count for why, count in found.refusals.items()},
    }
    if found.total and not dry_run:
        confirm("retrying", found.total, yes=yes, force=force)
        flags = {"without_raw": without_raw, "yes": yes, "force": force}
        with RunProgress() as progress:
            document["backfill_id"] = ws.retry_backfill(
                ws.backfills.get(backfill_id),
                actor or os_user(),
                without_raw=without_raw,
                total=found.total,
                flags=flags,
                report=progress.stage("retry", found.total),
            )
    new = document.get("backfill_id")

    def draw(console: Console) -> None:
        message = f"{counted(found.total, 'failed partition')} can be tried again"
        console.print(message + (f"; backfill {new} does" if new else ""))
        if dry_run:
            draw_keys(console, found.keys, found.total)
        draw_refused(console, found.refused, found.refusals)

    show(document, as_json, draw)
    if any(found.refusals.values()) and not found.total:
        raise typer.Exit(ExitCode.FAILED)


def _move(
    backfill_id: str, status: str, verb: str, actor: str | None, workspace: str, as_json: bool, dry_run: bool
) -> None:
    from penstock.app import open_workspace, os_user
    from penstock.state.audited import AuditedAct
    from penstock.state.control import AuditEntry

    ws = open_workspace(workspace)
    entry = AuditEntry(actor or os_user(), AuditedAct(f"backfill {verb}"), {"backfill_id": backfill_id}, {})
    moves = ws.backfills.move(backfill_id, status, entry, rehearsal=dry_run)
    words = f"backfill {backfill_id} {'would be' if dry_run else 'is'} {status}"
    item = _item(ws, ws.backfills.get(backfill_id))
    if not moves:
        words = f"backfill {backfill_id} was {status} already"
    elif dry_run:
        words += f": {item['done']:,} of {counted(item['total'])} done, {counted(item['open_chunks'], 'open chunk')}"
    document = {**item, "changed": int(moves and not dry_run), "dry_run": dry_run}
    show(document, as_json, lambda console: console.print(words))


def _item(ws: Workspace, found: Backfill, unsaved: bool = False) -> dict[str, Any]:
    progress = ws.backfills.progress(found.backfill_id)
    left = None
    if progress.done and progress.began_at and found.status == "active":
        rate = (ws.now() - progress.began_at) / progress.done
        left = ws.now() + rate * (found.total - progress.done)
    return {
        "backfill_id": None if unsaved else found.backfill_id,
        "status": found.status,
        "selector": dict(found.selector),
        "reprocess": found.reprocess,
        "priority": found.priority,
        "chunk_size": found.chunk_size,
        "max_chunks": found.max_chunks,
        "total": found.total,
        "done": progress.done,
        "accepted": progress.accepted,
        "rejected": progress.rejected,
        "skipped": progress.skipped,
        "open_chunks": progress.open_chunks,
        "eta": left,
        "created_at": found.created_at,
        "created_by": found.created_by,
        "finished_at": found.finished_at,
    }


def _draw(console: Console, items: list[dict[str, Any]]) -> None:
    rows = [
        (
            i["backfill_id"], i["status"], i["priority"], f"{i['done']:,} of {i['total']:,}", i["accepted"],
            i["rejected"], i["skipped"], _end(i),
        )
        for i in items
    ]  # fmt: skip
    columns = ("backfill", "status", "priority", "done", "accepted", "rejected", "skipped", "done at (UTC)")
    console.print(table(None, columns, rows) if rows else "there is no backfill")


def _end(item: dict[str, Any]) -> datetime | None:
    """When a backfill ended; of an active one the estimate, in whole seconds."""
    eta: datetime | None = item["eta"]
    ended: datetime | None = item["finished_at"]
    return ended if eta is None else eta.replace(microsecond=0) + timedelta(seconds=1)
