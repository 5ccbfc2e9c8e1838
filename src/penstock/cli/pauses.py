"""`penstock state pauses`: the pauses by filters that are in force."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from penstock.cli import options as opt
from penstock.cli.render import draw_more, show
from penstock.cli.text_tables import table
from penstock.plural import counted
from penstock.views.document import paginate

if TYPE_CHECKING:
    from rich.console import Console


def register(state: typer.Typer) -> None:
    state.command("pauses")(pauses)


def pauses(
    limit: opt.Limit = 100,
    after: opt.AfterEntry = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """List the pauses by filters that are in force, newest first, and count the paused partitions.

    If several entries match a partition, the newest one decides. "resumed" is a part of an older pause that was ended.
    `state resume` with the same filters ends a pause.
    """
    from penstock.app import open_workspace
    from penstock.control.select import Selection
    from penstock.views.pauses import pauses_document

    ws = open_workspace(workspace)
    found, total = ws.context.state.pauses(limit + 1, after=after)
    entries, following = paginate(found, limit, lambda entry: entry["pause_id"])
    paused = ws.context.state.count(ws.context.ranges(Selection()), paused=True)

    def draw(console: Console) -> None:
        columns = ("pause", "acts as", "source", "customer", "query", "from", "until", "since", "by", "reason")
        if entries:
            console.print(table(None, columns, [_row(entry) for entry in entries]))
            draw_more(console, len(entries), total, following)
        else:
            console.print("no pause by filters is in force")
        console.print(f"{counted(paused, 'partition is', 'partitions are')} paused now")

    show(pauses_document(entries, total, following, paused=paused), as_json, draw)


def _row(entry: dict[str, Any]) -> tuple[Any, ...]:
    names = (entry[name] or "all" for name in ("source", "customer_id", "query_name"))
    days = (entry["first_date"] or "always", entry["last_date"] or "always")
    acts_as = "paused" if entry["paused"] else "resumed"
    return (str(entry["pause_id"]), acts_as, *names, *days, entry["since"], entry["actor"], entry["reason"])
