"""`penstock late`: which tables are late or at risk, what blocks them, and when they are expected."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import options as opt
from penstock.cli.render import show
from penstock.cli.text_tables import table
from penstock.errors import ExitCode
from penstock.plural import counted

if TYPE_CHECKING:
    from datetime import date as Day

    from rich.console import Console

    from penstock.app import Workspace
    from penstock.control.lateness import DayLateness, Missing
    from penstock.control.lateness_history import TableHistory

_WIDTH = 80
_NONE = (
    "No table has a deadline, or nothing is expected yet. A deadline of a query or a\n"
    "model in the workspace file is, for example,\n"
    '  freshness: {complete_by: "09:00", time_zone: Europe/Berlin, require: 99%}'
)


def register(app: typer.Typer) -> None:
    app.command("late")(late)


def late(
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="[TABLE]...", help="source.query_name; all tables with a deadline.")
    ] = None,
    date: Annotated[str | None, typer.Option("--date", metavar="D", help="Only this day.")] = None,
    history: Annotated[
        bool, typer.Option("--history", help="How often and how long each table was late, over the last 30 days.")
    ] = False,
    since: Annotated[str | None, typer.Option("--since", metavar="D", help="The first day of --history.")] = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Show tables beside their deadlines: ready, on track, at risk or late; what is missing, and the expected time.

    Exit with 0 if nothing is late and with 1 if a table is late. --history exits with 0.

    Without --date the command shows the day whose deadline is today, and each of the seven days before it that is not
    ready. Deadlines are `freshness.complete_by` of queries and models in the workspace file.
    """
    from penstock.app import open_workspace
    from penstock.control.filters import parse_day
    from penstock.control.lateness import Punctuality
    from penstock.errors import UsageError
    from penstock.views.lateness import late_document

    if since is not None and not history:
        raise UsageError("--since is the first day of --history: use them together")
    if date is not None and history:
        raise UsageError("--date is one day of the present: use it without --history")
    ws = open_workspace(workspace)
    names = list(dict.fromkeys(tables or ()))
    if history:
        _show_history(ws, names, since, as_json)
        return
    days = ws.lateness.report(names, parse_day(date, "date"))
    now = ws.context.now()
    show(late_document(days), as_json, lambda console: _draw(console, days, now))
    if any(day.punctuality is Punctuality.LATE for day in days):
        raise typer.Exit(ExitCode.FAILED)


def _show_history(ws: Workspace, names: Sequence[str], since: str | None, as_json: bool) -> None:
    from penstock.control.filters import parse_day
    from penstock.control.lateness_history import table_history
    from penstock.views.lateness import history_document

    days, now = ws.lateness.history(names, parse_day(since, "since")), ws.context.now()
    found = [
        table_history(name, [day for day in days if day.table == name], now)
        for name in dict.fromkeys(day.table for day in days)
    ]
    show(history_document(found, days, now), as_json, lambda console: _draw_history(console, found))


def _draw(console: Console, days: Sequence[DayLateness], now: datetime) -> None:
    if not days:
        console.print(_NONE, highlight=False)
    for day in days:
        for line in day_lines(day, now):
            console.print(line, highlight=False, soft_wrap=True, markup=False)


def day_lines(
    day: DayLateness, now: datetime, indent: str = "", shown: set[tuple[str, Day]] | None = None
) -> list[str]:
    """One day as lines of at most 80 columns, where keys and names allow it. The inputs of an input follow where it
    occurs first."""
    from penstock.control.deadlines import NO_DEADLINE
    from penstock.views.lateness import first_inputs

    shown = set() if shown is None else shown
    state = f"  {day.punctuality.replace('_', ' ')}" if day.deadline != NO_DEADLINE else ""
    lines = [f"{indent}{day.table} {day.day}{state}"]
    inner = indent + "  "
    if day.deadline != NO_DEADLINE:
        lines.append(f"{inner}deadline  {_when(day.deadline, now)}")
    needed = "" if day.required == day.expected else f", {day.required:,} required"
    lines.append(f"{inner}there     {day.available:,} of {day.expected:,}{needed}")
    label = "missing"
    for one in day.missing:
        lines += _wrapped(f"{inner}{label:<8}  ", _missing(one, now))
        label = ""
        if one.example is not None:
            lines.append(f"{inner}            {one.example}")
    if day.missing:
        at = "unknown" if day.expected_at is None else _when(day.expected_at, now)
        lines.append(f"{inner}expected  {at}")
    for one_input in first_inputs(day, shown):
        lines += day_lines(one_input, now, inner, shown)
    return lines


def _missing(one: Missing, now: datetime) -> str:
    until = f" until {_when(one.until, now)}" if one.until is not None else ""
    return f"{one.count:,} {one.cause.replace('_', ' ')}{until}" + (f": {one.detail}" if one.detail else "")


def _wrapped(first: str, text: str) -> list[str]:
    found = textwrap.wrap(
        text, max(_WIDTH - len(first), 30), break_long_words=False, break_on_hyphens=False, max_lines=4
    )
    return [(first if at == 0 else " " * len(first)) + line for at, line in enumerate(found)]


def _when(moment: datetime, now: datetime) -> str:
    distance = f"in {_length(moment - now)}" if moment > now else f"{_length(now - moment)} ago"
    return f"{moment:%Y-%m-%d %H:%M} UTC ({distance})"


def _length(span: timedelta) -> str:
    minutes = int(span.total_seconds()) // 60
    days, hours, minutes = minutes // 1440, minutes // 60 % 24, minutes % 60
    if days:
        return f"{days}d {hours}h"
    return f"{hours}h {minutes}m" if hours else f"{minutes}m"


def _draw_history(console: Console, found: Sequence[TableHistory]) -> None:
    if not found:
        console.print("There is no history: no table with a deadline has published a day yet.", highlight=False)
        return
    rows = [
        (
            one.table,
            f"{one.late} of {counted(one.days, 'day')}",
            one.never_complete,
            "-" if one.median_late is None else _length(one.median_late),
            "-" if one.worst_late is None else f"{_length(one.worst_late)} ({one.worst_day})",
        )
        for one in found
    ]
    console.print(table(None, ("table", "late", "never complete", "median", "longest"), rows))
