"""Sharing a round between fresh work and backfill, so that neither starves the other."""

from __future__ import annotations


def allocate(size: int, fresh: int, backfill: int, backfill_share: float) -> tuple[int, int]:
    """How many of `size` partitions go to fresh work and how many to backfill, when so many of each wait.

    Each side is sure of its share, and of at least one place; what one side does not need, the other may use.
    """
    if size < 2:
        raise ValueError("a round of less than two cannot be shared")
    reserved = min(size - 1, max(1, round(size * backfill_share)))
    given_to_backfill = min(backfill, max(reserved, size - fresh))
    return min(fresh, size - given_to_backfill), given_to_backfill
