"""`penstock state demote`, `rollback` and `approve`: changes to the authoritative run of one partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import options as opt
from penstock.cli.render import show

if TYPE_CHECKING:
    from penstock.app import Workspace
    from penstock.partition import PartitionKey
    from penstock.state.control import AuditEntry


def register(state: typer.Typer) -> None:
    state.command("demote")(demote)
    state.command("rollback")(rollback)
    state.command("approve")(approve)


def demote(
    key: opt.OneKey,
    reason: opt.RequiredReason,
    actor: opt.ActorName = None,
    dry_run: opt.DryRun = False,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Withdraw the authoritative run of a partition: readers stop seeing its rows at once."""
    _change_authority(
        "demote", key, {"reason": reason},
        lambda ws, one, entry: ws.operations.demote(one, reason, entry, rehearsal=dry_run), workspace, actor, dry_run, as_json,
        "demoted: readers no longer see its rows",
    )  # fmt: skip


def rollback(
    key: opt.OneKey,
    to: Annotated[str, typer.Option("--to", metavar="RUN", help="The accepted run to return to.")],
    reason: opt.Reason = None,
    actor: opt.ActorName = None,
    dry_run: opt.DryRun = False,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Make an earlier accepted run authoritative again.

    Readers stop seeing the rows of the present run at once; the next `run` or control round publishes the earlier run.
    Restatement skips the partition until `state resume`.
    """
    from penstock.partition import run_id

    _change_authority(
        "rollback", key, {"to": to, "reason": reason},
        lambda ws, one, entry: ws.operations.rollback(one, run_id(to), entry, reason=reason, rehearsal=dry_run), workspace,
        actor, dry_run, as_json, f"rolled back to run {to}: the next `penstock run` publishes it",
    )  # fmt: skip


def approve(
    key: opt.OneKey,
    run: Annotated[str, typer.Option("--run", metavar="RUN", help="The run that a guard rejected.")],
    reason: opt.RequiredReason,
    actor: opt.ActorName = None,
    dry_run: opt.DryRun = False,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Accept a run that only guards (shrink, compare) rejected.

    Restatement skips the partition until `state resume`.
    """
    from penstock.partition import run_id

    _change_authority(
        "approve", key, {"run": run, "reason": reason},
        lambda ws, one, entry: ws.operations.approve(one, run_id(run), reason, entry, rehearsal=dry_run), workspace, actor,
        dry_run, as_json, f"approved run {run}: the next `penstock run` publishes it",
    )  # fmt: skip


def _change_authority(
    command: str,
    key: str,
    flags: dict[str, Any],
    apply: Callable[[Workspace, PartitionKey, AuditEntry], bool],
    workspace: str,
    actor: str | None,
    dry_run: bool,
    as_json: bool,
    result: str,
) -> None:
    """Apply or preview a change, and print its result. `apply` returns whether there is something to change."""
    from penstock.app import open_workspace, os_user
    from penstock.state.audited import AuditedAct
    from penstock.state.control import AuditEntry
    from penstock.views.operations import authority_document

    ws = open_workspace(workspace)
    chosen = opt.select_key(key)
    [one] = chosen.keys
    ws.context.ranges(chosen)  # refuses unknown names
    changes = apply(ws, one, AuditEntry(actor or os_user(), AuditedAct(f"state {command}"), chosen.as_dict(), flags))
    message = f"{one} {'would be' if dry_run else 'is'} {result}" if changes else f"{one}: nothing to do"
    document = authority_document(one, changed=changes and not dry_run, dry_run=dry_run)
    show(document, as_json, lambda console: console.print(message))
