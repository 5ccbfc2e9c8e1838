"""`penstock lineage`: what runs read and wrote, told to others."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import options as opt
from penstock.cli.render import show
from penstock.plural import counted


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Tell others what runs read and wrote (OpenLineage).")
    group.command("emit")(emit)
    app.add_typer(group, name="lineage")


def emit(
    run: Annotated[str, typer.Argument(metavar="RUN", help="As `penstock runs list` shows it.")],
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Send the OpenLineage events of a run, one for each asset, to the place that the workspace file names.

    Every run does so at its end; this is for one whose events did not arrive. Events have the same names each time, so
    sending them again does no harm.
    """
    from penstock.app import open_workspace
    from penstock.partition import run_id

    ws = open_workspace(workspace)
    told = ws.lineage.emit(run_id(run))
    where = ws.settings.lineage.where if ws.settings.lineage else ""
    document = {"run_id": run, "events": told, "where": where}
    show(document, as_json, lambda console: console.print(f"{counted(told, 'event')} of run {run} sent to {where}"))
