"""Documents of previewed actions: the plan with its token, and the result of applying it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.views.document import Document
from penstock.views.partitions import partition_fields

if TYPE_CHECKING:
    from penstock.control.action_kinds import ActionPreview
    from penstock.state.action_plans import ActionPlan


def _plan(plan: ActionPlan) -> dict[str, Any]:
    return {
        "token": plan.token,
        "act": plan.act,
        "selection": dict(plan.selection),
        "options": dict(plan.options),
        "reason": plan.reason,
        "actor": plan.actor,
        "ledger_position": plan.ledger_position,
        "total": plan.total,
        "created_at": plan.created_at,
        "expires_at": plan.expires_at,
        "applied_at": plan.applied_at,
        "result": None if plan.result is None else dict(plan.result),
    }


def plan_document(plan: ActionPlan) -> Document:
    """A plan, with its result if it is applied."""
    return Document(_plan(plan))


def preview_document(plan: ActionPlan, found: ActionPreview) -> Document:
    """A new plan: its first partitions, the number of all of them, and those that are refused by reason."""
    return Document(
        {
            **_plan(plan),
            "items": [partition_fields(key) for key in found.keys],
            "refusals": dict(found.refusals),
            "refused": {reason: [str(key) for key in keys] for reason, keys in found.refused.items()},
            "facts": dict(found.facts),
        }
    )
