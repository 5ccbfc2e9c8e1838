"""`penstock state retry`: failed partitions become pending again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import typer

from penstock.cli import options as opt
from penstock.cli.progress import RunProgress
from penstock.cli.render import draw_keys, show
from penstock.errors import ExitCode
from penstock.plural import counted

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.control.requeue import NotRetried, RetryPreview
    from penstock.partition import PartitionKey


def register(state: typer.Typer) -> None:
    state.command("retry")(retry)


@opt.option_groups
def retry(
    filters: opt.Filters,
    change: opt.ChangeOptions,
    without_raw: opt.WithoutRaw = False,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Move failed partitions back to pending, so that the next run attempts them. Repeating it changes nothing."""
    from penstock.app import open_workspace
    from penstock.cli.confirm import confirm
    from penstock.views.operations import retry_document

    ws = open_workspace(workspace)
    chosen = filters.selection()
    found = ws.operations.preview_retry(chosen, without_raw=without_raw)
    requeued = 0
    if not change.dry_run and found.total:
        confirm("retrying", found.total, yes=change.yes, force=change.force)
        with RunProgress() as progress:
            requeued = ws.operations.retry(
                chosen,
                actor=change.actor,
                without_raw=without_raw,
                preview=found,
                flags=change.flags,
                report=progress.stage("retry", found.total),
            )
    show(
        retry_document(found, requeued=requeued, dry_run=change.dry_run),
        as_json,
        lambda console: _draw_retry(console, found, requeued, change.dry_run),
    )
    if any(found.refusals.values()) and not found.total:
        raise typer.Exit(ExitCode.FAILED)


def _draw_retry(console: Console, found: RetryPreview, requeued: int, dry_run: bool) -> None:
    if dry_run:
        console.print(f"{counted(found.total, 'failed partition')} would become pending")
        draw_keys(console, found.keys, found.total)
    elif found.total:
        pending = counted(requeued, "partition is", "partitions are")
        console.print(f"{pending} pending again: attempted by the next `penstock run`")
    else:
        console.print("nothing to retry: no failed partition matches")
    draw_refused(console, found.refused, found.refusals)


def draw_refused(
    console: Console, first: Mapping[NotRetried, Sequence[PartitionKey]], counts: Mapping[NotRetried, int]
) -> None:
    """Print how many failed partitions are not retried, the first one for each reason, and what to do about it."""
    from rich.text import Text

    from penstock.control.requeue import NotRetried

    no_raw, marked, frozen = (first[why] for why in NotRetried)
    if marked:
        console.print(
            Text.assemble(
                (f"refused {counted(counts[NotRetried.TERMINAL], 'terminal partition')}", "yellow"),
                f", such as {marked[0]}; clear the mark with `penstock state clear-terminal`",
            )
        )
    if frozen:
        console.print(
            Text.assemble(
                (f"refused {counted(counts[NotRetried.FROZEN], 'frozen partition')}", "yellow"),
                f", such as {frozen[0]}: the source no longer has the day",
            )
        )
    if no_raw:
        console.print(
            Text.assemble(
                (f"refused {counted(counts[NotRetried.NO_RAW])} whose attempts left nothing in the raw sink", "yellow"),
                f", such as {no_raw[0]}; look with `penstock state history`, or add --without-raw",
            )
        )
