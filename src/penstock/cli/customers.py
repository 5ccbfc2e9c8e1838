"""`penstock customers ...`: the customers of the workspace, and their synchronisation with a source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import options as opt
from penstock.cli.render import draw_more, show
from penstock.cli.text_tables import table
from penstock.errors import UsageError
from penstock.plural import counted
from penstock.views.document import paginate

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.config.settings import Customer

customers = typer.Typer(no_args_is_help=True, help="The customers (accounts) whose data is fetched.")


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
    """List the customers of the workspace with their time zones and the days on which they are active."""
    from penstock.app import load_workspace
    from penstock.views.customers import CUSTOMER_FIELDS, customers_document

    found = load_workspace(workspace).settings.customers
    at = 0 if after is None else 1 + _position(found, after)
    shown, following = paginate(found[at:], limit, lambda customer: customer.id)
    document = customers_document(shown, len(found), following)

    def draw(console: Console) -> None:
        console.print(table(None, CUSTOMER_FIELDS, [list(item.values()) for item in document["items"]]))
        draw_more(console, len(shown), len(found), following)

    show(document, as_json, draw)


def _position(found: Sequence[Customer], customer_id: str) -> int:
    for at, customer in enumerate(found):
        if customer.id == customer_id:
            return at
    raise UsageError(f"--after {customer_id}: there is no such customer; see `penstock customers list`")


@customers.command()
@opt.option_groups
def sync(
    change: opt.ChangeOptions,
    source: opt.SourceName = None,
    levels: Annotated[
        int, typer.Option("--levels", min=0, max=20, help="Levels of accounts below the manager account.")
    ] = 10,
    status: Annotated[
        list[str] | None,
        typer.Option("--status", metavar="S", help="Only accounts with this status; repeatable (default: ENABLED)."),
    ] = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Update customers.csv from the accounts that the source lists: new accounts, names and time zones.

    An account that the source no longer lists gets an end (active_to); no account is deleted, and an existing end
    stays. Repeating it changes nothing.
    """
    from penstock.app import open_workspace
    from penstock.cli.confirm import confirm
    from penstock.views.customers import sync_document

    ws = open_workspace(workspace)
    wanted = [text.upper() for text in status or ["ENABLED"]]
    name, plan = ws.customers.plan_sync(source, levels, wanted)
    changes = plan.changes
    if changes and not change.dry_run:
        confirm("changing", len(changes), yes=change.yes, force=change.force, noun="customer")
        flags = {"levels": levels, "status": wanted, "yes": change.yes, "force": change.force}
        ws.customers.sync(name, plan, actor=change.actor, flags=flags)
    document = sync_document(plan, dry_run=change.dry_run)

    def draw(console: Console) -> None:
        if plan.ended:
            console.print(
                f"{name} serves {counted(len(plan.ended), 'customer')} with an end (active_to), such as"
                f" {plan.ended[0]}: remove the end by hand to fetch again"
            )
        if not changes:
            console.print(f"nothing to do: {plan.file.name} agrees with {name}")
            return
        console.print(
            table(None, ("customer", "change", "before", "after"), [list(item.values()) for item in document["items"]])
        )
        console.print(
            f"{'would write' if change.dry_run else 'wrote'} {counted(len(changes), 'change')} to {plan.file}"
        )

    show(document, as_json, draw)
