"""`penstock backup` and `penstock recover`: a copy of the state database, and recovery after a loss."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import options as opt
from penstock.cli.progress import RunProgress
from penstock.cli.render import draw_mismatches, show
from penstock.cli.text_tables import table
from penstock.errors import ExitCode, UsageError
from penstock.plural import counted

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.app import Workspace
    from penstock.app.recovery import LakeRecovery
    from penstock.warehouse.rebuild import Rebuilt, TableDamage

_LISTED = 20


class Side(StrEnum):
    LAKE = "lake"
    DATABASE = "database"


def register(app: typer.Typer) -> None:
    app.command("backup")(backup)
    app.command("recover")(recover)


def backup(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A new or empty folder for the copy.")],
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Copy the state database and the table versions it refers to into a folder.

    The copy is consistent while other processes work. It does not include the lake: copy or version the lake with its
    own tools. After a restore, `penstock recover --from lake` updates the database from the lake.
    """
    from penstock.app import open_workspace
    from penstock.views.recovery import backup_document

    ws = open_workspace(workspace)
    found = ws.maintenance.backup(folder)

    def draw(console: Console) -> None:
        tables = found["tables"]
        held = f"{counted(found['partitions'])}, {counted(len(tables), 'table')}"
        console.print(f"{found['file']}: {held}")

    show(backup_document(found), as_json, draw)


@opt.option_groups
def recover(
    change: opt.ChangeOptions,
    side: Annotated[
        Side | None,
        typer.Option("--from", help="The side that is right: lake (the database is lost or older), or database."),
    ] = None,
    tables: Annotated[
        list[str] | None,
        typer.Option("--table", metavar="T", help="With --from database: only this source.query_name; repeatable."),
    ] = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Repair a disagreement between the lake and the state database. *

    Without --from it reports the disagreements and changes nothing.

    `--from lake` rebuilds the state of a lost or restored database from the rows in the tables, the seals in the raw
    sink and the exported segments of the ledger, and lists what the lake does not hold. It starts Spark only to
    separate rows of two runs of one partition.

    `--from database` reads every row, and rebuilds missing, damaged and unknown data files, statistics and tables from
    the raw sink. Readers see the recorded versions until it is done.

    Both can be repeated, and continue an interrupted recovery.
    """
    from penstock.app import load_workspace

    if tables and side is not Side.DATABASE:
        raise UsageError("--table goes with --from database")
    ws = load_workspace(workspace)
    flags = {"tables": tables} if tables else {}
    match side:
        case None:
            _report(ws, as_json)
        case Side.LAKE:
            _from_lake(ws, flags, change, as_json)
        case Side.DATABASE:
            _from_database(ws, flags, tables or [], change, as_json)


def _report(ws: Workspace, as_json: bool) -> None:
    from penstock.views.warehouse import mismatches_document

    found = ws.maintenance.lost_database()
    if not found:
        ws.context.require_schema()
        found = ws.context.mismatches(everything=True)

    def draw(console: Console) -> None:
        draw_mismatches(console, found)
        if not found:
            console.print("the lake and the state database agree; `warehouse verify` reads every row")

    show(mismatches_document(found), as_json, draw)
    if found:
        raise typer.Exit(ExitCode.FAILED)


# --- from the lake ----------------------------------------------------------------------------------------------------


def _from_lake(ws: Workspace, flags: Mapping[str, Any], change: opt.ChangeOptions, as_json: bool) -> None:
    from penstock.cli.confirm import confirm
    from penstock.views.recovery import lake_recovery_document

    with RunProgress() as progress:
        found = ws.maintenance.recovery.preview_from_lake(progress.stage("read", 1))
    if not change.dry_run and not found.is_nothing:
        confirm("restoring", found.restored, yes=change.yes, force=change.force)
        with RunProgress() as progress:
            found = ws.maintenance.recovery.from_lake(
                progress.stage("restore", found.restored), actor=change.actor, flags=flags
            )
    document = lake_recovery_document(found, dry_run=change.dry_run)
    show(document, as_json, lambda console: _draw_lake(console, found, change.dry_run))


def _draw_lake(console: Console, found: LakeRecovery, dry_run: bool) -> None:
    from penstock.views.recovery import NOT_IN_THE_LAKE

    draw_mismatches(console, found.left_alone)
    if found.is_nothing:
        console.print("no table of the lake is ahead of the state database: nothing to restore")
        return
    rows = [
        (
            one.asset,
            len(one.decisions),
            len(one.restored),
            len(one.withdrawn),
            len(one.sealed),
            len(one.raw_gone),
            len(one.ambiguous),
        )
        for one in found.assets
    ]
    names = ("table", "served", "restored", "withdrawn", "sealed only", "raw deleted", "rebuilt")
    console.print(table(None, names, rows))
    done = "would restore" if dry_run else "restored"
    where = "a new state database" if found.database_is_new else "the state database"
    console.print(f"{done} {counted(found.restored, 'accepted run')} in {where}")
    for path, reason in sorted(found.damaged_files.items())[:_LISTED]:
        console.print(f"rebuilt from raw: {path} cannot be read: {reason}", style="yellow")
    for attempt, reason in sorted(found.unusable.items())[:_LISTED]:
        console.print(f"hidden: {attempt.partition} run {attempt.run_id}: {reason}", style="yellow")
    withdrawn = [key for one in found.assets for key in (*one.withdrawn, *one.demoted, *one.overtaken)]
    for key in withdrawn[:_LISTED]:
        console.print(f"withdrawn: {key}: its run is no longer authoritative; `penstock state retry {key}`")
    if len(withdrawn) > _LISTED:
        console.print(f"... and {len(withdrawn) - _LISTED:,} more: penstock failed")
    console.print("\nThe lake does not hold:")
    for line in NOT_IN_THE_LAKE:
        console.print(f"  - {line}")
    if not dry_run:
        console.print("\nNext: penstock doctor, penstock warehouse verify, penstock run")


# --- from the database ------------------------------------------------------------------------------------------------


def _from_database(
    ws: Workspace, flags: Mapping[str, Any], tables: list[str], change: opt.ChangeOptions, as_json: bool
) -> None:
    from penstock.cli.confirm import confirm
    from penstock.views.recovery import database_recovery_document

    ws.context.require_schema()
    with RunProgress() as progress:
        damage = ws.maintenance.recovery.preview_from_database(tables, progress.stage("examine", 1))
    wanted = {name.rpartition(".")[0] for name, found in damage.items() if not found.is_none}
    known = {name.rpartition(".")[0] for name in damage}
    wanted |= {mismatch.asset for mismatch in ws.context.mismatches() if mismatch.asset} & known
    done: list[Rebuilt] = []
    if wanted and not change.dry_run:
        partitions = sum(len(found.partitions) for found in damage.values())
        confirm("rebuilding", partitions, yes=change.yes, force=change.force)
        with RunProgress() as progress:
            done = ws.maintenance.recovery.from_database(
                sorted(wanted), progress.stage("rebuild", len(wanted)), actor=change.actor, flags=flags
            )
    document = database_recovery_document(damage, sorted(wanted), done, dry_run=change.dry_run)
    show(document, as_json, lambda console: _draw_database(console, damage, sorted(wanted), done, change.dry_run))
    if document["broken"]:
        raise typer.Exit(ExitCode.FAILED)


def _draw_database(
    console: Console, damage: dict[str, TableDamage], wanted: list[str], done: list[Rebuilt], dry_run: bool
) -> None:
    if not wanted:
        console.print("every table agrees with the state database: nothing to rebuild")
        return
    rows = [
        (name, found.created or "-", len(found.files), len(found.partitions)) for name, found in sorted(damage.items())
    ]
    console.print(table(None, ("table", "created again", "damaged files", "partitions"), rows))
    for name, found in sorted(damage.items()):
        for path, reason in sorted(found.files.items())[:_LISTED]:
            console.print(f"{name}: {path}: {reason}")
    if dry_run:
        console.print(f"would rebuild {', '.join(wanted)} from raw")
        return
    loaded, broken = sum(one.loaded for one in done), {k: v for one in done for k, v in one.broken.items()}
    console.print(f"rebuilt {', '.join(wanted)}: {counted(loaded)} loaded again from raw")
    for key, reason in sorted(broken.items()):
        console.print(f"hidden: {key}: {reason}; fetch it again with `penstock run {key} --reprocess`", style="red")
