"""Lineage, one hop: what a table or a partition is derived from, and what is derived from it."""

from __future__ import annotations

from penstock.app.table_lineage import LISTED, all_tables, lineage_of_partition, lineage_of_table
from penstock.errors import UsageError
from penstock.http.calls import Call, Reply
from penstock.http.pages.partition import customer_of
from penstock.http.pages.rendering import Page, render
from penstock.http.parameters import Parameter
from penstock.http.problems import RequestRefused
from penstock.http.routes import PAGE, Access, Route
from penstock.partition import PartitionKey

_TABLE = Parameter("table", "A table: source.query_name.")
_KEY = Parameter("key", "A partition: source/customer_id/query_name/YYYY-MM-DD.")


def show_lineage(call: Call) -> Reply:
    """All tables, the neighbours of one table, or the recorded inputs and outputs of one partition."""
    context = call.workspace.context
    try:
        key = PartitionKey.parse(call.query["key"]) if call.query["key"] else None
        partition = None if key is None else lineage_of_partition(context, key)
        named = f"{key.source}.{key.query_name}" if key is not None else call.query["table"]
        table = None if named is None else lineage_of_table(context, named)
    except UsageError as error:
        raise RequestRefused(str(error), 404) from error
    title = f"Lineage of {key or named}" if named is not None else "Lineage"
    return render(
        call,
        "lineage.html",
        Page(title, "lineage", "penstock lineage emit RUN" if key is None else f"penstock why {key}"),
        tables=all_tables(context),
        table=table,
        partition=partition,
        customer=None if key is None else customer_of(call, key),
        listed=LISTED,
    )


ROUTES = (Route("GET", "/lineage", show_lineage, Access.VIEWER, PAGE, "Lineage", (_TABLE, _KEY)),)
