"""`penstock state terminal`, `mark-terminal`, `clear-terminal`, `pause` and `resume`: marks beside the state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from penstock.cli import options as opt
from penstock.cli.render import LISTED, draw_keys, draw_more, show
from penstock.cli.text_tables import table
from penstock.lifecycle import PartitionStatus
from penstock.plural import counted
from penstock.views.document import paginate

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.app import Workspace
    from penstock.control.select import Selection
    from penstock.partition import PartitionKey
    from penstock.state.control import AuditEntry
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
        _MarkChange("mark-terminal", "marking", "terminal", {"reason": reason}),
        filters.selection(),
        change,
        workspace,
        as_json,
        _without_terminal_mark,
        lambda ws, found, entry: ws.context.marks.mark_terminal(found, reason, entry) if found else None,
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
        _MarkChange("clear-terminal", "clearing", "no longer terminal: `penstock state retry` retries them", {}),
        filters.selection(),
        change,
        workspace,
        as_json,
        _with_terminal_mark_or_failures,
        lambda ws, found, entry: ws.context.marks.clear_terminal(found, entry) if found else None,
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
        _MarkChange("pause", "pausing", done, {"reason": reason}, "all partitions that match are paused"),
        chosen,
        change,
        workspace,
        as_json,
        _not_paused,
        lambda ws, _, entry: ws.operations.pause(chosen, reason, entry),
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
        _MarkChange("resume", "resuming", "resumed", {}, "nothing that matches is paused or held"),
        chosen,
        change,
        workspace,
        as_json,
        _paused_or_held,
        lambda ws, _, entry: ws.operations.resume(chosen, entry),
    )


@dataclass(frozen=True, slots=True)
class _MarkChange:
    command: str  # the sub-command of `state`
    verb: str  # for the confirmation
    result: str  # completes "partitions are ..."
    flags: dict[str, Any]  # for the audit log
    nothing: str = "no partition matches"  # the message if nothing changes


def _change_marks(
    mark: _MarkChange,
    chosen: Selection,
    change: opt.ChangeOptions,
    workspace: str,
    as_json: bool,
    find: Callable[[Workspace, Selection], tuple[Sequence[PartitionKey], int]],
    apply: Callable[[Workspace, Sequence[PartitionKey], AuditEntry], int | None],
) -> None:
    """Find the partitions, preview or confirm, apply the change, and print the result.

    `find` returns partitions and their number. Only the first partitions suffice for a change by filters. `apply`
    returns the number of changed partitions, or None if there was nothing to change.
    """
    from penstock.app import open_workspace, os_user
    from penstock.cli.confirm import confirm
    from penstock.state.audited import AuditedAct
    from penstock.state.control import AuditEntry
    from penstock.views.operations import marks_document

    ws = open_workspace(workspace)
    found, total = find(ws, chosen)
    changed: int | None = None
    if not change.dry_run:
        confirm(mark.verb, total, yes=change.yes, force=change.force)
        flags = {**mark.flags, "yes": change.yes, "force": change.force}
        entry = AuditEntry(change.actor or os_user(), AuditedAct(f"state {mark.command}"), chosen.as_dict(), flags)
        changed = apply(ws, found, entry)

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
    from penstock.control.ranges import iter_pages
    from penstock.control.requeue import SCANNED

    ranges = ws.context.ranges(chosen)  # refuses unknown names
    if chosen.status not in (None, PartitionStatus.FAILED):
        return [], 0
    failed = (ws.context.state.views(some, status=PartitionStatus.FAILED) for some in iter_pages(ranges, SCANNED))
    keys = [view.key for some in failed for view in some if view.control.terminal_at is None]
    return keys, len(keys)


def _with_terminal_mark_or_failures(ws: Workspace, chosen: Selection) -> tuple[list[PartitionKey], int]:
    from penstock.control.requeue import MOVED

    keys: list[PartitionKey] = []
    after = None
    while found := ws.partitions.terminal(chosen, after=after, limit=MOVED):
        after = found[-1][0].key
        keys += [view.key for view, _ in found if view.control.terminal_at is not None or view.control.failures]
    return keys, len(keys)


def _not_paused(ws: Workspace, chosen: Selection) -> tuple[list[PartitionKey], int]:
    ranges, status = ws.context.ranges(chosen), chosen.status
    found = ws.context.state.views(ranges, status=status, paused=False, limit=LISTED)
    return [view.key for view in found], ws.context.state.count(ranges, status=status, paused=False)


def _paused_or_held(ws: Workspace, chosen: Selection) -> tuple[list[PartitionKey], int]:
    ranges, status = ws.context.ranges(chosen), chosen.status
    found = ws.context.state.views(ranges, status=status, marked=True, limit=LISTED)
    return [view.key for view in found], ws.context.state.count(ranges, status=status, marked=True)


def _draw_terminal(
    console: Console, shown: Sequence[tuple[PartitionView, str]], total: int, following: str | None
) -> None:
    if not total:
        console.print("no failed partition is terminal")
        return
    rows = [(view.key, view.state.attempt_count, why, view.state.error_message) for view, why in shown]
    console.print(table(None, ("partition", "attempts", "why", "last error"), rows))
    draw_more(console, len(shown), total, following)
