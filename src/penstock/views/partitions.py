"""Documents of partitions: their identity, and the lists of missing, failed, stale and terminal partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.views.document import Document, page

if TYPE_CHECKING:
    from penstock.partition import PartitionKey
    from penstock.projections.status_board import Gap, PartitionStanding
    from penstock.state.records import PartitionView


def partition_fields(key: PartitionKey) -> dict[str, Any]:
    """The fields that identify a partition in every document."""
    return {
        "key": str(key),
        "source": key.source,
        "customer_id": key.customer_id,
        "query_name": key.query_name,
        "logical_date": key.logical_date,
    }


def missing_document(
    found: Sequence[PartitionStanding],
    views: Mapping[PartitionKey, PartitionView],
    total: int,
    following: str | None,
    gaps: Sequence[Gap],
    gaps_total: int,
) -> Document:
    """One page of missing partitions, and the first ranges of days that are missing."""
    return Document(
        {
            **partitions_document(found, views, total, following),
            "ranges": [{**gap._asdict(), "partitions": (gap.last - gap.first).days + 1} for gap in gaps],
            "ranges_total": gaps_total,
        }
    )


def partitions_document(
    found: Sequence[PartitionStanding],
    views: Mapping[PartitionKey, PartitionView],
    total: int,
    following: str | None,
) -> Document:
    """One page of partitions, each with its display status and its last attempt."""
    return page([_standing_with_state(one, views[one.key]) for one in found], total, following)


def stale_document(
    found: Sequence[PartitionStanding],
    total: int,
    following: str | None,
    reasons: Mapping[str, int],
    swept: int | None = None,
) -> Document:
    """One page of stale partitions, and the number of partitions by reason. `swept` is present after a sweep."""
    items = [{**_standing(one), "reasons": one.reasons, "stale_since": one.stale_since} for one in found]
    document = {**page(items, total, following), "reasons": reasons}
    return Document(document if swept is None else {**document, "swept": swept})


def terminal_document(found: Sequence[tuple[PartitionView, str]], total: int, following: str | None) -> Document:
    """One page of terminal partitions, each with the reason for which nothing retries it."""
    items = [
        {
            **partition_fields(view.key),
            "why": reason,
            "attempt_count": view.state.attempt_count,
            "error_message": view.state.error_message,
            "marked": view.control.terminal_at is not None,
        }
        for view, reason in found
    ]
    return page(items, total, following)


def _standing(standing: PartitionStanding) -> dict[str, Any]:
    return {
        **partition_fields(standing.key),
        "display_status": standing.display,
        "flags": standing.flags,
        "last_attempt_run_id": standing.last_attempt_run_id,
        "last_attempt_at": standing.last_attempt_at,
        "last_outcome": standing.last_attempt_outcome,
        "last_materialization_run_id": standing.last_materialization_run_id,
        "last_materialization_at": standing.last_materialization_at,
    }


def _standing_with_state(standing: PartitionStanding, view: PartitionView) -> dict[str, Any]:
    return {
        **_standing(standing),
        "status": view.state.status,
        "attempt_count": view.state.attempt_count,
        "error_class": view.last_attempt_error_class,
        "error_message": view.last_attempt_error,
        "open_attempt": view.open_run_id,
    }
