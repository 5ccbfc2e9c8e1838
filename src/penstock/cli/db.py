"""`penstock db ...`: schema and roles of the state database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import options as opt
from penstock.cli.render import show

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.db.roles import RolePlan

db = typer.Typer(no_args_is_help=True, help="The state database: its schema and its roles.")


def register(app: typer.Typer) -> None:
    app.add_typer(db, name="db")


@db.callback()
def _group() -> None:
    pass


@db.command()
def migrate(workspace: opt.WorkspaceDir = ".", as_json: opt.AsJson = False, debug: opt.Debug = False) -> None:
    """Create the schema or migrate it to the version of this release. Safe to repeat."""
    from penstock.app import load_workspace
    from penstock.views.installation import migration_document

    ws = load_workspace(workspace)
    before, after = ws.maintenance.migrate()
    result = f"schema {after} was already there" if before == after else f"schema {before or 'none'} -> {after}"
    document = migration_document(str(ws.context.database), before, after)
    show(document, as_json, lambda console: console.print(f"{ws.context.database}: {result}"))


@db.command()
def roles(
    prefix: Annotated[
        str | None,
        typer.Option("--prefix", metavar="NAME", help="Prefix of the roles (default: penstock_WORKSPACE)."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the SQL, for an administrator.")] = False,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Create the PostgreSQL roles and grant their rights. Safe to repeat; repeat it after a migration."""
    from penstock.app import load_workspace
    from penstock.db.roles import make_roles, plan_roles
    from penstock.views.installation import roles_document

    ws = load_workspace(workspace)
    plan = plan_roles(ws.context.database, prefix if prefix is not None else f"penstock_{ws.settings.workspace}")
    ws.context.require_schema()
    if not dry_run:
        make_roles(ws.context.database, plan)
    draw = _draw_script if dry_run else _draw_roles
    show(roles_document(plan, dry_run=dry_run), as_json, lambda console: draw(console, plan))


def _draw_script(console: Console, plan: RolePlan) -> None:
    """Print only SQL, so that the output can be piped into psql."""
    for statement in ("BEGIN", *plan.statements, "COMMIT"):
        console.out(f"{statement};", highlight=False)
    console.out(f"-- then, for each login: {_usage(plan)}", highlight=False)


def _draw_roles(console: Console, plan: RolePlan) -> None:
    from rich.text import Text

    from penstock.db.roles import PURPOSES

    for role, name in plan.names.items():
        console.print(Text.assemble((name, "bold"), f": {PURPOSES[role]}"))
    console.print(f"Give a login its role with: {_usage(plan)}")


def _usage(plan: RolePlan) -> str:
    from penstock.db.roles import Role

    return f"GRANT {plan.names[Role.CONSUMER]} TO <login>;"
