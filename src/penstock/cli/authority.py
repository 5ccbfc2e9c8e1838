"""`penstock state demote`, `rollback` and `approve`: changes to the authoritative run of one partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import options as opt
from penstock.cli.render import show

if TYPE_CHECKING:
    from penstock.app import Workspace
    from penstock.partition import PartitionKey


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
        lambda ws, one: ws.operations.demote(one, reason=reason, actor=actor, dry_run=dry_run),
        key,
        "demoted: readers no longer see its rows",
        workspace,
        dry_run,
        as_json,
    )


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
    _change_authority(
        lambda ws, one: ws.operations.rollback(one, to, reason=reason, actor=actor, dry_run=dry_run),
        key,
        f"rolled back to run {to}: the next `penstock run` publishes it",
        workspace,
        dry_run,
        as_json,
    )


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
    _change_authority(
        lambda ws, one: ws.operations.approve(one, run, reason=reason, actor=actor, dry_run=dry_run),
        key,
        f"approved run {run}: the next `penstock run` publishes it",
        workspace,
        dry_run,
        as_json,
    )


def _change_authority(
    apply: Callable[[Workspace, PartitionKey], bool],
    key: str,
    result: str,
    workspace: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Apply or preview a change, and print its result. `apply` returns whether there is something to change."""
    from penstock.app import open_workspace
    from penstock.views.operations import authority_document

    ws = open_workspace(workspace)
    chosen = opt.select_key(key)
    [one] = chosen.keys
    ws.context.ranges(chosen)  # refuses unknown names
    changes = apply(ws, one)
    message = f"{one} {'would be' if dry_run else 'is'} {result}" if changes else f"{one}: nothing to do"
    document = authority_document(one, changed=changes and not dry_run, dry_run=dry_run)
    show(document, as_json, lambda console: console.print(message))
