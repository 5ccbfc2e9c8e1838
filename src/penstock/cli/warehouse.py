"""`penstock warehouse ...`: the published side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from penstock.cli import options as opt
from penstock.cli.render import key_fields, listing, show, table

if TYPE_CHECKING:
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
    found, total = ws.pointers.find(
        keys=chosen.keys,
        source=chosen.source,
        customers=chosen.customers,
        queries=chosen.queries,
        since=chosen.since,
        until=chosen.until,
        status=chosen.status,
        after=opt.after_key(after),
        limit=limit,
    )
    rows = [
        (p.key, p.run_id, p.schema_version, p.available, p.table, p.table_version, p.record_count, p.loaded_at)
        for p in found
    ]
    columns = ("partition", "run", "schema", "available", "table", "version", "rows", "loaded (UTC)")

    def draw(console: Any) -> None:
        console.print(table(None, columns, rows))
        console.print(f"{len(found):,} of {total:,}")

    show(listing([_item(pointer) for pointer in found], total), as_json, draw)


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
