"""`penstock why`: everything about one partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from penstock.cli import options as opt
from penstock.cli.render import show

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.control.why import Why


def register(app: typer.Typer) -> None:
    app.command("why")(why)


def why(
    key: opt.OneKey, workspace: opt.WorkspaceDir = ".", as_json: opt.AsJson = False, debug: opt.Debug = False
) -> None:
    """Explain one partition: authority, pointer, last attempts, what blocks it and what happens next."""
    from penstock.app import open_workspace
    from penstock.partition import PartitionKey
    from penstock.views.why import why_document

    ws = open_workspace(workspace)
    found = ws.partitions.why(PartitionKey.parse(key))
    show(why_document(found), as_json, lambda console: _draw(console, found))


def _draw(console: Console, found: Why) -> None:
    from rich.text import Text

    console.print(Text.assemble((str(found.key), "bold"), f"  {found.display}"))
    for line in found.lines():
        console.print(line)
