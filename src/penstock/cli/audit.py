"""`penstock audit list`: manual operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from penstock.cli import options as opt
from penstock.cli.render import draw_more, show
from penstock.cli.text_tables import table
from penstock.views.document import page, paginate

if TYPE_CHECKING:
    from rich.console import Console

audit = typer.Typer(no_args_is_help=True, help="The audit log of manual operations.")


def register(app: typer.Typer) -> None:
    app.add_typer(audit, name="audit")


@audit.callback()
def _group() -> None:
    pass


@audit.command("list")
def list_(
    limit: opt.Limit = 100,
    after: opt.AfterEntry = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """List manual operations, newest first: actor, time, command, filters, flags, count and outcome."""
    from penstock.app import open_workspace

    reader = open_workspace(workspace).context.state
    entries, following = paginate(reader.audit(limit + 1, after=after), limit, lambda entry: entry["audit_id"])
    total = reader.audit_count()
    names = ("audit_id", "at", "actor", "command", "filters", "flags", "affected", "outcome")

    def draw(console: Console) -> None:
        rows = [[str(entry["audit_id"]), *(entry[name] for name in names[1:])] for entry in entries]
        console.print(table(None, names, rows) if rows else "no manual operations")
        draw_more(console, len(entries), total, following)

    show(page(entries, total, following), as_json, draw)
