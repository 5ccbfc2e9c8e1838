"""Tables: fields, published schema versions, loads, pointers and the first rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from penstock.errors import PenstockError, UsageError
from penstock.http.api.tables import list_rows, list_tables
from penstock.http.calls import Call, Reply
from penstock.http.pages.rendering import Page, render
from penstock.http.parameters import CURSOR, in_path, limit
from penstock.http.problems import bad_request
from penstock.http.routes import PAGE, Access, Route
from penstock.views.document import Document, paginate
from penstock.views.sql_rows import shortened, value_text

_TABLE = in_path("name", "A table: source.query_name.", r"^[a-z][a-z0-9_]{0,62}\.[a-z][a-z0-9_]{0,62}$")
_SAMPLE = 20
_NO_FILTERS = {"customer": (), "date": None, "since": None, "until": None, "column": (), "schema_version": None}


def show_tables(call: Call) -> Reply:
    """The tables of the workspace."""
    return render(
        call,
        "tables.html",
        Page("Tables", "tables", "penstock warehouse pointers"),
        tables=list_tables(call)["items"],
    )


def show_one_table(call: Call) -> Reply:
    """One table."""
    name, ws = call.path["name"], call.workspace
    ws.context.require_tables([name])
    [table] = [item for item in list_tables(call)["items"] if item["table"] == name]
    source, _, query = name.partition(".")
    loads = _loads(call, source, query)
    columns, rows, error = _sample(call)
    return render(
        call,
        "table.html",
        Page(name, "tables", f"penstock read {name} --limit {_SAMPLE}"),
        table=table,
        query=query,
        pointers=ws.grids.pointers(source, query),
        loads=loads["items"],
        loads_total=loads["total"],
        next=loads["next"],
        limit=call.limit,
        is_continued=bool(call.query["cursor"]),
        columns=columns,
        rows=rows,
        sample_error=error,
    )


def _loads(call: Call, source: str, query: str) -> Document:
    """One page of the load records of a table."""
    from penstock.partition import PartitionKey, run_id
    from penstock.views.warehouse import loads_document

    after, after_run = None, None
    with bad_request():
        if call.after:
            text, _, run = call.after.rpartition("/")
            after, after_run = PartitionKey.parse(text), run_id(run)
            if (after.source, after.query_name) != (source, query):
                raise UsageError(f"the cursor belongs to the loads of {after.asset}: begin without a cursor")
    found, total = call.workspace.context.pointers.loads(
        source=source, queries=(query,), after=after, after_run=after_run, limit=call.limit + 1
    )
    shown, following = paginate(found, call.limit, lambda load: f"{load.key}/{load.run_id}")
    return call.page(loads_document(shown, total, following))


def _sample(call: Call) -> tuple[list[dict[str, Any]], list[Sequence[str | None]], str]:
    """Columns and texts of the first rows, or the error that their read raises."""
    import orjson

    try:
        reply = list_rows(replace(call, query={**_NO_FILTERS, "limit": _SAMPLE}))
    except PenstockError as error:
        return [], [], str(error)
    items = orjson.loads(reply.content)["items"]
    names = list(items[0]) if items else []
    columns = [
        {"name": name, "type": "", "is_number": all(isinstance(item[name], int | float) for item in items)}
        for name in names
    ]
    return columns, [[shortened(value_text(item[name])) for name in names] for item in items], ""


ROUTES = (
    Route("GET", "/tables", show_tables, Access.VIEWER, PAGE, "The tables"),
    Route("GET", "/tables/{name}", show_one_table, Access.VIEWER, PAGE, "One table", (_TABLE, limit(20), CURSOR)),
)
