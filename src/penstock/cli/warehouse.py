"""`penstock warehouse ...`: the published tables, their verification and maintenance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import completion
from penstock.cli import options as opt
from penstock.cli.progress import RunProgress
from penstock.cli.render import draw_mismatches, draw_more, show
from penstock.cli.text_tables import table
from penstock.errors import ExitCode
from penstock.plural import counted
from penstock.views.document import paginate

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.control.select import Selection
    from penstock.partition import PartitionKey, RunId

warehouse = typer.Typer(no_args_is_help=True, help="The published tables: pointers, loads, verification, maintenance.")


def register(app: typer.Typer) -> None:
    app.add_typer(warehouse, name="warehouse")


@warehouse.callback()
def _group() -> None:
    pass


@warehouse.command()
@opt.option_groups
def pointers(
    filters: opt.Filters,
    limit: opt.Limit = 100,
    after: opt.After = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """List the pointers: the run that the warehouse serves for each partition, its table and version."""
    from penstock.app import open_workspace
    from penstock.views.warehouse import pointers_document

    ws = open_workspace(workspace)
    chosen = filters.selection()
    ws.context.ranges(chosen)  # refuses unknown names
    pointers, total = ws.context.pointers.find(**_filters(chosen), after=opt.after_key(after), limit=limit + 1)
    found, following = paginate(pointers, limit, lambda pointer: pointer.key)
    rows = [
        (p.key, p.run_id, p.schema_version, p.available, p.table, p.table_version, p.record_count, p.loaded_at)
        for p in found
    ]
    columns = ("partition", "run", "schema", "available", "table", "version", "rows", "loaded (UTC)")

    def draw(console: Console) -> None:
        console.print(table(None, columns, rows))
        draw_more(console, len(found), total, following)

    show(pointers_document(found, total, following), as_json, draw)


@warehouse.command()
@opt.option_groups
def loads(
    filters: opt.Filters,
    limit: opt.Limit = 100,
    after: opt.AfterLoad = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """List the load records: every run that was loaded, with its time, schema version and number of rows."""
    from penstock.app import open_workspace
    from penstock.views.warehouse import loads_document

    ws = open_workspace(workspace)
    chosen = filters.selection()
    ws.context.ranges(chosen)  # refuses unknown names
    begin, begin_run = _after_load(after)
    loads, total = ws.context.pointers.loads(**_filters(chosen), after=begin, after_run=begin_run, limit=limit + 1)
    found, following = paginate(loads, limit, lambda load: f"{load.key}/{load.run_id}")

    def draw(console: Console) -> None:
        rows = [(one.key, one.run_id, one.schema_version, one.record_count, one.loaded_at, one.table) for one in found]
        console.print(table(None, ("partition", "run", "schema", "rows", "loaded (UTC)", "table"), rows))
        draw_more(console, len(found), total, following)

    show(loads_document(found, total, following), as_json, draw)


@warehouse.command()
def reconcile(
    dry_run: opt.DryRun = False,
    limit: opt.Limit = 100,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Compare authority with the pointers of all partitions, and publish the differences: load, replace, hide. *

    Verdicts record which partitions are due for publication, and every run publishes those. This command compares all
    partitions, independently of these records.
    """
    from penstock.app import open_workspace
    from penstock.views.warehouse import reconcile_document

    ws = open_workspace(workspace)
    found, counts = ws.maintenance.differences(limit)
    mismatches = ws.context.mismatches(everything=True)
    published = None
    if not dry_run:
        with RunProgress() as progress:
            needed = counts or ws.context.pointers.interrupted()
            published = (
                ws.maintenance.reconcile(progress.stage("load", sum(counts.values())), actor=actor) if needed else None
            )
        if not needed:
            ws.maintenance.note_reconciled(actor)
    document = reconcile_document(found, counts, mismatches, dry_run=dry_run, published=published)

    def draw(console: Console) -> None:
        from rich.text import Text

        draw_mismatches(console, mismatches)
        if not counts:
            if not mismatches:
                console.print("the warehouse serves exactly the authoritative runs")
            return
        rows = [(d.act, d.key, d.run_id, d.served_run_id) for d in found]
        console.print(table(None, ("act", "partition", "run", "served now"), rows))
        console.print(", ".join(f"{number:,} to {act}" for act, number in counts.items()))
        if not dry_run:
            console.print(f"{document['loaded']:,} loaded, {document['hidden']:,} hidden")
            for key, reason in document["broken"].items():
                console.print(Text.assemble((key, "red"), f": {reason}"))

    show(document, as_json, draw)
    if document.get("broken") or mismatches:
        raise typer.Exit(ExitCode.FAILED)


Tables = Annotated[
    list[str] | None,
    typer.Argument(metavar="TABLE", help="source.query_name (default: all tables).", autocompletion=completion.tables),
]


@warehouse.command()
def compact(
    tables: Tables = None,
    actor: opt.ActorName = None,
    dry_run: opt.DryRun = False,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Merge the small files of each month. Rows and runs do not change, and readers are not interrupted. *"""
    from penstock.app import open_workspace
    from penstock.views.warehouse import compact_document

    ws = open_workspace(workspace)
    names = [head.name for _, head in ws.maintenance.tables(tables or ())]
    if dry_run:
        done = ws.maintenance.compactable(tables or ())
    else:
        with RunProgress() as progress:
            done = ws.maintenance.compact(names, progress.stage("compact", len(names)), actor=actor) if names else []

    def draw(console: Console) -> None:
        rows = [(c.table, c.before, c.after) for c in done]
        columns = ("table", "small files", "would become at least" if dry_run else "became")
        console.print(table(None, columns, rows) if rows else "there are no tables yet")

    show(compact_document(done, dry_run=dry_run), as_json, draw)


@warehouse.command()
def vacuum(
    tables: Tables = None,
    retention: Annotated[
        str,
        typer.Option("--retention", metavar="D", help="Keep the files of versions younger than this: at least 1h."),
    ] = "7d",
    dry_run: opt.DryRun = False,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Delete data files that are no longer needed.

    It keeps the files of the current versions, of snapshots, of versions inside the retention time, and of publications
    in progress.
    """
    from penstock.app import open_workspace
    from penstock.views.warehouse import vacuum_document

    ws = open_workspace(workspace)
    found = ws.maintenance.vacuum(tables or (), retention, actor=actor, dry_run=dry_run)
    document = vacuum_document(found, dry_run=dry_run)

    def draw(console: Console) -> None:
        console.print(table(None, ("table", "files"), [(name, len(paths)) for name, paths in found.items()]))
        console.print(f"{'would delete' if dry_run else 'deleted'} {counted(document['files'], 'file')}")

    show(document, as_json, draw)


@warehouse.command()
def verify(
    tables: Tables = None,
    raw: Annotated[bool, typer.Option("--raw/--no-raw", help="Also read the raw payloads of the rows.")] = True,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Count and hash all served rows, and compare them with pointers, verdicts and raw data.

    It also compares the data files with the statistics in the Delta log. Exit code 1 if anything differs. `penstock
    recover --from database --table TABLE` rebuilds damaged tables.
    """
    from penstock.app import open_workspace
    from penstock.views.warehouse import verify_document
    from penstock.warehouse.layout import rebuild_hint

    ws = open_workspace(workspace)
    with RunProgress() as progress:
        report = progress.stage("verify", len(ws.maintenance.tables(tables or ())))
        done = ws.maintenance.verify(tables or (), report, raw=raw)
    mismatches = ws.context.mismatches(everything=True)
    checked = f"{counted(done.partitions)}, {counted(done.rows, 'row')}, {counted(done.payloads, 'payload')}"

    def draw(console: Console) -> None:
        for (name, path), problems in done.files.items():
            for problem in problems:
                console.print(f"{name}: {path}: {problem}", style="red", soft_wrap=True)
        rows = [(key, problem) for key, problems in sorted(done.wrong.items()) for problem in problems]
        if rows:
            console.print(table(None, ("partition", "problem"), rows))
        draw_mismatches(console, mismatches)
        wrong = [f"{counted(len(done.wrong), 'partition is', 'partitions are')} wrong"] if done.wrong else []
        if done.files:
            wrong.append(f"{counted(len(done.files), 'file differs', 'files differ')} from the Delta log")
        sound = "every recorded version is intact" if mismatches else "every pointer, verdict and file agrees"
        console.print(f"{checked}: {' and '.join(wrong) or sound}")
        for name in sorted({name for name, _ in done.files}):
            console.print(f"{name}: {rebuild_hint(name)}", soft_wrap=True)

    show(verify_document(done, mismatches), as_json, draw)
    if done.wrong or done.files or mismatches:
        raise typer.Exit(ExitCode.FAILED)


def _filters(chosen: Selection) -> dict[str, Any]:
    """Return the filters as arguments of PointerReader."""
    names = ("keys", "source", "customers", "queries", "since", "until", "status")
    return {name: getattr(chosen, name) for name in names}


def _after_load(text: str | None) -> tuple[PartitionKey | None, RunId | None]:
    """Return the partition and the run of `--after`: KEY continues after a partition, KEY/RUN after one load."""
    from penstock.partition import run_id

    if text is None or text.count("/") < 4:
        return opt.after_key(text), None
    key, _, run = text.rpartition("/")
    return opt.after_key(key), run_id(run)
