"""`penstock audit list`."""

from __future__ import annotations

from typing import Any

import typer

from penstock.cli import options as opt
from penstock.cli.render import listing, show
from penstock.cli.tables import table

audit = typer.Typer(no_args_is_help=True, help="Manual acts: who, when, what, how many.")


def register(app: typer.Typer) -> None:
    app.add_typer(audit, name="audit")


@audit.callback()
def _group() -> None:
    pass


@audit.command("list")
def list_(
    limit: opt.Limit = 100,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """The manual acts, newest first."""
    from penstock.app import open_workspace

    entries = list(open_workspace(workspace).reader.audit(limit))
    names = ("at", "actor", "command", "filters", "flags", "affected", "outcome")

    def draw(console: Any) -> None:
        console.print(table(None, names, [[entry[name] for name in names] for entry in entries]))

    show(listing(entries, len(entries)), as_json, draw)
