"""`penstock snapshot`: named states of the warehouse."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import options as opt
from penstock.cli.render import show
from penstock.cli.text_tables import table
from penstock.errors import UsageError
from penstock.plural import counted


def register(app: typer.Typer) -> None:
    app.command("snapshot")(snapshot)


def snapshot(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The name (default: the time of creation).")
    ] = None,
    expires: Annotated[str, typer.Option("--expires", metavar="D", help="How long it can be read: 30d.")] = "30d",
    listed: Annotated[bool, typer.Option("--list", help="Only list the existing snapshots.")] = False,
    drop: Annotated[bool, typer.Option("--drop", help="Delete the snapshot of this name.")] = False,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Name the current state of the whole warehouse, to read it later with --as-of.

    Partitions that are demoted later are also left out of earlier snapshots.
    """
    from penstock.app import open_workspace
    from penstock.config.values import duration
    from penstock.views.warehouse import snapshot_document, snapshots_document

    ws = open_workspace(workspace)
    if drop and name is None:
        raise UsageError("name the snapshot to delete")
    if listed or drop:
        if drop and name is not None:
            ws.data.drop_snapshot(name, actor=actor)
        found = ws.data.snapshots.all()
        rows = [(one.name, one.created_at, one.expires_at) for one in found]
        show(
            snapshots_document(found),
            as_json,
            lambda console: console.print(table(None, ("snapshot", "created", "expires"), rows)),
        )
        return
    made = ws.data.take_snapshot(name or f"{ws.context.now():%Y%m%d-%H%M%S}", duration(expires), actor=actor)
    until = f"{made.expires_at:%Y-%m-%d %H:%M} UTC"
    message = f"snapshot {made.name}: {counted(len(made.tables), 'table')}, readable until {until}"
    show(snapshot_document(made), as_json, lambda console: console.print(message))
