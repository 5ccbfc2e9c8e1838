"""`penstock run`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock import interrupts
from penstock.cli import options as opt
from penstock.cli.progress import RunProgress
from penstock.cli.render import key_fields, listing, show
from penstock.cli.tables import table
from penstock.errors import ExitCode
from penstock.lifecycle import AttemptReason
from penstock.plural import counted

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.control.plan import Plan
    from penstock.flow.summary import Failure, RunSummary

_SHOWN_FAILURES = 20


def register(app: typer.Typer) -> None:
    app.command("run")(run)


def run(
    keys: opt.Keys = None,
    source: opt.SourceName = None,
    customer: opt.Customers = None,
    query: opt.Queries = None,
    date: opt.OnDate = None,
    since: opt.Since = None,
    until: opt.Until = None,
    status: opt.Status = None,
    reprocess: Annotated[bool, typer.Option("--reprocess", help="Also fetch again what is success already.")] = False,
    plan: opt.Plan = False,
    limit: opt.Limit = 50,
    yes: opt.Yes = False,
    force: opt.Force = False,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Plan what is due, issue attempts, extract, validate and load them, then make the models. *

    Without filters: everything that is due up to the last day that is over in each customer's time zone: missing and
    requeued partitions, failed ones whose retry is due by policy, and days that are to be fetched again (restate).
    Slices of models are made when enough of their inputs can be read, and made again when those or their code changed.
    Other failed partitions wait for `penstock state retry`. A run that was killed is picked up by the next one. More
    than `control.largest_run` partitions (50,000) are done in several runs, one after the other, newest months first.

    Accepted runs that wait to be published are published first. Exit code 0 when every planned partition is there, 1
    when one was rejected, cancelled (for example by a quota) or blocked, or could not be published.
    """
    from penstock.app import open_workspace
    from penstock.cli.confirm import confirm

    ws = open_workspace(workspace)
    chosen = opt.selection(keys, source, customer, query, date, since, until, status)
    expected = sum(len(span) for span in ws.ranges(chosen))
    if plan:
        with RunProgress() as progress:
            progress.plan(expected)
            planned = ws.plan(chosen, reprocess=reprocess, limit=limit)
        show(_plan_document(planned, limit), as_json, lambda console: _draw_plan(console, planned, limit))
        return
    if reprocess:
        with RunProgress() as progress:
            progress.plan(expected)
            again = ws.plan(chosen, reprocess=True, limit=1).reasons.get(AttemptReason.REPROCESS, 0)
        confirm("reprocessing", again, yes=yes, force=force)
    with stopped("run again to go on"), RunProgress() as progress:
        progress.plan(expected)
        summary = ws.run(chosen, watcher=progress, reprocess=reprocess, actor=actor)
    finish(summary, as_json)


def finish(summary: RunSummary, as_json: bool) -> None:
    """Show what became of a run. Exit code 1 unless every planned partition is there: one that was rejected, cancelled,
    blocked by a breaker or could not be published is not, nor is what a cancelled run left."""
    show(document(summary), as_json, lambda console: draw(console, summary))
    if summary.failures or summary.cancelled or summary.blocked or summary.problems or summary.end != "done":
        raise typer.Exit(ExitCode.FAILED)


@contextmanager
def stopped(how_to_go_on: str) -> Iterator[None]:
    """Says what an interrupt left: what was open is closed by then, and nothing counts as lost."""
    try:
        yield
    except KeyboardInterrupt:
        interrupts.say(f"stopped; what was open has been closed without a verdict, {how_to_go_on}")
        raise


def document(summary: RunSummary) -> dict[str, Any]:
    return {
        "run_id": summary.run_id,
        "runs": summary.runs,
        **summary.counts(),
        "warnings": summary.warnings,
        "end": summary.end,
        "blocked": summary.blocked,
        "seconds": summary.seconds,
        "failures": _items(summary.failures),
        "cancelled_items": _items(summary.cancelled_items),
        "troubles": summary.problems,
        "waiting": summary.waiting,
        "unfinished": summary.unfinished,
    }


def _items(found: Sequence[Failure]) -> list[dict[str, Any]]:
    return [{"key": str(f.key), "stage": f.stage, "error_class": f.error_class, "message": f.message} for f in found]


def draw(console: Console, summary: RunSummary) -> None:
    from rich.text import Text

    _draw_items(console, "Failures", summary.failures, "penstock failed")
    _draw_items(console, "Cancelled, without a verdict: they stay due", summary.cancelled_items, "penstock run --plan")
    for words in summary.unfinished:
        console.print(words, style="yellow", soft_wrap=True)
    for words in summary.problems:
        console.print(words, style="red", soft_wrap=True)
    if summary.blocked:
        console.print(f"{counted(summary.blocked, 'partition was', 'partitions were')} not issued")
    if not summary.planned and not summary.loaded and summary.end == "done":
        held = f"; another run works on {counted(summary.skipped)}" if summary.skipped else ""
        console.print(f"nothing is due{held}")
        for line in waiting_lines(summary.waiting or {}):
            console.print(line)
        return
    if summary.end == "cancelled":
        console.print("the run was cancelled: what was not done stays due")
    if summary.is_divided:
        console.print(f"more than one run should hold, so it was done in {len(summary.runs)}: the last is named here")
    console.print(
        Text.assemble(
            f"run {summary.run_id}: {summary.planned:,} planned, ",
            (f"{summary.accepted:,} accepted", "green"),
            ", ",
            (f"{summary.rejected:,} rejected", "red" if summary.rejected else "default"),
            f", {summary.loaded:,} loaded, {summary.cancelled:,} cancelled, {summary.skipped:,} skipped, "
            f"{summary.seconds:.1f} s",
        )
    )
    if summary.unchanged:
        console.print(f"{counted(summary.unchanged, 'slice')} of models unchanged: no input changed")
    if summary.warnings:
        warnings = counted(summary.warnings, "warning")
        console.print(Text.assemble((warnings, "yellow"), " about accepted partitions: penstock state history KEY"))


def _draw_items(console: Console, title: str, found: Sequence[Failure], more: str) -> None:
    if not found:
        return
    rows = [(f.key, f.stage, f.error_class, f.message) for f in found[:_SHOWN_FAILURES]]
    console.print(table(title, ("partition", "stage", "class", "why"), rows))
    if len(found) > _SHOWN_FAILURES:
        console.print(f"... and {len(found) - _SHOWN_FAILURES:,} more: {more}\n")


# What may stand in the way of a partition, and what to do about it.
_WAITING = {
    "retry": ("failed and waits", "failed and wait", "for a retry: `penstock failed`"),
    "operator": (
        "failed and waits",
        "failed and wait",
        "for an operator: `penstock failed`, then `penstock state retry`",
    ),
    "terminal": (
        "failed",
        "failed",
        "for good: `penstock state terminal`, then `penstock state retry`; those that an operator marked need"
        " `penstock state clear-terminal` before it",
    ),
    "paused": ("is", "are", "paused: `penstock state resume`"),
    "blocked": ("waits", "wait", "for the source: `penstock control breakers`"),
    "model_inputs": ("of a model waits", "of models wait", "for inputs: `penstock why KEY`"),
    "open": ("is", "are", "worked on by another run: `penstock runs list`"),
    "publication": ("has", "have", "authority and could not be published: `penstock why KEY`"),
}


def waiting_lines(waiting: Mapping[str, int]) -> list[str]:
    """What stands in the way of partitions, with the command that helps."""
    return [
        f"  {counted(waiting[name], f'partition {one}', f'partitions {many}')} {rest}"
        for name, (one, many, rest) in _WAITING.items()
        if waiting.get(name)
    ]


def _plan_document(plan: Plan, limit: int) -> dict[str, Any]:
    items = [{**key_fields(item.key), "reason": item.reason} for item in plan.items[:limit]]
    return {
        **listing(items, plan.total),
        "reasons": dict(plan.reasons),
        "held": plan.held,
        "paused": plan.paused,
        "waiting": plan.waiting,
        "dry_run": True,
    }


def _draw_plan(console: Console, plan: Plan, limit: int) -> None:
    console.print(table("Planned", ("reason", "partitions"), sorted(plan.reasons.items())))
    if plan.items:
        console.print(table(None, ("partition", "reason"), [(item.key, item.reason) for item in plan.items[:limit]]))
    if plan.total > limit:
        console.print(f"... {plan.total - limit:,} more (--limit)")
    if plan.is_divided:
        console.print("that is more than one run should hold (control.largest_run): it will be done in several")
    if plan.held:
        console.print(f"another run works on {plan.held:,} more")
    if plan.paused:
        console.print(f"{counted(plan.paused, 'more is', 'more are')} paused: penstock state resume")
    if plan.waiting:
        waiting = counted(plan.waiting, "slice of a model waits", "slices of models wait")
        console.print(f"{waiting} for inputs that do not come with this run")
