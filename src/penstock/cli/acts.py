"""`penstock state ...`: the acts of operators on marks (terminal, pause) and authority (demote, rollback, approve)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import options as opt
from penstock.cli.render import LISTED, cut, draw_keys, draw_more, key_fields, listing, page, show
from penstock.cli.text_tables import table
from penstock.lifecycle import PartitionStatus
from penstock.partition import PartitionKey, run_id
from penstock.plural import counted

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.app import Workspace
    from penstock.control.select import Selection
    from penstock.state.control import AuditEntry
    from penstock.state.records import PartitionView


def _reason(text: str | None) -> str | None:
    from penstock.state.audited import refuse_blank

    refuse_blank(text)
    return text


_REASON = typer.Option("--reason", metavar="TEXT", help="Why, for the audit log and for `why`.", callback=_reason)
Reason = Annotated[str | None, _REASON]
NeededReason = Annotated[str, _REASON]


def register(state: typer.Typer) -> None:
    for name, command in (
        ("terminal", terminal),
        ("mark-terminal", mark_terminal),
        ("clear-terminal", clear_terminal),
        ("pause", pause),
        ("resume", resume),
        ("demote", demote),
        ("rollback", rollback),
        ("approve", approve),
    ):
        state.command(name)(command)


@opt.option_groups
def terminal(
    filters: opt.Filters,
    limit: opt.Limit = 100,
    after: opt.After = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Failed partitions that nothing will try again by itself, each with why."""
    from penstock.app import open_workspace

    ws = open_workspace(workspace)
    chosen = filters.selection()
    found = ws.terminal(chosen, after=opt.after_key(after), limit=limit + 1)
    shown, following = cut(found, limit, lambda item: item[0].key)
    total = ws.terminal_count(chosen)
    items = [
        {
            **key_fields(view.key),
            "why": why,
            "attempt_count": view.state.attempt_count,
            "error_message": view.state.error_message,
            "marked": view.control.terminal_at is not None,
        }
        for view, why in shown
    ]
    show(
        page(items, total, following),
        as_json,
        lambda console: _draw_terminal(console, shown, total, following),
    )


@opt.option_groups
def mark_terminal(
    filters: opt.Filters,
    reason: Reason = None,
    dry_run: opt.DryRun = False,
    yes: opt.Yes = False,
    force: opt.Force = False,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Give failed partitions up for good: no retry, by policy or by hand, until `clear-terminal`."""
    chosen = filters.selection()
    _mark(
        _Act("mark-terminal", "marking", "given up for good", chosen, {"reason": reason}),
        workspace,
        _unmarked,
        lambda ws, found, entry: ws.marks.mark_terminal(found, reason, entry) if found else None,
        _Rails(dry_run, yes, force, actor, as_json),
    )


@opt.option_groups
def clear_terminal(
    filters: opt.Filters,
    dry_run: opt.DryRun = False,
    yes: opt.Yes = False,
    force: opt.Force = False,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Take terminal marks back and forgive past failures; `state retry` then tries the partitions again.

    A partition that is terminal only because its day is older than `retry.max_age` has nothing to clear: `state retry`
    tries it once.
    """
    chosen = filters.selection()
    _mark(
        _Act("clear-terminal", "clearing", "no longer terminal: `penstock state retry` tries them again", chosen, {}),
        workspace,
        _terminal,
        lambda ws, found, entry: ws.marks.clear_terminal(found, entry) if found else None,
        _Rails(dry_run, yes, force, actor, as_json),
    )


@opt.option_groups
def pause(
    filters: opt.Filters,
    reason: Reason = None,
    dry_run: opt.DryRun = False,
    yes: opt.Yes = False,
    force: opt.Force = False,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Stop all attempts of these partitions until `resume`. Attempts that are already open are finished.

    A pause by filters also covers days and customers that are added later. --until limits it. `state pauses` lists the
    pauses that are in force.
    """
    chosen = filters.selection()
    is_lasting = not chosen.keys and chosen.status is None
    done = "paused; customers and days that are added later, too" if is_lasting and chosen.until is None else "paused"
    _mark(
        _Act("pause", "pausing", done, chosen, {"reason": reason}, "all partitions that match are paused"),
        workspace,
        _not_paused,
        lambda ws, _, entry: ws.pause_partitions(chosen, reason, entry),
        _Rails(dry_run, yes, force, actor, as_json),
    )


@opt.option_groups
def resume(
    filters: opt.Filters,
    dry_run: opt.DryRun = False,
    yes: opt.Yes = False,
    force: opt.Force = False,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """End pauses, and the holds that rollback and approve put on restatement.

    It can end a part of a pause: the rest stays paused.
    """
    chosen = filters.selection()
    _mark(
        _Act("resume", "resuming", "resumed", chosen, {}, "nothing that matches is paused or held"),
        workspace,
        _marked,
        lambda ws, _, entry: ws.resume_partitions(chosen, entry),
        _Rails(dry_run, yes, force, actor, as_json),
    )


def demote(
    key: opt.OneKey,
    reason: NeededReason,
    actor: opt.ActorName = None,
    dry_run: opt.DryRun = False,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Withdraw the trusted run of a partition: readers lose its rows at once."""
    _one(
        "demote", key, {"reason": reason},
        lambda ws, one, entry: ws.demote(one, reason, entry, rehearsal=dry_run), workspace, actor, dry_run, as_json,
        "demoted: readers no longer see its rows",
    )  # fmt: skip


def rollback(
    key: opt.OneKey,
    to: Annotated[str, typer.Option("--to", metavar="RUN", help="The accepted run to return to.")],
    reason: Reason = None,
    actor: opt.ActorName = None,
    dry_run: opt.DryRun = False,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Trust an earlier accepted run again. The abandoned run is gone from readers at once; the next `run` (or control
    round) publishes the older one. Restatement leaves the partition alone until `state resume`."""
    _one(
        "rollback", key, {"to": to, "reason": reason},
        lambda ws, one, entry: ws.rollback(one, run_id(to), entry, reason=reason, rehearsal=dry_run), workspace,
        actor, dry_run, as_json, f"rolled back to run {to}: the next `penstock run` publishes it",
    )  # fmt: skip


def approve(
    key: opt.OneKey,
    run: Annotated[str, typer.Option("--run", metavar="RUN", help="The run that a guard held back.")],
    reason: NeededReason,
    actor: opt.ActorName = None,
    dry_run: opt.DryRun = False,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Accept a run that only guards (shrink, compare) held back; restatement leaves it alone until `state resume`."""
    _one(
        "approve", key, {"run": run, "reason": reason},
        lambda ws, one, entry: ws.approve(one, run_id(run), reason, entry, rehearsal=dry_run), workspace, actor,
        dry_run, as_json, f"approved run {run}: the next `penstock run` publishes it",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Act:
    name: str
    doing: str
    done: str
    chosen: Selection
    flags: dict[str, Any]
    nothing: str = "no partition matches"  # why there is nothing to do


@dataclass(frozen=True, slots=True)
class _Rails:
    dry_run: bool
    yes: bool
    force: bool
    actor: str | None
    as_json: bool


def _mark(
    act: _Act,
    workspace: str,
    find: Callable[[Workspace, Selection], tuple[Sequence[PartitionKey], int]],
    carry_out: Callable[[Workspace, Sequence[PartitionKey], AuditEntry], int | None],
    rails: _Rails,
) -> None:
    """Find, preview or confirm, carry out, say. `find` returns the partitions and their number; for an act on filters,
    which needs no list, only the first ones."""
    from penstock.app import open_workspace, os_user
    from penstock.cli.confirm import confirm
    from penstock.state.audited import AuditedAct
    from penstock.state.control import AuditEntry

    ws = open_workspace(workspace)
    found, total = find(ws, act.chosen)
    changed: int | None = None
    if not rails.dry_run:
        confirm(act.doing, total, yes=rails.yes, force=rails.force)
        flags = {**act.flags, "yes": rails.yes, "force": rails.force}
        entry = AuditEntry(rails.actor or os_user(), AuditedAct(f"state {act.name}"), act.chosen.as_dict(), flags)
        changed = carry_out(ws, found, entry)
    items = [key_fields(key) for key in found[:LISTED]]
    document = {**listing(items, total), "changed": changed or 0, "dry_run": rails.dry_run}

    def draw(console: Console) -> None:
        if rails.dry_run:
            console.print(f"{counted(total)} would be {act.done}")
            draw_keys(console, found, total)
        elif changed is None:
            console.print(f"nothing to do: {act.nothing}")
        else:
            console.print(f"{counted(changed, 'partition is', 'partitions are')} {act.done}")

    show(document, rails.as_json, draw)


def _one(
    name: str,
    key: str,
    flags: dict[str, Any],
    carry_out: Callable[[Workspace, PartitionKey, AuditEntry], bool],
    workspace: str,
    actor: str | None,
    dry_run: bool,
    as_json: bool,
    done: str,
) -> None:
    from penstock.app import open_workspace, os_user
    from penstock.state.audited import AuditedAct
    from penstock.state.control import AuditEntry

    ws = open_workspace(workspace)
    chosen = opt.select_key(key)
    [one] = chosen.keys
    ws.ranges(chosen)
    would = carry_out(ws, one, AuditEntry(actor or os_user(), AuditedAct(f"state {name}"), chosen.as_dict(), flags))
    words = f"{one} {'would be' if dry_run else 'is'} {done}" if would else f"{one}: nothing to do"
    document = {**key_fields(one), "changed": int(would and not dry_run), "dry_run": dry_run}
    show(document, as_json, lambda console: console.print(words))


def _unmarked(ws: Workspace, chosen: Selection) -> tuple[list[PartitionKey], int]:
    from penstock.control.ranges import iter_pages
    from penstock.control.requeue import SCANNED

    ranges = ws.ranges(chosen)  # refuses unknown names
    if chosen.status not in (None, PartitionStatus.FAILED):
        return [], 0
    failed = (ws.reader.views(some, status=PartitionStatus.FAILED) for some in iter_pages(ranges, SCANNED))
    keys = [view.key for some in failed for view in some if view.control.terminal_at is None]
    return keys, len(keys)


def _terminal(ws: Workspace, chosen: Selection) -> tuple[list[PartitionKey], int]:
    """Those that have something to clear: a mark, or failures that count."""
    from penstock.control.requeue import MOVED

    keys: list[PartitionKey] = []
    after = None
    while found := ws.terminal(chosen, after=after, limit=MOVED):
        after = found[-1][0].key
        keys += [view.key for view, _ in found if view.control.terminal_at is not None or view.control.failures]
    return keys, len(keys)


def _not_paused(ws: Workspace, chosen: Selection) -> tuple[list[PartitionKey], int]:
    ranges, status = ws.ranges(chosen), chosen.status
    found = ws.reader.views(ranges, status=status, paused=False, limit=LISTED)
    return [view.key for view in found], ws.reader.count(ranges, status=status, paused=False)


def _marked(ws: Workspace, chosen: Selection) -> tuple[list[PartitionKey], int]:
    ranges, status = ws.ranges(chosen), chosen.status
    found = ws.reader.views(ranges, status=status, marked=True, limit=LISTED)
    return [view.key for view in found], ws.reader.count(ranges, status=status, marked=True)


def _draw_terminal(
    console: Console, shown: Sequence[tuple[PartitionView, str]], total: int, following: str | None
) -> None:
    if not total:
        console.print("no failed partition is terminal")
        return
    rows = [(view.key, view.state.attempt_count, why, view.state.error_message) for view, why in shown]
    console.print(table(None, ("partition", "attempts", "why", "last error"), rows))
    draw_more(console, len(shown), total, following)
