"""`penstock run`: plan, extract, validate, load, and derive the models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from penstock.cli import options as opt
from penstock.cli.progress import RunProgress
from penstock.cli.render import show
from penstock.cli.run_summary import explain_interrupt, show_summary
from penstock.cli.text_tables import table
from penstock.lifecycle import AttemptReason
from penstock.plural import counted

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.control.plan import Plan


def register(app: typer.Typer) -> None:
    app.command("run")(run)


@opt.option_groups
def run(
    filters: opt.Filters,
    reprocess: opt.Reprocess = False,
    plan: opt.Plan = False,
    limit: opt.Limit = 50,
    yes: opt.Yes = False,
    force: opt.Force = False,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Plan the due partitions, issue attempts, extract, validate and load them, then derive the models. *

    Without filters it plans every partition that is due up to the last complete day in each customer's time zone:
    missing and requeued partitions, failed partitions whose retry is due by policy, and days to fetch again (restate).
    A partition of a model is due when enough of its inputs can be read, and again when its inputs or its code changed.
    Other failed partitions wait for `penstock state retry`. The next run takes over a run that was killed. A plan of
    more than `control.largest_run` partitions (50,000) is split into several runs, newest months first.

    The command first publishes accepted runs that wait for publication. Exit code 1 if a planned partition was
    rejected, cancelled (for example by a quota), blocked, or could not be published.
    """
    from penstock.app import open_workspace
    from penstock.cli.confirm import confirm
    from penstock.views.plans import plan_document

    ws = open_workspace(workspace)
    chosen = filters.selection()
    expected = sum(len(span) for span in ws.context.ranges(chosen))
    if plan:
        with RunProgress() as progress:
            progress.plan(expected)
            planned = ws.plans.preview(chosen, reprocess=reprocess, limit=limit)
        show(plan_document(planned, limit), as_json, lambda console: _draw_plan(console, planned, limit))
        return
    if reprocess:
        with RunProgress() as progress:
            progress.plan(expected)
            again = ws.plans.preview(chosen, reprocess=True, limit=1).reasons.get(AttemptReason.REPROCESS, 0)
        confirm("reprocessing", again, yes=yes, force=force)
    with explain_interrupt("`penstock run` continues"), RunProgress() as progress:
        progress.plan(expected)
        summary = ws.runs.start(chosen, listener=progress, reprocess=reprocess, actor=actor)
    show_summary(summary, as_json)


def _draw_plan(console: Console, plan: Plan, limit: int) -> None:
    console.print(table("Planned", ("reason", "partitions"), sorted(plan.reasons.items())))
    if plan.items:
        console.print(table(None, ("partition", "reason"), [(item.key, item.reason) for item in plan.items[:limit]]))
    if plan.total > limit:
        console.print(f"... {plan.total - limit:,} more (--limit)")
    if plan.is_divided:
        console.print("the plan is larger than one run (control.largest_run): it is split into several runs")
    if plan.held:
        console.print(f"another run works on {plan.held:,} more")
    if plan.paused:
        console.print(f"{counted(plan.paused, 'more is', 'more are')} paused: penstock state resume")
    if plan.waiting:
        waiting = counted(plan.waiting, "partition of a model waits", "partitions of models wait")
        console.print(f"{waiting} for inputs that this run does not provide")
