"""Document of `penstock why`: authority, pointer, attempts, blocks and next step of one partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.views.document import Document
from penstock.views.partitions import partition_fields

if TYPE_CHECKING:
    from penstock.control.why import RunReference, Why


def why_document(found: Why) -> Document:
    """One partition: authority, pointer, last attempts, blocks and next step."""
    from penstock.control.why import SHOWN_ATTEMPTS

    state = found.view.state
    pointer = found.pointer
    return Document(
        {
            **partition_fields(found.key),
            "headline": found.headline,
            "display_status": found.display,
            "stale": list(found.stale),
            "status": state.status,
            "serving": _run(found.serving) or None,
            "waiting": {**_run(found.waiting), "since": found.waiting_since} if found.waiting else None,
            "approve": found.approve,
            "withdrawn_inputs": [
                {**partition_fields(one.key), "run_id": one.run_id, "demoted_at": one.demoted_at}
                for one in found.withdrawn_inputs
            ],
            "requests_in_flight": found.requests_in_flight,
            "authority": {
                "run_id": state.current_run_id,
                "schema_version": state.schema_version,
                "record_count": state.record_count,
                "authority_version": state.authority_version,
                "updated_at": state.updated_at,
            },
            "pointer": None
            if pointer is None
            else {
                "run_id": pointer.run_id,
                "available": pointer.available,
                "record_count": pointer.record_count,
                "table": pointer.table,
                "table_version": pointer.table_version,
                "loaded_at": pointer.loaded_at,
            },
            "attempts": [
                {
                    "attempt_no": attempt.attempt_no,
                    "run_id": attempt.run_id,
                    "outcome": attempt.outcome,
                    "stage": attempt.stage,
                    "error_message": attempt.error_message,
                }
                for attempt in found.attempts[:SHOWN_ATTEMPTS]
            ],
            "warnings": found.warnings,
            "missing_cause": found.missing_cause,
            "blocks": list(found.blocks),
            "next": found.next,
        }
    )


def _run(run: RunReference | None) -> dict[str, Any]:
    if run is None:
        return {}
    return {"run_id": run.run_id, "attempt_no": run.attempt_no, "record_count": run.record_count}
