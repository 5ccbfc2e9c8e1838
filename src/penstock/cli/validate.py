"""`penstock validate`: are the runs that consumers read still what the contract says?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from penstock.cli import options as opt
from penstock.cli.progress import RunProgress
from penstock.cli.render import draw_keys, key_fields, listing, show
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
    yes: opt.Yes = False,
    force: opt.Force = False,
    dry_run: opt.DryRun = False,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Re-check the trusted runs of success partitions against today's contract; what fails is demoted. *

    Runs of another schema version than today's are left alone. Demoted partitions are `failed`, and their rows are gone
    from readers; `penstock state retry` fetches them again. Runs whose raw data cannot be read are listed and not
    judged. Exit code 1 if something was demoted or could not be read.
    """
    from penstock.app import open_workspace
    from penstock.cli.confirm import confirm

    ws = open_workspace(workspace)
    chosen = filters.selection()
    trusted = ws.to_recheck(chosen)
    if dry_run:
        items = [key_fields(attempt.partition) for attempt, _ in trusted]
        document = {**listing(items, len(items)), "examined": 0, "dry_run": True}
        show(document, as_json, lambda console: _draw_preview(console, [attempt.partition for attempt, _ in trusted]))
        return
    confirm("re-checking", len(trusted), yes=yes, force=force)
    with RunProgress() as progress:
        found = ws.recheck(chosen, watcher=progress, actor=actor)
    items = [{**key_fields(key), "message": why} for key, why in found.demoted.items()]
    show(
        {
            **listing(items, len(items)),
            "examined": found.examined,
            "unreadable": [{**key_fields(key), "message": why} for key, why in found.unreadable.items()],
            "dry_run": False,
        },
        as_json,
        lambda console: _draw(console, found),
    )
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
            table("Not judged: their raw data, or what they refer to, cannot be read", ("partition", "why"), rows)
        )
    console.print(f"{counted(found.examined, 'trusted run')} examined, {len(found.demoted):,} demoted")
