"""The grid: customers x days of one table on a canvas. A script paints it from the bytes and labels of the API."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

from penstock.control.action_kinds import ActionKind
from penstock.errors import UsageError
from penstock.http.api.grid import show_grid
from penstock.http.calls import Call, Reply
from penstock.http.pages.actions import TEXTS
from penstock.http.pages.rendering import STATUSES, Page, render
from penstock.http.parameters import SINCE, UNTIL, Parameter
from penstock.http.routes import PAGE, Access, Route
from penstock.projections.status_codes import CODES, FAILED, NOT_EXPECTED

_FAILED = "failed"  # the name of the code FAILED, as in `penstock status --grid`


@dataclass(frozen=True, slots=True)
class Code:
    """The meaning of a byte: its name in the URL, text, symbol, and the state by which actions select it."""

    number: int
    name: str
    text: str
    symbol: str
    state: str

    @property
    def display(self) -> str:
        """The display status by which the list selects it; nothing if the state selects it better, because two codes
        have the same display status."""
        return "" if self.number in (CODES["never_materialized"], FAILED, NOT_EXPECTED) else self.name


# In the order of the legend. The state is that of the partition unless it was requeued or waits for publication.
CELLS = (
    Code(CODES["materialized"], "materialized", *STATUSES["materialized"], "success"),
    Code(
        CODES["materialized_but_last_attempt_failed"],
        "materialized_but_last_attempt_failed",
        *STATUSES["materialized_but_last_attempt_failed"],
        "success",
    ),
    Code(CODES["stale"], "stale", *STATUSES["stale"], "success"),
    Code(CODES["never_materialized"], "never_materialized", *STATUSES["never_materialized"], "pending"),
    Code(FAILED, _FAILED, "never materialized, last attempt failed", "✗", "failed"),
    Code(CODES["unavailable"], "unavailable", *STATUSES["unavailable"], "failed"),
)
EMPTY_CELL = Code(NOT_EXPECTED, "", "not expected", "–", "")

# The actions on a selection.
ACTS = (
    ActionKind.RETRY,
    ActionKind.BACKFILL,
    ActionKind.RUN,
    ActionKind.PAUSE,
    ActionKind.RESUME,
    ActionKind.VALIDATE,
)

_TABLE = Parameter("query", "The table, or the name of its query or model; by default the first table.")
_CUSTOMER = Parameter("customer", "Only customers whose id or name contains this text.")
_STATUS = Parameter("status", "Highlight this status.", values=tuple(cell.name for cell in CELLS))


def show_page(call: Call) -> Reply:
    """The page of the grid. An unknown table shows the error of the API above the filters."""
    assets = call.workspace.settings.assets
    tables = {f"{asset.source}.{name}": name for name, asset in assets.items()}
    wanted = call.query["query"] or next(iter(tables), "")
    name = tables.get(wanted, wanted)
    message = _error(call, name) if tables and name not in assets else ""
    table = f"{assets[name].source}.{name}" if name in assets else ""
    filters = {part: call.query[part] for part in ("since", "until", "customer", "status")}
    return render(
        call,
        "grid.html",
        Page("Grid", "grid", _command(name if table else "", call)),
        status=HTTPStatus.BAD_REQUEST if message else HTTPStatus.OK,
        tables=tables,
        table=table,
        name=name,
        source=assets[name].source if table else "",
        message=message,
        filters=filters,
        cells=CELLS,
        empty_cell=EMPTY_CELL,
        acts={act.value: TEXTS[act] for act in ACTS},
    )


def _error(call: Call, name: str) -> str:
    """The text with which the API refuses this name."""
    try:
        show_grid(replace(call, query={"query": name, "since": None, "until": None}))
    except UsageError as error:
        return str(error)
    return ""


def _command(name: str, call: Call) -> str:
    """The command that counts the same partitions."""
    query: Mapping[str, Any] = call.query
    words = ["penstock", "status", "--by", "customer,date"]
    if name:
        words += ["--query", name]
    if any(customer.id == query["customer"] for customer in call.workspace.settings.customers):
        words += ["--customer", query["customer"]]
    for part in ("since", "until"):
        if query[part]:
            words += [f"--{part}", str(query[part])]
    return shlex.join(words)


ROUTES = (
    Route(
        "GET",
        "/grid",
        show_page,
        Access.VIEWER,
        PAGE,
        "The status of the partitions of one table",
        (_TABLE, SINCE, UNTIL, _CUSTOMER, _STATUS),
    ),
)
