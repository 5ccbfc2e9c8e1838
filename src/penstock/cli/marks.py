"""`penstock state terminal`, `mark-terminal`, `clear-terminal`, `pause` and `resume`: marks beside the state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from penstock.cli import options as opt
from penstock.cli.render import LISTED, draw_keys, draw_more, show
from penstock.cli.text_tables import table
from penstock.plural import counted
from penstock.views.document import paginate

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.app import Workspace
    from penstock.control.select import Selection
    from penstock.partition import PartitionKey
    from penstock.state.records import PartitionView


def register(state: typer.Typer) -> None:
    state.command("terminal")(terminal)
    state.command("mark-terminal")(mark_terminal)
    state.command("clear-terminal")(clear_terminal)
    state.command("pause")(pause)
    state.command("resume")(resume)


@opt.option_groups
def terminal(
    filters: opt.Filters,
    limit: opt.Limit = 100,
    after: opt.After = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """List failed partitions that are not retried automatically, with the reason."""
    from penstock.app import open_workspace
    from penstock.views.partitions import terminal_document

    ws = open_workspace(workspace)
    chosen = filters.selection()
    found = ws.partitions.terminal(chosen, after=opt.after_key(after), limit=limit + 1)
    shown, following = paginate(found, limit, lambda item: item[0].key)
    total = ws.partitions.terminal_count(chosen)
    show(
        terminal_document(shown, total, following),
        as_json,
        lambda console: _draw_terminal(console, shown, total, following),
    )


@opt.option_groups
def mark_terminal(
    filters: opt.Filters,
    change: opt.ChangeOptions,
    reason: opt.Reason = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Mark failed partitions as terminal: no automatic or manual retry until `clear-terminal`."""
    _change_marks(
        _MarkChange("marking", "terminal"),
        filters.selection(),
        change,
        workspace,
        as_json,
        _without_terminal_mark,
        lambda ws, found, chosen: (
            ws.operations.mark_terminal(found, actor=change.actor, reason=reason, selection=chosen, flags=change.flags)
            if found
            else None
        ),
    )


@opt.option_groups
def clear_terminal(
    filters: opt.Filters,
    change: opt.ChangeOptions,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Remove terminal marks and reset the count of failures, so that `state retry` can retry the partitions.

    A partition that is terminal only because its day is older than `retry.max_age` has nothing to clear: `state retry`
    retries it once.
    """
    _change_marks(
        _MarkChange("clearing", "no longer terminal: `penstock state retry` retries them"),
        filters.selection(),
        change,
        workspace,
        as_json,
        _with_terminal_mark_or_failures,
        lambda ws, found, chosen: (
            ws.operations.clear_terminal(found, actor=change.actor, selection=chosen, flags=change.flags)
            if found
            else None
        ),
    )


@opt.option_groups
def pause(
    filters: opt.Filters,
    change: opt.ChangeOptions,
    reason: opt.Reason = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Issue no attempts for these partitions until `resume`. Open attempts are finished.

    A pause by filters also covers days and customers that are added later. --until limits it. `state pauses` lists the
    pauses that are in force.
    """
    chosen = filters.selection()
    is_lasting = not chosen.keys and chosen.status is None and chosen.until is None
    done = "paused; customers and days that are added later, too" if is_lasting else "paused"
    _change_marks(
        _MarkChange("pausing", done, "all partitions that match are paused"),
        chosen,
        change,
        workspace,
        as_json,
        lambda ws, chosen: ws.partitions.pausable(chosen, LISTED),
        lambda ws, _, chosen: ws.operations.pause(chosen, actor=change.actor, reason=reason, flags=change.flags),
    )


@opt.option_groups
def resume(
    filters: opt.Filters,
    change: opt.ChangeOptions,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """End pauses, and the holds that `rollback` and `approve` put on restatement.

    The filters may match a part of a pause; the rest stays paused.
    """
    chosen = filters.selection()
    _change_marks(
        _MarkChange("resuming", "resumed", "nothing that matches is paused or held"),
        chosen,
        change,
        workspace,
        as_json,
        lambda ws, chosen: ws.partitions.resumable(chosen, LISTED),
        lambda ws, _, chosen: ws.operations.resume(chosen, actor=change.actor, flags=change.flags),
    )


@dataclass(frozen=True, slots=True)
class _MarkChange:
    verb: str  # for the confirmation
    result: str  # completes "partitions are ..."
    nothing: str = "no partition matches"  # the message if nothing changes


def _change_marks(
    mark: _MarkChange,
    chosen: Selection,
    change: opt.ChangeOptions,
    workspace: str,
    as_json: bool,
    find: Callable[[Workspace, Selection], tuple[Sequence[PartitionKey], int]],
    apply: Callable[[Workspace, Sequence[PartitionKey], Selection], int | None],
) -> None:
    """Find the partitions, preview or confirm, apply the change, and print the result.

    `find` returns partitions and their number. Only the first partitions suffice for a change by filters. `apply`
    returns the number of changed partitions, or None if there was nothing to change.
    """
    from penstock.app import open_workspace
    from penstock.cli.confirm import confirm
    from penstock.views.operations import marks_document

    ws = open_workspace(workspace)
    found, total = find(ws, chosen)
    changed: int | None = None
    if not change.dry_run:
        confirm(mark.verb, total, yes=change.yes, force=change.force)
        changed = apply(ws, found, chosen)

    def draw(console: Console) -> None:
        if change.dry_run:
            console.print(f"{counted(total)} would be {mark.result}")
            draw_keys(console, found, total)
        elif changed is None:
            console.print(f"nothing to do: {mark.nothing}")
        else:
            console.print(f"{counted(changed, 'partition is', 'partitions are')} {mark.result}")

    show(marks_document(found[:LISTED], total, changed=changed or 0, dry_run=change.dry_run), as_json, draw)


def _without_terminal_mark(ws: Workspace, chosen: Selection) -> tuple[list[PartitionKey], int]:
    keys = ws.partitions.unmarked(chosen)
    return keys, len(keys)


def _with_terminal_mark_or_failures(ws: Workspace, chosen: Selection) -> tuple[list[PartitionKey], int]:
    keys = ws.partitions.clearable(chosen)
    return keys, len(keys)


def _draw_terminal(
    console: Console, shown: Sequence[tuple[PartitionView, str]], total: int, following: str | None
) -> None:
    if not total:
        console.print("no failed partition is terminal")
        return
    rows = [(view.key, view.state.attempt_count, why, view.state.error_message) for view, why in shown]
    console.print(table(None, ("partition", "attempts", "why", "last error"), rows))
    draw_more(console, len(shown), total, following)
