"""`penstock status`, `missing`, `failed`, `stale` and `why`: which partitions, and what about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import options as opt
from penstock.cli.render import cut, draw_mismatches, draw_more, key_fields, listing, mismatch_items, page, show
from penstock.cli.tables import shown, table
from penstock.errors import UsageError
from penstock.plural import counted

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.control.why import RunReference, Why
    from penstock.lifecycle import PartitionStatus
    from penstock.projections.status_board import PartitionStanding
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
    app.command("stale")(stale)
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
    board = ws.board(chosen)
    if grid:
        total = sum(len(r) for r in ws.ranges(chosen))
        if total > _GRID_MOST:
            raise UsageError(f"a grid of {counted(total)} would not fit: narrow it with --query, --since, --customer")
        found = board.everything()
        items = [{**key_fields(s.key), "display_status": s.display, "flags": s.flags} for s in found]
        grid_counts = dict(Counter(str(s.display) for s in found))
        show({"counts": grid_counts, **listing(items, len(found))}, as_json, lambda console: _draw_grid(console, found))
        return
    rows = board.counts(groups)
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["display"]] = counts.get(row["display"], 0) + row["n"]
    waiting = ws.pointers.waiting()
    items = [{**{g: row[g] for g in groups}, "display_status": row["display"], "count": row["n"]} for row in rows]
    provisional, flags, mismatches = ws.provisional(chosen), board.flags(), ws.mismatches()
    troubles = [*ws.troubles(), *ws.unreadable_models.values()]
    unfinished = ws.unfinished_messages()
    document = {
        "counts": counts,
        "items": items,
        "total": sum(counts.values()),
        "flags": flags,
        "publish_due": waiting,
        "provisional": provisional,
        "troubles": troubles,
        "mismatches": mismatch_items(mismatches),
        "unfinished": unfinished,
    }

    def draw(console: Console) -> None:
        draw_mismatches(console, mismatches)
        if not items:
            console.print(_nothing(sum(len(span) for span in ws.ranges(chosen)), chosen.status))
        else:
            _draw_counts(console, groups, items, counts, waiting)
        if flags:
            console.print("flags: " + ", ".join(f"{n:,} {name}" for name, n in flags.items()))
        if provisional:
            console.print(f"{provisional:,} of them provisional: the source may still change the day")
        for words in troubles:
            console.print(words, style="red")
        for words in unfinished:
            console.print(words, style="yellow", soft_wrap=True)

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
    """Expected partitions that no run has ever been accepted for, as ranges of days and one by one, and why."""
    from penstock.app import open_workspace

    ws = open_workspace(workspace)
    board = ws.board(opt.selection(keys, source, customer, query, date, since, until, state))
    gaps, ranges = board.gaps(limit)
    found, following = cut(board.missing_page(after=opt.after_key(after), limit=limit + 1), limit, lambda s: s.key)
    total = board.missing()
    views = ws.views([standing.key for standing in found])
    document = {
        **page([_item(standing, views[standing.key]) for standing in found], total, following),
        "ranges": [{**gap._asdict(), "partitions": (gap.last - gap.first).days + 1} for gap in gaps],
        "ranges_total": ranges,
    }

    def draw(console: Console) -> None:
        if not total:
            console.print("nothing is missing")
            return
        rows = [(g.source, g.query_name, g.customer_id, g.first, g.last, (g.last - g.first).days + 1) for g in gaps]
        console.print(table(None, ("source", "query", "customer", "from", "to", "days"), rows))
        lacking = counted(total, "partition is", "partitions are")
        console.print(f"{lacking} missing, in {counted(ranges, 'range')}{_shown_of(len(gaps), ranges)}")
        tried = [(s.key, views[s.key]) for s in found if views[s.key].last_attempt_outcome or views[s.key].open_run_id]
        if tried:
            lines = [(k, v.state.attempt_count, v.last_attempt_error_class, _reason(v)) for k, v in tried[:20]]
            console.print(table("Attempted so far", ("partition", "attempts", "class", "why"), lines))

    show(document, as_json, draw)


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
    from penstock.app import open_workspace
    from penstock.projections.status_board import FAILED

    ws = open_workspace(workspace)
    board = ws.board(opt.selection(keys, source, customer, query, date, since, until, state), requeued=False)
    found, following = cut(board.page(FAILED, after=opt.after_key(after), limit=limit + 1), limit, lambda s: s.key)
    total = board.total(FAILED)
    views = ws.views([standing.key for standing in found])
    items = [_item(standing, views[standing.key]) for standing in found]

    def draw(console: Console) -> None:
        if not total:
            console.print("nothing failed")
            return
        rows = [
            (s.key, s.display, (v := views[s.key]).state.attempt_count, v.last_attempt_error_class, _reason(v))
            for s in found
        ]
        console.print(table(None, ("partition", "status", "attempts", "class", "why"), rows))
        draw_more(console, len(found), total, following)

    show(page(items, total, following), as_json, draw)


def stale(
    keys: opt.Keys = None,
    reasons: Annotated[bool, typer.Option("--reasons", help="Only count, by reason.")] = False,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Also write what is stale into the table partition_status, for other tools.")
    ] = False,
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
    """Trusted partitions that are older than they should be, with every reason.

    FRESHNESS_POLICY: older than `freshness` allows, and the newest of its customer or still provisional.
    UPSTREAM_CHANGED: made from runs that are not the trusted ones any more, or without one that came later.
    CODE_CHANGED: made under an older contract.
    """
    from penstock.app import open_workspace
    from penstock.projections.status_board import STALE

    ws = open_workspace(workspace)
    board = ws.board(opt.selection(keys, source, customer, query, date, since, until, state))
    by_reason, total = board.stale_reasons(), board.total(STALE)
    stale_ones = [] if reasons else board.page(STALE, after=opt.after_key(after), limit=limit + 1)
    found, following = cut(stale_ones, limit, lambda s: s.key)
    items = [{**_standing(s), "reasons": s.reasons, "stale_since": s.stale_since} for s in found]
    document: dict[str, Any] = {**page(items, total, following), "reasons": by_reason}
    if sweep:
        document["swept"] = ws.sweep()

    def draw(console: Console) -> None:
        if not total:
            console.print("nothing is stale")
            return
        if reasons:
            console.print(table(None, ("reason", "partitions"), by_reason.items()))
            console.print(counted(total))
        else:
            rows = [(s.key, ", ".join(s.reasons), s.stale_since, s.last_materialization_at) for s in found]
            console.print(table(None, ("partition", "reasons", "stale since", "materialized"), rows))
            draw_more(console, len(found), total, following)

    show(document, as_json, draw)


def why(
    key: opt.OneKey, workspace: opt.WorkspaceDir = ".", as_json: opt.AsJson = False, debug: opt.Debug = False
) -> None:
    """One page about one partition: authority, pointer, last attempts, what blocks it and what happens next."""
    from penstock.app import open_workspace

    ws = open_workspace(workspace)
    found = ws.why(opt.selection([key]).keys[0])
    show(_why_document(found), as_json, lambda console: _draw_why(console, found))


def _standing(standing: PartitionStanding) -> dict[str, Any]:
    return {
        **key_fields(standing.key),
        "display_status": standing.display,
        "flags": standing.flags,
        "last_attempt_run_id": standing.last_attempt_run_id,
        "last_attempt_at": standing.last_attempt_at,
        "last_outcome": standing.last_attempt_outcome,
        "last_materialization_run_id": standing.last_materialization_run_id,
        "last_materialization_at": standing.last_materialization_at,
    }


def _item(standing: PartitionStanding, view: PartitionView) -> dict[str, Any]:
    return {
        **_standing(standing),
        "status": view.state.status,
        "attempt_count": view.state.attempt_count,
        "error_class": view.last_attempt_error_class,
        "error_message": view.last_attempt_error,
        "open_attempt": view.open_run_id,
    }


def _reason(view: PartitionView) -> str:
    if view.open_run_id:
        return f"run {view.open_run_id} is working on it"
    return view.state.error_message or view.last_attempt_error or "not attempted yet"


def _shown_of(shown: int, total: int) -> str:
    return f" (showing the first {shown:,}; --limit shows more)" if shown < total else ""


def _nothing(expected: int, status: PartitionStatus | None) -> str:
    if not expected or status is None:
        return "nothing is expected: check customers, start_date and the filters"
    return f"{counted(expected)} expected: none is {status}"


def _draw_counts(
    console: Console, groups: Sequence[str], items: Sequence[dict[str, Any]], counts: dict[str, int], waiting: int
) -> None:
    from rich.text import Text

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
        accepted = counted(waiting, "accepted partition waits", "accepted partitions wait")
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


def _why_document(found: Why) -> dict[str, Any]:
    state = found.view.state
    return {
        **key_fields(found.key),
        "headline": found.headline,
        "display_status": found.display,
        "stale": list(found.stale),
        "status": state.status,
        "serving": _named(found.serving) or None,
        "waiting": {**_named(found.waiting), "since": found.waiting_since} if found.waiting else None,
        "approve": found.approve,
        "withdrawn_inputs": [
            {**key_fields(one.key), "run_id": one.run_id, "demoted_at": one.demoted_at}
            for one in found.withdrawn_inputs
        ],
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
            "record_count": found.pointer.record_count,
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
        "warnings": found.warnings,
        "blocks": list(found.blocks),
        "next": found.next,
    }


def _named(run: RunReference | None) -> dict[str, Any]:
    if run is None:
        return {}
    return {"run_id": run.run_id, "attempt_no": run.attempt_no, "record_count": run.record_count}


def _draw_why(console: Console, found: Why) -> None:
    from rich.text import Text

    view, state, pointer = found.view, found.view.state, found.pointer
    console.print(Text.assemble((str(found.key), "bold"), f"  {found.display}"))
    console.print(f"  {found.headline}\n")
    serves = "nothing"
    if pointer is not None:
        hidden = "" if found.serving else ", hidden from readers"
        serves = f"run {pointer.run_id}, {counted(pointer.record_count, 'row')}{hidden}"
    facts = [
        (
            "state",
            f"{state.status}{'' if view.explicit else ' (implicit: no row)'}, "
            f"{counted(state.attempt_count, 'attempt')} counted",
        ),
        (
            "authority",
            f"run {state.current_run_id}, {counted(state.record_count or 0, 'row')}"
            if state.current_run_id
            else "none",
        ),
        ("warehouse", serves + (f", table {pointer.table} version {pointer.table_version}" if pointer else "")),
    ]
    for name, text in facts:
        console.print(f"  {name:<10} {text}")
    for attempt in found.attempts[:5]:
        reason = f": {attempt.error_message}" if attempt.error_message else ""
        when = shown(attempt.finished_at or attempt.issued_at)
        console.print(f"  attempt {attempt.attempt_no:<2} {attempt.outcome or 'open':<10} {when}{reason}")
    console.print()
    for warning in found.warnings:
        console.print(f"  warning: {warning['message']}")
    for reason in found.stale:
        console.print(f"  stale: {reason}")
    for block in found.blocks:
        console.print(f"  blocked by: {block}")
    console.print(f"  next: {found.next}")
