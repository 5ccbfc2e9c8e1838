"""`penstock raw`: runs in the raw sink, their rows and their deletion."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import options as opt
from penstock.cli.render import show
from penstock.cli.text_tables import table
from penstock.plural import counted

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.views.document import Document

raw = typer.Typer(no_args_is_help=True, help="The raw sink: data as it was received, by run.")


def register(app: typer.Typer) -> None:
    app.add_typer(raw, name="raw")


@raw.command("list")
def list_runs(
    key: opt.OneKey, workspace: opt.WorkspaceDir = ".", as_json: opt.AsJson = False, debug: opt.Debug = False
) -> None:
    """List the runs of a partition in the raw sink with their seals, and mark the authoritative run."""
    from penstock.app.reader import open_reader
    from penstock.partition import PartitionKey
    from penstock.views.raw import raw_runs_document

    ws = open_reader(workspace)
    chosen = PartitionKey.parse(key)
    found, authoritative = ws.raw_runs(chosen)
    document = raw_runs_document(chosen, found, authoritative)
    items = document["items"]

    def draw(console: Console) -> None:
        from rich.text import Text

        if not items:
            console.print(f"the raw sink has no run of {chosen}")
            return
        names = ("run_id", "sealed", "record_count", "payload_bytes", "extracted_at", "schema_version", "authoritative")
        console.print(table(None, names, [[item[name] for name in names] for item in items]))
        for item in items:
            if item["error"]:
                console.print(Text.assemble((item["run_id"], "red"), f": {item['error']}"))

    show(document, as_json, draw)


@raw.command("read")
def read(
    key: opt.OneKey,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="RUN", help="Another run than the authoritative one; for operators."),
    ] = None,
    limit: opt.LineLimit = None,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Print the rows of a partition as they were received, one JSON document per line, checked against their seal.

    Without --run the command reads the authoritative run of a success partition. Reading another run is for operators
    and is recorded in the audit log.
    """
    from itertools import islice

    from penstock.app import open_workspace
    from penstock.app.reader import open_reader
    from penstock.partition import PartitionKey, run_id
    from penstock.views.raw import raw_rows_document

    chosen = PartitionKey.parse(key)
    if run:
        lines = open_workspace(workspace).raw.lines_of(chosen, run_id(run), actor)
    else:
        lines = open_reader(workspace).raw_lines(chosen)
    wanted = list(islice(lines, limit))
    if as_json:
        show(raw_rows_document(wanted), True, lambda _console: None)
        return
    for line in wanted:
        sys.stdout.buffer.write(line + b"\n")
    sys.stdout.flush()


@raw.command("gc")
@opt.option_groups
def gc(
    change: opt.ChangeOptions,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="D", help="Only runs that were closed longer ago than this.")
    ] = "90d",
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Delete raw runs without references: not authoritative, not served, not an input of an authoritative run.

    `state rollback` and `state approve` refuse a deleted run.
    """
    from penstock.app import open_workspace
    from penstock.cli.confirm import confirm
    from penstock.views.raw import deleted_runs_document, garbage_document

    ws = open_workspace(workspace)
    found = ws.maintenance.garbage(older_than)
    if change.dry_run:
        document = garbage_document(found)
        show(document, as_json, lambda console: _draw_garbage(console, document))
        return
    confirm("deleting raw runs of", len(found), yes=change.yes, force=change.force)
    runs, files = ws.maintenance.collect_garbage(found, older_than, actor=change.actor)
    message = f"deleted {counted(runs, 'raw run')}, {counted(files, 'file')}"
    show(deleted_runs_document(runs, files), as_json, lambda console: console.print(message))


def _draw_garbage(console: Console, document: Document) -> None:
    items = document["items"]
    if not items:
        console.print("there is nothing to delete")
        return
    console.print(table(None, ("partition", "run"), [(item["key"], item["run_id"]) for item in items[:50]]))
    console.print(f"{counted(len(items), 'raw run')} would be deleted")
