"""`penstock tokens`: who may use the HTTP API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import options as opt
from penstock.cli.render import show
from penstock.cli.text_tables import table

if TYPE_CHECKING:
    from rich.console import Console

TokenName = Annotated[str, typer.Argument(metavar="NAME", help="The name of the token: the actor in the audit log.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Tokens of the HTTP API: who may use it, and in which role.")
    group.command("create")(create)
    group.command("list")(list_tokens)
    group.command("revoke")(revoke)
    group.command("logout")(logout)
    app.add_typer(group, name="tokens")


def create(
    name: TokenName,
    role: Annotated[str, typer.Option("--role", metavar="R", help="viewer, operator or admin.")],
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Create a token and print it. It is shown once: the database holds only its hash.

    A viewer reads. An operator also retries, pauses, backfills and runs. An admin also demotes, rolls back, approves,
    maintains tables and changes tokens.
    """
    from penstock.app import open_workspace
    from penstock.views.tokens import new_token_document

    token, text = open_workspace(workspace).tokens.create(name, role, actor=actor)

    def draw(console: Console) -> None:
        console.print(f"token {token.name} ({token.role}); it is not shown again:")
        console.print(text, soft_wrap=True)

    show(new_token_document(token, text), as_json, draw)


def list_tokens(workspace: opt.WorkspaceDir = ".", as_json: opt.AsJson = False, debug: opt.Debug = False) -> None:
    """List tokens with role and last use, without their secrets."""
    from penstock.app import open_workspace
    from penstock.views.tokens import tokens_document

    found = open_workspace(workspace).tokens.all()

    def draw(console: Console) -> None:
        rows = [(t.name, t.role, t.created_at, t.created_by, t.last_used_at, t.revoked_at) for t in found]
        columns = ("token", "role", "created (UTC)", "by", "last used (UTC)", "revoked (UTC)")
        console.print(table(None, columns, rows) if rows else "there is no token: `penstock tokens create NAME`")

    show(tokens_document(found), as_json, draw)


def revoke(
    name: TokenName,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Revoke a token: its requests and sessions are refused from now on."""
    from penstock.app import open_workspace
    from penstock.views.tokens import revoked_document

    changed = open_workspace(workspace).tokens.revoke(name, actor=actor)
    message = f"token {name} is revoked" if changed else f"token {name} was revoked before"
    show(revoked_document(name, changed=changed), as_json, lambda console: console.print(message))


def logout(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A token, or a person as the audit log names them (oidc:...).")
    ],
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """End the console sessions of a token or person. The token stays valid; a person may log in again."""
    from penstock.app import open_workspace
    from penstock.plural import counted
    from penstock.views.tokens import logout_document

    ended = open_workspace(workspace).logins.end_all(name, actor=actor)
    message = f"ended {counted(ended, 'session')} of {name}"
    show(logout_document(name, ended), as_json, lambda console: console.print(message))
