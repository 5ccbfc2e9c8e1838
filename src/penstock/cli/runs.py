"""`penstock runs`: list, show, resume and cancel runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import options as opt
from penstock.cli.progress import RunProgress
from penstock.cli.render import cut, draw_keys, draw_more, key_fields, listing, page, show
from penstock.cli.run import finish, stopped
from penstock.cli.text_tables import table
from penstock.plural import counted

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
    """Runs, newest first, with their tasks counted by state."""
    from penstock.app import open_workspace
    from penstock.partition import run_id

    older, total = open_workspace(workspace).current().runs_before(run_id(after) if after else None, limit + 1)
    rows, following = cut(older, limit, lambda row: row["run_id"])

    def text(console: Console) -> None:
        if not total:
            console.print("nothing ran yet: `penstock run` starts")
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
    """One run: its tasks by stage and state, what failed, and which edges block the others."""
    from penstock.app import open_workspace
    from penstock.partition import run_id

    page = open_workspace(workspace).run_page(run_id(run))
    facts = {**page.run, "stages": page.stages, "failed": page.failed, "blocked": page.blocked, "kept": page.kept}
    show(facts, as_json, lambda console: _draw_page(console, page))


def resume(
    run: RunArgument,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Continue a run that was killed, without repeating its finished work. *

    Refused while a process works on the run. `penstock run` also closes a dead run and plans its missing partitions
    again; but only this command continues a dead `run --reprocess`, in a new run.
    """
    from penstock.app import open_workspace
    from penstock.partition import run_id

    ws = open_workspace(workspace)
    with stopped("`penstock run` takes it back"), RunProgress() as progress:
        summary = ws.resume(run_id(run), watcher=progress, actor=actor)
    finish(summary, as_json)


def cancel(
    run: RunArgument,
    dry_run: opt.DryRun = False,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Ask a run to stop: it issues nothing more, closes open attempts without a verdict and publishes what is accepted.

    The process that works on it stops within seconds. Partitions that are not done stay due.
    """
    from penstock.app import open_workspace, os_user
    from penstock.partition import run_id
    from penstock.state.audited import AuditedAct
    from penstock.state.control import AuditEntry

    ws = open_workspace(workspace)
    named = run_id(run)
    entry = AuditEntry(actor or os_user(), AuditedAct.RUNS_CANCEL, {"run_id": named}, {})
    asked = ws.cancel_run(named, entry, rehearsal=dry_run)
    words = "it would stop" if dry_run else "it stops within seconds"
    if not asked:
        words = "it ended before: there is nothing to cancel (see `penstock runs list`)"
    open_keys = ws.reader.open_attempts(named) if dry_run else []
    document = {"run_id": named, "requested": asked and not dry_run, "dry_run": dry_run}
    if dry_run:
        document |= {"would_cancel": asked, **listing([key_fields(key) for key in open_keys], len(open_keys))}

    def draw(console: Console) -> None:
        console.print(f"run {named}: {words}")
        if open_keys:
            console.print(f"{counted(len(open_keys), 'open attempt')} would be closed without a verdict:")
            draw_keys(console, open_keys)

    show(document, as_json, draw)


def _draw_page(console: Console, page: RunPage) -> None:
    from rich.text import Text

    run = page.run
    console.print(Text.assemble((f"run {run['run_id']}", "bold"), f"  {run.get('state', 'unknown')}"))
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
