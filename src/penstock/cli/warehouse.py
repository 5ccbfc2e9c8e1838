"""`penstock warehouse ...`: the published side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import completion
from penstock.cli import options as opt
from penstock.cli.progress import RunProgress
from penstock.cli.render import cut, draw_mismatches, draw_more, key_fields, listing, mismatch_items, page, show
from penstock.cli.tables import table
from penstock.errors import ExitCode
from penstock.plural import counted

if TYPE_CHECKING:
    from penstock.control.select import Selection
    from penstock.partition import PartitionKey, RunId
    from penstock.warehouse.pointers import Pointer

warehouse = typer.Typer(no_args_is_help=True, help="Look at what consumers can read.")


def register(app: typer.Typer) -> None:
    app.add_typer(warehouse, name="warehouse")


@warehouse.callback()
def _group() -> None:
    pass


@warehouse.command()
def pointers(
    keys: opt.Keys = None,
    source: opt.SourceName = None,
    customer: opt.Customers = None,
    query: opt.Queries = None,
    date: opt.OnDate = None,
    since: opt.Since = None,
    until: opt.Until = None,
    status: opt.Status = None,
    limit: opt.Limit = 100,
    after: opt.After = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Which run the warehouse serves for each partition, in which table and version, and since when."""
    from penstock.app import open_workspace

    ws = open_workspace(workspace)
    chosen = opt.selection(keys, source, customer, query, date, since, until, status)
    ws.ranges(chosen)  # refuses unknown names
    pointers, total = ws.pointers.find(**_asked(chosen), after=opt.after_key(after), limit=limit + 1)
    found, following = cut(pointers, limit, lambda pointer: pointer.key)
    rows = [
        (p.key, p.run_id, p.schema_version, p.available, p.table, p.table_version, p.record_count, p.loaded_at)
        for p in found
    ]
    columns = ("partition", "run", "schema", "available", "table", "version", "rows", "loaded (UTC)")

    def draw(console: Any) -> None:
        console.print(table(None, columns, rows))
        draw_more(console, len(found), total, following)

    show(page([_item(pointer) for pointer in found], total, following), as_json, draw)


@warehouse.command()
def loads(
    keys: opt.Keys = None,
    source: opt.SourceName = None,
    customer: opt.Customers = None,
    query: opt.Queries = None,
    date: opt.OnDate = None,
    since: opt.Since = None,
    until: opt.Until = None,
    status: opt.Status = None,
    limit: opt.Limit = 100,
    after: opt.AfterLoad = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Which runs were ever loaded, when, with which schema version and how many rows."""
    from penstock.app import open_workspace

    ws = open_workspace(workspace)
    chosen = opt.selection(keys, source, customer, query, date, since, until, status)
    ws.ranges(chosen)  # refuses unknown names
    begin, begin_run = _after_load(after)
    loads, total = ws.pointers.loads(**_asked(chosen), after=begin, after_run=begin_run, limit=limit + 1)
    found, following = cut(loads, limit, lambda load: f"{load.key}/{load.run_id}")
    names = ("run_id", "schema_version", "record_count", "loaded_at", "table")
    items = [{**key_fields(load.key), **{name: getattr(load, name) for name in names}} for load in found]

    def draw(console: Any) -> None:
        rows = [(load.key, *(getattr(load, name) for name in names)) for load in found]
        console.print(table(None, ("partition", "run", "schema", "rows", "loaded (UTC)", "table"), rows))
        draw_more(console, len(found), total, following)

    show(page(items, total, following), as_json, draw)


@warehouse.command()
def reconcile(
    dry_run: opt.DryRun = False,
    limit: opt.Limit = 100,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Compare all of authority with what the warehouse serves, and publish the difference: load, replace, hide. *

    Verdicts record what is due for publication, and every run publishes that. This command compares everything,
    whatever is recorded.
    """
    from penstock.app import open_workspace, os_user
    from penstock.state.audited import AuditedAct
    from penstock.state.control import AuditEntry

    ws = open_workspace(workspace)
    found, counts = ws.differences(limit)
    items = [
        {
            **key_fields(d.key),
            "act": d.act,
            "run_id": d.run_id,
            "schema_version": d.schema_version,
            "served_run_id": d.served_run_id,
            "served_schema_version": d.served_schema_version,
        }
        for d in found
    ]
    mismatches = ws.mismatches(everything=True)
    document: dict[str, Any] = {
        **listing(items, sum(counts.values())),
        "counts": counts,
        "mismatches": mismatch_items(mismatches),
        "dry_run": dry_run,
    }
    if not dry_run:
        with RunProgress() as progress:
            needed = counts or ws.pointers.interrupted()
            published = ws.reconcile(progress.stage("load", sum(counts.values())), actor=actor) if needed else None
        if not needed:
            ws.note(AuditEntry(actor or os_user(), AuditedAct.RECONCILE, {}, {}), 0, "nothing differs")
        broken = {str(key): words for key, words in published.broken.items()} if published else {}
        done = (published.loaded, published.hidden) if published else (0, 0)
        document |= {"loaded": done[0], "hidden": done[1], "broken": broken}

    def draw(console: Any) -> None:
        from rich.text import Text

        draw_mismatches(console, mismatches)
        if not counts:
            if not mismatches:
                console.print("the warehouse serves exactly what is vouched for")
            return
        rows = [(d.act, d.key, d.run_id, d.served_run_id) for d in found]
        console.print(table(None, ("act", "partition", "run", "served now"), rows))
        console.print(", ".join(f"{number:,} to {act}" for act, number in counts.items()))
        if not dry_run:
            console.print(f"{document['loaded']:,} loaded, {document['hidden']:,} hidden")
            for key, words in document["broken"].items():
                console.print(Text.assemble((key, "red"), f": {words}"))

    show(document, as_json, draw)
    if document.get("broken") or mismatches:
        raise typer.Exit(ExitCode.FAILED)


Tables = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TABLE", help="source.query_name; all tables if none is named.", autocompletion=completion.tables
    ),
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
    """Write the small files of each month together. Rows and their runs stay as they are; readers notice nothing. *"""
    from penstock.app import open_workspace

    ws = open_workspace(workspace)
    names = [head.name for _, head in ws.warehouse_tables(tables or ())]
    if dry_run:
        done = ws.compactable(tables or ())
    else:
        with RunProgress() as progress:
            done = ws.compact(names, progress.stage("compact", len(names)), actor=actor) if names else []
    items = [{"table": c.table, "files_before": c.before, "files_after": c.after} for c in done]

    def draw(console: Any) -> None:
        rows = [(c.table, c.before, c.after) for c in done]
        columns = ("table", "small files", "would become at least" if dry_run else "became")
        console.print(table(None, columns, rows) if rows else "there are no tables yet")

    show({**listing(items, len(items)), "dry_run": dry_run}, as_json, draw)


@warehouse.command()
def vacuum(
    tables: Tables = None,
    retention: Annotated[
        str, typer.Option("--retention", metavar="D", help="Keep files that readers may still need: 7d, at least 1h.")
    ] = "7d",
    dry_run: opt.DryRun = False,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Delete data files that nobody needs any more.

    Kept are the files of what readers see now, of live snapshots, of versions inside the retention time, and of
    publications under way.
    """
    from penstock.app import open_workspace, os_user
    from penstock.config.values import duration
    from penstock.state.audited import AuditedAct
    from penstock.state.control import AuditEntry

    ws, age = open_workspace(workspace), duration(retention)
    ws.check_vacuum(tables or (), age)
    if dry_run:
        found = ws.vacuum(tables or (), age, dry_run=True)
    else:
        entry = AuditEntry(actor or os_user(), AuditedAct.VACUUM, {"tables": tables or []}, {"retention": retention})
        with ws.audited(entry) as act:
            found = ws.vacuum(tables or (), age, dry_run=False)
            act.affected = sum(len(paths) for paths in found.values())
    total = sum(len(paths) for paths in found.values())
    items = [{"table": name, "files": paths} for name, paths in found.items()]

    def draw(console: Any) -> None:
        console.print(table(None, ("table", "files"), [(name, len(paths)) for name, paths in found.items()]))
        console.print(f"{'would delete' if dry_run else 'deleted'} {counted(total, 'file')}")

    show({**listing(items, len(items)), "files": total, "dry_run": dry_run}, as_json, draw)


@warehouse.command()
def verify(
    tables: Tables = None,
    raw: Annotated[bool, typer.Option("--raw/--no-raw", help="Also read the payloads it was made from.")] = True,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Count and hash everything that is served, and compare it with pointers, verdicts and raw, and the files with
    the statistics in the Delta log; exit 1 if anything is wrong. `penstock recover --from database --table TABLE`
    writes damaged tables again."""
    from penstock.app import open_workspace
    from penstock.warehouse.layout import rebuild_hint

    ws = open_workspace(workspace)
    with RunProgress() as progress:
        report = progress.stage("verify", len(ws.warehouse_tables(tables or ())))
        done = ws.verify(tables or (), report, raw=raw)
    mismatches = ws.mismatches(everything=True)
    items = [{**key_fields(key), "problems": words} for key, words in sorted(done.wrong.items())]
    files = [{"table": name, "path": path, "problems": words} for (name, path), words in sorted(done.files.items())]
    facts = {
        "partitions": done.partitions,
        "rows": done.rows,
        "payloads": done.payloads,
        "files": files,
        "mismatches": mismatch_items(mismatches),
    }
    checked = f"{counted(done.partitions)}, {counted(done.rows, 'row')}, {counted(done.payloads, 'payload')}"

    def draw(console: Any) -> None:
        for name, path, words in ((name, path, word) for (name, path), found in done.files.items() for word in found):
            console.print(f"{name}: {path}: {words}", style="red", soft_wrap=True)
        rows = [(key, words) for key, problems in sorted(done.wrong.items()) for words in problems]
        if rows:
            console.print(table(None, ("partition", "problem"), rows))
        draw_mismatches(console, mismatches)
        wrong = [f"{counted(len(items), 'partition is', 'partitions are')} wrong"] if items else []
        wrong += [f"{counted(len(files), 'file is', 'files are')} not as the Delta log says"] if files else []
        sound = "all as it should be" if not mismatches else "every recorded version is as it should be"
        console.print(f"{checked}: {' and '.join(wrong) or sound}")
        for name in sorted({name for name, _ in done.files}):
            console.print(f"{name}: {rebuild_hint(name)}", soft_wrap=True)

    show({**listing(items, len(items)), **facts}, as_json, draw)
    if items or files or mismatches:
        raise typer.Exit(ExitCode.FAILED)


def _asked(chosen: Selection) -> dict[str, Any]:
    """The filters of a command, as the published side takes them."""
    names = ("keys", "source", "customers", "queries", "since", "until", "status")
    return {name: getattr(chosen, name) for name in names}


def _after_load(text: str | None) -> tuple[PartitionKey | None, RunId | None]:
    """KEY continues after a partition, KEY/RUN after one of its loads."""
    from penstock.partition import run_id

    if text is None or text.count("/") < 4:
        return opt.after_key(text), None
    key, _, run = text.rpartition("/")
    return opt.after_key(key), run_id(run)


def _item(pointer: Pointer) -> dict[str, Any]:
    return {
        **key_fields(pointer.key),
        "run_id": pointer.run_id,
        "schema_version": pointer.schema_version,
        "available": pointer.available,
        "table": pointer.table,
        "table_version": pointer.table_version,
        "loaded_at": pointer.loaded_at,
        "record_count": pointer.record_count,
    }
