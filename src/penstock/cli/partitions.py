"""`penstock missing`, `failed` and `stale`: lists of partitions, with the reason for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import options as opt
from penstock.cli.render import draw_more, show
from penstock.cli.text_tables import table
from penstock.plural import counted
from penstock.views.document import paginate

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.state.records import PartitionView

_SHOWN_ATTEMPTED = 20


def register(app: typer.Typer) -> None:
    app.command("missing")(missing)
    app.command("failed")(failed)
    app.command("stale")(stale)


@opt.option_groups
def missing(
    filters: opt.Filters,
    limit: opt.Limit = 100,
    after: opt.After = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """List expected partitions without an accepted run, as ranges of days and one by one, with the reason."""
    from penstock.app import open_workspace
    from penstock.views.partitions import missing_document

    ws = open_workspace(workspace)
    board = ws.status.board(filters.selection())
    gaps, gaps_total = board.gaps(limit)
    found, following = paginate(board.missing_page(after=opt.after_key(after), limit=limit + 1), limit, lambda s: s.key)
    total = board.missing()
    views = ws.partitions.views([standing.key for standing in found])

    def draw(console: Console) -> None:
        if not total:
            console.print("nothing is missing")
            return
        rows = [(g.source, g.query_name, g.customer_id, g.first, g.last, (g.last - g.first).days + 1) for g in gaps]
        console.print(table(None, ("source", "query", "customer", "from", "to", "days"), rows))
        are_missing = counted(total, "partition is", "partitions are")
        console.print(f"{are_missing} missing, in {counted(gaps_total, 'range')}{_shown_of(len(gaps), gaps_total)}")
        tried = [(s.key, views[s.key]) for s in found if views[s.key].last_attempt_outcome or views[s.key].open_run_id]
        if tried:
            lines = [
                (key, view.state.attempt_count, view.last_attempt_error_class, _reason(view))
                for key, view in tried[:_SHOWN_ATTEMPTED]
            ]
            console.print(table("Attempted so far", ("partition", "attempts", "class", "why"), lines))

    show(missing_document(found, views, total, following, gaps, gaps_total), as_json, draw)


@opt.option_groups
def failed(
    filters: opt.Filters,
    limit: opt.Limit = 100,
    after: opt.After = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """List partitions whose last attempt failed, with the reason.

    The list includes partitions for which the warehouse still serves an earlier accepted run.
    """
    from penstock.app import open_workspace
    from penstock.projections.status_board import FAILED
    from penstock.views.partitions import partitions_document

    ws = open_workspace(workspace)
    board = ws.status.board(filters.selection(), requeued=False)
    found, following = paginate(board.page(FAILED, after=opt.after_key(after), limit=limit + 1), limit, lambda s: s.key)
    total = board.total(FAILED)
    views = ws.partitions.views([standing.key for standing in found])

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

    show(partitions_document(found, views, total, following), as_json, draw)


@opt.option_groups
def stale(
    filters: opt.Filters,
    reasons: Annotated[bool, typer.Option("--reasons", help="Only count the partitions by reason.")] = False,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Also write the result to the table partition_status, for other tools.")
    ] = False,
    limit: opt.Limit = 100,
    after: opt.After = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """List partitions whose authoritative run is out of date, with every reason.

    FRESHNESS_POLICY: older than `freshness` allows, and the newest of its customer or still provisional.

    UPSTREAM_CHANGED: an input has another authoritative run than the one that was read, or an input was added since.

    CODE_CHANGED: fetched or derived under an earlier version of the contract.
    """
    from penstock.app import open_workspace
    from penstock.projections.status_board import STALE
    from penstock.views.partitions import stale_document

    ws = open_workspace(workspace)
    board = ws.status.board(filters.selection())
    by_reason, total = board.stale_reasons(), board.total(STALE)
    rows = [] if reasons else board.page(STALE, after=opt.after_key(after), limit=limit + 1)
    found, following = paginate(rows, limit, lambda s: s.key)
    document = stale_document(found, total, following, by_reason, ws.status.sweep() if sweep else None)

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


def _reason(view: PartitionView) -> str:
    if view.open_run_id:
        return f"run {view.open_run_id} is working on it"
    return view.state.error_message or view.last_attempt_error or "not attempted yet"


def _shown_of(shown: int, total: int) -> str:
    return f" (showing the first {shown:,}; --limit shows more)" if shown < total else ""
