"""Tokens of the API: list, create and revoke, for admins."""

from __future__ import annotations

from penstock.http.calls import Call, Reply
from penstock.http.parameters import in_path
from penstock.http.routes import PREFIX, Access, Route
from penstock.http.schemas.access import NewToken, TokenBody, TokenRevoked, Tokens
from penstock.views.document import Document
from penstock.views.tokens import new_token_document, revoked_document, tokens_document

_NAME = in_path("name", "The name of the token.", "^[A-Za-z0-9][A-Za-z0-9_.@-]{0,62}$")


def list_tokens(call: Call) -> Document:
    """List tokens with role and last use, without their secrets."""
    return tokens_document(call.workspace.tokens.all())


def create_token(call: Call) -> Reply:
    """Create a token. Its text is in the response and nowhere else."""
    body: TokenBody = call.body
    made, text = call.workspace.tokens.create(body.name, body.role, actor=call.identity.name)
    return Reply(new_token_document(made, text), status=201)


def revoke_token(call: Call) -> Document:
    """Revoke a token: its requests and sessions are refused from now on."""
    name = call.path["name"]
    return revoked_document(name, changed=call.workspace.tokens.revoke(name, actor=call.identity.name))


ROUTES = (
    Route("GET", f"{PREFIX}/tokens", list_tokens, Access.ADMIN, Tokens, "List tokens"),
    Route(
        "POST",
        f"{PREFIX}/tokens",
        create_token,
        Access.ADMIN,
        NewToken,
        "Create a token",
        body=TokenBody,
        status=201,
        keeps_response=False,
    ),
    Route("DELETE", f"{PREFIX}/tokens/{{name}}", revoke_token, Access.ADMIN, TokenRevoked, "Revoke a token", (_NAME,)),
)
