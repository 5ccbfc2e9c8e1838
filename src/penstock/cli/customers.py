"""`penstock customers ...`: whose slices are fetched, and whose a source would have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import options as opt
from penstock.cli.render import cut, draw_more, listing, page, show
from penstock.cli.text_tables import table
from penstock.errors import UsageError
from penstock.plural import counted

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.config.settings import Customer

customers = typer.Typer(no_args_is_help=True, help="The accounts whose slices are fetched.")

_LISTED = 100


def register(app: typer.Typer) -> None:
    app.add_typer(customers, name="customers")


@customers.command("list")
def list_(
    limit: opt.Limit = 100,
    after: opt.AfterId = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """The customers of the workspace, with their time zones and the days on which there is anything to fetch."""
    from penstock.app import load_workspace

    found = load_workspace(workspace).settings.customers
    names = ("id", "name", "time_zone", "active_from", "active_to")
    at = 0 if after is None else 1 + _position(found, after)
    shown, following = cut(found[at:], limit, lambda customer: customer.id)
    items = [{name: getattr(customer, name) for name in names} for customer in shown]

    def draw(console: Console) -> None:
        console.print(table(None, names, [list(item.values()) for item in items]))
        draw_more(console, len(items), len(found), following)

    show(page(items, len(found), following), as_json, draw)


def _position(found: Sequence[Customer], customer_id: str) -> int:
    for at, customer in enumerate(found):
        if customer.id == customer_id:
            return at
    raise UsageError(f"--after {customer_id}: there is no such customer; see `penstock customers list`")


@customers.command()
def sync(
    source: opt.SourceName = None,
    levels: Annotated[int, typer.Option("--levels", min=0, max=20, help="How deep below the manager to look.")] = 10,
    status: Annotated[
        list[str] | None,
        typer.Option("--status", metavar="S", help="Only accounts with this status; repeatable (default: ENABLED)."),
    ] = None,
    dry_run: opt.DryRun = False,
    yes: opt.Yes = False,
    force: opt.Force = False,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Bring customers.csv up to what the source lists: new accounts, new names and time zones.

    An account that the source no longer lists gets an end (active_to) and is never deleted; an end that a person gave
    stays. Repeating it changes nothing.
    """
    from penstock.app import open_workspace, os_user
    from penstock.cli.confirm import confirm
    from penstock.state.audited import AuditedAct
    from penstock.state.control import AuditEntry

    ws = open_workspace(workspace)
    wanted = [text.upper() for text in status or ["ENABLED"]]
    name, plan = ws.customer_changes(source, levels, wanted)
    changes = plan.changes
    if changes and not dry_run:
        confirm("changing", len(changes), yes=yes, force=force, noun="customer")
        flags = {"levels": levels, "status": wanted, "yes": yes, "force": force}
        ws.sync_customers(plan, AuditEntry(actor or os_user(), AuditedAct.CUSTOMERS_SYNC, {"source": name}, flags))
    items = [{"id": c.id, "change": c.kind, "before": c.before, "after": c.after} for c in changes[:_LISTED]]
    written = 0 if dry_run else len(changes)
    document: dict[str, Any] = {
        **listing(items, len(changes)), "changed": written, "dry_run": dry_run, "ended": list(plan.ended)
    }  # fmt: skip

    def draw(console: Console) -> None:
        if plan.ended:
            console.print(
                f"{name} serves {counted(len(plan.ended), 'customer')} with an end (active_to), as {plan.ended[0]}:"
                " remove the end by hand to fetch again"
            )
        if not changes:
            console.print(f"nothing to do: {plan.file.name} says what {name} says")
            return
        console.print(table(None, ("customer", "change", "before", "after"), [list(item.values()) for item in items]))
        console.print(f"{'would write' if dry_run else 'wrote'} {counted(len(changes), 'change')} to {plan.file}")

    show(document, as_json, draw)
