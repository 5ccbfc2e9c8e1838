"""`penstock ledger`: events, the projections that are folded from them, and their export."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import options as opt
from penstock.cli.render import draw_more, note, show
from penstock.cli.text_tables import table
from penstock.clock import MAX_DURATION
from penstock.errors import UsageError
from penstock.plural import counted
from penstock.views.document import page, paginate

if TYPE_CHECKING:
    from rich.console import Console


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="The event ledger and its projections.")
    group.command("tail")(tail)
    group.command("rebuild")(rebuild)
    group.command("export")(export)
    app.add_typer(group, name="ledger")


def tail(
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Only events of this run.")] = None,
    kind: Annotated[str | None, typer.Option("--type", metavar="T", help="Only events of this type.")] = None,
    after: opt.AfterPosition = None,
    limit: opt.Limit = 20,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """List the newest events, or the events after a position, in order."""
    from penstock.app import open_workspace
    from penstock.partition import run_id

    ws = open_workspace(workspace)
    asked = limit if after is None else limit + 1  # no event follows the newest ones
    named = run_id(run) if run else None
    events = ws.context.ledger.tail(asked, after=after, run_id=named, kind=kind)
    found, following = paginate(events, limit, lambda event: event["position"])
    total = ws.context.ledger.count(run_id=named, kind=kind)

    def draw(console: Console) -> None:
        rows = [(str(e["position"]), e["occurred_at"], e["type"], e["run_id"], _about(e["payload"])) for e in found]
        console.print(table(None, ("position", "at", "type", "run", "about"), rows) if rows else "no events")
        draw_more(console, len(found), total, following)

    show(page(found, total, following), as_json, draw)


def rebuild(
    engine: Annotated[str, typer.Option("--engine", help="embedded, or spark for long ledgers (*).")] = "embedded",
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Rebuild all projections from the ledger, and replace them atomically. Readers are not interrupted. *"""
    from penstock.app import open_workspace
    from penstock.views.ledger import rebuild_document

    if engine not in ("embedded", "spark"):
        raise UsageError(f"--engine {engine!r} is unknown: use embedded or spark")
    note("rebuilding the projections from the ledger")
    done = open_workspace(workspace).ledger.rebuild(engine)
    message = f"{counted(done, 'event')} folded"
    show(rebuild_document(done, engine), as_json, lambda console: console.print(message))


def export(
    older_than: Annotated[
        int,
        typer.Option(
            "--older-than",
            min=1,
            max=MAX_DURATION.days,
            metavar="DAYS",
            help="Only events of finished runs that are this old.",
        ),
    ] = 90,
    dry_run: opt.DryRun = False,
    yes: opt.Yes = False,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Move old events from the database to files in the lake, with their digest. `rebuild` reads both."""
    from penstock.app import open_workspace
    from penstock.views.ledger import export_document

    ws = open_workspace(workspace)
    if not dry_run and not yes:
        raise UsageError("this removes events from the database: preview it with --dry-run, then add --yes")
    exported = ws.ledger.export(older_than, actor=actor, dry_run=dry_run)
    message = f"{counted(exported['events'], 'event')} {'would be exported' if dry_run else 'exported'}"
    show(export_document(exported, dry_run=dry_run), as_json, lambda console: console.print(message))


def _about(payload: dict[str, Any]) -> str:
    shown = {name: value for name, value in payload.items() if name in _SHOWN and value is not None}
    return ", ".join(f"{name} {value}" for name, value in shown.items())


_SHOWN = ("partition_key", "stage", "outcome", "act", "error_class", "why", "end", "reasons", "actor")
