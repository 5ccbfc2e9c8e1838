"""`penstock status`: the number of partitions by display status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import options as opt
from penstock.cli.render import draw_mismatches, show
from penstock.cli.text_tables import table
from penstock.errors import UsageError
from penstock.plural import counted
from penstock.projections.status_codes import MARKS

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.lifecycle import PartitionStatus
    from penstock.projections.status_board import PartitionStanding
    from penstock.views.document import Document

_GROUPS = ("query", "customer", "date", "month", "source")
_LARGEST_GRID = 20_000

# The character and the colour of each display status, in the grid and its legend.
_COLOURS = {
    "materialized": "green",
    "materialized_but_last_attempt_failed": "yellow",
    "stale": "cyan",
    "unavailable": "magenta",
    "never_materialized": "bright_black",
    "failed": "red",
}
_MARKS = {name: (mark, _COLOURS[name]) for name, mark in MARKS.items()}


def register(app: typer.Typer) -> None:
    app.command("status")(status)


@opt.option_groups
def status(
    filters: opt.Filters,
    by: Annotated[
        str, typer.Option("--by", metavar="A,B", help="Group by query, customer, date, month, source.")
    ] = "query",
    grid: Annotated[
        bool, typer.Option("--grid", help="Draw customers x dates, one character for each partition.")
    ] = False,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Count the expected partitions by display status.

    The configuration (customers, queries, start_date) determines which partitions are expected.
    """
    from penstock.app import open_workspace
    from penstock.views.status import grid_document, status_document

    ws = open_workspace(workspace)
    groups = [name.strip() for name in by.split(",") if name.strip()]
    if unknown := [name for name in groups if name not in _GROUPS]:
        raise UsageError(f"cannot group by {', '.join(unknown)}: use {', '.join(_GROUPS)}")
    chosen = filters.selection()
    if grid:
        total = sum(len(r) for r in ws.context.ranges(chosen))
        if total > _LARGEST_GRID:
            raise UsageError(f"a grid of {counted(total)} would not fit: narrow it with --query, --since, --customer")
        found = ws.status.board(chosen).everything()
        show(grid_document(found), as_json, lambda console: _draw_grid(console, found))
        return
    rows, flag_counts = ws.status.counts(chosen, groups)
    mismatches = ws.context.mismatches()
    document = status_document(
        groups,
        rows,
        flags=flag_counts,
        publish_due=ws.context.pointers.waiting(),
        provisional=ws.partitions.provisional_count(chosen),
        source_errors=[*ws.partitions.source_errors(), *ws.context.unreadable_models.values()],
        mismatches=mismatches,
        unfinished=ws.partitions.unfinished_runs(),
        quota=ws.quotas.sources(),
        quota_reserve=ws.settings.control.quota_reserve,
    )

    def draw(console: Console) -> None:
        draw_mismatches(console, mismatches)
        if not rows:
            console.print(_nothing(sum(len(span) for span in ws.context.ranges(chosen)), chosen.status))
        else:
            _draw_counts(console, groups, document)
        if flags := document["flags"]:
            console.print("flags: " + ", ".join(f"{n:,} {name}" for name, n in flags.items()))
        if document["provisional"]:
            console.print(f"{document['provisional']:,} of them provisional: the source may still change the day")
        for message in document["troubles"]:
            console.print(message, style="red")
        for item in document["quota"]:
            console.print(item["message"], style="yellow", soft_wrap=True)
        for message in document["unfinished"]:
            console.print(message, style="yellow", soft_wrap=True)

    show(document, as_json, draw)


def _nothing(expected: int, status: PartitionStatus | None) -> str:
    if not expected or status is None:
        return "nothing is expected: check customers, start_date and the filters"
    return f"{counted(expected)} expected: none is {status}"


def _draw_counts(console: Console, groups: Sequence[str], document: Document) -> None:
    from rich.text import Text

    rows = [
        [
            *(item[group] for group in groups),
            Text(item["display_status"], _MARKS[item["display_status"]][1]),
            item["count"],
        ]
        for item in document["items"]
    ]
    console.print(table(None, (*groups, "status", "partitions"), rows))
    counts = ", ".join(f"{n:,} {name}" for name, n in sorted(document["counts"].items()))
    console.print(f"{document['total']:,} expected: {counts}")
    if document["publish_due"]:
        accepted = counted(document["publish_due"], "accepted partition waits", "accepted partitions wait")
        console.print(f"{accepted} for publication by the next `penstock run`")


def _draw_grid(console: Console, found: Sequence[PartitionStanding]) -> None:
    from rich.text import Text

    by_query: dict[str, dict[str, dict[Any, str]]] = {}
    for standing in found:
        customers = by_query.setdefault(standing.key.asset, {})
        customers.setdefault(standing.key.customer_id, {})[standing.key.logical_date] = _mark_name(standing)
    for asset, customers in by_query.items():
        days = sorted({day for marks in customers.values() for day in marks})
        width = max(len(customer) for customer in customers)
        console.print(Text(f"\n{asset}   {days[0]} to {days[-1]}, a column a day", "bold"))
        for customer, marks in customers.items():
            line = Text(f"{customer:<{width}} ")
            for day in days:
                mark, colour = _MARKS[marks[day]] if day in marks else (" ", "default")
                line.append(mark, colour)
            console.print(line, overflow="fold")
    legend = Text("\n")
    for name, (mark, colour) in _MARKS.items():
        legend.append(f"{mark} ", colour)
        legend.append(f"{name}   ")
    console.print(legend)


def _mark_name(standing: PartitionStanding) -> str:
    if standing.display == "never_materialized" and "last_attempt_failed" in standing.flags:
        return "failed"
    return str(standing.display)
