"""`penstock audit list`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from penstock.cli import options as opt
from penstock.cli.render import cut, draw_more, page, show
from penstock.cli.text_tables import table

if TYPE_CHECKING:
    from rich.console import Console

audit = typer.Typer(no_args_is_help=True, help="Manual acts: who, when, what, how many.")


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
    """The manual acts, newest first."""
    from penstock.app import open_workspace

    reader = open_workspace(workspace).reader
    entries, following = cut(reader.audit(limit + 1, after=after), limit, lambda entry: entry["audit_id"])
    total = reader.audit_count()
    names = ("audit_id", "at", "actor", "command", "filters", "flags", "affected", "outcome")

    def draw(console: Console) -> None:
        rows = [[str(entry["audit_id"]), *(entry[name] for name in names[1:])] for entry in entries]
        console.print(table(None, names, rows) if rows else "no manual acts")
        draw_more(console, len(entries), total, following)

    show(page(entries, total, following), as_json, draw)
