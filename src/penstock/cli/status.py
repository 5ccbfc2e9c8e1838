"""`penstock status`, `missing`, `failed` and `why`: which partitions, and what about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import options as opt
from penstock.cli.render import key_fields, listing, show, shown, table
from penstock.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.control.select import Selection
    from penstock.control.why import Why
    from penstock.state.records import PartitionView

_GROUPS = ("query", "customer", "date", "month", "source")
_GRID_MOST = 20_000

# One character and one colour per display status, for the grid and its legend.
_MARKS = {
    "materialized": ("█", "green"),
    "materialized_but_last_attempt_failed": ("▓", "yellow"),
    "stale": ("▒", "cyan"),
    "unavailable": ("X", "magenta"),
    "never_materialized": ("·", "bright_black"),
    "failed": ("✗", "red"),
}


def register(app: typer.Typer) -> None:
    app.command("status")(status)
    app.command("missing")(missing)
    app.command("failed")(failed)
    app.command("why")(why)


def status(
    keys: opt.Keys = None,
    by: Annotated[
        str, typer.Option("--by", metavar="A,B", help="Group by query, customer, date, month, source.")
    ] = "query",
    grid: Annotated[bool, typer.Option("--grid", help="Draw customers x dates, one mark for each partition.")] = False,
    source: opt.SourceName = None,
    customer: opt.Customers = None,
    query: opt.Queries = None,
    date: opt.OnDate = None,
    since: opt.Since = None,
    until: opt.Until = None,
    state: opt.Status = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """How many partitions show which status; everything that the configuration expects is counted."""
    from penstock.app import open_workspace

    ws = open_workspace(workspace)
    groups = [name.strip() for name in by.split(",") if name.strip()]
    if unknown := [name for name in groups if name not in _GROUPS]:
        raise UsageError(f"cannot group by {', '.join(unknown)}: use {', '.join(_GROUPS)}")
    chosen = opt.selection(keys, source, customer, query, date, since, until, state)
    ranges = ws.ranges(chosen)
    if grid:
        total = sum(len(r) for r in ranges)
        if total > _GRID_MOST:
            raise UsageError(
                f"a grid of {total:,} partitions would not fit: narrow it with --query, --since, --customer"
            )
        views = ws.reader.views(ranges, status=chosen.status)
        items = [{**key_fields(v.key), "display_status": v.display, "status": v.state.status} for v in views]
        grid_counts = dict(Counter(str(v.display) for v in views))
        show({"counts": grid_counts, **listing(items, len(views))}, as_json, lambda console: _draw_grid(console, views))
        return
    rows = ws.reader.counts(ranges, groups, status=chosen.status)
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["display"]] = counts.get(row["display"], 0) + row["n"]
    waiting = ws.pointers.waiting()
    items = [{**{g: row[g] for g in groups}, "display_status": row["display"], "count": row["n"]} for row in rows]
    provisional, troubles = ws.provisional(chosen), ws.troubles()
    document = {
        "counts": counts,
        "items": items,
        "total": sum(counts.values()),
        "publish_due": waiting,
        "provisional": provisional,
        "troubles": troubles,
    }

    def draw(console: Console) -> None:
        _draw_counts(console, groups, items, counts, waiting)
        if provisional:
            console.print(f"{provisional:,} of them are provisional: their sources may still change them")
        for words in troubles:
            console.print(f"[red]{words}[/]")

    show(document, as_json, draw)


def missing(
    keys: opt.Keys = None,
    source: opt.SourceName = None,
    customer: opt.Customers = None,
    query: opt.Queries = None,
    date: opt.OnDate = None,
    since: opt.Since = None,
    until: opt.Until = None,
    state: opt.Status = None,
    limit: opt.Limit = 100,
    after: opt.After = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Expected partitions that no run has ever been accepted for, and why."""
    from penstock.lifecycle import DisplayStatus

    chosen = opt.selection(keys, source, customer, query, date, since, until, state)
    _list(workspace, chosen, as_json, limit, after, "nothing is missing", display=DisplayStatus.NEVER_MATERIALIZED)


def failed(
    keys: opt.Keys = None,
    source: opt.SourceName = None,
    customer: opt.Customers = None,
    query: opt.Queries = None,
    date: opt.OnDate = None,
    since: opt.Since = None,
    until: opt.Until = None,
    state: opt.Status = None,
    limit: opt.Limit = 100,
    after: opt.After = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Partitions whose last attempt failed, with the reason; also those that still serve an older good run."""
    chosen = opt.selection(keys, source, customer, query, date, since, until, state)
    _list(workspace, chosen, as_json, limit, after, "nothing failed", last_failed=True)


def why(
    key: opt.OneKey, workspace: opt.WorkspaceDir = ".", as_json: opt.AsJson = False, debug: opt.Debug = False
) -> None:
    """One page about one partition: authority, pointer, last attempts, what blocks it and what happens next."""
    from penstock.app import open_workspace

    ws = open_workspace(workspace)
    found = ws.why(opt.selection([key]).keys[0])
    show(_why_document(found), as_json, lambda console: _draw_why(console, found))


def _list(
    workspace: str, chosen: Selection, as_json: bool, limit: int, after: str | None, nothing: str, **filters: Any
) -> None:
    from penstock.app import open_workspace

    ws = open_workspace(workspace)
    ranges = ws.ranges(chosen)
    views = ws.reader.views(ranges, status=chosen.status, after=opt.after_key(after), limit=limit, **filters)
    total = ws.reader.count(ranges, status=chosen.status, **filters)
    items = [
        {
            **key_fields(v.key),
            "status": v.state.status,
            "display_status": v.display,
            "attempt_count": v.state.attempt_count,
            "last_outcome": v.last_attempt_outcome,
            "error_class": v.last_attempt_error_class,
            "error_message": v.last_attempt_error,
            "last_attempt_at": v.last_attempt_at,
            "open_attempt": v.open_run_id,
        }
        for v in views
    ]
    show(listing(items, total), as_json, lambda console: _draw_list(console, views, total, nothing))


def _draw_list(console: Console, views: Sequence[PartitionView], total: int, nothing: str) -> None:
    if not total:
        console.print(nothing)
        return
    rows = [
        (v.key, v.display, v.state.attempt_count, v.last_attempt_error_class, v.last_attempt_error or _waiting(v))
        for v in views
    ]
    console.print(table(None, ("partition", "status", "attempts", "class", "why"), rows))
    console.print(
        f"{len(views):,} of {total:,}"
        + (f"; go on with --after {views[-1].key}" if total > len(views) and views else "")
    )


def _waiting(view: PartitionView) -> str:
    return f"run {view.open_run_id} is working on it" if view.open_run_id else "not attempted yet"


def _draw_counts(
    console: Console, groups: Sequence[str], items: Sequence[dict[str, Any]], counts: dict[str, int], waiting: int
) -> None:
    from rich.text import Text

    if not items:
        console.print("nothing is expected: check customers, start_date and the filters")
        return
    rows = [
        [
            *(item[group] for group in groups),
            Text(item["display_status"], _MARKS[item["display_status"]][1]),
            item["count"],
        ]
        for item in items
    ]
    console.print(table(None, (*groups, "status", "partitions"), rows))
    console.print(
        f"{sum(counts.values()):,} expected: " + ", ".join(f"{n:,} {name}" for name, n in sorted(counts.items()))
    )
    if waiting:
        console.print(f"{waiting:,} accepted partitions wait to be published: the next `penstock run` does it")


def _draw_grid(console: Console, views: Sequence[PartitionView]) -> None:
    from rich.text import Text

    by_query: dict[str, dict[str, dict[Any, str]]] = {}
    for view in views:
        customers = by_query.setdefault(view.key.asset, {})
        customers.setdefault(view.key.customer_id, {})[view.key.logical_date] = _mark_name(view)
    for asset, customers in by_query.items():
        days = sorted({day for marks in customers.values() for day in marks})
        width = max(len(customer) for customer in customers)
        console.print(Text(f"\n{asset}   {days[0]} to {days[-1]}, a column a day", "bold"))
        for customer, marks in customers.items():
            line = Text(f"{customer:<{width}} ")
            for day in days:
                mark, colour = _MARKS[marks[day]] if day in marks else (" ", "default")
                line.append(mark, colour)
            console.print(line)
    legend = Text("\n")
    for name, (mark, colour) in _MARKS.items():
        legend.append(f"{mark} ", colour)
        legend.append(f"{name}   ")
    console.print(legend)


def _mark_name(view: PartitionView) -> str:
    if view.display == "never_materialized" and view.state.status == "failed":
        return "failed"
    return str(view.display)


def _why_document(found: Why) -> dict[str, Any]:
    view, state = found.view, found.view.state
    return {
        **key_fields(found.key),
        "headline": found.headline,
        "display_status": view.display,
        "status": state.status,
        "authority": {
            "run_id": state.current_run_id,
            "schema_version": state.schema_version,
            "record_count": state.record_count,
            "authority_version": state.authority_version,
            "updated_at": state.updated_at,
        },
        "pointer": None
        if found.pointer is None
        else {
            "run_id": found.pointer.run_id,
            "available": found.pointer.available,
            "table": found.pointer.table,
            "table_version": found.pointer.table_version,
            "loaded_at": found.pointer.loaded_at,
        },
        "attempts": [
            {
                "attempt_no": a.attempt_no,
                "run_id": a.run_id,
                "outcome": a.outcome,
                "stage": a.stage,
                "error_message": a.error_message,
            }
            for a in found.attempts[:5]
        ],
        "blocks": list(found.blocks),
        "next": found.next,
    }


def _draw_why(console: Console, found: Why) -> None:
    view, state, pointer = found.view, found.view.state, found.pointer
    console.print(f"[bold]{found.key}[/]  {view.display}")
    console.print(f"  {found.headline}\n", markup=False)
    serves = (
        "nothing" if pointer is None else f"run {pointer.run_id}{'' if pointer.available else ', hidden from readers'}"
    )
    facts = [
        (
            "state",
            f"{state.status}{'' if view.explicit else ' (implicit: no row)'}, {state.attempt_count} attempts counted",
        ),
        (
            "authority",
            f"run {state.current_run_id}, {shown(state.record_count)} rows" if state.current_run_id else "none",
        ),
        ("warehouse", serves + (f", table {pointer.table} version {pointer.table_version}" if pointer else "")),
    ]
    for name, text in facts:
        console.print(f"  {name:<10} {text}", markup=False)
    for attempt in found.attempts[:5]:
        reason = f": {attempt.error_message}" if attempt.error_message else ""
        when = shown(attempt.finished_at or attempt.issued_at)
        console.print(f"  attempt {attempt.attempt_no:<2} {attempt.outcome or 'open':<10} {when}{reason}", markup=False)
    console.print()
    for block in found.blocks:
        console.print(f"  blocked by: {block}", markup=False)
    console.print(f"  next: {found.next}", markup=False)
