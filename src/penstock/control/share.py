"""Shares a round between fresh partitions and backfills, so that neither starves the other."""

from __future__ import annotations


def allocate(size: int, fresh: int, backfill: int, backfill_share: float) -> tuple[int, int]:
    """Divide `size` partitions between fresh ones and backfills, if `fresh` and `backfill` partitions wait.

    Each side gets its share, and at least one partition; the other side may use what it does not need.
    """
    if size < 2:
        raise ValueError("a round of less than two cannot be shared")
    reserved = min(size - 1, max(1, round(size * backfill_share)))
    given_to_backfill = min(backfill, max(reserved, size - fresh))
    return min(fresh, size - given_to_backfill), given_to_backfill
