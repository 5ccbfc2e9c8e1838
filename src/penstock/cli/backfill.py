"""`penstock backfill ...`: history that the control loop fetches in chunks, in its share of each round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import options as opt
from penstock.cli.progress import RunProgress
from penstock.cli.render import draw_keys, draw_more, show
from penstock.cli.text_tables import table
from penstock.errors import ExitCode
from penstock.plural import counted
from penstock.views.document import page, paginate

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.app import Workspace
    from penstock.app.backfills import BackfillService
    from penstock.state.backfills import Backfill

backfill = typer.Typer(no_args_is_help=True, help="Backfills: selections that the control loop fetches in chunks.")

Id = Annotated[str, typer.Argument(metavar="ID", help="The id of the backfill, from `backfill list`.")]


def register(app: typer.Typer) -> None:
    app.add_typer(backfill, name="backfill")


@backfill.command()
@opt.option_groups
def create(
    filters: opt.PartitionFilters,
    change: opt.ChangeOptions,
    reprocess: opt.Reprocess = False,
    schema_version: Annotated[
        str | None,
        typer.Option("--schema-version", metavar="OLD", help="Fetch the partitions of this schema version again."),
    ] = None,
    chunk_size: Annotated[
        int, typer.Option("--chunk-size", min=1, max=100_000, help="Partitions that are issued together.")
    ] = 1000,
    priority: Annotated[
        int, typer.Option("--priority", min=-1000, max=1000, help="Backfills with a higher priority come first.")
    ] = 0,
    max_chunks: Annotated[
        int, typer.Option("--max-chunks", min=1, max=1000, help="Chunks in progress at once, in all workers.")
    ] = 2,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Create a backfill: the control loop fetches the partitions chunk by chunk.

    Backfills use the share of each round that is reserved for history. `control tick` or `control serve` fetches them;
    this command only stores the selection.

    After a change of the fields and the `schema_version` of a query, `--schema-version OLD` fetches history again under
    the new version; each partition moves from the old table to the new one when its new run is accepted.
    """
    from penstock.app import open_workspace
    from penstock.cli.confirm import confirm
    from penstock.views.backfills import new_backfill_document

    ws = open_workspace(workspace)
    chosen = replace(filters.selection(), schema_version=schema_version)
    moved = ws.backfills.count_of_version(chosen) if schema_version else None
    new = ws.backfills.plan(
        chosen,
        reprocess=reprocess,
        chunk_size=chunk_size,
        priority=priority,
        max_chunks=max_chunks,
        actor=change.actor,
    )
    if not change.dry_run:
        confirm("backfilling", new.total if moved is None else moved, yes=change.yes, force=change.force)
        ws.backfills.create(new, chosen)
    total = counted(new.total)
    message = f"{total} would be backfilled" if change.dry_run else f"backfill {new.backfill_id}: {total}"
    if moved is not None:
        message += f", of which {moved:,} are of version {schema_version} and move"
    frozen = ws.partitions.frozen_count(chosen)
    if frozen:
        message += f"; leaves out {counted(frozen, 'frozen partition')}: the source no longer has the day"
    item = _item(ws, new, is_saved=not change.dry_run)
    document = new_backfill_document(item, moved=moved, frozen=frozen, dry_run=change.dry_run)
    show(document, as_json, lambda console: console.print(message))


@backfill.command("list")
def list_all(
    limit: opt.Limit = 100,
    after: opt.AfterId = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """List backfills with their progress, highest priority first."""
    from penstock.app import open_workspace

    ws = open_workspace(workspace)
    found, total = ws.context.backfills.page(limit + 1, after)
    shown, following = paginate(found, limit, lambda backfill: backfill.backfill_id)
    items = [_item(ws, backfill) for backfill in shown]

    def draw(console: Console) -> None:
        _draw(console, items)
        draw_more(console, len(items), total, following)

    show(page(items, total, following), as_json, draw)


@backfill.command("show")
def show_one(
    backfill_id: Id, workspace: opt.WorkspaceDir = ".", as_json: opt.AsJson = False, debug: opt.Debug = False
) -> None:
    """Show one backfill: its progress, its failed partitions and its expected end."""
    from penstock.app import open_workspace
    from penstock.views.backfills import backfill_document

    ws = open_workspace(workspace)
    failed = ws.context.backfills.failed(backfill_id)
    document = backfill_document(_item(ws, ws.backfills.get(backfill_id)), failed, len(failed))

    def draw(console: Console) -> None:
        _draw(console, [document])
        console.print(f"selector: {document['selector']}")
        for key in failed[:20]:
            console.print(f"  failed: {key}")

    show(document, as_json, draw)


@backfill.command()
def pause(
    backfill_id: Id,
    dry_run: opt.DryRun = False,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Issue no more chunks of a backfill; open chunks are finished."""
    _change_status(backfill_id, "paused", lambda backfills: backfills.pause, actor, workspace, as_json, dry_run)


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
    _change_status(backfill_id, "active", lambda backfills: backfills.resume, actor, workspace, as_json, dry_run)


@backfill.command()
def cancel(
    backfill_id: Id,
    dry_run: opt.DryRun = False,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """End a backfill permanently. Fetched partitions stay; open chunks are finished."""
    _change_status(backfill_id, "cancelled", lambda backfills: backfills.cancel, actor, workspace, as_json, dry_run)


@backfill.command("retry-failed")
@opt.option_groups
def retry_failed(
    backfill_id: Id,
    change: opt.ChangeOptions,
    without_raw: opt.WithoutRaw = False,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Create a backfill of the partitions that failed in a backfill and have not succeeded since.

    Like `state retry`, it refuses partitions that are marked terminal, are frozen, or left nothing in the raw sink. If
    such a backfill is already active or paused, the command returns that one.
    """
    from penstock.app import open_workspace
    from penstock.cli.confirm import confirm
    from penstock.cli.retry import draw_refused
    from penstock.views.operations import retry_failed_document

    ws = open_workspace(workspace)
    found = ws.backfills.preview_retry(backfill_id, without_raw=without_raw)
    new: str | None = None
    if found.total and not change.dry_run:
        confirm("retrying", found.total, yes=change.yes, force=change.force)
        with RunProgress() as progress:
            new = ws.backfills.retry_failed(
                backfill_id,
                actor=change.actor,
                without_raw=without_raw,
                preview=found,
                flags=change.flags,
                report=progress.stage("retry", found.total),
            )

    def draw(console: Console) -> None:
        message = f"{counted(found.total, 'failed partition')} can be retried"
        console.print(message + (f"; backfill {new} retries" if new else ""))
        if change.dry_run:
            draw_keys(console, found.keys, found.total)
        draw_refused(console, found.refused, found.refusals)

    show(retry_failed_document(found, dry_run=change.dry_run, backfill_id=new), as_json, draw)
    if any(found.refusals.values()) and not found.total:
        raise typer.Exit(ExitCode.FAILED)


def _change_status(
    backfill_id: str,
    status: str,
    change: Callable[[BackfillService], Callable[..., bool]],
    actor: str | None,
    workspace: str,
    as_json: bool,
    dry_run: bool,
) -> None:
    """Pause, resume or cancel a backfill, or preview that, and print the result."""
    from penstock.app import open_workspace
    from penstock.views.backfills import backfill_change_document

    ws = open_workspace(workspace)
    changes = change(ws.backfills)(backfill_id, actor=actor, dry_run=dry_run)
    message = f"backfill {backfill_id} {'would be' if dry_run else 'is'} {status}"
    item = _item(ws, ws.backfills.get(backfill_id))
    if not changes:
        message = f"backfill {backfill_id} was {status} already"
    elif dry_run:
        message += f": {item['done']:,} of {counted(item['total'])} done, {counted(item['open_chunks'], 'open chunk')}"
    document = backfill_change_document(item, changed=changes and not dry_run, dry_run=dry_run)
    show(document, as_json, lambda console: console.print(message))


def _item(ws: Workspace, found: Backfill, *, is_saved: bool = True) -> dict[str, Any]:
    from penstock.views.backfills import backfill_item

    return backfill_item(found, ws.backfills.progress(found.backfill_id), ws.context.now(), is_saved=is_saved)


def _draw(console: Console, items: Sequence[Mapping[str, Any]]) -> None:
    rows = [
        (
            i["backfill_id"], i["status"], i["priority"], f"{i['done']:,} of {i['total']:,}", i["accepted"],
            i["rejected"], i["skipped"], _end(i),
        )
        for i in items
    ]  # fmt: skip
    columns = ("backfill", "status", "priority", "done", "accepted", "rejected", "skipped", "done at (UTC)")
    console.print(table(None, columns, rows) if rows else "there is no backfill")


def _end(item: Mapping[str, Any]) -> datetime | None:
    """Return when a backfill ended; for an active one the estimate, in whole seconds."""
    eta: datetime | None = item["eta"]
    ended: datetime | None = item["finished_at"]
    return ended if eta is None else eta.replace(microsecond=0) + timedelta(seconds=1)
