"""Documents of the state store: rows of PartitionState, and attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.views.document import Document, listing
from penstock.views.partitions import partition_fields

if TYPE_CHECKING:
    from penstock.lifecycle import DisplayStatus
    from penstock.state.records import Attempt, PartitionView


def state_item(
    view: PartitionView,
    display: DisplayStatus,
    *,
    next_run_at: datetime | None,
    terminal: str | None,
    maturity: str | None,
) -> dict[str, Any]:
    """One row of PartitionState with its control metadata. `terminal` is the reason for which nothing retries it."""
    state = view.state
    return {
        **partition_fields(state.key),
        "status": state.status,
        "current_run_id": state.current_run_id,
        "schema_version": state.schema_version,
        "record_count": state.record_count,
        "updated_at": state.updated_at,
        "error_message": state.error_message,
        "attempt_count": state.attempt_count,
        "authority_version": state.authority_version,
        "implicit": not view.explicit,
        "display_status": display,
        "next_run_at": next_run_at,
        "strategy": view.control.strategy,
        "terminal": terminal is not None,
        "terminal_why": terminal,
        "paused": view.control.paused_at is not None,
        "held": view.control.held_at is not None,
        "maturity": maturity,
        "open_attempt": view.open_run_id,
    }


def attempts_document(
    attempts: Sequence[Attempt],
    authoritative: str | None,
    next_run_at: datetime | None,
    trace_ids: Mapping[str, str] | None = None,
) -> Document:
    """Every attempt of a partition, newest first. `next_run_at` is the time of the retry that follows the newest. An
    attempt of a run in `trace_ids` has the id of its trace."""
    traces = trace_ids or {}
    items = [
        _attempt(a, authoritative, next_run_at if at == 0 else None)
        | ({"trace_id": traces[a.run_id]} if a.run_id in traces else {})
        for at, a in enumerate(attempts)
    ]
    return listing(items, len(attempts))


def _attempt(attempt: Attempt, authoritative: str | None, next_run_at: datetime | None) -> dict[str, Any]:
    return {
        "run_id": attempt.run_id,
        "attempt_no": attempt.attempt_no,
        "authoritative": attempt.run_id == authoritative,
        "reason": attempt.reason,
        "outcome": attempt.outcome,
        "stage": attempt.stage,
        "error_class": attempt.error_class,
        "error_message": attempt.error_message,
        "complaints": attempt.complaints or [],
        "record_count": attempt.record_count,
        "measures": attempt.measures,
        "schema_version": attempt.schema_version,
        "contract_fingerprint": attempt.contract_fingerprint,
        "payload_digest": attempt.payload_digest,
        "content_digest": attempt.content_digest,
        "started_at": attempt.issued_at,
        "finished_at": attempt.finished_at,
        "approved_at": attempt.approved_at,
        "demoted_at": attempt.demoted_at,
        "next_run_at": next_run_at,
    }
