"""`penstock runs`: list, show, resume and cancel runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import options as opt
from penstock.cli.progress import RunProgress
from penstock.cli.render import draw_keys, draw_more, show
from penstock.cli.run_summary import explain_interrupt, show_summary
from penstock.cli.text_tables import table
from penstock.plural import counted
from penstock.views.document import page, paginate

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.projections.run_page import RunPage

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run id, as `penstock runs list` shows it.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Runs: their tasks, their progress, and what blocks them.")
    group.command("list")(list_runs)
    group.command("show")(show_run)
    group.command("resume")(resume)
    group.command("cancel")(cancel)
    app.add_typer(group, name="runs")


def list_runs(
    limit: opt.Limit = 20,
    after: opt.AfterRun = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """List runs, newest first, with the number of tasks by state."""
    from penstock.app import open_workspace
    from penstock.partition import run_id

    older, total = open_workspace(workspace).status.current().runs_before(run_id(after) if after else None, limit + 1)
    rows, following = paginate(older, limit, lambda row: row["run_id"])

    def text(console: Console) -> None:
        if not total:
            console.print("no run yet: start one with `penstock run`")
            return
        counted = ("total", "succeeded", "failed", "skipped", "cancelled", "running", "ready", "blocked")
        named = ("run_id", "state", "planned_at", "finished_at", *(f"tasks_{name}" for name in counted))
        lines = [[row[name] for name in named] for row in rows]
        console.print(table(None, ("run", "state", "planned", "finished", "tasks", *counted[1:]), lines))
        draw_more(console, len(rows), total, following)

    show(page(rows, total, following), as_json, text)


def show_run(
    run: RunArgument, workspace: opt.WorkspaceDir = ".", as_json: opt.AsJson = False, debug: opt.Debug = False
) -> None:
    """Show one run: its tasks by stage and state, the failed tasks, and the edges that block others."""
    from penstock.app import open_workspace
    from penstock.partition import run_id
    from penstock.views.runs import run_tasks_document

    found = open_workspace(workspace).status.run_page(run_id(run))
    show(run_tasks_document(found), as_json, lambda console: _draw_tasks(console, found))


def resume(
    run: RunArgument,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Continue a run that was killed, without repeating its finished work. *

    Refused while a process works on the run. `penstock run` also closes a run whose process died and plans its missing
    partitions again, but only this command continues a reprocessing run. It does the rest in a new run.
    """
    from penstock.app import open_workspace
    from penstock.partition import run_id

    ws = open_workspace(workspace)
    with explain_interrupt("`penstock run` continues"), RunProgress() as progress:
        summary = ws.runs.resume(run_id(run), listener=progress, actor=actor)
    show_summary(summary, as_json)


def cancel(
    run: RunArgument,
    dry_run: opt.DryRun = False,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Cancel a run: it issues no more attempts, closes open ones without a verdict and publishes accepted partitions.

    The process of the run stops within seconds. Unfinished partitions stay due.
    """
    from penstock.app import open_workspace
    from penstock.partition import run_id
    from penstock.views.runs import cancel_document

    ws = open_workspace(workspace)
    named = run_id(run)
    is_running = ws.runs.cancel(named, actor=actor, dry_run=dry_run)
    message = "it would stop" if dry_run else "it stops within seconds"
    if not is_running:
        message = "it ended before: there is nothing to cancel (see `penstock runs list`)"
    open_keys = ws.context.state.open_attempts(named) if dry_run else []

    def draw(console: Console) -> None:
        console.print(f"run {named}: {message}")
        if open_keys:
            console.print(f"{counted(len(open_keys), 'open attempt')} would be closed without a verdict:")
            draw_keys(console, open_keys)

    document = cancel_document(named, is_running=is_running, dry_run=dry_run, open_keys=open_keys)
    show(document, as_json, draw)


def _draw_tasks(console: Console, found: RunPage) -> None:
    from rich.text import Text

    run = found.run
    console.print(Text.assemble((f"run {run['run_id']}", "bold"), f"  {run.get('state', 'unknown')}"))
    if not found.kept:
        console.print(
            "its tasks are no longer kept (ledger.keep_runs)" if run.get("tasks_total") else "it has no tasks"
        )
        return
    console.print(
        table(None, ("stage", "state", "tasks"), [(s["stage"], s["state"], s["tasks"]) for s in found.stages])
    )
    if found.failed:
        rows = [(t["task_key"], t["attempt"], t["error_class"], t["finished_at"]) for t in found.failed]
        console.print(table("Failed", ("task", "try", "class", "finished"), rows))
    if found.blocked:
        blocked = [
            (e["downstream_task_key"], e["state"], e["upstream_task_key"], e["resolution"] or e["upstream_state"])
            for e in found.blocked[:20]
        ]
        console.print(table("Held up", ("task", "is", "because of", "which is"), blocked))
