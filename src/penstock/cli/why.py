"""`penstock why`: everything about one partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from penstock.cli import options as opt
from penstock.cli.render import show
from penstock.cli.text_tables import shown
from penstock.plural import counted

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.control.why import Why


def register(app: typer.Typer) -> None:
    app.command("why")(why)


def why(
    key: opt.OneKey, workspace: opt.WorkspaceDir = ".", as_json: opt.AsJson = False, debug: opt.Debug = False
) -> None:
    """Explain one partition: authority, pointer, last attempts, what blocks it and what happens next."""
    from penstock.app import open_workspace
    from penstock.partition import PartitionKey
    from penstock.views.why import why_document

    ws = open_workspace(workspace)
    found = ws.partitions.why(PartitionKey.parse(key))
    show(why_document(found), as_json, lambda console: _draw(console, found))


def _draw(console: Console, found: Why) -> None:
    from rich.text import Text

    from penstock.views.why import SHOWN_ATTEMPTS

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
    for attempt in found.attempts[:SHOWN_ATTEMPTS]:
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
