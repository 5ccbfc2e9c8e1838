"""`penstock ready`: whether the expected partitions of tables are published."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import options as opt
from penstock.cli.late import day_lines
from penstock.cli.render import show
from penstock.cli.text_tables import table
from penstock.clock import utc_now
from penstock.errors import ExitCode
from penstock.plural import counted

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.control.lateness import DayLateness
    from penstock.control.requested_days import RequestedDays
    from penstock.warehouse.readiness import Coverage, Rule

_SHOWN = 20


def register(app: typer.Typer) -> None:
    app.command("ready")(ready)


@opt.option_groups
def ready(
    tables: Annotated[list[str], typer.Argument(metavar="TABLE...", help="source.query_name; repeatable.")],
    filters: opt.TableFilters,
    require: Annotated[
        str,
        typer.Option("--require", help="Partitions required per day: all, any, a number, or a share such as 95%."),
    ] = "all",
    wait: Annotated[
        str | None, typer.Option("--wait", metavar="D", help="Wait at most this long, for example 10m.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also list what is not ready by cause, and when it is expected.")
    ] = False,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Exit with 0 if every day is ready and with 1 if not; list the partitions that are absent.

    Only published partitions count; a partition of a model counts only if no run that it was derived from was demoted.
    Without dates the command checks every day that is due so far. A day of --date or --until that is not over yet is
    not ready; --wait waits for it, for all tables together. Days without expected partitions are reported; if no day
    has any, the command fails with exit code 2. Use it before a job that reads the table:
    `penstock ready demo.campaign_daily --date 2024-06-01 --wait 30m && my-job`.
    """
    from penstock.app.reader import open_reader
    from penstock.config.values import duration
    from penstock.views.readiness import ready_document
    from penstock.warehouse.readiness import Rule

    ws = open_reader(workspace)
    rule = Rule(require)
    chosen = filters.selection()
    patience = duration(wait) if wait is not None else timedelta(0)
    asked: dict[str, Any] = {"customers": chosen.customers}
    asked |= {"date": chosen.since} if filters.date else {"since": chosen.since, "until": chosen.until}
    names = list(dict.fromkeys(tables))
    days = ws.wait_for(names, require=require, patience=patience, **asked)
    found = {name: [day for day in days if day.table == name] for name in names}
    expected = {name: ws.requested_days(name, **asked) for name in names}
    absent = [day for day in days if not rule.holds(day)]
    reasons = _explained(workspace, expected.values(), rule) if explain else None
    document = ready_document(require, rule, expected, found, reasons)
    show(document, as_json, lambda console: _draw(console, found, expected, rule, reasons or ()))
    if absent:
        raise typer.Exit(ExitCode.FAILED)


def _explained(workspace: str, asked: Iterable[RequestedDays], rule: Rule) -> list[DayLateness]:
    from penstock.app import open_workspace

    ws = open_workspace(workspace)  # the state of partitions is not a consumer's
    return [day for one in asked for day in ws.lateness.explain(one, rule.text)]


def _draw(
    console: Console,
    found: dict[str, list[Coverage]],
    asked: dict[str, RequestedDays],
    rule: Rule,
    reasons: Sequence[DayLateness],
) -> None:
    for name, days in found.items():
        expected, available = sum(d.expected for d in days), sum(d.available for d in days)
        good = all(rule.holds(day) for day in days)
        console.print(f"{name}: {'ready' if good else 'not ready'}, {available:,} of {counted(expected)}")
        for note in asked[name].notes:
            console.print(f"  {note}")
        rows = [
            (d.day, f"{d.available} of {d.expected}", d.absent[0], len(d.absent) - 1) for d in days if not rule.holds(d)
        ]
        if rows:
            console.print(table(None, ("day", "there", "absent", "and more"), rows[:_SHOWN]))
            if len(rows) > _SHOWN:
                console.print(f"... and {counted(len(rows) - _SHOWN, 'more day')}")
        withdrawn = [key for day in days for key in day.withdrawn_inputs]
        if withdrawn:
            console.print(
                f"{counted(len(withdrawn))} derived from runs that were demoted since: penstock why {withdrawn[0]}"
            )
    now = utc_now()
    for day in reasons[:_SHOWN]:
        for line in day_lines(day, now):
            console.print(line, highlight=False, soft_wrap=True, markup=False)
    if len(reasons) > _SHOWN:
        console.print(f"... and {counted(len(reasons) - _SHOWN, 'more day')}")
