"""`penstock validate`: authoritative runs against today's contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from penstock.cli import options as opt
from penstock.cli.progress import RunProgress
from penstock.cli.render import draw_keys, show
from penstock.cli.text_tables import table
from penstock.errors import ExitCode
from penstock.plural import counted

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.flow.recheck import Rechecked
    from penstock.partition import PartitionKey


def register(app: typer.Typer) -> None:
    app.command("validate")(validate)


@opt.option_groups
def validate(
    filters: opt.Filters,
    change: opt.ChangeOptions,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Check the authoritative runs of success partitions against today's contract; demote those that fail. *

    Runs of another schema version are skipped. A demoted partition is `failed`, and readers no longer see its rows;
    `penstock state retry` fetches it again. Runs whose raw data cannot be read are listed without a verdict. Exit code
    1 if a run was demoted or could not be read.
    """
    from penstock.app import open_workspace
    from penstock.cli.confirm import confirm
    from penstock.views.operations import recheck_document, recheck_preview_document

    ws = open_workspace(workspace)
    chosen = filters.selection()
    keys = [attempt.partition for attempt, _ in ws.rechecks.candidates(chosen)]
    if change.dry_run:
        show(recheck_preview_document(keys), as_json, lambda console: _draw_preview(console, keys))
        return
    confirm("re-checking", len(keys), yes=change.yes, force=change.force)
    with RunProgress() as progress:
        found = ws.rechecks.run(chosen, listener=progress, actor=change.actor)
    show(recheck_document(found), as_json, lambda console: _draw(console, found))
    if found.demoted or found.unreadable:
        raise typer.Exit(ExitCode.FAILED)


def _draw_preview(console: Console, keys: list[PartitionKey]) -> None:
    console.print(f"{counted(len(keys), 'trusted run')} would be examined")
    draw_keys(console, keys)


def _draw(console: Console, found: Rechecked) -> None:
    if found.demoted:
        console.print(table("Demoted", ("partition", "why"), sorted(found.demoted.items())))
    if found.unreadable:
        rows = sorted(found.unreadable.items())
        console.print(
            table("Not examined: their raw data, or a table they refer to, cannot be read", ("partition", "why"), rows)
        )
    console.print(f"{counted(found.examined, 'trusted run')} examined, {len(found.demoted):,} demoted")
