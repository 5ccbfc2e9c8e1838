"""Document of the work in progress, for `penstock top`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.views.document import Document

if TYPE_CHECKING:
    from penstock.state.activity import Activity, RunActivity


def activity_document(activity: Activity) -> Document:
    """Runs with their stages and rates; recent errors; quotas, orders and workers."""
    minutes = activity.window.total_seconds() / 60
    loops = next((one for one in activity.workers if one.is_control_loop), None)
    orders = {one.state: one.orders for one in activity.orders if one.state in ("queued", "claimed", "running")}
    queued = next((one for one in activity.orders if one.state == "queued"), None)
    return Document(
        {
            "at": activity.at,
            "runs": [_run(one, activity) for one in activity.runs],
            "last_minute": activity.last_minute,
            "per_minute": round(activity.judged / minutes, 1),
            "window_minutes": round(minutes),
            "errors": [
                {"outcome": one.outcome, "error_class": one.error_class, "count": one.attempts}
                for one in activity.errors
            ],
            "quota": [
                {
                    "source": one.source,
                    "window": one.window.value,
                    "budget": one.budget,
                    "left": one.left(),
                    "renews_at": one.renews_at,
                }
                for one in activity.quotas
            ],
            "orders": {state: orders.get(state, 0) for state in ("queued", "claimed", "running")},
            "oldest_order_seconds": _seconds(activity, queued.oldest) if queued else None,
            "control_loops": {
                "alive": loops.alive if loops else 0,
                "lost": loops.lost if loops else 0,
                "last_heartbeat": loops.last_heartbeat if loops else None,
            },
            "publish_due": sum(one.partitions for one in activity.publish_queues),
        }
    )


def _run(run: RunActivity, activity: Activity) -> dict[str, Any]:
    ended = run.finished_at or activity.at
    return {
        "run_id": run.run_id,
        "actor": run.actor,
        "state": _state(run),
        "stage": run.stage,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "seconds": round(max(0.0, (ended - run.started_at).total_seconds()), 1),
        "planned": run.planned,
        "open": run.open,
        "extracted": run.extracted,
        "extract_failed": run.extract_failed,
        "accepted": run.accepted,
        "rejected": run.rejected,
        "cancelled": run.cancelled,
        "published": run.published,
        "last_minute": run.last_minute,
    }


def _state(run: RunActivity) -> str:
    if run.finished_at is not None:
        return "finished"
    if not run.has_worker:
        return "lost"
    return "cancelling" if run.is_cancelling else "running"


def _seconds(activity: Activity, since: datetime) -> float:
    return round(max(0.0, (activity.at - since).total_seconds()), 1)
