"""Applies the retry policy to failed attempts, in bulk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from penstock.config.assets import Asset, Retry
from penstock.control.retry import Failures, decide
from penstock.partition import PartitionKey
from penstock.state.retries import Decided, RetryStore, Undecided

_AT_ONCE = 10_000


def schedule(
    store: RetryStore,
    queries: Mapping[str, Asset],
    chance: Callable[[], float],
    due_at: Callable[[PartitionKey], datetime],
) -> int:
    """Decide about every failed attempt without a decision. Returns the number of partitions with a scheduled retry.
    `due_at` returns when the day of a partition ended."""
    coming = 0
    while waiting := store.undecided(_AT_ONCE):
        decisions = [_decided(queries, failed, chance(), due_at(failed.key)) for failed in waiting]
        store.decide(decisions)
        coming += sum(decision.next_run_at is not None for decision in decisions)
        if len(waiting) < _AT_ONCE:
            break
    return coming


def _decided(queries: Mapping[str, Asset], failed: Undecided, chance: float, due_at: datetime) -> Decided:
    query = queries.get(failed.key.query_name)
    policy = query.retry if query else Retry(errors=())  # no longer configured: not retried
    failures = Failures(failed.failures, due_at, failed.finished_at, failed.error_class)
    decision = decide(policy, failures, chance)
    return Decided(failed, decision.next_run_at, decision.strategy)
