"""`penstock db ...`: the state database itself."""

from __future__ import annotations

import typer

from penstock.cli import options as opt
from penstock.cli.render import show

db = typer.Typer(no_args_is_help=True, help="The state database: its schema.")


def register(app: typer.Typer) -> None:
    app.add_typer(db, name="db")


@db.callback()
def _group() -> None:
    pass


@db.command()
def migrate(workspace: opt.WorkspaceDir = ".", as_json: opt.AsJson = False, debug: opt.Debug = False) -> None:
    """Create the schema, or bring it up to date. Safe to repeat."""
    from penstock.app import load_workspace

    ws = load_workspace(workspace)
    before, after = ws.migrate()
    words = f"schema {after} was already there" if before == after else f"schema {before or 'none'} -> {after}"
    document = {"database": str(ws.database), "before": before, "after": after}
    show(document, as_json, lambda console: console.print(f"{ws.database}: {words}"))
