"""The grid: the status of each partition of one query as a byte, and the labels of its rows and columns."""

from __future__ import annotations

from penstock.http.calls import Call, Reply
from penstock.http.parameters import SINCE, UNTIL, Parameter
from penstock.http.routes import PREFIX, Access, Route
from penstock.http.schemas.partitions import GridLabels
from penstock.views.document import Document

_QUERY = Parameter("query", "The query or model.", required=True)


def show_grid(call: Call) -> Reply:
    """Return one byte for each customer and day, row by row. `grid/labels` has the customers, days and codes.

    The headers Grid-Rows and Grid-Columns state the size, Grid-Layout the labels that belong to the bytes.
    """
    found = call.workspace.grids.grid(call.query["query"], call.query["since"], call.query["until"])
    headers = {
        "Grid-Rows": str(len(found.codes.customers)),
        "Grid-Columns": str(found.codes.days),
        "Grid-Layout": found.layout,
    }
    return Reply(
        content=found.codes.content,
        gzipped=found.gzipped,
        media_type="application/octet-stream",
        headers=headers,
        etag=found.digest,
    )


def show_labels(call: Call) -> Document:
    """Return the customers of the rows, the days of the columns, and the meaning of each code."""
    from penstock.views.grid import grid_labels_document

    ws = call.workspace
    found = ws.grids.grid(call.query["query"], call.query["since"], call.query["until"])
    return grid_labels_document(found, {customer.id: customer for customer in ws.settings.customers})


ROUTES = (
    Route(
        "GET",
        f"{PREFIX}/grid",
        show_grid,
        Access.VIEWER,
        "application/octet-stream",
        "The status of the partitions of one query, one byte each",
        (_QUERY, SINCE, UNTIL),
    ),
    Route(
        "GET",
        f"{PREFIX}/grid/labels",
        show_labels,
        Access.VIEWER,
        GridLabels,
        "The labels of the grid",
        (_QUERY, SINCE, UNTIL),
    ),
)
