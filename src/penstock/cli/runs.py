"""`penstock runs`: what ran, how far it came, what blocks it; going on with it, and stopping it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import options as opt
from penstock.cli.progress import RunProgress
from penstock.cli.render import listing, show
from penstock.cli.run import finish, stopped
from penstock.cli.tables import table

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.projections.run_page import RunPage

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run id, as `penstock runs list` shows it.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="What ran, how far it came, and what blocks it.")
    group.command("list")(list_runs)
    group.command("show")(show_run)
    group.command("resume")(resume)
    group.command("cancel")(cancel)
    app.add_typer(group, name="runs")


def list_runs(
    limit: opt.Limit = 20,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Runs, newest first, with their tasks counted by state."""
    from penstock.app import open_workspace

    runs = open_workspace(workspace).current().runs().to_pylist()
    rows = runs[::-1][:limit]

    def text(console: Console) -> None:
        if not rows:
            console.print("nothing ran yet: `penstock run` starts")
            return
        counted = ("total", "succeeded", "failed", "skipped", "cancelled", "running", "ready", "blocked")
        named = ("run_id", "state", "planned_at", "finished_at", *(f"tasks_{name}" for name in counted))
        lines = [[row[name] for name in named] for row in rows]
        console.print(table(None, ("run", "state", "planned", "finished", "tasks", *counted[1:]), lines))
        if len(runs) > len(rows):
            console.print(f"{len(rows):,} of {len(runs):,}: --limit shows more")

    show(listing(rows, len(runs)), as_json, text)


def show_run(
    run: RunArgument, workspace: opt.WorkspaceDir = ".", as_json: opt.AsJson = False, debug: opt.Debug = False
) -> None:
    """One run: its tasks by stage and state, what failed, and which edges block the others."""
    from penstock.app import open_workspace
    from penstock.partition import run_id

    page = open_workspace(workspace).run_page(run_id(run))
    facts = {**page.run, "stages": page.stages, "failed": page.failed, "blocked": page.blocked, "kept": page.kept}
    show(facts, as_json, lambda console: _draw_page(console, page))


def resume(
    run: RunArgument, workspace: opt.WorkspaceDir = ".", as_json: opt.AsJson = False, debug: opt.Debug = False
) -> None:
    """Go on with a run that was killed. What it had finished is not done again. *

    Refused while the run is being worked on. A later `penstock run` closes a dead run and plans what was missing anew;
    what a dead `--reprocess` left is continued by this command only, in a new run.
    """
    from penstock.app import open_workspace
    from penstock.partition import run_id

    ws = open_workspace(workspace)
    with stopped("`penstock run` takes it back"), RunProgress() as progress:
        summary = ws.resume(run_id(run), watcher=progress)
    finish(summary, as_json)


def cancel(
    run: RunArgument,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Ask for a run to stop: nothing more is issued, what is open is closed without a verdict, what is accepted is
    published. The process that works on it does so within seconds; what is not done stays due."""
    from penstock.app import open_workspace, os_user
    from penstock.partition import run_id
    from penstock.state.control import AuditEntry

    ws = open_workspace(workspace)
    named = run_id(run)
    asked = ws.cancel_run(named, AuditEntry(actor or os_user(), "runs cancel", {"run_id": named}, {}))
    words = "it stops within seconds" if asked else "it ended before: nothing was cancelled (see `penstock runs list`)"
    show({"run_id": named, "requested": asked}, as_json, lambda console: console.print(f"run {named}: {words}"))


def _draw_page(console: Console, page: RunPage) -> None:
    run = page.run
    console.print(f"[bold]run {run['run_id']}[/]  {run.get('state', 'unknown')}")
    if not page.kept:
        console.print(
            "its tasks are no longer kept (ledger.keep_runs)" if run.get("tasks_total") else "it has no tasks"
        )
        return
    console.print(table(None, ("stage", "state", "tasks"), [(s["stage"], s["state"], s["tasks"]) for s in page.stages]))
    if page.failed:
        rows = [(t["task_key"], t["attempt"], t["error_class"], t["finished_at"]) for t in page.failed]
        console.print(table("Failed", ("task", "try", "class", "finished"), rows))
    if page.blocked:
        blocked = [
            (e["downstream_task_key"], e["state"], e["upstream_task_key"], e["resolution"] or e["upstream_state"])
            for e in page.blocked[:20]
        ]
        console.print(table("Held up", ("task", "is", "because of", "which is"), blocked))
