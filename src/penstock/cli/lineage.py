"""`penstock lineage`: OpenLineage events of runs."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import options as opt
from penstock.cli.render import show
from penstock.plural import counted


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="OpenLineage events: the inputs and outputs of runs.")
    group.command("emit")(emit)
    app.add_typer(group, name="lineage")


def emit(
    run: Annotated[str, typer.Argument(metavar="RUN", help="As `penstock runs list` shows it.")],
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Send the OpenLineage events of a run, one for each asset, to the endpoint in the workspace file.

    Every run sends its events at its end; use this command if they did not arrive. Events have the same ids each time,
    so sending them again is safe.
    """
    from penstock.app import open_workspace
    from penstock.partition import run_id
    from penstock.views.runs import lineage_document

    ws = open_workspace(workspace)
    sent = ws.lineage.emit(run_id(run))
    where = ws.settings.lineage.where if ws.settings.lineage else ""
    message = f"{counted(sent, 'event')} of run {run} sent to {where}"
    show(lineage_document(run, sent, where), as_json, lambda console: console.print(message))
