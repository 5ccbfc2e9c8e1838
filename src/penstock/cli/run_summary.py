"""The result of a run: its text, its exit code, and the partitions that wait with the command that helps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from penstock import interrupts
from penstock.cli.render import show
from penstock.cli.text_tables import table
from penstock.errors import ExitCode
from penstock.plural import counted

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.flow.summary import Failure, RunSummary

_SHOWN_FAILURES = 20


def show_summary(summary: RunSummary, as_json: bool) -> None:
    """Print the result of a run. Exits with 1 unless every planned partition is accepted and published."""
    from penstock.views.runs import run_document

    show(run_document(summary), as_json, lambda console: _draw(console, summary))
    if summary.failures or summary.cancelled or summary.blocked or summary.problems or summary.end != "done":
        raise typer.Exit(ExitCode.FAILED)


@contextmanager
def explain_interrupt(how_to_continue: str) -> Iterator[None]:
    """Print the state after an interrupt: the run has closed its open attempts by then."""
    try:
        yield
    except KeyboardInterrupt:
        interrupts.print_once(f"stopped; open attempts are closed without a verdict; {how_to_continue}")
        raise


# Why a partition waits, and the command that helps.
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
    "blocked": ("waits", "wait", "for the source: `penstock control breakers`, `penstock control quota`"),
    "model_inputs": ("of a model waits", "of models wait", "for inputs: `penstock why KEY`"),
    "open": ("is", "are", "in progress in another run: `penstock runs list`"),
    "publication": ("has", "have", "authority and could not be published: `penstock why KEY`"),
}


def waiting_lines(waiting: Mapping[str, int]) -> list[str]:
    """One line for each reason for which partitions wait, with the command that helps."""
    return [
        f"  {counted(waiting[name], f'partition {one}', f'partitions {many}')} {rest}"
        for name, (one, many, rest) in _WAITING.items()
        if waiting.get(name)
    ]


def _draw(console: Console, summary: RunSummary) -> None:
    from rich.text import Text

    _draw_failures(console, "Failures", summary.failures, "penstock failed")
    _draw_failures(
        console, "Cancelled, without a verdict: they stay due", summary.cancelled_items, "penstock run --plan"
    )
    for message in summary.unfinished:
        console.print(message, style="yellow", soft_wrap=True)
    for message in summary.problems:
        console.print(message, style="red", soft_wrap=True)
    if summary.blocked:
        console.print(f"{counted(summary.blocked, 'partition was', 'partitions were')} not issued")
    if not summary.planned and not summary.loaded and summary.end == "done":
        held = f"; another run works on {counted(summary.skipped)}" if summary.skipped else ""
        console.print(f"nothing is due{held}")
        for line in waiting_lines(summary.waiting or {}):
            console.print(line)
        return
    if summary.end == "cancelled":
        console.print("the run was cancelled: unfinished partitions stay due")
    if summary.is_divided:
        console.print(f"the plan was split into {len(summary.runs)} runs; the last run is named here")
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
    for source, requests in summary.in_flight.items():
        console.print(f"{source}: at most {counted(requests, 'request')} in flight")
    if summary.unchanged:
        console.print(f"{counted(summary.unchanged)} of models unchanged: no input changed")
    if summary.warnings:
        warnings = counted(summary.warnings, "warning")
        console.print(Text.assemble((warnings, "yellow"), " about accepted partitions: penstock state history KEY"))


def _draw_failures(console: Console, title: str, found: Sequence[Failure], more: str) -> None:
    if not found:
        return
    rows = [(f.key, f.stage, f.error_class, f.message) for f in found[:_SHOWN_FAILURES]]
    console.print(table(title, ("partition", "stage", "class", "why"), rows))
    if len(found) > _SHOWN_FAILURES:
        console.print(f"... and {len(found) - _SHOWN_FAILURES:,} more: {more}\n")
