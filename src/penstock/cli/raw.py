"""`penstock raw`: what was received, run by run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import options as opt
from penstock.cli.render import key_fields, listing, show
from penstock.cli.text_tables import table
from penstock.partition import PartitionKey
from penstock.plural import counted

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.raw.reader import RawRun

raw = typer.Typer(no_args_is_help=True, help="What was received, run by run.")


def register(app: typer.Typer) -> None:
    app.add_typer(raw, name="raw")


@raw.command("list")
def list_runs(
    key: opt.OneKey, workspace: opt.WorkspaceDir = ".", as_json: opt.AsJson = False, debug: opt.Debug = False
) -> None:
    """Every run of a partition in the raw sink with its seal; the one that consumers may read is marked."""
    from penstock.app import open_reader

    ws = open_reader(workspace)
    chosen = PartitionKey.parse(key)
    found, trusted = ws.raw_runs(chosen)
    items = [_item(chosen, run, trusted) for run in found]

    def draw(console: Console) -> None:
        from rich.text import Text

        if not items:
            console.print(f"nothing of {chosen} was ever received")
            return
        names = ("run_id", "sealed", "record_count", "payload_bytes", "extracted_at", "schema_version", "authoritative")
        console.print(table(None, names, [[item[name] for name in names] for item in items]))
        for item in items:
            if item["error"]:
                console.print(Text.assemble((item["run_id"], "red"), f": {item['error']}"))

    show(listing(items, len(items)), as_json, draw)


@raw.command("read")
def read(
    key: opt.OneKey,
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="Another run than the trusted one; for operators.")
    ] = None,
    limit: opt.LineLimit = None,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """The rows of a partition as they were received, one JSON document a line, checked against their seal.

    Without --run: those of the trusted run, and only while the partition is success. Reading another run is for
    operators, and is in the audit log.
    """
    from itertools import islice

    import orjson

    from penstock.app import open_reader, open_workspace
    from penstock.partition import run_id

    chosen = PartitionKey.parse(key)
    if run:
        lines = open_workspace(workspace).raw_lines_of(chosen, run_id(run), actor)
    else:
        lines = open_reader(workspace).raw_lines(chosen)
    wanted = list(islice(lines, limit))
    if as_json:
        items = [orjson.loads(line) for line in wanted]
        show(listing(items, len(items)), True, lambda _console: None)
        return
    for line in wanted:
        sys.stdout.buffer.write(line + b"\n")
    sys.stdout.flush()


@raw.command("gc")
def gc(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="D", help="Only runs that were closed so long ago.")
    ] = "90d",
    dry_run: opt.DryRun = False,
    yes: opt.Yes = False,
    force: opt.Force = False,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Delete raw runs that nothing refers to: neither trusted nor served, nor the input of something trusted.

    No act can return to a deleted run: rollback and approve refuse it.
    """
    from penstock.app import open_workspace, os_user
    from penstock.cli.confirm import confirm
    from penstock.config.values import duration
    from penstock.state.audited import AuditedAct
    from penstock.state.control import AuditEntry

    ws = open_workspace(workspace)
    age = duration(older_than)
    found = ws.garbage(age)
    items = [{**key_fields(attempt.partition), "run_id": attempt.run_id} for attempt in found]
    if dry_run:
        document = {**listing(items, len(items)), "dry_run": True}
        show(document, as_json, lambda console: _draw_garbage(console, items))
        return
    confirm("deleting raw runs of", len(found), yes=yes, force=force)
    entry = AuditEntry(actor or os_user(), AuditedAct.RAW_GC, {"older_than": older_than}, {})
    runs, files = ws.collect_garbage(found, age, entry)
    words = f"deleted {counted(runs, 'raw run')}, {counted(files, 'file')}"
    show({"deleted": runs, "files": files, "dry_run": False}, as_json, lambda console: console.print(words))


def _draw_garbage(console: Console, items: list[dict[str, Any]]) -> None:
    if not items:
        console.print("there is nothing that could be deleted")
        return
    console.print(table(None, ("partition", "run"), [(item["key"], item["run_id"]) for item in items[:50]]))
    console.print(f"{counted(len(items), 'raw run')} would be deleted")


def _item(key: PartitionKey, run: RawRun, trusted: str | None) -> dict[str, Any]:
    from penstock.raw.seal import Seal

    seal = run.seal if isinstance(run.seal, Seal) else None
    return {
        **key_fields(key),
        "run_id": run.attempt.run_id,
        "sealed": seal is not None,
        "record_count": seal.record_count if seal else None,
        "payload_bytes": seal.payload_bytes if seal else None,
        "payload_sha256": seal.payload_sha256 if seal else None,
        "extracted_at": seal.extracted_at if seal else None,
        "schema_version": seal.schema_version if seal else None,
        "authoritative": run.attempt.run_id == trusted,
        "error": str(run.seal) if run.seal is not None and seal is None else None,
    }
