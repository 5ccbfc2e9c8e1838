"""Document of a plan: the partitions that the next run attempts, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.views.document import Document, listing
from penstock.views.partitions import partition_fields

if TYPE_CHECKING:
    from penstock.control.plan import Plan


def plan_document(plan: Plan, limit: int) -> Document:
    """The first `limit` partitions of a plan, and the number of partitions by reason."""
    items = [{**partition_fields(item.key), "reason": item.reason} for item in plan.items[:limit]]
    return Document(
        {
            **listing(items, plan.total),
            "reasons": dict(plan.reasons),
            "held": plan.held,
            "paused": plan.paused,
            "waiting": plan.waiting,
            "dry_run": True,
        }
    )
