"""Actions: preview a selector and get a plan, then apply the plan by its token."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from penstock.control.action_kinds import ActionKind
from penstock.errors import AccessDenied
from penstock.http.api.orders import refuse_many, selection_of_body
from penstock.http.calls import Call, Identity, Reply
from penstock.http.parameters import in_path
from penstock.http.routes import PREFIX, Access, Route
from penstock.http.schemas.actions import ApplyBody, PlanBody, PlanDocument, PreviewDocument
from penstock.plural import counted
from penstock.state.tokens import TokenRole
from penstock.views.actions import plan_document, preview_document
from penstock.views.document import Document

PLAN = in_path("token", "The token of a plan.", "^[0-7][0-9A-HJKMNP-TV-Z]{25}$")

# The role that each action needs. A test compares the table with the actions.
ACTION_ROLES: Mapping[ActionKind, TokenRole] = {
    ActionKind.RETRY: TokenRole.OPERATOR,
    ActionKind.MARK_TERMINAL: TokenRole.OPERATOR,
    ActionKind.CLEAR_TERMINAL: TokenRole.OPERATOR,
    ActionKind.PAUSE: TokenRole.OPERATOR,
    ActionKind.RESUME: TokenRole.OPERATOR,
    ActionKind.DEMOTE: TokenRole.ADMIN,
    ActionKind.ROLLBACK: TokenRole.ADMIN,
    ActionKind.APPROVE: TokenRole.ADMIN,
    ActionKind.BACKFILL: TokenRole.OPERATOR,
    ActionKind.BACKFILL_PAUSE: TokenRole.OPERATOR,
    ActionKind.BACKFILL_RESUME: TokenRole.OPERATOR,
    ActionKind.BACKFILL_CANCEL: TokenRole.OPERATOR,
    ActionKind.BACKFILL_RETRY_FAILED: TokenRole.OPERATOR,
    ActionKind.CLOSE_BREAKER: TokenRole.OPERATOR,
    ActionKind.CANCEL_RUN: TokenRole.OPERATOR,
    ActionKind.RUN: TokenRole.OPERATOR,
    ActionKind.RESUME_RUN: TokenRole.OPERATOR,
    ActionKind.VALIDATE: TokenRole.ADMIN,  # a rejected run is demoted
    ActionKind.RECONCILE: TokenRole.ADMIN,
    ActionKind.COMPACT: TokenRole.ADMIN,
}
_OPTIONS = ("run_id", "backfill_id", "source", "tables", "reprocess", "without_raw")
_NUMBERS = ("chunk_size", "priority", "max_chunks")


def refuse_action(identity: Identity, act: ActionKind) -> None:
    """Raise AccessDenied if the role of the caller does not allow the action."""
    needed = ACTION_ROLES[act]
    if not identity.role.includes(needed):
        raise AccessDenied(f"{act} needs the role {needed}: {identity.name} has the role {identity.role}")


def preview_action(call: Call) -> Reply:
    """Preview an action: the number of partitions, the first of them, refusals, and a token with which to apply it.

    A plan can be applied for 15 minutes, by the token that previewed it.
    """
    return Reply(previewed(call, call.body), status=HTTPStatus.CREATED)


def previewed(call: Call, body: PlanBody) -> Document:
    """Preview an action for the caller. Raises AccessDenied if the role does not allow it."""
    refuse_action(call.identity, body.act)
    options: dict[str, Any] = {name: getattr(body, name) for name in _OPTIONS if getattr(body, name)}
    options |= {name: getattr(body, name) for name in _NUMBERS if getattr(body, name) is not None}
    plan, found = call.workspace.actions.preview(
        body.act, selection_of_body(body.selection), options, reason=body.reason, actor=call.identity.name
    )
    return preview_document(plan, found)


def show_plan(call: Call) -> Document:
    """Show a plan, and its result if it is applied."""
    return plan_document(call.workspace.actions.get(call.path["token"]))


def apply_plan(call: Call) -> Document:
    """Apply a plan. Partitions that changed since the preview are reported and left as they are.

    Repeating the request returns the first result. What needs Spark becomes an order: `result.order_id`.
    """
    ws, token, body = call.workspace, call.path["token"], call.body
    plan = ws.actions.get(token)
    refuse_action(call.identity, ActionKind(plan.act))
    assert isinstance(body, ApplyBody)
    if not body.force:
        refuse_many(f"{plan.act} of {counted(plan.total)}", plan.total)
    return plan_document(ws.actions.apply(token, actor=call.identity.name, worker_token=call.worker_token))


ROUTES = (
    Route(
        "POST",
        f"{PREFIX}/plans",
        preview_action,
        Access.OPERATOR,
        PreviewDocument,
        "Preview an action",
        body=PlanBody,
        status=201,
    ),
    Route("GET", f"{PREFIX}/plans/{{token}}", show_plan, Access.VIEWER, PlanDocument, "Show a plan", (PLAN,)),
    Route(
        "POST",
        f"{PREFIX}/plans/{{token}}/apply",
        apply_plan,
        Access.OPERATOR,
        PlanDocument,
        "Apply a plan",
        (PLAN,),
        body=ApplyBody,
    ),
)
