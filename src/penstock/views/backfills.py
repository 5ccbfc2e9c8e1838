"""Documents of backfills: definition, progress and expected end."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.views.document import Document

if TYPE_CHECKING:
    from penstock.partition import PartitionKey
    from penstock.state.backfills import Backfill, Progress


def backfill_item(backfill: Backfill, progress: Progress, now: datetime, *, is_saved: bool = True) -> dict[str, Any]:
    """One backfill with its progress. `eta` extrapolates the rate so far; None unless an active backfill has begun."""
    eta = None
    if progress.done and progress.began_at and backfill.status == "active":
        eta = now + (now - progress.began_at) / progress.done * (backfill.total - progress.done)
    return {
        "backfill_id": backfill.backfill_id if is_saved else None,
        "status": backfill.status,
        "selector": dict(backfill.selector),
        "reprocess": backfill.reprocess,
        "priority": backfill.priority,
        "chunk_size": backfill.chunk_size,
        "max_chunks": backfill.max_chunks,
        "total": backfill.total,
        "done": progress.done,
        "accepted": progress.accepted,
        "rejected": progress.rejected,
        "skipped": progress.skipped,
        "open_chunks": progress.open_chunks,
        "eta": eta,
        "created_at": backfill.created_at,
        "created_by": backfill.created_by,
        "finished_at": backfill.finished_at,
    }


def backfill_document(item: dict[str, Any], failed: Sequence[PartitionKey], failed_total: int) -> Document:
    """One backfill, its failed partitions or the first of them, and their number."""
    return Document({**item, "failed": [str(key) for key in failed], "failed_total": failed_total})


def new_backfill_document(item: dict[str, Any], *, moved: int | None, frozen: int, dry_run: bool) -> Document:
    """A backfill that is created. `moved` counts the partitions that change their schema version."""
    return Document({**item, "moved": moved, "frozen": frozen, "dry_run": dry_run})


def backfill_change_document(item: dict[str, Any], *, changed: bool, dry_run: bool) -> Document:
    """A backfill that is paused, resumed or cancelled."""
    return Document({**item, "changed": int(changed), "dry_run": dry_run})
